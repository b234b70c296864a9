"""Rewriting changes no output, and leaves what it says: operators of PyTorch as the importer spells them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chanas.models.graph import Constant, Graph, Node, without_unread
from chanas.models.sources.model import TensorFacts

from .evaluated import describe, evaluate
from .torch_networks import Of, graphs, opened

SHAPE = (1, 6, 9, 7)


def both(network: nn.Module) -> tuple[Graph, Graph, float]:
    """A network's graph as it is read and simplified, and the largest difference of the two from PyTorch."""
    model = opened(network, SHAPE)
    read, simple = graphs(model)
    x = model.random_inputs(1)
    wanted = model.answer(x)
    errors = [np.abs(a - b).max() for g in (read, simple) for a, b in zip(evaluate(g, x), wanted, strict=True)]
    return read, simple, float(max(errors))


def of(function: Callable[..., Tensor], *layers: nn.Module) -> Of:
    """A function of layers and an input."""
    return Of(lambda n, x: function(*n.layers, x), layers=nn.ModuleList(layers))


def names(graph: Graph) -> Counter[str]:
    return Counter(n.attributes["name"] for n in graph.nodes if n.op == "activation")


@pytest.mark.parametrize(
    ("activation", "name"),
    [
        (nn.ReLU, "relu"),
        (nn.ReLU6, "relu6"),
        (nn.Hardswish, "hswish"),
        (nn.Hardsigmoid, "hsigmoid"),
        (nn.Sigmoid, "sigmoid"),
        (nn.SiLU, "swish"),
        (nn.Tanh, "tanh"),
        (lambda: nn.LeakyReLU(0.1), "leaky0.1"),
        (nn.GELU, "gelu"),
        (lambda: of(lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))), "gelu"),
        (lambda: of(lambda x: 0.5 * (x * (torch.erf(x * math.sqrt(0.5)) + 1.0))), "gelu"),
        (lambda: of(lambda x: x.clamp(min=0.0).clamp(max=6.0)), "relu6"),
        (lambda: of(lambda x: torch.relu(x).clamp(max=6.0)), "relu6"),
        (lambda: of(lambda x: (x + 3.0).clamp(0.0, 6.0) / 6.0), "hsigmoid"),
        (lambda: of(lambda x: (3.0 + x).clamp(0.0, 6.0) * (1 / 6)), "hsigmoid"),
        (lambda: of(lambda x: (x / 6.0 + 0.5).clamp(0.0, 1.0)), "hsigmoid"),
        (lambda: of(lambda x: x * (x + 3.0).clamp(0.0, 6.0) / 6.0), "hswish"),
        (lambda: of(lambda x: (x + 3.0).clamp(0.0, 6.0) / 6.0 * x), "hswish"),
        (lambda: of(lambda x: torch.sigmoid(x) * x), "swish"),
    ],
)
def test_an_activation_is_one_node_however_it_is_spelled(activation: Callable[[], nn.Module], name: str) -> None:
    _, graph, error = both(nn.Sequential(nn.Conv2d(6, 4, 3), activation()))
    assert [n.op for n in graph.nodes] == ["conv2d", "activation"]
    assert names(graph) == {name: 1}
    assert error < 1e-5


NEARLY: dict[str, Callable[[Tensor], Tensor]] = {
    "another shift": lambda x: (x + 2.0).clamp(0.0, 6.0) / 6.0,
    "another factor": lambda x: (x + 3.0).clamp(0.0, 6.0) / 5.0,
    "another slope": lambda x: (x / 5.0 + 0.5).clamp(0.0, 1.0),
    "other bounds": lambda x: x.clamp(0.5, 6.0),
    "the gate of something else": lambda x: x * torch.sigmoid(x * 1.702),
    "a gate times something else": lambda x: (x * 2.0) * torch.sigmoid(x),
    "an error function of something else": lambda x: x * 0.5 * (1.0 + torch.erf(x)),
    "an error function without its half": lambda x: x * (1.0 + torch.erf(x / math.sqrt(2.0))),
}


