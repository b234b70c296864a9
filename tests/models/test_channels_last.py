"""Networks in NHWC are those in NCHW, up to a transposition of the image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chanas.models.graph import Graph

from .evaluated import describe, evaluate
from .torch_networks import Of, graphs, opened

SHAPE = (1, 9, 7, 6)


class ChannelsLast(Of):
    """A function of a map in NHWC, and layers that it may call by number; `maps` calls those of maps in NCHW."""

    def __init__(self, function: Callable[[ChannelsLast, Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__(function, layers=nn.ModuleList(layers))

    def maps(self, number: int, x: Tensor) -> Tensor:
        found: Tensor = self.layers[number](x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return found


def simplified(network: nn.Module, shape: tuple[int, ...] = SHAPE) -> Graph:
    """The graph of a network as it is tuned, which computes what the network does."""
    model = opened(network, shape)
    (_, simple), x = graphs(model), model.random_inputs(1)
    for found, wanted in zip(evaluate(simple, x), model.answer(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    return simple


def biased(n: ChannelsLast, x: Tensor) -> Tensor:
    """A convolution, a bias, normalisation and an activation."""
    y = n.maps(0, x) + torch.arange(6.0)
    return torch.relu((y - torch.linspace(-1, 1, 6)) * torch.linspace(0.5, 2, 6) + 0.25)


def residual(n: ChannelsLast, x: Tensor) -> Tensor:
    y = biased(n, x)
    return torch.relu(n.maps(1, y) + y)


def gated(n: ChannelsLast, x: Tensor) -> Tensor:
    """Squeeze and excite."""
    y = n.maps(0, x)
    return n.maps(2, y * torch.sigmoid(n.maps(1, y.mean((1, 2), keepdim=True))))


def joined(n: ChannelsLast, x: Tensor) -> Tensor:
    y = n.maps(0, x)
    return n.maps(1, torch.cat([torch.relu(y), n.maps(2, y)], 3)[..., 1:7])


def padded(n: ChannelsLast, x: Tensor) -> Tensor:
    """Padding of the image, and of what an activation gives."""
    y = torch.relu(n.maps(0, nn.functional.pad(x / 2 - 1, (0, 0, 0, 1, 0, 1))))
    return n.maps(1, nn.functional.pad(y, (0, 0, 0, 1, 0, 1)))


def bounded(n: ChannelsLast, x: Tensor) -> Tensor:
    y = n.maps(0, x)
    return n.maps(1, torch.nn.functional.relu6(y) * torch.tanh(y) / (y.amax((1, 2), keepdim=True) + 1))


def conv(size: int = 3, stride: int = 1, padding: int | str = 1, channels: int = 6) -> nn.Conv2d:
    return nn.Conv2d(channels, 6, size, stride, padding)


NETWORKS = {
    "a bias and normalisation": (ChannelsLast(biased, conv()), ["conv2d", "activation"]),
    "a residual": (ChannelsLast(residual, conv(), conv()), ["conv2d", "activation", "conv2d", "add", "activation"]),
    "a gate": (
        ChannelsLast(gated, conv(), conv(1, padding=0), conv()),
        ["conv2d", "mean", "conv2d", "activation", "multiply", "conv2d"],
    ),
    "parts": (
        ChannelsLast(joined, conv(), conv(), conv()),
        ["conv2d", "activation", "conv2d", "concat", "slice", "conv2d"],
    ),
    "padding": (
        ChannelsLast(padded, conv(3, 2, 0), conv(3, 2, 0)),
        ["divide", "subtract", "conv2d", "activation", "conv2d"],
    ),
}


@pytest.mark.parametrize(("network", "operators"), NETWORKS.values(), ids=NETWORKS)
def test_a_network_in_nhwc_is_one_in_nchw(network: nn.Module, operators: list[str]) -> None:
    graph = simplified(network)
    inside = [n.op for n in graph.nodes]
    assert [op for op in inside if op != "pad"] == ["permute_dims", *operators, "permute_dims"]


def test_what_is_computed_number_by_number_has_no_transposition_around_it() -> None:
    graph = simplified(ChannelsLast(bounded, conv(), conv()))
    assert describe(graph)["permute_dims"] == 2


def test_a_mean_over_pixels_is_one_in_either_order_of_axes() -> None:
    mean = Of(lambda _, x: x.permute(0, 2, 3, 1).mean((1, 2)))
    graph = simplified(nn.Sequential(nn.Conv2d(6, 4, 3), mean), (1, 6, 9, 7))
    (found,) = (n for n in graph.nodes if n.op == "mean")
    assert found.attributes["axis"] == (2, 3)
    assert not any(n.op == "permute_dims" for n in graph.nodes)


def test_a_dense_layer_of_every_pixel_stays_one_of_rows() -> None:
    def dense(n: ChannelsLast, x: Tensor) -> Tensor:
        y: Tensor = n.layers[1](n.maps(0, x))
        return torch.relu(y)

    assert describe(simplified(ChannelsLast(dense, conv(), nn.Linear(6, 5))))["matmul"] == 1
