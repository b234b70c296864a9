"""chanas/models/views.py: concatenations and slices of channels move nothing that a kernel can read or
write in place, and give what PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from networks import untuned_program
from torch import Tensor, nn
from torch.nn import functional as F

from chanas.bundle.tuned import TunedNetwork
from chanas.compiler.program import MapView, Program
from chanas.workflows.models.operators import operator_places

from .torch_networks import HOST, Of, lowered

L = HOST.vector_lanes
SHAPE = (1, 3, 12, 10)


def after_stem(function: Callable[[Of, Tensor], object], **layers: nn.Module) -> Of:
    """A network whose first layer gives two channel blocks."""
    return Of(lambda n, x: function(n, F.relu(n.stem(x))), stem=nn.Conv2d(3, 2 * L, 3, padding=1), **layers)


def conv(inputs: int, outputs: int, kernel: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)


def fire(net: Of, x: Tensor) -> Tensor:
    return net.last(torch.cat((F.relu(net.one(x)), F.relu(net.three(x))), 1))


def dense(net: Of, x: Tensor) -> Tensor:
    """Each layer reads all maps before it, normalised for itself."""
    maps = [F.max_pool2d(x, 2)]
    for layer in (net.one, net.two, net.three):
        maps.append(layer(F.relu(torch.cat(maps, 1) * 0.5 + 0.1)))
    return torch.cat(maps, 1)


def halves(net: Of, x: Tensor) -> Tensor:
    """As YOLO's blocks: halves of a map, what comes of one of them, all together, with a residual inside."""
    first, second = net.one(x).chunk(2, 1)
    third = second + net.three(second)
    return net.last(torch.cat((first, second, third, net.two(third)), 1))


def branches(net: Of, x: Tensor) -> Tensor:
    """As Inception's: a pooling among what is joined."""
    return net.last(torch.cat((net.one(x), F.avg_pool2d(x, 3, 1, 1), net.three(x)), 1))


def twice(net: Of, x: Tensor) -> tuple[Tensor, ...]:
    """A map in two concatenations, and an output of the network."""
    one, two, three = net.one(x), net.two(x), net.three(x)
    return net.last(torch.cat((one, net.four(x)), 1)), net.end(torch.cat((two, three, one), 1)), one * 2.0


def gated(net: Of, x: Tensor) -> Tensor:
    joined = torch.cat((net.one(x), net.three(x)), 1)
    return net.last(joined * torch.sigmoid(joined.mean((2, 3), keepdim=True))) + net.end(joined)


NETWORKS = {
    "fire": after_stem(fire, one=conv(2 * L, L), three=conv(2 * L, 2 * L, 3), last=conv(3 * L, 10)),
    "the last one fills no block": after_stem(
        fire, one=conv(2 * L, L), three=conv(2 * L, L + 3, 3), last=conv(2 * L + 3, 10)
    ),
    "dense": after_stem(dense, one=conv(2 * L, L, 3), two=conv(3 * L, 2 * L, 3), three=conv(5 * L, L, 3)),
    "halves": after_stem(halves, one=conv(2 * L, 2 * L), two=conv(L, L, 3), three=conv(L, L, 3), last=conv(4 * L, 10)),
    "branches": after_stem(branches, one=conv(2 * L, L), three=conv(2 * L, L, 3), last=conv(4 * L, 10)),
    "gate": after_stem(gated, one=conv(2 * L, L), three=conv(2 * L, L, 3), last=conv(2 * L, 10), end=conv(2 * L, 10)),
}
TWICE = after_stem(
    twice, **{name: conv(2 * L, L) for name in ("one", "two", "three", "four")}, last=conv(2 * L, 9), end=conv(3 * L, 9)
)
PARTS_OF_BLOCKS = after_stem(fire, one=conv(2 * L, L - 2), three=conv(2 * L, L, 3), last=conv(2 * L - 2, 10))


def views(program: Program) -> list[MapView]:
    return [o for o in program.operations if isinstance(o, MapView)]


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_what_is_joined_is_not_copied(network: Of) -> None:
    program = lowered(network, SHAPE)
    assert views(program)
    assert all(view.copied == () for view in views(program))
    assert "channels moved" not in [o.name for o in program.others]


def test_a_map_lies_in_the_largest_of_those_that_it_is_joined_to() -> None:
    small, large = views(lowered(TWICE, SHAPE))
    assert [place.first for _, place in small.copied] == [0]
    assert large.copied == ()


def test_views_that_grow_are_parts_of_the_last_one() -> None:
    program = lowered(NETWORKS["dense"], SHAPE)
    numbers = [len(program.inputs) + i for i, o in enumerate(program.operations) if isinstance(o, MapView)]
    assert {program.parts[n].whole for n in numbers} == {numbers[-1]}


def test_parts_of_blocks_are_moved() -> None:
    program = lowered(PARTS_OF_BLOCKS, SHAPE)
    assert "channels moved" in [o.name for o in program.others]
    assert program.parts == {}


@pytest.mark.parametrize(("num_images", "num_threads"), [(1, 1), pytest.param(3, 2, marks=pytest.mark.slow)])
def test_networks_give_what_pytorch_gives(num_images: int, num_threads: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    each = nn.ModuleList([*NETWORKS.values(), TWICE, PARTS_OF_BLOCKS])
    network, x = Of(lambda n, x: tuple(m(x) for m in n.each), each=each).eval(), torch.randn(num_images, *SHAPE[1:])
    with torch.no_grad():
        expected = [leaf for given in network(x) for leaf in (given if isinstance(given, tuple) else (given,))]
    tuned = TunedNetwork.open(untuned_program(network, [x], tmp_path, num_threads))
    tuned.run(np.full_like(x.numpy(), np.nan))  # nothing of a call may reach the next one
    for ours, theirs in zip(tuned.run(x.numpy()), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_an_operator_is_one_row_wherever_it_writes(tmp_path: Path) -> None:
    """Functions of one operator and schedule differ by what they write; each is found where it stands."""
    network = after_stem(
        lambda net, x: net.last(torch.cat((net.one(x), net.two(x), net.three(x)), 1)),
        **{**{name: conv(2 * L, L) for name in ("one", "two", "three")}, "last": conv(3 * L, 10)},
    )
    places = operator_places(TunedNetwork.open(untuned_program(network, [torch.zeros(SHAPE)], tmp_path)))
    names = [p.name for p in places if not p.is_unscheduled]
    assert len(names) == 5
    assert len(set(names)) == 3
