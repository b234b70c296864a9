"""Networks of PyTorch as compiled programs: the same outputs, and what runs as one operator."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from torch import Tensor, nn
from torch.nn import functional as F

from chanas.compiler.program import Program, tiled_rows
from chanas.devices.host import load_target
from chanas.errors import ModelError
from chanas.measuring.messages import Build, ModuleFile
from chanas.measuring.worker.compiler import Compiler
from chanas.models.folding import simplify
from chanas.models.lowering import _Lowering, lower
from chanas.models.reading.reader import read_graph
from chanas.models.sources.model import OpenedModel
from chanas.models.sources.torch_models import opened_program
from chanas.prescheduler import program as tuning
from chanas.prescheduler.program import activation_bytes

from .default_programs import default_module, outputs_of

HOST = load_target("cpu")
LANES = HOST.vector_lanes
IMAGE = (1, 3, 20, 16)


@dataclass(frozen=True)
class Ran:
    """A program that was compiled and run: its largest error as a share of the largest output."""

    program: Program
    error: float

    @property
    def tuned(self) -> list[str]:
        return [o.step.workload.op for o in self.program.tuned]

    @property
    def others(self) -> Counter[str]:
        return Counter(o.name for o in self.program.others)


Run = Callable[..., Ran]


def opened_network(network: nn.Module, *shapes: tuple[int, ...]) -> OpenedModel:
    """A network as it is opened, exported for inputs of these shapes or for one image."""
    torch.manual_seed(0)
    program = torch.export.export(network.eval(), tuple(torch.zeros(s) for s in shapes or (IMAGE,)))
    return opened_program("net", program, {})


def lowered_network(network: nn.Module, *shapes: tuple[int, ...]) -> Program:
    """The program of a network, for tests of what it consists of."""
    opened = opened_network(network, *shapes)
    return lower(simplify(read_graph(opened.proto, opened.inputs)), HOST)


def test_a_dense_layer_that_no_kernel_takes_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Lowering, "_takes", lambda self, make: None)
    program = lowered_network(
        nn.Sequential(nn.Conv2d(3, LANES, 3), nn.ReLU(), nn.Flatten(), nn.Linear(LANES * 18 * 14, 5))
    )
    read = {r for o in program.operations for r in o.reads if isinstance(r, int)} | set(program.outputs)
    assert {len(program.inputs) + i for i in range(len(program.operations))} <= read


def test_weights_beyond_what_a_worker_may_hold_are_refused_before_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    program = lowered_network(nn.Sequential(nn.Flatten(), nn.Linear(960, 1000)))
    monkeypatch.setattr(tuning, "memory_limit", lambda: 1 << 30)
    tuning.check_provable(program)
    monkeypatch.setattr(tuning, "memory_limit", lambda: 305_000_000)  # less than twice 3.84 MB beside TVM
    with pytest.raises(ModelError, match=r"3\.84 MB of weights"):
        tuning.check_provable(program)


@pytest.fixture
def run(compiler: Compiler, tmp_path: Path) -> Run:
    """Compile a network as a program with the default schedules, on one thread or more, and run it."""

    def compiled(network: nn.Module, *shapes: tuple[int, ...], choice: int = 0, threads: int = 1) -> Ran:
        opened = opened_network(network, *shapes)
        target = dataclasses.replace(HOST, num_threads=threads)
        lowered = lower(simplify(read_graph(opened.proto, opened.inputs)), target)
        made = default_module(lowered, target, choice)
        json, library = tmp_path / "net.json", tmp_path / "net.so"
        json.write_text(tvm.ir.save_json(made.module))
        compiler.result(Build(target=target, what=ModuleFile(json), path=library), "a network")
        inputs = opened.random_inputs(1)
        outputs = outputs_of(tvm.runtime.load_module(str(library)), made, inputs)
        pairs = list(zip(outputs, opened.answer(inputs), strict=True))
        assert all(a.shape == b.shape for a, b in pairs)
        return Ran(lowered, max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs))

    return compiled


class Of(nn.Module):
    """Layers by name and a function of them and the inputs."""

    def __init__(self, function: Callable[..., object], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: Tensor) -> object:
        return self.function(self, *inputs)


def conv(inp: int, out: int, kernel: int = 1, **options: int) -> nn.Conv2d:
    return nn.Conv2d(inp, out, kernel, **{"padding": kernel // 2, **options})


STEM = conv(3, 2 * LANES, 3)


def after_stem(function: Callable[..., object], **layers: nn.Module) -> Of:
    """A network whose first layer gives two channel blocks."""
    return Of(lambda n, x: function(n, n.stem(x)), stem=STEM, **layers)


C = 2 * LANES


@pytest.mark.parametrize(
    "choice", [0, pytest.param(1, marks=pytest.mark.slow), 2], ids=["direct", "winograd", "winograd2"]
)
def test_a_residual_and_an_activation_are_part_of_the_convolution(run: Run, choice: int) -> None:
    layers = {"one": conv(C, C, 3), "two": conv(C, C, 3)}
    ran = run(after_stem(lambda n, x: F.relu(n.two(F.relu(n.one(x))) + x), **layers), choice=choice)
    assert ran.tuned == ["conv", "blockconv", "blockconv"]
    assert [o.step.workload.residual_first for o in ran.program.tuned] == [False, False, True]
    assert ran.others == {"from channel blocks": 1}
    assert ran.error < 1e-5


def test_a_residual_after_the_activation_stays_after_it(run: Run) -> None:
    ran = run(after_stem(lambda n, x: F.hardswish(n.one(x)) + x, one=conv(C, C)))
    assert ran.tuned == ["conv", "pointwise"]
    assert not ran.program.tuned[1].step.workload.residual_first
    assert ran.error < 1e-5


def test_squeeze_excite_is_a_gate_of_the_convolution_after_it(run: Run) -> None:
    def squeezed(n: nn.Module, x: Tensor) -> Tensor:
        gate = torch.sigmoid(n.expand(F.silu(n.reduce(x.mean((2, 3), keepdim=True)))))
        return n.project(x * gate)

    ran = run(after_stem(squeezed, reduce=conv(C, 5), expand=conv(5, C), project=conv(C, 24)))
    assert ran.tuned == ["conv", "pool", "pointwise", "pointwise", "pointwise"]
    assert ran.program.tuned[-1].step.workload.scaled
    assert ran.others == {"from channel blocks": 1}
    assert ran.error < 1e-5


def normalised(channels: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels)
    for tensor, low in ((layer.weight, -1.0), (layer.bias, -1.0), (layer.running_mean, -1.0), (layer.running_var, 0.5)):
        nn.init.uniform_(tensor, low, 2.0)
    return layer


@pytest.mark.parametrize("images", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_normalisation_before_a_convolution_is_part_of_it(run: Run, images: int) -> None:
    """Of a sum that others read too, as in DenseNet and in residual networks that normalise first."""

    def before(n: nn.Module, x: Tensor) -> Tensor:
        x = x + n.one(F.hardswish(n.norm(x)))
        return x + n.two(F.relu(torch.linspace(-1.0, 2.0, C).reshape(C, 1, 1) * x))

    layers = {"norm": normalised(C), "one": conv(C, C), "two": conv(C, C)}
    ran = run(after_stem(before, **layers), (images, 3, 20, 16))
    found = [o.step.workload for o in ran.program.tuned]
    assert [(w.op, w.prologue, w.residual) for w in found[1:]] == [("pointwise", p, True) for p in ("hswish", "relu")]
    assert ran.others == {"constant": 4, "from channel blocks": 1}
    assert ran.error < 1e-5


def test_an_activation_before_a_convolution_that_another_reads_too_stays_outside(run: Run) -> None:
    layers = {"norm": normalised(C), "one": conv(C, 24), "two": conv(C, 24)}
    shared = after_stem(lambda n, x: n.one(y := F.relu(n.norm(x.exp()))) + n.two(y), **layers)
    ran = run(shared)
    assert [o.step.workload.prologue for o in ran.program.tuned] == [None, None, None]
    assert ran.error < 1e-5


def test_padding_stays_after_the_activation(run: Run) -> None:
    layers = {"norm": normalised(C), "one": nn.Conv2d(C, 24, 1, padding=1)}
    ran = run(after_stem(lambda n, x: n.one(F.relu(n.norm(x.exp()))), **layers))
    assert [o.step.workload.prologue for o in ran.program.tuned] == [None, None]
    assert ran.error < 1e-5


def test_a_gate_that_another_layer_reads_too_is_a_product_of_its_own(run: Run) -> None:
    def gated(n: nn.Module, x: Tensor) -> Tensor:
        scaled = x * torch.sigmoid(n.expand(x.mean((2, 3), keepdim=True)))
        return n.one(scaled) + n.two(scaled)

    ran = run(after_stem(gated, expand=conv(C, C), one=conv(C, 24), two=conv(C, 24)))
    assert ran.others == {"multiply": 1, "from channel blocks": 1}
    assert ran.error < 1e-5


def test_halves_that_are_shuffled_move_once_and_only_where_they_are_read(run: Run) -> None:
    def unit(n: nn.Module, x: Tensor) -> Tensor:
        for layer in (n.one, n.two):
            kept, changed = x.chunk(2, 1)
            x = F.channel_shuffle(torch.cat((kept, F.relu(layer(changed))), 1), 2)
        return n.last(x)

    half = 3 * LANES // 2  # half of the channels is no whole number of blocks
    layers = {"one": conv(half, half), "two": conv(half, half), "last": conv(2 * half, 8)}
    ran = run(Of(lambda n, x: unit(n, n.stem(x)), stem=conv(3, 2 * half, 3), **layers))
    assert ran.others == {"channels moved": 3, "from channel blocks": 1}
    assert ran.error < 1e-5


def test_windows_are_pooled_in_channel_blocks(run: Run) -> None:
    pools = [
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.MaxPool2d((2, 3), (1, 2)),
        nn.AvgPool2d(3, 1, 1),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    ]
    ran = run(after_stem(lambda _, x: tuple(pool(x) for pool in pools)))
    assert ran.others == {"max_pool2d": 3, "avg_pool2d": 2, "from channel blocks": 5}
    assert ran.error < 1e-6


def test_every_convolution_is_one_tuned_operator(run: Run) -> None:
    layers = {
        conv(C, 24, 3, stride=2): "blockconv",
        conv(C, 24, stride=2): "pointwise",
        conv(C, C, 5, groups=C): "depthwise",
        conv(C, 2 * C, 3, groups=C): "depthwise",
        conv(C, C, 3, groups=4): "groupconv",
        nn.Conv2d(C, 24, (1, 7), padding=(0, 3)): "blockconv",
        nn.Conv2d(C, 24, 3, padding=2, dilation=2): "blockconv",
        nn.ConvTranspose2d(C, 24, 4, 2, 1): "upconv",
        nn.ConvTranspose2d(C, 24, 3, 2, 1, output_padding=1): "upconv",
    }
    all_layers = nn.ModuleList(layers)
    ran = run(after_stem(lambda n, x: tuple(F.relu(layer(x)) for layer in n.all_layers), all_layers=all_layers))
    assert ran.tuned == ["conv", *layers.values()]
    assert ran.others == {"from channel blocks": len(layers)}
    assert ran.error < 1e-5


def choices(*layers: nn.Module, height: int = 20, width: int = 16) -> list[list[str]]:
    """The operators that compute each of some layers after a stem."""
    network = after_stem(lambda n, x: tuple(layer(x) for layer in n.layers), layers=nn.ModuleList(layers))
    _, *tuned = lowered_network(network, (1, 3, height, width)).tuned
    assert len(tuned) == len(layers)
    return [[w.op for w in operation.choices] for operation in tuned]


DIRECT, ONE_WAY = ["blockconv"], ["blockconv", "winograd"]
BOTH_WAYS = [*ONE_WAY, "winograd2"]


def test_square_tiles_of_winograd_are_a_choice_where_they_save_more() -> None:
    layers = conv(C, 24, 3), conv(C, 24, 3, padding=0), conv(C, 24, 5), nn.Conv2d(C, 24, (3, 5))
    assert choices(*layers) == [BOTH_WAYS] * 4


def test_winograd_is_a_choice_where_it_saves_multiplications() -> None:
    layers = [
        conv(C, 24, 7),
        nn.Conv2d(C, 24, (1, 3), padding=(0, 1)),
        nn.Conv2d(C, 24, (3, 1), padding=(1, 0)),
        nn.Conv2d(C, 24, (1, 7), padding=(0, 3)),
        nn.Conv2d(C, 24, (7, 1), padding=(3, 0)),
        nn.Conv2d(C, 24, (9, 3), padding=(4, 1)),
        nn.Conv2d(C, 24, 3, (2, 1), padding=1),
    ]
    assert choices(*layers) == [ONE_WAY] * 7


def test_winograd_is_no_choice_where_it_saves_little_or_has_no_kernel() -> None:
    layers = [
        conv(C, 24, 3, stride=2),
        conv(C, 24, 3, dilation=2),
        conv(C, C, 3, groups=4),
        nn.Conv2d(C, 24, (1, 9), padding=(0, 4)),
        nn.Conv2d(C, 24, (1, 2), padding=(0, 1), stride=2),
    ]
    assert choices(*layers) == [DIRECT, DIRECT, ["groupconv"], DIRECT, DIRECT]


@pytest.mark.parametrize(
    ("size", "offered"),
    [(2, DIRECT), (4, ONE_WAY), (5, DIRECT), (7, BOTH_WAYS), (9, BOTH_WAYS)],
)
def test_winograd_is_a_choice_where_its_tiles_are_filled(size: int, offered: list[str]) -> None:
    assert choices(conv(C, 24, 3), height=size, width=size) == [offered]


def test_tiles_that_lie_down_the_columns_are_right_in_a_network(run: Run) -> None:
    layers = {"wide": nn.Conv2d(C, C, (1, 7), padding=(0, 3)), "tall": nn.Conv2d(C, C, (7, 1), padding=(3, 0))}
    ran = run(after_stem(lambda n, x: F.relu(n.tall(F.relu(n.wide(x))) + x), **layers), choice=1)
    assert [o.choices[1].op for o in ran.program.tuned[1:]] == ["winograd"] * 2
    assert ran.error < 1e-4


def test_a_grouped_transposed_convolution_is_computed_all_the_same(run: Run) -> None:
    ran = run(after_stem(lambda n, x: n.layer(x), layer=nn.ConvTranspose2d(C, C, 2, 2, groups=2)))
    assert ran.tuned == ["conv"]
    assert ran.error < 1e-5


@pytest.mark.parametrize("channels", [C, C + 3], ids=["whole blocks", "a part of a block"])
def test_a_dense_layer_reads_a_flattened_map(run: Run, channels: int) -> None:
    layers = {"stem": conv(3, channels, 3), "dense": nn.Linear(channels * 20, 7)}
    ran = run(Of(lambda n, x: n.dense(F.max_pool2d(n.stem(x), 4).flatten(1)), **layers))
    assert ran.tuned == ["conv", "pointwise"]
    assert ran.others["to channel blocks"] == (0 if channels == C else 1)
    assert ran.error < 1e-5


def test_maps_are_enlarged(run: Run) -> None:
    def enlarged(n: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        low = n.low(x)
        return tuple(n.last(F.interpolate(low, scale_factor=2, mode=mode)) for mode in ("nearest", "bilinear"))

    ran = run(after_stem(enlarged, low=conv(C, C, 3, stride=2), last=conv(C, 8)))
    assert ran.tuned == ["conv", "blockconv", "pointwise", "pointwise"]
    assert ran.error < 1e-5


@pytest.mark.parametrize("tokens", [pytest.param(2 * LANES, marks=pytest.mark.slow), 37])
def test_an_encoder_of_tokens_has_its_dense_layers_tuned(run: Run, tokens: int) -> None:
    def encoded(n: nn.Module, x: Tensor) -> Tensor:
        heads = [layer(x).reshape(1, tokens, 2, 10).transpose(1, 2) for layer in (n.q, n.k, n.v)]
        mixed = torch.softmax(heads[0] @ heads[1].transpose(-1, -2) / 3.0, -1) @ heads[2]
        x = n.norm(x + n.o(mixed.transpose(1, 2).reshape(1, tokens, 20)))
        return x + n.down(F.gelu(n.up(x)))

    layers = {name: nn.Linear(20, 20) for name in "qkvo"}
    network = Of(encoded, **layers, norm=nn.LayerNorm(20), up=nn.Linear(20, 40), down=nn.Linear(40, 20))
    ran = run(network, (1, tokens, 20))
    assert ran.tuned == ["pointwise"] * 6
    assert {o.step.workload.input_size for o in ran.program.tuned} == {tiled_rows(tokens)}
    fused = [(o.step.workload.epilogue, o.step.workload.residual) for o in ran.program.tuned[3:]]
    assert fused == [("none", True), ("gelu", False), ("none", True)]
    assert ran.error < 1e-5


def encoder_layer(size: int, heads: int) -> nn.Module:
    """An encoder's layer whose biases and scales are no zeros and ones."""
    layer = nn.TransformerEncoderLayer(size, heads, 2 * size, 0.0, "gelu", batch_first=True)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.1)
    return layer


