"""Networks of PyTorch as compiled programs: the same outputs, and the operators that they consist of."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from torch import Tensor, nn
from torch.nn import functional as F

from chanas.compiler.program import tiled_rows
from chanas.errors import ModelError
from chanas.measuring.messages import Build, ModuleFile
from chanas.measuring.worker.compiler import Compiler
from chanas.models.lowering import _Lowering, lower
from chanas.operators.workload import Workload
from chanas.prescheduler import program as tuning
from chanas.prescheduler.program import activation_bytes

from .default_programs import default_module, outputs_of
from .torch_networks import HOST, Of, graphs, lowered, opened

LANES = HOST.vector_lanes
IMAGE = (1, 3, 20, 16)
C = 2 * LANES
HALF = C // 2


def described(w: Workload) -> str:
    """An operator and what is part of it, in the order of computing: `hswish pointwise residual relu`."""
    before = w.prologue or ("gate" if w.scaled else "")
    after = ("residual" if w.residual else "", "" if w.epilogue == "none" else str(w.epilogue))
    return " ".join(filter(None, (before, w.op, *(after if w.residual_first else after[::-1]))))


@dataclass(frozen=True)
class Case:
    """A network and its program.

    tuned   operators, as they are `described`; None where they are not what the case is about
    others  how often there are operations that are not tuned; None of these, too
    some    the same of some of them
    choice  the operator that is taken of those that compute the same
    """

    network: nn.Module
    shapes: tuple[tuple[int, ...], ...] = (IMAGE,)
    tuned: list[str] | None = None
    others: dict[str, int] | None = None
    some: Mapping[str, int] = field(default_factory=dict)
    choice: int = 0
    threads: int = 1
    error: float = 1e-5


def conv(inp: int, out: int, kernel: int = 1, **options: int) -> nn.Conv2d:
    return nn.Conv2d(inp, out, kernel, **{"padding": kernel // 2, **options})


STEM = conv(3, 2 * LANES, 3)


def after_stem(function: Callable[..., object], **layers: nn.Module) -> Of:
    """A network whose first layer gives two channel blocks."""
    return Of(lambda n, x: function(n, n.stem(x)), stem=STEM, **layers)


# ---- maps -----------------------------------------------------------------------------------------------------------
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


def both(n: nn.Module, x: Tensor) -> Tensor:
    return F.relu(n.two(F.relu(n.one(x))) + x)


def squeezed(n: nn.Module, x: Tensor) -> Tensor:
    gate = torch.sigmoid(n.expand(F.silu(n.reduce(x.mean((2, 3), keepdim=True)))))
    return n.project(x * gate)


def gated_twice(n: nn.Module, x: Tensor) -> Tensor:
    scaled = x * torch.sigmoid(n.expand(x.mean((2, 3), keepdim=True)))
    return n.one(scaled) + n.two(scaled)


def normalised(channels: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels)
    for tensor, low in ((layer.weight, -1.0), (layer.bias, -1.0), (layer.running_mean, -1.0), (layer.running_var, 0.5)):
        nn.init.uniform_(tensor, low, 2.0)
    return layer


def normalised_first(n: nn.Module, x: Tensor) -> Tensor:
    """Of a sum that others read too, as in DenseNet and in residual networks that normalise first."""
    x = x + n.one(F.hardswish(n.norm(x)))
    return x + n.two(F.relu(torch.linspace(-1.0, 2.0, C).reshape(C, 1, 1) * x))


def shuffled_twice(n: nn.Module, x: Tensor) -> Tensor:
    x = n.stem(x)
    for layer in (n.one, n.two):
        kept, changed = x.chunk(2, 1)
        x = F.channel_shuffle(torch.cat((kept, F.relu(layer(changed))), 1), 2)
    return n.last(x)


def shifted(n: nn.Module, x: Tensor) -> Tensor:
    x = F.relu(n.one(x))
    return (x + n.shift.weight[:, :1, None].reshape(1, -1, 1, 1)) * 0.3 - x


def each(*layers: nn.Module, then: Callable[[Tensor], Tensor] = lambda x: x) -> Of:
    """Layers side by side after the stem."""
    return after_stem(lambda n, x: tuple(then(layer(x)) for layer in n.layers), layers=nn.ModuleList(layers))


def flattened(channels: int) -> Of:
    layers = {"stem": conv(3, channels, 3), "dense": nn.Linear(channels * 20, 7)}
    return Of(lambda n, x: n.dense(F.max_pool2d(n.stem(x), 4).flatten(1)), **layers)


LAYERS = {
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
POOLS = (
    nn.MaxPool2d(3, 2, 1),
    nn.MaxPool2d(3, 2, ceil_mode=True),
    nn.MaxPool2d((2, 3), (1, 2)),
    nn.AvgPool2d(3, 1, 1),
    nn.AvgPool2d(3, 2, 1, count_include_pad=False),
)
THREE = ((3, *IMAGE[1:]),)
THREE_HALVES = 3 * LANES // 2  # half of the channels is no whole number of blocks
LAST = {"from channel blocks": 1}
RESIDUAL = after_stem(both, one=conv(C, C, 3), two=conv(C, C, 3))
RESIDUAL_FUSED = ["conv", "blockconv relu", "blockconv residual relu"]
NORMALISED_FIRST = after_stem(normalised_first, norm=normalised(C), one=conv(C, C), two=conv(C, C))
PROLOGUES = ["conv", "hswish pointwise residual", "relu pointwise residual"]
WIDE = nn.Conv2d(C, C, (1, 7), padding=(0, 3))
TALL = nn.Conv2d(C, C, (7, 1), padding=(3, 0))
MAPS = {
    "a residual and an activation are part of a convolution": Case(RESIDUAL, tuned=RESIDUAL_FUSED, others=LAST),
    "the same of square tiles": Case(RESIDUAL, tuned=RESIDUAL_FUSED, others=LAST, choice=2),
    "a residual after an activation stays after it": Case(
        after_stem(lambda n, x: F.hardswish(n.one(x)) + x, one=conv(C, C)), tuned=["conv", "pointwise hswish residual"]
    ),
    "squeeze-excite is a gate of the convolution after it": Case(
        after_stem(squeezed, reduce=conv(C, 5), expand=conv(5, C), project=conv(C, 24)),
        tuned=["conv", "pool", "pointwise swish", "pointwise sigmoid", "gate pointwise"],
        others=LAST,
    ),
    "a gate that two layers read is a product of its own": Case(
        after_stem(gated_twice, expand=conv(C, C), one=conv(C, 24), two=conv(C, 24)), others={"multiply": 1, **LAST}
    ),
    "a gate that all images have in common is one, too": Case(
        Of(lambda n, x, gate: n.two(F.relu(n.one(x)) * gate), one=conv(3, C, 3), two=conv(C, 24)),
        ((3, *IMAGE[1:]), (1, C, 1, 1)),
        tuned=["conv relu", "pointwise"],
    ),
    "a normalisation before a convolution is part of it": Case(
        NORMALISED_FIRST, tuned=PROLOGUES, others={"constant": 4, **LAST}
    ),
    "an activation that two layers read stays outside": Case(
        after_stem(
            lambda n, x: n.one(y := F.relu(n.norm(x.exp()))) + n.two(y),
            norm=normalised(C),
            one=conv(C, 24),
            two=conv(C, 24),
        ),
        tuned=["conv", "pointwise", "pointwise residual"],
    ),
    "padding stays after an activation": Case(
        after_stem(lambda n, x: n.one(F.relu(n.norm(x.exp()))), norm=normalised(C), one=nn.Conv2d(C, 24, 1, padding=1)),
        tuned=["conv", "blockconv"],
    ),
    "halves that are shuffled move once and only where they are read": Case(
        Of(
            shuffled_twice,
            stem=conv(3, 2 * THREE_HALVES, 3),
            one=conv(THREE_HALVES, THREE_HALVES),
            two=conv(THREE_HALVES, THREE_HALVES),
            last=conv(2 * THREE_HALVES, 8),
        ),
        others={"channels moved": 3, **LAST},
    ),
    "channels are shuffled where no convolution takes them in blocks": Case(
        Of(
            lambda n, x: n.second(F.channel_shuffle(n.first(x).relu(), 4)),
            first=nn.Conv2d(3, 16, 3, padding=1),
            second=nn.Conv2d(16, 8, 3, padding=1, groups=4),
        ),
        ((2, 3, 8, 8),),
    ),
    "windows are pooled in channel blocks": Case(
        each(*POOLS), others={"max_pool2d": 3, "avg_pool2d": 2, "from channel blocks": 5}, error=1e-6
    ),
    "every convolution is one tuned operator": Case(
        each(*LAYERS, then=F.relu),
        tuned=["conv", *(f"{op} relu" for op in LAYERS.values())],
        others={"from channel blocks": len(LAYERS)},
    ),
    "tiles lie down the columns": Case(
        after_stem(lambda n, x: F.relu(n.tall(F.relu(n.wide(x))) + x), wide=WIDE, tall=TALL),
        tuned=RESIDUAL_FUSED,
        choice=1,
        error=1e-4,
    ),
    "a grouped transposed convolution has no kernel": Case(
        each(nn.ConvTranspose2d(C, C, 2, 2, groups=2)), tuned=["conv"]
    ),
    "a dense layer reads a flattened map of whole blocks": Case(
        flattened(C), tuned=["conv", "pointwise"], some={"to channel blocks": 0}
    ),
    "a dense layer reads a flattened map of parts of blocks": Case(
        flattened(C + 3), tuned=["conv", "pointwise"], some={"to channel blocks": 1}
    ),
    "maps are enlarged": Case(
        after_stem(enlarged, low=conv(C, C, 3, stride=2), last=conv(C, 8)),
        tuned=["conv", "blockconv", "pointwise", "pointwise"],
    ),
    "constants by channel and single ones stay in channel blocks": Case(
        after_stem(shifted, one=conv(C, 24), shift=nn.Linear(2, 24)), some={"to channel blocks": 0}
    ),
    "numbers without axes": Case(
        after_stem(lambda n, x: torch.where(x > 0.1, x, torch.full_like(x, -0.5))), error=1e-6
    ),
    "two threads": Case(
        after_stem(lambda n, x: F.channel_shuffle(n.one(F.max_pool2d(x, 2)), 2), one=conv(C, 48, 3)),
        ((1, 3, 64, 64),),
        threads=2,
    ),
    "several inputs and outputs": Case(
        Of(lambda n, x, y: (n.one(x), n.two(F.relu(n.one(x))) * y, y), one=conv(3, 8, 3), two=conv(8, 8)),
        (IMAGE, (1, 8, 1, 1)),
    ),
}
SLOW_MAPS = {
    "a residual of one-way tiles": Case(RESIDUAL, tuned=RESIDUAL_FUSED, others=LAST, choice=1),
    "a normalisation of three images": Case(
        NORMALISED_FIRST, ((3, *IMAGE[1:]),), tuned=PROLOGUES, others={"constant": 4, **LAST}
    ),
}


# ---- several images -------------------------------------------------------------------------------------------------
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
SEVERAL: dict[str, tuple[Of, set[str]]] = {
    "residual": (after_stem(lambda n, x: F.relu(n.one(x) + x), one=conv(C, C, 3)), set()),
    "gate": (
        after_stem(excited, reduce=nn.Linear(C, 5), expand=nn.Linear(5, C), project=conv(C, 24)),
        {"reshape", "to channel blocks"},
    ),
    "windows": (each(*WINDOWS), {"conv_transpose", "add", "max_pool2d", "avg_pool2d"}),
    "moved channels": (
        after_stem(shuffled, one=conv(HALF, HALF), last=conv(C, 8)),
        {"max_pool2d", "channels moved"},
    ),
    "enlarged": (
        after_stem(enlarged, low=conv(C, C, 3, stride=2), last=conv(C, 8)),
        {"repeat", "interpolate", "to channel blocks"},
    ),
    "flattened": (flattened(C), {"max_pool2d", "reshape", "to channel blocks"}),
    "constants": (
        after_stem(lambda n, x: (F.relu(x) + torch.arange(float(C)).reshape(1, C, 1, 1)).exp() * 0.3),
        {"add", "exp", "multiply"},
    ),
    "constants of each image": (
        after_stem(lambda n, x: n.one(x * torch.tensor([1.0, -2.0, 3.0]).reshape(3, 1, 1, 1)), one=conv(C, 8)),
        {"multiply", "to channel blocks"},
    ),
    "parts of blocks": (
        Of(lambda n, x: n.two(F.relu(n.one(x.repeat(1, 7, 1, 1)))), one=conv(21, 21, 3), two=conv(21, 8)),
        {"tile", "to channel blocks"},
    ),
    "images as channels": (
        after_stem(lambda n, x: n.one(F.relu(x).reshape(1, 3 * C, *IMAGE[2:])), one=conv(3 * C, 8, 3)),
        {"reshape", "to channel blocks"},
    ),
    "images side by side": (
        after_stem(lambda n, x: n.one(torch.cat((x, F.relu(x[:1])))), one=conv(C, 8, 3)),
        {"slice", "relu", "concat", "to channel blocks"},
    ),
}
"""Networks with the names of their operations that are not tuned, beside `from channel blocks`."""


# ---- rows -----------------------------------------------------------------------------------------------------------
def encoder_layer(size: int, heads: int) -> nn.Module:
    """An encoder's layer whose biases and scales are no zeros and ones."""
    layer = nn.TransformerEncoderLayer(size, heads, 2 * size, 0.0, "gelu", batch_first=True)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.1)
    return layer