@pytest.mark.parametrize("function", NEARLY.values(), ids=NEARLY)
def test_what_is_nearly_an_activation_keeps_its_numbers(function: Callable[[Tensor], Tensor]) -> None:
    _, graph, error = both(of(function))
    assert not {"gelu", "hsigmoid", "hswish", "swish"} & set(names(graph))
    assert error < 1e-5


def batch_norm(channels: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels)
    nn.init.uniform_(layer.running_var, 0.5, 2.0)
    nn.init.uniform_(layer.weight, 0.5, 2.0)
    for tensor in (layer.running_mean, layer.bias):
        nn.init.normal_(tensor)
    return layer


def scaled(x: Tensor) -> Tensor:
    """An activation between two pairs of a scale and a shift."""
    return torch.relu(x) * torch.linspace(0.5, 2, x.shape[1]).reshape(1, -1, 1, 1) / 3.0 + 0.25


def behind_scales(layer: nn.Module) -> Of:
    return of(lambda layer, x: layer(scaled(x)), layer)


def normalised_and_not(conv: nn.Module, norm: nn.Module, x: Tensor) -> Tensor:
    y = conv(x)
    return norm(y) + y.relu()


def scaled_for_two(conv: nn.Module, x: Tensor) -> Tensor:
    y = torch.relu(x) * 3.0
    return conv(y) * y


def twice(x: Tensor) -> Tensor:
    """The same thing computed twice, and something that nobody reads."""
    _ = torch.tanh(x) * 3.0
    return torch.sigmoid(x) + torch.sigmoid(x)


MATRICES = torch.randn(6, 7, 5)
CONV = {"activation": 1, "conv2d": 1}
SIMPLIFIED: dict[str, tuple[nn.Module, dict[str, int]]] = {
    "a normalisation goes into the convolution before it": (
        nn.Sequential(nn.Conv2d(6, 8, 3, bias=False), batch_norm(8), nn.Conv2d(8, 8, 3, groups=8), batch_norm(8)),
        {"conv2d": 2},
    ),
    "one before a padded convolution stays": (
        nn.Sequential(batch_norm(6), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1)),
        {"multiply": 1, "add": 1, **CONV},
    ),
    "weights that another node needs as they are stay": (
        of(normalised_and_not, nn.Conv2d(6, 6, 1), batch_norm(6)),
        {"multiply": 1, "add": 2, **CONV},
    ),
    "a scale and a shift before a convolution of single pixels": (
        behind_scales(nn.Conv2d(6, 4, 1)),
        CONV,
    ),
    "before one without padding": (behind_scales(nn.Conv2d(6, 4, 3, 2)), CONV),
    "before one of groups": (behind_scales(nn.Conv2d(6, 4, 3, groups=2)), CONV),
    "before one of each channel": (behind_scales(nn.Conv2d(6, 6, 3, groups=6)), CONV),
    "before one with padding, which is zeros after them": (
        behind_scales(nn.Conv2d(6, 4, 3, padding=1)),
        {"multiply": 1, "divide": 1, "add": 1, **CONV},
    ),
    "before a dense layer": (
        of(lambda dense, x: dense(torch.tanh(x[:, :, 0, 0]) * torch.arange(6.0) - 1), nn.Linear(6, 5)),
        {"slice": 2, "reshape": 2, "activation": 1, "matmul": 1},
    ),
    "before several matrices they stay": (
        of(lambda x: (torch.tanh(x[0]) * torch.arange(7.0) + 1) @ MATRICES),
        {"reshape": 1, "activation": 1, "multiply": 1, "add": 1, "matmul": 1},
    ),
    "a scale that others read too stays for them": (of(scaled_for_two, nn.Conv2d(6, 6, 1)), {"multiply": 2, **CONV}),
    "a scale after a dense layer": (
        of(lambda d, x: d(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1)) * 2.0, nn.Linear(6, 5)),
        {"mean": 1, "reshape": 1, "matmul": 1},
    ),
    "common and dead code are left out": (of(twice), {"activation": 1, "add": 1}),
}


@pytest.mark.parametrize("name", SIMPLIFIED)
def test_a_simplified_network_has_these_operators(name: str) -> None:
    network, operators = SIMPLIFIED[name]
    _, graph, error = both(network)
    assert describe(graph) == operators
    assert error < 1e-4