@pytest.mark.parametrize(
    ("tokens", "heads", "size"),
    [
        (32, 2, 64),
        pytest.param(197, 3, 96, marks=pytest.mark.slow),
        (37, 3, 3 * LANES),
        pytest.param(18, 2, 2 * LANES, marks=pytest.mark.slow),
    ],
)
def test_attention_is_one_function_in_channel_blocks(run: Run, tokens: int, heads: int, size: int) -> None:
    ran = run(encoder_layer(size, heads), (1, tokens, size))
    assert ran.tuned == ["pointwise"] * 4
    assert ran.others["attention"] == 1
    assert ran.others["from channel blocks"] == 1
    assert {"softmax", "matmul", "permute_dims"}.isdisjoint(ran.others)
    assert ran.error < 1e-5


def test_rows_after_attention_are_added_and_normalised_in_channel_blocks() -> None:
    program = lowered_network(encoder_layer(64, 2), (1, 32, 64))
    assert [o.step.workload.residual for o in program.tuned] == [False, True, False, True]
    blocked = [o.value.blocked for o in program.others if o.name == "layer_norm"]
    assert blocked == [True, True]


def test_two_threads_attend_to_the_same(run: Run) -> None:
    assert run(encoder_layer(64, 2), (1, 197, 64), threads=2).error < 1e-5