def attention(tokens: int, size: int, heads: int, added: Callable[..., Tensor]) -> Of:
    """Attention of an input's rows to themselves, with something done to its scores."""

    def attended(n: nn.Module, x: Tensor, *rest: Tensor) -> Tensor:
        q, k, v = n.rows(x).reshape(-1, tokens, 3, heads, size // heads).permute(2, 0, 3, 1, 4)
        scores = added(n, q @ k.transpose(-1, -2), *rest)
        return n.end((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))

    return Of(attended, rows=nn.Linear(size, 3 * size), end=nn.Linear(size, size))


def encoder(tokens: int) -> Of:
    def encoded(n: nn.Module, x: Tensor) -> Tensor:
        heads = [layer(x).reshape(1, tokens, 2, 10).transpose(1, 2) for layer in (n.q, n.k, n.v)]
        mixed = torch.softmax(heads[0] @ heads[1].transpose(-1, -2) / 3.0, -1) @ heads[2]
        x = n.norm(x + n.o(mixed.transpose(1, 2).reshape(1, tokens, 20)))
        return x + n.down(F.gelu(n.up(x)))

    layers = {name: nn.Linear(20, 20) for name in "qkvo"}
    return Of(encoded, **layers, norm=nn.LayerNorm(20), up=nn.Linear(20, 40), down=nn.Linear(40, 20))


def attended_by(shares: Callable[[Tensor, Tensor], Tensor]) -> Of:
    """Attention of 14 rows with two heads, by a function of scores and input."""

    def attended(n: nn.Module, x: Tensor) -> Tensor:
        q, k, v = n.rows(x).reshape(1, 14, 3, 2, 32).permute(2, 0, 3, 1, 4)
        return (shares(q @ k.transpose(-1, -2) * 0.2, x) @ v).transpose(1, 2).reshape(1, 14, 64)

    return Of(attended, rows=nn.Linear(64, 192))


def zeros_if_masked(scores: Tensor, x: Tensor) -> Tensor:
    """Written as PyTorch's exporter writes its own attention."""
    mask = torch.zeros(14, 14).masked_fill(torch.eye(14) > 0, -torch.inf)
    mask[3] = -torch.inf
    shares = (scores + mask).softmax(-1)
    return torch.where(shares.isnan(), torch.zeros(()), shares)


def masked_by(kept: Callable[[Tensor], Tensor]) -> Of:
    """PyTorch's own attention of 14 rows with two heads, with a mask."""

    def attended(n: nn.Module, x: Tensor) -> Tensor:
        q, k, v = n.rows(x).reshape(1, 14, 3, 2, 32).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=kept(x)).transpose(1, 2).reshape(1, 14, 64)

    return Of(attended, rows=nn.Linear(64, 192))


