"""Rewriting changes no output, and leaves what it says: operators of PyTorch as the importer spells them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from chanas.models.folding import simplify
from chanas.models.graph import Constant, Graph, Node, without_unread
from chanas.models.reading.reader import read_graph
from chanas.models.sources.model import TensorFacts
from chanas.models.sources.torch_models import opened_program

from .evaluated import describe, evaluate

SHAPE = (1, 6, 9, 7)


def both(network: nn.Module) -> tuple[Graph, Graph, float]:
    """A network's graph as it is read and simplified, and the largest difference of the two from PyTorch."""
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            module.weight.data.uniform_(0.5, 2.0)
            module.bias.data.normal_()
    model = opened_program("net", torch.export.export(network.eval(), (torch.zeros(SHAPE),)), {})
    read = read_graph(model.proto, model.inputs)
    simple = simplify(read)
    x = model.random_inputs(1)
    wanted = model.answer(x)
    errors = [np.abs(a - b).max() for g in (read, simple) for a, b in zip(evaluate(g, x), wanted, strict=True)]
    return read, simple, float(max(errors))


class Spelled(nn.Module):
    """An activation as a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


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
        (lambda: Spelled(lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))), "gelu"),
        (lambda: Spelled(lambda x: 0.5 * (x * (torch.erf(x * math.sqrt(0.5)) + 1.0))), "gelu"),
        (lambda: Spelled(lambda x: x.clamp(min=0.0).clamp(max=6.0)), "relu6"),
        (lambda: Spelled(lambda x: torch.relu(x).clamp(max=6.0)), "relu6"),
        (lambda: Spelled(lambda x: (x + 3.0).clamp(0.0, 6.0) / 6.0), "hsigmoid"),
        (lambda: Spelled(lambda x: (3.0 + x).clamp(0.0, 6.0) * (1 / 6)), "hsigmoid"),
        (lambda: Spelled(lambda x: (x / 6.0 + 0.5).clamp(0.0, 1.0)), "hsigmoid"),
        (lambda: Spelled(lambda x: x * (x + 3.0).clamp(0.0, 6.0) / 6.0), "hswish"),
        (lambda: Spelled(lambda x: (x + 3.0).clamp(0.0, 6.0) / 6.0 * x), "hswish"),
        (lambda: Spelled(lambda x: torch.sigmoid(x) * x), "swish"),
    ],
)
def test_an_activation_is_one_node_however_it_is_spelled(activation: Callable[[], nn.Module], name: str) -> None:
    _, graph, error = both(nn.Sequential(nn.Conv2d(6, 4, 3), activation()))
    assert [n.op for n in graph.nodes] == ["conv2d", "activation"]
    assert names(graph) == {name: 1}
    assert error < 1e-5


NEARLY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
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
def test_what_is_nearly_an_activation_keeps_its_numbers(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    _, graph, error = both(Spelled(function))
    assert not {"gelu", "hsigmoid", "hswish", "swish"} & set(names(graph))
    assert error < 1e-5


def test_batch_normalisation_goes_into_the_convolution_before_it() -> None:
    layers = nn.Conv2d(6, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8)
    _, graph, error = both(nn.Sequential(*layers))
    assert describe(graph) == {"conv2d": 2}
    assert error < 1e-4


def test_batch_normalisation_before_a_convolution_stays() -> None:
    """As a product and a sum: padding is zeros after it, so that it can't go into the weights that follow."""
    _, graph, error = both(nn.Sequential(nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1)))
    assert describe(graph) == {"multiply": 1, "add": 1, "activation": 1, "conv2d": 1}
    assert error < 1e-4