def attention(tokens: int, size: int, heads: int, added: Callable[..., Tensor]) -> Of:
    """Attention of an input's rows to themselves, with something done to its scores."""

    def attended(n: nn.Module, x: Tensor, *rest: Tensor) -> Tensor:
        q, k, v = n.rows(x).reshape(-1, tokens, 3, heads, size // heads).permute(2, 0, 3, 1, 4)
        scores = added(n, q @ k.transpose(-1, -2), *rest)
        return n.end((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))

    return Of(attended, rows=nn.Linear(size, 3 * size), end=nn.Linear(size, size))


@pytest.mark.parametrize(("sequences", "tokens"), [(2, 29), (3, 17)])
def test_sequences_whose_tokens_fill_no_tiles_attend_to_their_own(run: Run, sequences: int, tokens: int) -> None:
    ran = run(attention(tokens, 64, 2, lambda _, s: s / 3.0), (sequences, tokens, 64))
    assert ran.others["attention"] == 1
    assert ran.error < 1e-5


@pytest.mark.parametrize("tokens", [14, 29])
def test_sequences_whose_tokens_are_stored_by_turns_attend_to_their_own(run: Run, tokens: int) -> None:
    ran = run(encoder_layer(64, 2), (3, tokens, 64))
    assert ran.tuned == ["pointwise"] * 4
    assert [o.step.workload.residual for o in ran.program.tuned] == [False, True, False, True]
    assert ran.others["attention"] == 1
    assert {"softmax", "matmul", "permute_dims"}.isdisjoint(ran.others)
    assert ran.error < 1e-5


def test_constants_are_added_to_scores_by_head_and_by_sequence(run: Run) -> None:
    """As windows of images have it: one for each head, then one for each window."""
    by_head, by_window = torch.randn(2, 14, 14), torch.where(torch.rand(4, 1, 14, 14) < 0.3, -100.0, 0.0)
    masked = attention(14, 64, 2, lambda _, s: ((s + by_head).reshape(1, 4, 2, 14, 14) + by_window).reshape(s.shape))
    ran = run(masked, (4, 14, 64))
    assert ran.others["attention"] == 1
    assert ran.error < 1e-5


def test_masks_of_the_input_are_added_to_scores(run: Run) -> None:
    masked = attention(14, 64, 2, lambda _, s, mask: s / 3.0 + mask)
    each = Of(lambda n, x, *masks: tuple(n.masked(x, mask) for mask in masks), masked=masked)
    ran = run(each, (2, 14, 64), (1, 1, 14, 14), (2, 1, 1, 14), (14, 14))
    assert ran.others["attention"] == 3
    assert ran.error < 1e-5


def test_rows_that_are_masked_altogether_give_zeros(run: Run) -> None:
    """Written as PyTorch's exporter writes its own attention."""
    mask = torch.zeros(14, 14).masked_fill(torch.eye(14) > 0, -torch.inf)
    mask[3] = -torch.inf

    def attended(n: nn.Module, x: Tensor) -> Tensor:
        q, k, v = n.rows(x).reshape(1, 14, 3, 2, 32).permute(2, 0, 3, 1, 4)
        shares = (q @ k.transpose(-1, -2) * 0.2 + mask).softmax(-1)
        shares = torch.where(shares.isnan(), torch.zeros(()), shares)
        return (shares @ v).transpose(1, 2).reshape(1, 14, 64)

    ran = run(Of(attended, rows=nn.Linear(64, 192)), (1, 14, 64))
    assert ran.others["attention"] == 1
    assert ran.error < 1e-5


@pytest.mark.parametrize("is_truth", [True, False], ids=["truths", "numbers"])
def test_queries_without_a_key_give_zeros_in_pytorchs_own_attention(run: Run, is_truth: bool) -> None:
    kept = torch.eye(14) < 1
    kept[3] = False

    def attended(n: nn.Module, x: Tensor) -> Tensor:
        q, k, v = n.rows(x).reshape(1, 14, 3, 2, 32).permute(2, 0, 3, 1, 4)
        mask = kept & (x[0, :, :1] < 100.0)
        mask = mask if is_truth else torch.where(mask, 0.0, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(1, 14, 64)

    ran = run(Of(attended, rows=nn.Linear(64, 192)), (1, 14, 64))
    assert ran.others["attention"] == 1
    assert ran.error < 1e-5


def test_other_functions_of_scores_are_computed_all_the_same(run: Run) -> None:
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda s: s.abs(),
        lambda s: (s + 1.0) * 0.5,
        lambda s: s.transpose(-1, -2),
        lambda s: s + s.tanh(),
    ]
    each = nn.ModuleList(attention(14, 64, 2, lambda _, s, f=f: f(s)) for f in functions)
    assert run(Of(lambda n, x: tuple(layer(x) for layer in n.each), each=each), (2, 14, 64)).error < 1e-5


def test_heads_that_are_parts_of_blocks_are_computed_all_the_same(run: Run) -> None:
    ran = run(encoder_layer(20, 2), (1, 21, 20))
    assert ran.others["attention"] == 0
    assert ran.error < 1e-5


@pytest.mark.parametrize("size", [2 * LANES, 20])
def test_rows_in_channel_blocks_are_normalised_there(run: Run, size: int) -> None:
    ran = run(Of(lambda n, x: n.norm(n.dense(x)), dense=nn.Linear(12, size), norm=nn.LayerNorm(size)), (1, 9, 12))
    assert ran.others == {"to channel blocks": 1, "layer_norm": 1, "from channel blocks": 1}
    assert ran.error < 1e-5


def test_rows_of_maps_are_multiplied_as_rows_of_a_matrix(run: Run) -> None:
    layers = {"up": nn.Linear(20, 40), "down": nn.Linear(40, 20)}
    ran = run(Of(lambda n, x: n.down(F.gelu(n.up(x))) + x, **layers), (1, 5, 6, 20))
    assert [(o.step.workload.epilogue, o.step.workload.residual) for o in ran.program.tuned] == [
        ("gelu", False),
        ("none", True),
    ]
    assert ran.others == {"reshape": 2, "to channel blocks": 1, "from channel blocks": 1}
    assert ran.error < 1e-5


def test_channels_are_shuffled_where_no_convolution_takes_them_in_blocks(run: Run) -> None:
    layers = {"first": nn.Conv2d(3, 16, 3, padding=1), "second": nn.Conv2d(16, 8, 3, padding=1, groups=4)}
    network = Of(lambda n, x: n.second(F.channel_shuffle(n.first(x).relu(), 4)), **layers)
    assert run(network, (2, 3, 8, 8)).error < 1e-5


def test_rows_are_added_up_a_vector_at_a_time(run: Run) -> None:
    rows = Of(lambda _, *rows: tuple(x.sum(-1, keepdim=True) * x + x.mean(-1, keepdim=True) for x in rows))
    shapes = [(1, 2, 12, length) for length in (3, 2 * LANES, 5 * LANES + 3)]
    assert run(rows, *shapes).error < 1e-5


def test_sums_are_taken_along_any_axes(run: Run) -> None:
    network = Of(lambda _, x: tuple(x.sum(axes) for axes in ((2, 3), (1, 2, 3), (1,), (0, 1, 2, 3))))
    assert run(network, (2, 3, 7, 6)).error < 1e-5


def test_layers_are_normalised_along_their_last_axes(run: Run) -> None:
    layers = {"one": nn.LayerNorm((20,)), "two": nn.LayerNorm((5, 20))}
    assert run(Of(lambda n, x: (n.one(x), n.two(x)), **layers), (2, 5, 20)).error < 1e-5


def test_shares_are_taken_along_any_axis(run: Run) -> None:
    assert run(Of(lambda _, x: tuple(x.softmax(axis) for axis in range(3))), (3, 5, 37)).error < 1e-5


def test_computed_matrices_are_multiplied(run: Run) -> None:
    shapes = ((3, 5, 7), (7, 4), (2, 1, 5, 7), (3, 7, 19), (19, 7), (7, 16))
    assert run(Of(lambda _, a, b, c, d, e, f: (a @ b, c @ d, e @ f)), *shapes).error < 1e-5


def test_numbers_beyond_a_table_stand_for_its_ends(run: Run) -> None:
    class Clamped(nn.Module):
        """Numbers of rows that may lie beyond the table, as the framework must have them."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, LANES)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(torch.clamp((x * 10).to(torch.int64), 0, 4))

    assert run(Clamped(), (2, 9)).error == 0.0


def test_negative_numbers_count_from_the_end_of_a_table(run: Run) -> None:
    last = Of(lambda _, x: (x[:, -1], x[:, [-2, 1]], (x * 10).to(torch.int32)[:, -1], x.new_ones(3).cumsum(0)[-1] + x))
    assert run(last, (2, 5, 3)).error == 0.0


def test_a_network_may_have_several_inputs_and_outputs(run: Run) -> None:
    network = Of(lambda n, x, y: (n.one(x), n.two(F.relu(n.one(x))) * y, y), one=conv(3, 8, 3), two=conv(8, 8))
    assert run(network, IMAGE, (1, 8, 1, 1)).error < 1e-5


def test_constants_by_channel_and_single_ones_stay_in_channel_blocks(run: Run) -> None:
    def shifted(n: nn.Module, x: Tensor) -> Tensor:
        x = F.relu(n.one(x))
        return (x + n.shift.weight[:, :1, None].reshape(1, -1, 1, 1)) * 0.3 - x

    ran = run(after_stem(shifted, one=conv(C, 24), shift=nn.Linear(2, 24)))
    assert "to channel blocks" not in ran.others
    assert ran.error < 1e-5


def test_two_threads_compute_the_same(run: Run) -> None:
    network = after_stem(lambda n, x: F.channel_shuffle(n.one(F.max_pool2d(x, 2)), 2), one=conv(C, 48, 3))
    assert run(network, (1, 3, 64, 64), threads=2).error < 1e-5


def excited(n: nn.Module, x: Tensor) -> Tensor:
    """Squeeze-excite whose gate comes from dense layers."""
    gate = torch.sigmoid(n.expand(F.silu(n.reduce(x.mean((2, 3))))))
    return n.project(x * gate[:, :, None, None])


def shuffled(n: nn.Module, x: Tensor) -> Tensor:
    kept, changed = x.chunk(2, 1)
    return n.last(F.channel_shuffle(torch.cat((F.max_pool2d(kept, 3, 1, 1), F.relu(n.one(changed))), 1), 2))


def enlarged(n: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    low = n.low(x)
    return tuple(n.last(F.interpolate(low, scale_factor=2, mode=mode)) for mode in ("nearest", "bilinear"))


WINDOWS = [
    conv(C, 24, 3, stride=2),
    conv(C, 24, stride=2),
    conv(C, C, 5, groups=C),
    conv(C, C, 3, groups=C // 8),
    nn.Sequential(nn.ZeroPad2d((1, 2, 0, 1)), nn.Conv2d(C, 24, 3, dilation=2)),
    nn.ConvTranspose2d(C, 24, 4, 2, 1),
    nn.ConvTranspose2d(C, 24, 3, 2, 1, output_padding=1),
    nn.ConvTranspose2d(C, C, 2, 2, groups=2),
    nn.MaxPool2d(3, 2, ceil_mode=True),
    nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    nn.AdaptiveAvgPool2d((2, 2)),
]
HALF = C // 2
SEVERAL: dict[str, tuple[nn.Module, set[str]]] = {
    "residual": (after_stem(lambda n, x: F.relu(n.one(x) + x), one=conv(C, C, 3)), {"from channel blocks"}),
    "gate": (
        after_stem(excited, reduce=nn.Linear(C, 5), expand=nn.Linear(5, C), project=conv(C, 24)),
        {"reshape", "to channel blocks", "from channel blocks"},
    ),
    "windows": (
        after_stem(lambda n, x: tuple(layer(x) for layer in n.layers), layers=nn.ModuleList(WINDOWS)),
        {"conv_transpose", "add", "max_pool2d", "avg_pool2d", "from channel blocks"},
    ),
    "moved channels": (
        after_stem(shuffled, one=conv(HALF, HALF), last=conv(C, 8)),
        {"max_pool2d", "channels moved", "from channel blocks"},
    ),
    "enlarged": (
        after_stem(enlarged, low=conv(C, C, 3, stride=2), last=conv(C, 8)),
        {"repeat", "interpolate", "to channel blocks", "from channel blocks"},
    ),
    "flattened": (
        Of(lambda n, x: n.dense(F.max_pool2d(n.stem(x), 4).flatten(1)), stem=STEM, dense=nn.Linear(C * 20, 7)),
        {"max_pool2d", "reshape", "to channel blocks", "from channel blocks"},
    ),
    "constants": (
        after_stem(lambda n, x: (F.relu(x) + torch.arange(float(C)).reshape(1, C, 1, 1)).exp() * 0.3),
        {"add", "exp", "multiply", "from channel blocks"},
    ),
    "constants of each image": (
        after_stem(lambda n, x: n.one(x * torch.tensor([1.0, -2.0, 3.0]).reshape(3, 1, 1, 1)), one=conv(C, 8)),
        {"multiply", "to channel blocks", "from channel blocks"},
    ),
    "parts of blocks": (
        Of(lambda n, x: n.two(F.relu(n.one(x.repeat(1, 7, 1, 1)))), one=conv(21, 21, 3), two=conv(21, 8)),
        {"tile", "to channel blocks", "from channel blocks"},
    ),
    "images as channels": (
        after_stem(lambda n, x: n.one(F.relu(x).reshape(1, 3 * C, *IMAGE[2:])), one=conv(3 * C, 8, 3)),
        {"reshape", "to channel blocks", "from channel blocks"},
    ),
    "images side by side": (
        after_stem(lambda n, x: n.one(torch.cat((x, F.relu(x[:1])))), one=conv(C, 8, 3)),
        {"slice", "relu", "concat", "to channel blocks", "from channel blocks"},
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_images_have_the_operators_of_one(run: Run, name: str) -> None:
    network, others = SEVERAL[name]
    ran = run(network, (3, *IMAGE[1:]))
    assert set(ran.others) == others
    assert ran.program.tuned[0].step.workload.batch == 3
    assert ran.error < 1e-5


@pytest.mark.parametrize("choice", [1, 2], ids=["winograd", "winograd2"])
def test_tiles_of_several_images_are_right_on_two_threads(run: Run, choice: int) -> None:
    ran = run(
        after_stem(lambda n, x: n.one(F.relu(x)) + x, one=conv(C, C, 3)), (3, *IMAGE[1:]), choice=choice, threads=2
    )
    assert ran.program.tuned[-1].choices[choice].batch == 3
    assert ran.error < 1e-5


def test_a_gate_that_all_images_have_in_common_is_a_product_of_its_own(run: Run) -> None:
    network = Of(lambda n, x, gate: n.two(F.relu(n.one(x)) * gate), one=conv(3, C, 3), two=conv(C, 24))
    ran = run(network, (3, *IMAGE[1:]), (1, C, 1, 1))
    assert not ran.program.tuned[-1].step.workload.scaled
    assert ran.error < 1e-5


def test_memory_is_that_of_what_is_needed_at_one_time() -> None:
    program = lowered_network(after_stem(lambda n, x: n.two(n.one(x)), one=conv(C, C), two=conv(C, C)))
    each = 4 * C * IMAGE[2] * IMAGE[3]
    assert activation_bytes(program) == 2 * each


def test_numbers_without_axes_are_read_as_such(run: Run) -> None:
    ran = run(after_stem(lambda n, x: torch.where(x > 0.1, x, torch.full_like(x, -0.5))))
    assert ran.error < 1e-6