def without_key(x: Tensor) -> Tensor:
    """A mask that leaves a query no key."""
    kept = torch.eye(14) < 1
    kept[3] = False
    return kept & (x[0, :, :1] < 100.0)


def by_head_and_window() -> Of:
    """Constants that are added to scores: one for each head, then one for each window of an image."""
    by_head, by_window = torch.randn(2, 14, 14), torch.where(torch.rand(4, 1, 14, 14) < 0.3, -100.0, 0.0)
    return attention(14, 64, 2, lambda _, s: ((s + by_head).reshape(1, 4, 2, 14, 14) + by_window).reshape(s.shape))


def three_masks() -> Of:
    masked = attention(14, 64, 2, lambda _, s, mask: s / 3.0 + mask)
    return Of(lambda n, x, *masks: tuple(n.masked(x, mask) for mask in masks), masked=masked)


def functions_of_scores() -> Of:
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda s: s.abs(),
        lambda s: (s + 1.0) * 0.5,
        lambda s: s.transpose(-1, -2),
        lambda s: s + s.tanh(),
    ]
    layers = nn.ModuleList(attention(14, 64, 2, lambda _, s, f=f: f(s)) for f in functions)
    return Of(lambda n, x: tuple(layer(x) for layer in n.layers), layers=layers)