class Shared(nn.Module):
    """A convolution whose output is read before and after its batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.norm(y) + y.relu()


def scaled(x: torch.Tensor) -> torch.Tensor:
    """An activation between two pairs of a scale and a shift."""
    return torch.relu(x) * torch.linspace(0.5, 2, x.shape[1]).reshape(1, -1, 1, 1) / 3.0 + 0.25


BEFORE = {
    "a convolution of single pixels": (nn.Conv2d(6, 4, 1), {}),
    "one without padding": (nn.Conv2d(6, 4, 3, 2), {}),
    "one of groups": (nn.Conv2d(6, 4, 3, groups=2), {}),
    "one of each channel": (nn.Conv2d(6, 6, 3, groups=6), {}),
    "one with padding": (nn.Conv2d(6, 4, 3, padding=1), {"multiply": 1, "divide": 1, "add": 1}),
}


@pytest.mark.parametrize(("layer", "left"), BEFORE.values(), ids=BEFORE)
def test_a_scale_and_a_shift_before_a_convolution_go_into_it_unless_it_pads(
    layer: nn.Module, left: dict[str, int]
) -> None:
    _, simple, error = both(nn.Sequential(Spelled(scaled), layer))
    assert error < 1e-5
    assert describe(simple) == {"activation": 1, "conv2d": 1, **left}


def test_a_scale_before_a_dense_layer_goes_into_it() -> None:
    dense = nn.Linear(6, 5)
    network = Spelled(lambda x: dense(torch.tanh(x[:, :, 0, 0]) * torch.arange(6.0) - 1))
    network.dense = dense
    _, simple, error = both(network)
    assert error < 1e-5
    assert not {"multiply", "subtract", "add"} & set(describe(simple))


def test_a_scale_before_several_matrices_stays() -> None:
    weights = torch.randn(6, 7, 5)
    _, simple, error = both(Spelled(lambda x: (torch.tanh(x[0]) * torch.arange(7.0) + 1) @ weights))
    assert error < 1e-5
    assert describe(simple)["multiply"] == 1


def test_a_scale_that_others_read_too_stays_for_them() -> None:
    layer = nn.Conv2d(6, 6, 1)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) * 3.0
        return layer(y) * y

    network = Spelled(function)
    network.layer = layer
    _, simple, error = both(network)
    assert error < 1e-4
    assert describe(simple)["multiply"] == 2


def test_weights_that_another_node_needs_as_they_are_stay() -> None:
    _, graph, error = both(Shared())
    assert describe(graph)["multiply"] == 1
    assert error < 1e-4


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1)) * 2.0


def test_a_dense_layer_is_one_product_with_a_bias() -> None:
    _, graph, error = both(Dense())
    assert Counter(n.op for n in graph.nodes)["matmul"] == 1
    assert all(n.op in ("mean", "reshape", "matmul") for n in graph.nodes)
    (product,) = (n for n in graph.nodes if n.op == "matmul")
    assert graph.shape_of(product.reads[1]) == (6, 5)
    assert graph.shape_of(product.reads[2]) == (5,)
    assert error < 1e-5


class Twice(nn.Module):
    """The same thing computed twice, and something that nobody reads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _ = torch.tanh(x) * 3.0
        return torch.sigmoid(x) + torch.sigmoid(x)


def test_common_and_dead_code_are_left_out() -> None:
    _, graph, error = both(Twice())
    assert describe(graph) == {"activation": 1, "add": 1}
    assert error < 1e-6


class Halves(nn.Module):
    """The unit of ShuffleNet: halves of the channels, joined and shuffled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=1)
        y = torch.cat((a, b * 2.0), dim=1)
        return y.view(1, 2, 3, 9, 7).transpose(1, 2).reshape(SHAPE)


def test_parts_of_a_split_are_slices() -> None:
    read, _, error = both(Halves())
    slices = [n for n in read.nodes if n.op == "slice"]
    assert [(n.attributes["axis"], n.attributes["begin"], n.shape[1]) for n in slices] == [(1, 0, 3), (1, 3, 3)]
    assert error == 0.0


def test_an_output_that_is_an_input_stays_one() -> None:
    facts = TensorFacts("x", (1, 2), "float32")
    unread = Node("activation", (0,), (1, 2), attributes={"name": "relu"})
    graph = without_unread(Graph((facts,), (unread,), (0, Constant(np.ones(1)))))
    assert graph.nodes == ()
    assert graph.outputs[0] == 0


def test_a_mask_that_is_spelled_out_is_computed_at_once() -> None:
    """Windows that are shifted (Swin), masked by numbers that are written into parts of zeros."""

    def masked(x: torch.Tensor) -> torch.Tensor:
        marks = x.new_zeros((9, 7))
        for i, rows in enumerate((slice(0, -4), slice(-4, None))):
            marks[rows, 2:] = i + 1
        apart = marks.reshape(-1)[:, None] - marks.reshape(-1)[None]
        apart = apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)
        return x.reshape(6, 63) @ apart

    model = opened_program("net", torch.export.export(Spelled(masked), (torch.zeros(SHAPE),)), {})
    simple, x = simplify(read_graph(model.proto, model.inputs)), model.random_inputs(1)
    assert describe(simple) == {"reshape": 1, "matmul": 1}
    np.testing.assert_allclose(evaluate(simple, x)[0], model.answer(x)[0], rtol=1e-5)


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