def halves(x: Tensor) -> Tensor:
    """The unit of ShuffleNet: halves of the channels, joined and shuffled."""
    a, b = x.chunk(2, dim=1)
    y = torch.cat((a, b * 2.0), dim=1)
    return y.view(1, 2, 3, 9, 7).transpose(1, 2).reshape(SHAPE)


def test_parts_of_a_split_are_slices() -> None:
    read, _, error = both(of(halves))
    slices = [n for n in read.nodes if n.op == "slice"]
    assert [(n.attributes["axis"], n.attributes["begin"], n.shape[1]) for n in slices] == [(1, 0, 3), (1, 3, 3)]
    assert error == 0.0


def test_an_output_that_is_an_input_stays_one() -> None:
    facts = TensorFacts("x", (1, 2), "float32")
    unread = Node("activation", (0,), (1, 2), attributes={"name": "relu"})
    graph = without_unread(Graph((facts,), (unread,), (0, Constant(np.ones(1)))))
    assert graph.nodes == ()
    assert graph.outputs[0] == 0


@pytest.mark.parametrize(("op", "reads_first"), [("add", True), ("multiply", True), ("subtract", False)])
def test_a_sum_or_a_product_has_its_constant_second(op: str, reads_first: bool) -> None:
    node = Node(op, (Constant(np.ones(1, np.float32)), 0), (1, 2))
    graph = without_unread(Graph((TensorFacts("x", (1, 2), "float32"),), (node,), (1,)))
    assert (graph.nodes[0].reads[0] == 0) is reads_first


def test_a_mask_that_is_spelled_out_is_computed_at_once() -> None:
    """Windows that are shifted (Swin), masked by numbers that are written into parts of zeros."""

    def masked(x: Tensor) -> Tensor:
        marks = x.new_zeros((9, 7))
        for i, rows in enumerate((slice(0, -4), slice(-4, None))):
            marks[rows, 2:] = i + 1
        apart = marks.reshape(-1)[:, None] - marks.reshape(-1)[None]
        apart = apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)
        return x.reshape(6, 63) @ apart

    _, simple, error = both(of(masked))
    assert describe(simple) == {"reshape": 1, "matmul": 1}
    assert error < 1e-4


def padded(*layers: nn.Module, width: int = 1, value: float = 0.0) -> nn.Sequential:
    """Layers behind an activation that gives no negative number and padding at the end of rows and columns."""
    return nn.Sequential(nn.ReLU(), nn.ConstantPad2d((0, width, 0, width), value), *layers)


PADDED = {
    "a convolution": padded(nn.Conv2d(6, 4, 3, 2)),
    "one of channels with padding": padded(nn.Conv2d(6, 6, 3, 2, padding=1, groups=6)),
    "a mean": padded(nn.AvgPool2d(3, 2)),
    "a maximum": padded(nn.MaxPool2d(3, 2)),
    "a maximum of more": padded(nn.MaxPool2d(3, 2), width=3, value=-math.inf),
}


@pytest.mark.parametrize("network", PADDED.values(), ids=PADDED)
def test_padding_is_that_of_the_window_behind_it(network: nn.Module) -> None:
    read, simple, error = both(network)
    assert error < 1e-5
    assert [sum(n.op == "pad" for n in graph.nodes) for graph in (read, simple)] == [1, 0]


OTHERWISE_PADDED = {
    "ones before a convolution": padded(nn.Conv2d(6, 4, 3, 2), value=1.0),
    "a mean that leaves out padding of its own": padded(nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    "zeros of which a maximum has no others": padded(nn.MaxPool2d(3, 2), width=4),
    "zeros that may be the maximum": nn.Sequential(nn.ConstantPad2d((0, 1, 0, 1), 0.0), nn.MaxPool2d(3, 2)),
}


@pytest.mark.parametrize("network", OTHERWISE_PADDED.values(), ids=OTHERWISE_PADDED)
def test_padding_that_a_window_has_not_stays(network: nn.Module) -> None:
    _, simple, error = both(network)
    assert error < 1e-5
    assert sum(n.op == "pad" for n in simple.nodes) == 1