def clamped(n: nn.Module, x: Tensor) -> Tensor:
    """Numbers of rows that may lie beyond the table, as the framework must have them."""
    return n.table(torch.clamp((x * 10).to(torch.int64), 0, 4))


def normalised_rows(size: int) -> Of:
    return Of(lambda n, x: n.norm(n.dense(x)), dense=nn.Linear(12, size), norm=nn.LayerNorm(size))


ONE = {"attention": 1}
ENCODER = ["pointwise", "pointwise residual", "pointwise gelu", "pointwise residual"]
SELF_MADE = ["pointwise"] * 2 + ENCODER
ATTENDED = {"attention": 1, "from channel blocks": 1, "softmax": 0, "matmul": 0, "permute_dims": 0}
BY_TURNS = {name: num for name, num in ATTENDED.items() if name != "from channel blocks"}
NORMALISED_ROWS = {"to channel blocks": 1, "layer_norm": 1, "from channel blocks": 1}
ROWS = {
    "an encoder has its dense layers tuned": Case(encoder(37), ((1, 37, 20),), tuned=SELF_MADE),
    "attention is one function in channel blocks": Case(
        encoder_layer(64, 2), ((1, 32, 64),), tuned=ENCODER, some=ATTENDED
    ),
    "attention of rows that fill no tiles": Case(
        encoder_layer(3 * LANES, 3), ((1, 37, 3 * LANES),), tuned=ENCODER, some=ATTENDED
    ),
    "attention on two threads": Case(encoder_layer(64, 2), ((1, 197, 64),), threads=2),
    "two sequences attend to their own": Case(attention(29, 64, 2, lambda _, s: s / 3.0), ((2, 29, 64),), some=ONE),
    "three sequences attend to their own": Case(attention(17, 64, 2, lambda _, s: s / 3.0), ((3, 17, 64),), some=ONE),
    "sequences whose tokens are stored by turns": Case(
        encoder_layer(64, 2), ((3, 14, 64),), tuned=ENCODER, some=BY_TURNS
    ),
    "the same of tokens that fill no tiles": Case(encoder_layer(64, 2), ((3, 29, 64),), tuned=ENCODER, some=BY_TURNS),
    "constants by head and by window": Case(by_head_and_window(), ((4, 14, 64),), some=ONE),
    "masks of the input": Case(
        three_masks(), ((2, 14, 64), (1, 1, 14, 14), (2, 1, 1, 14), (14, 14)), some={"attention": 3}
    ),
    "rows that are masked altogether": Case(attended_by(zeros_if_masked), ((1, 14, 64),), some=ONE),
    "truths that leave a query no key": Case(masked_by(without_key), ((1, 14, 64),), some=ONE),
    "numbers that leave a query no key": Case(
        masked_by(lambda x: torch.where(without_key(x), 0.0, -torch.inf)), ((1, 14, 64),), some=ONE
    ),
    "other functions of scores": Case(functions_of_scores(), ((2, 14, 64),)),
    "heads that are parts of blocks": Case(encoder_layer(20, 2), ((1, 21, 20),), some={"attention": 0}),
    "rows are normalised in channel blocks": Case(normalised_rows(C), ((1, 9, 12),), others=NORMALISED_ROWS),
    "rows of parts of blocks, too": Case(normalised_rows(20), ((1, 9, 12),), others=NORMALISED_ROWS),
    "rows of maps are those of a matrix": Case(
        Of(lambda n, x: n.down(F.gelu(n.up(x))) + x, up=nn.Linear(20, 40), down=nn.Linear(40, 20)),
        ((1, 5, 6, 20),),
        tuned=ENCODER[2:],
        others={"reshape": 2, "to channel blocks": 1, "from channel blocks": 1},
    ),
    "rows are added up a vector at a time": Case(
        Of(lambda _, *rows: tuple(x.sum(-1, keepdim=True) * x + x.mean(-1, keepdim=True) for x in rows)),
        tuple((1, 2, 12, length) for length in (3, 2 * LANES, 5 * LANES + 3)),
    ),
    "sums along any axes": Case(
        Of(lambda _, x: tuple(x.sum(axes) for axes in ((2, 3), (1, 2, 3), (1,), (0, 1, 2, 3)))), ((2, 3, 7, 6),)
    ),
    "layers are normalised along their last axes": Case(
        Of(lambda n, x: (n.one(x), n.two(x)), one=nn.LayerNorm((20,)), two=nn.LayerNorm((5, 20))), ((2, 5, 20),)
    ),
    "shares along any axis": Case(Of(lambda _, x: tuple(x.softmax(axis) for axis in range(3))), ((3, 5, 37),)),
    "computed matrices": Case(
        Of(lambda _, a, b, c, d, e, f: (a @ b, c @ d, e @ f)),
        ((3, 5, 7), (7, 4), (2, 1, 5, 7), (3, 7, 19), (19, 7), (7, 16)),
    ),
    "numbers beyond a table stand for its ends": Case(Of(clamped, table=nn.Embedding(5, LANES)), ((2, 9),), error=0.0),
    "negative numbers count from the end of a table": Case(
        Of(lambda _, x: (x[:, -1], x[:, [-2, 1]], (x * 10).to(torch.int32)[:, -1], x.new_ones(3).cumsum(0)[-1] + x)),
        ((2, 5, 3),),
        error=0.0,
    ),
}
SLOW_ROWS = {
    "an encoder of whole tiles": Case(
        encoder(C), ((1, C, 20),), tuned=["pointwise"] * 3 + ["pointwise residual", *ENCODER[2:]]
    ),
    "attention of 197 rows": Case(encoder_layer(96, 3), ((1, 197, 96),), tuned=ENCODER, some=ATTENDED),
    "attention of two blocks": Case(encoder_layer(C, 2), ((1, 18, C),), tuned=ENCODER, some=ATTENDED),
}


