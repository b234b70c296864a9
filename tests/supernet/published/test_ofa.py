"""Published once-for-all checkpoints: sub-networks equal a plain reference that is written from their description."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fast_cases import fast
from torch import Tensor
from torch.nn import functional as F

from chanas.core import genome
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.blocks import make_divisible
from chanas.errors import CheckpointError, ConfigError
from chanas.supernet.published.ofa import SPACES, load_ofa

Tensors = dict[str, Tensor]
WIDTHS = {
    "ofa-mbv3-w1.0": (16, 24, 40, 80, 112, 160, 960, 1280),
    "ofa-mbv3-w1.2": (24, 32, 48, 96, 136, 192, 1152, 1536),
}
STAGES = (
    (2, F.relu, False),
    (2, F.relu, True),
    (2, F.hardswish, False),
    (1, F.hardswish, True),
    (2, F.hardswish, True),
)


def random_checkpoint(space: str) -> Tensors:
    """Random tensors with the names and shapes of the published files."""
    rng = torch.Generator().manual_seed(0)
    out: Tensors = {}

    def conv(name: str, *shape: int) -> None:
        out[f"{name}.weight"] = torch.randn(shape, generator=rng) * (2.0 / np.prod(shape[1:])) ** 0.5

    def bn(name: str, channels: int) -> None:
        for part, low in (("weight", 0.5), ("bias", -0.2), ("running_mean", -0.2), ("running_var", 0.5)):
            out[f"{name}.{part}"] = low + torch.rand(channels, generator=rng) * (1.0 if low > 0 else 0.4)
        out[f"{name}.num_batches_tracked"] = torch.tensor(7)

    stem, *widths, head, feature = WIDTHS[space]
    conv("first_conv.conv", stem, 3, 3, 3)
    bn("first_conv.bn", stem)
    conv("blocks.0.conv.depth_conv.conv", stem, 1, 3, 3)
    bn("blocks.0.conv.depth_conv.bn", stem)
    conv("blocks.0.conv.point_linear.conv", stem, stem, 1, 1)
    bn("blocks.0.conv.point_linear.bn", stem)
    inputs = stem
    for number in range(20):
        width, (_, _, use_se), block = widths[number // 4], STAGES[number // 4], f"blocks.{number + 1}.conv"
        mid = 6 * inputs
        conv(f"{block}.inverted_bottleneck.conv.conv", mid, inputs, 1, 1)
        bn(f"{block}.inverted_bottleneck.bn.bn", mid)
        conv(f"{block}.depth_conv.conv.conv", mid, 1, 7, 7)
        for name, taps in (("5to3", 9), ("7to5", 25)):
            noise = 0.2 * torch.randn(taps, taps, generator=rng)
            out[f"{block}.depth_conv.conv.{name}_matrix"] = torch.eye(taps) + noise
        bn(f"{block}.depth_conv.bn.bn", mid)
        if use_se:
            reduced = make_divisible(mid // 4)
            for name, shape in (("reduce", (reduced, mid, 1, 1)), ("expand", (mid, reduced, 1, 1))):
                conv(f"{block}.depth_conv.se.fc.{name}", *shape)
                out[f"{block}.depth_conv.se.fc.{name}.bias"] = torch.randn(shape[0], generator=rng)
        conv(f"{block}.point_linear.conv.conv", width, mid, 1, 1)
        bn(f"{block}.point_linear.bn.bn", width)
        inputs = width
    conv("final_expand_layer.conv", head, inputs, 1, 1)
    bn("final_expand_layer.bn", head)
    conv("feature_mix_layer.conv", feature, head, 1, 1)
    conv("classifier.linear", 1000, feature)
    out["classifier.linear.bias"] = torch.randn(1000, generator=rng)
    return out


def reference(t: Tensors, architecture: Architecture, x: Tensor) -> Tensor:
    """Logits as the description of the files has them."""

    def bn(name: str, x: Tensor) -> Tensor:
        c = x.shape[1]
        mean, var, weight, bias = (t[f"{name}.{p}"][:c] for p in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, mean, var, weight, bias, eps=1e-5)

    def mbconv(block: str, x: Tensor, k: int, e: int, stride: int, act: Callable[[Tensor], Tensor], se: bool) -> Tensor:
        c = x.shape[1]
        mid = make_divisible(c * e)
        out = F.conv2d(x, t[f"{block}.inverted_bottleneck.conv.conv.weight"][:mid])
        out = act(bn(f"{block}.inverted_bottleneck.bn.bn", out))
        kernel = t[f"{block}.depth_conv.conv.conv.weight"][:mid]
        if k < 7:
            kernel = (kernel[:, :, 1:6, 1:6].reshape(mid, 25) @ t[f"{block}.depth_conv.conv.7to5_matrix"].T).view(
                mid, 1, 5, 5
            )
        if k < 5:
            kernel = (kernel[:, :, 1:4, 1:4].reshape(mid, 9) @ t[f"{block}.depth_conv.conv.5to3_matrix"].T).view(
                mid, 1, 3, 3
            )
        out = F.conv2d(out, kernel, stride=stride, padding=k // 2, groups=mid)
        out = act(bn(f"{block}.depth_conv.bn.bn", out))
        if se:
            reduced, fc = make_divisible(mid // 4), f"{block}.depth_conv.se.fc"
            y = out.mean((2, 3), keepdim=True)
            y = F.conv2d(y, t[f"{fc}.reduce.weight"][:reduced, :mid], t[f"{fc}.reduce.bias"][:reduced]).relu()
            y = F.conv2d(y, t[f"{fc}.expand.weight"][:mid, :reduced], t[f"{fc}.expand.bias"][:mid])
            out = out * (F.relu6(y + 3) / 6)
        out = F.conv2d(out, t[f"{block}.point_linear.conv.conv.weight"][:, :mid])
        out = bn(f"{block}.point_linear.bn.bn", out)
        return out + x if stride == 1 and out.shape == x.shape else out

    x = F.hardswish(bn("first_conv.bn", F.conv2d(x, t["first_conv.conv.weight"], stride=2, padding=1)))
    y = F.conv2d(x, t["blocks.0.conv.depth_conv.conv.weight"], padding=1, groups=x.shape[1])
    y = F.conv2d(bn("blocks.0.conv.depth_conv.bn", y).relu(), t["blocks.0.conv.point_linear.conv.weight"])
    x = x + bn("blocks.0.conv.point_linear.bn", y)
    for stage, blocks in enumerate(architecture.stages):
        stride, act, se = STAGES[stage]
        for position, (k, e) in enumerate(blocks):
            name = f"blocks.{4 * stage + position + 1}.conv"
            x = mbconv(name, x, k, e, 1 if position else stride, act, se)
    x = F.hardswish(bn("final_expand_layer.bn", F.conv2d(x, t["final_expand_layer.conv.weight"])))
    x = F.hardswish(F.conv2d(x.mean((2, 3), keepdim=True), t["feature_mix_layer.conv.weight"])).flatten(1)
    return F.linear(x, t["classifier.linear.weight"], t["classifier.linear.bias"])


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return random_checkpoint("ofa-mbv3-w1.0")


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize("name", fast(SPACES, [0]))
def test_every_sub_network_computes_what_the_file_means(name: str, tmp_path: Path) -> None:
    checkpoint = random_checkpoint(name)
    supernet = load_ofa(saved(tmp_path / "ofa", {"state_dict": checkpoint}))
    space = supernet.space
    assert (space.name, len(checkpoint)) == (name, 475)
    drawn = genome.decode(space, genome.sample(space, 3, np.random.default_rng(1)))
    for architecture in (space.smallest, space.largest, *drawn):
        images = torch.randn(2, 3, architecture.resolution, architecture.resolution)
        expected = reference(checkpoint, architecture, images)
        supernet.set_active_subnet(architecture)
        scale = float(expected.abs().max())
        for logits in (supernet(images), supernet.extract(architecture)(images)):
            torch.testing.assert_close(logits / scale, expected / scale, rtol=0, atol=1e-5)


def test_older_names_mean_the_same(tensors: Tensors, tmp_path: Path) -> None:
    older = {
        f"module.{name.replace('s.0.conv.', 's.0.mobile_inverted_conv.').replace('bn.bn.', 'bn.')}".replace(
            "linear.weight", "linear.linear.weight"
        ): tensor
        for name, tensor in tensors.items()
        if not name.endswith("num_batches_tracked")
    }
    ours, theirs = (load_ofa(saved(tmp_path / "ofa", part)).state_dict() for part in (tensors, older))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_blocks_share_the_rows_of_mbv3s_tables() -> None:
    mbv3 = SearchSpace.load("mbv3")
    rows = {block.key for block in mbv3.all_blocks(1000)}
    for name in SPACES:
        space = SearchSpace.load(name)
        shared = tuple(s for s in space.sub_spaces if s.resolution in mbv3.resolutions)
        assert len(shared) == 5
        assert {block.key for block in space.all_blocks(1000, shared)} <= rows


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"first_conv.bn.bias": None}, r"1 missing \(first_conv\.bn\.bias\)"),
        ({"blocks.21.conv.weight": torch.ones(3)}, r"1 surplus \(blocks\.21\.conv\.weight\)"),
        ({"classifier.linear.bias": torch.ones(10)}, r"classifier\.linear\.bias \[10\] instead of \[1000\]"),
        ({"classifier.linear.bias": torch.full((1000,), torch.nan)}, "no finite numbers"),
        ({"classifier.linear.bias": 3}, "floating-point"),
        ({"classifier.linear.linear.bias": torch.ones(1000)}, "two tensors"),
    ],
)
def test_wrong_tensors_are_named(change: dict[str, Tensor | None], said: str, tensors: Tensors, tmp_path: Path) -> None:
    content = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
    with pytest.raises(CheckpointError, match=said):
        load_ofa(saved(tmp_path / "ofa", content))


def test_a_file_of_another_width_is_refused(tensors: Tensors, tmp_path: Path) -> None:
    file = saved(tmp_path / "ofa", tensors)
    with pytest.raises(CheckpointError, match=r"it is of space 'ofa-mbv3-w1\.0'"):
        load_ofa(file, SearchSpace.load("ofa-mbv3-w1.2"))
    with pytest.raises(ConfigError, match="unknown space"):
        load_ofa(file, SearchSpace.load("mbv3"))


class Code:
    """What makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def test_code_is_refused_and_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    (tmp_path / "plain").write_bytes(pickle.dumps({"a": Code(folder)}))
    for file in (saved(tmp_path / "ofa", {"a": Code(folder)}), tmp_path / "plain"):
        with pytest.raises(CheckpointError, match="not opened"):
            load_ofa(file)
    assert not folder.exists()


@pytest.mark.parametrize("content", [b"", b"no checkpoint at all", b"PK\x03\x04 cut"])
def test_what_is_no_checkpoint_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "ofa").write_bytes(content)
    with pytest.raises(CheckpointError, match="ofa"):
        load_ofa(tmp_path / "ofa")
    with pytest.raises(CheckpointError, match="does not exist"):
        load_ofa(tmp_path / "nowhere")
