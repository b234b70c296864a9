"""Once-for-all's published MobileNetV3 checkpoints (Cai et al., ICLR 2020) as weights of our supernet, which holds them
as they are: the same leading channels, first blocks, kernel matrices, squeeze-excite and BN.

A file holds tensors by name, or these under `state_dict`. Names differ from release to release: all may begin with
`module.`, blocks may say `mobile_inverted_conv` for `conv`, and parts may be doubled (`bn.bn.weight`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from chanas.core.arch import SearchSpace
from chanas.errors import CheckpointError, ConfigError, unknown_name
from chanas.network.state_dicts import checked_tensor, describe_differences, differences, read_tensors
from chanas.supernet.elastic.network import Supernet

SPACES = ("ofa-mbv3-w1.0", "ofa-mbv3-w1.2")
NUM_CLASSES = 1000
_FIRST = "first_conv.conv.weight"
_COUNTER = "num_batches_tracked"
_BN = ("weight", "bias", "running_mean", "running_var")


def load_ofa(path: Path, space: SearchSpace | None = None) -> Supernet:
    """The supernet of a published checkpoint, in evaluation mode, with the BN statistics that the file has.

    Args:
        path: of `torch.save`; nothing but tensors is read from it.
        space: the space that it has to be of; by default the one of `SPACES` whose first convolution it has.

    Raises:
        CheckpointError: it is not there, is damaged, holds code, or is of another network or width; the message names
            missing, surplus and misshapen tensors.
        ConfigError: the space is none of `SPACES`.
    """
    if space is not None and space.name not in SPACES:
        raise ConfigError(unknown_name("space of a published once-for-all supernet", space.name, SPACES))
    tensors = _by_plain_name(path, read_tensors(path))
    supernet = Supernet(space or _space_of(tensors), NUM_CLASSES).eval().requires_grad_(False)
    state, names = supernet.state_dict(), dict(_names(supernet.space))
    _check(path, supernet.space, tensors, {theirs: tuple(state[ours].shape) for theirs, ours in names.items()})
    supernet.load_state_dict({ours: tensors[theirs].view_as(state[ours]) for theirs, ours in names.items()})
    return supernet


def _by_plain_name(path: Path, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """float32 tensors by names without prefix, doubled parts and counters of batches."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        parts = name.removeprefix("module.").replace("mobile_inverted_conv", "conv").split(".")
        plain = ".".join(part for part, _ in itertools.groupby(parts))
        if plain.endswith(_COUNTER):
            continue
        if plain in found:
            raise CheckpointError(f"{path} has two tensors that are {plain} (the second: {name})")
        found[plain] = checked_tensor(path, name, tensor)
    return found


def _space_of(tensors: Mapping[str, Tensor]) -> SearchSpace:
    """The space with as many channels in its first convolution; the first one where there is none."""
    spaces = [SearchSpace.load(name) for name in SPACES]
    first = tensors.get(_FIRST)
    width = None if first is None else first.shape[0]
    return next((s for s in spaces if s.width(s.stem_width, s.width_multipliers[0]) == width), spaces[0])


def _check(path: Path, space: SearchSpace, tensors: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> None:
    """Raises CheckpointError: names or numbers of values are not those of the space's supernet."""
    found = differences(tensors, shapes)
    if not found:
        return
    other = _space_of(tensors).name
    is_other_width = other != space.name and set(found) == {"misshapen"}
    advice = f"it is of space '{other}'; " if is_other_width else ""
    raise CheckpointError(
        f"{path} is not a checkpoint of space '{space.name}': {advice}tensors {describe_differences(found)}"
    )


def _names(space: SearchSpace) -> Iterator[tuple[str, str]]:
    """Pairs of their plain name and ours."""
    yield from _conv_bn("first_conv.conv", "first_conv.bn", "stem.conv")
    yield from _conv_bn("blocks.0.conv.depth_conv.conv", "blocks.0.conv.depth_conv.bn", "first.depthwise")
    yield from _conv_bn("blocks.0.conv.point_linear.conv", "blocks.0.conv.point_linear.bn", "first.project")
    for number, (stage, position) in enumerate(
        itertools.product(range(space.num_stages), range(space.max_depth)), start=1
    ):
        theirs, ours = f"blocks.{number}.conv", f"stages.{stage}.{position}"
        for their_part, our_part in (
            ("inverted_bottleneck", "expand"),
            ("depth_conv", "depthwise"),
            ("point_linear", "project"),
        ):
            yield from _conv_bn(f"{theirs}.{their_part}.conv", f"{theirs}.{their_part}.bn", f"{ours}.{our_part}")
        for small, large in itertools.pairwise(space.kernel_sizes):
            matrix = f"{large}to{small}"
            yield f"{theirs}.depth_conv.conv.{matrix}_matrix", f"{ours}.depthwise.conv.transforms.{matrix}"
        if space.stages[stage].use_se:
            for layer, kind in itertools.product(("reduce", "expand"), ("weight", "bias")):
                yield f"{theirs}.depth_conv.se.fc.{layer}.{kind}", f"{ours}.se.{layer}.{kind}"
    yield from _conv_bn("final_expand_layer.conv", "final_expand_layer.bn", "head.conv")
    yield "feature_mix_layer.conv.weight", "classifier.feature.weight"
    yield "classifier.linear.weight", "classifier.linear.weight"
    yield "classifier.linear.bias", "classifier.linear.bias"


def _conv_bn(conv: str, bn: str, ours: str) -> Iterator[tuple[str, str]]:
    yield f"{conv}.weight", f"{ours}.conv.weight"
    for part in _BN:
        yield f"{bn}.{part}", f"{ours}.bn.{part}"