# ---- compiled and run -----------------------------------------------------------------------------------------------
CASES = {
    **MAPS,
    **{f"three images: {name}": Case(network, THREE) for name, (network, _) in SEVERAL.items()},
    **{f"tiles of three images, {i}": Case(SEVERAL["residual"][0], THREE, choice=i, threads=2) for i in (1, 2)},
    **ROWS,
}
SLOW = {**SLOW_MAPS, **SLOW_ROWS}


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(c, id=n) for n, c in CASES.items()),
        *(pytest.param(c, id=n, marks=pytest.mark.slow) for n, c in SLOW.items()),
    ],
)
def test_a_program_has_these_operators_and_the_outputs_of_pytorch(
    case: Case, compiler: Compiler, tmp_path: Path
) -> None:
    """Compiled with default schedules."""
    model = opened(case.network, *case.shapes)
    target = dataclasses.replace(HOST, num_threads=case.threads)
    program = lower(graphs(model)[1], target)
    found = Counter(o.name for o in program.others)
    assert case.tuned in (None, [described(o.step.workload) for o in program.tuned])
    assert case.others in (None, found)
    assert {name: found[name] for name in case.some} == case.some
    made = default_module(program, target, case.choice)
    json, library = tmp_path / "net.json", tmp_path / "net.so"
    json.write_text(made.to_json())
    compiler.result(Build(target=target, what=ModuleFile(json), path=library), "a network")
    inputs = model.random_inputs(1)
    outputs = outputs_of(tvm.runtime.load_module(str(library)), made, inputs)
    for output, expected in zip(outputs, model.answer(inputs), strict=True):
        assert output.shape == expected.shape
        assert float(np.abs(output - expected).max() / np.abs(expected).max()) <= case.error


@pytest.mark.parametrize("name", SEVERAL)
def test_several_images_have_the_operators_of_one(name: str) -> None:
    network, others = SEVERAL[name]
    program = lowered(network, *THREE)
    assert {o.name for o in program.others} == {"from channel blocks", *others}
    assert program.tuned[0].step.workload.batch == 3


def test_rows_that_fill_no_tiles_are_computed_in_tiles() -> None:
    assert {o.step.workload.input_size for o in lowered(encoder(37), (1, 37, 20)).tuned} == {tiled_rows(37)}


def test_rows_after_attention_are_normalised_in_channel_blocks() -> None:
    program = lowered(encoder_layer(64, 2), (1, 32, 64))
    assert [o.value.blocked for o in program.others if o.name == "layer_norm"] == [True, True]


def test_a_dense_layer_that_no_kernel_takes_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Lowering, "_choices", lambda *_, **__: [])
    layers = nn.Conv2d(3, LANES, 3), nn.ReLU(), nn.Flatten(), nn.Linear(LANES * 18 * 14, 5)
    program = lowered(nn.Sequential(*layers), IMAGE)
    read = {r for o in program.operations for r in o.reads if isinstance(r, int)} | set(program.outputs)
    assert {len(program.inputs) + i for i in range(len(program.operations))} <= read


def test_weights_beyond_what_a_worker_may_hold_are_refused_before_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    program = lowered(nn.Sequential(nn.Flatten(), nn.Linear(960, 1000)), IMAGE)
    monkeypatch.setattr(tuning, "memory_limit", lambda: 1 << 30)
    tuning.check_provable(program)
    monkeypatch.setattr(tuning, "memory_limit", lambda: 305_000_000)  # less than twice 3.84 MB beside TVM
    with pytest.raises(ModelError, match=r"3\.84 MB of weights"):
        tuning.check_provable(program)


def test_memory_is_that_of_what_is_needed_at_one_time() -> None:
    program = lowered(after_stem(lambda n, x: n.two(n.one(x)), one=conv(C, C), two=conv(C, C)), IMAGE)
    each = 4 * C * IMAGE[2] * IMAGE[3]
    assert activation_bytes(program) == 2 * each


# ---- operators that compute the same -------------------------------------------------------------------------------
def choices(*layers: nn.Module, height: int = 20, width: int = 16) -> list[list[str]]:
    """The operators that compute each of some layers after a stem."""
    network = after_stem(lambda n, x: tuple(layer(x) for layer in n.layers), layers=nn.ModuleList(layers))
    _, *tuned = lowered(network, (1, 3, height, width)).tuned
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
