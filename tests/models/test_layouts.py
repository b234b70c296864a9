"""chanas/models/layouts.py: networks whose operators are in different layouts give what PyTorch gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from torch import Tensor, nn
from torch.nn import functional as F

from chanas.compiler.cpu.build import build_module
from chanas.compiler.program import MapView, OtherOperation, Program
from chanas.core.target import in_blocks
from chanas.models.layouts import choices_in, in_layouts
from chanas.models.lowering import lower

from .default_programs import default_module, outputs_of
from .torch_networks import HOST, Of, graphs, lowered, opened

LANES = HOST.vector_lanes
OTHERS = (8, 4) if LANES > 8 else (16, 4)
SHAPE = (1, 3, 12, 10)
CHANNELS = 2 * LANES + 8


def conv(inputs: int, outputs: int, kernel: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups)


def residual(n: Of, x: Tensor) -> Tensor:
    """A chain with a residual, a gate, and a dense layer after a mean."""
    x = F.relu(n.stem(x))
    inner = F.hardswish(n.depthwise(F.relu(n.expand(x))))
    gate = torch.sigmoid(n.gate(F.relu(n.squeeze(inner.mean((2, 3), keepdim=True)))))
    x = x + n.project(inner * gate)
    return n.dense(F.max_pool2d(F.relu(n.wide(x)), 2).mean((2, 3)))


def joined(n: Of, x: Tensor) -> Tensor:
    """Maps that are parts of others, slices, and one that is read in several ways."""
    x = F.relu(n.stem(x))
    one, two = F.relu(n.one(x)), F.relu(n.two(x))
    whole = torch.cat((one, two), 1)
    first, second = whole.chunk(2, 1)
    return n.last(torch.cat((first, F.relu(n.three(second)), one * 2.0), 1)) + n.end(whole)


RESIDUAL = Of(
    residual,
    stem=conv(3, CHANNELS, 3),
    expand=conv(CHANNELS, 3 * LANES),
    depthwise=conv(3 * LANES, 3 * LANES, 3, groups=3 * LANES),
    squeeze=conv(3 * LANES, LANES),
    gate=conv(LANES, 3 * LANES),
    project=conv(3 * LANES, CHANNELS),
    wide=conv(CHANNELS, 20, 3),
    dense=nn.Linear(20, 7),
)
JOINED = Of(
    joined,
    stem=conv(3, 2 * LANES, 3),
    one=conv(2 * LANES, 2 * LANES),
    two=conv(2 * LANES, 2 * LANES, 3),
    three=conv(2 * LANES, 2 * LANES),
    last=conv(6 * LANES, 10),
    end=conv(4 * LANES, 10),
)


def movable(program: Program, lanes: int) -> list[int]:
    target = in_blocks(HOST, lanes)
    return [n for n, o in program.tuned_numbers().items() if choices_in(program, o, target)]


def mixed(program: Program, seed: int) -> Mapping[int, int]:
    """Layouts at random of the operators that can be in them."""
    rng = np.random.default_rng(seed)
    able = {lanes: movable(program, lanes) for lanes in OTHERS}
    options = {n: [LANES, *(lanes for lanes in OTHERS if n in able[lanes])] for n in program.tuned_numbers()}
    return {n: int(rng.choice(found)) for n, found in options.items()}


def changes(program: Program) -> list[OtherOperation]:
    return [o for o in program.others if o.name.startswith("to blocks of ")]


@pytest.mark.parametrize("network", [RESIDUAL, JOINED], ids=["residual", "joined"])
@pytest.mark.parametrize("seed", [0, 1, 2, "all in the first", "all in the second"])
def test_networks_in_mixed_layouts_give_what_pytorch_gives(network: Of, seed: int | str, tmp_path: Path) -> None:
    model = opened(network, SHAPE)
    program = lower(graphs(model)[1], HOST)
    if isinstance(seed, int):
        lanes = mixed(program, seed)
    else:
        one = OTHERS[seed.endswith("second")]
        lanes = dict.fromkeys(movable(program, one), one)
    other = in_layouts(program, lanes, HOST)
    assert changes(other)
    made = default_module(other, HOST)
    source, library = tmp_path / "net.json", tmp_path / "net.so"
    source.write_text(made.to_json())
    build_module(source, HOST, library)
    inputs = model.random_inputs(1)
    outputs = outputs_of(tvm.runtime.load_module(str(library)), made, inputs)
    for output, expected in zip(outputs, model.answer(inputs), strict=True):
        assert float(np.abs(output - expected).max() / np.abs(expected).max()) <= 1e-5


def test_operators_stay_where_nothing_is_to_change() -> None:
    program = lowered(RESIDUAL, SHAPE)
    same = in_layouts(program, {}, HOST)
    assert [o.reads for o in same.operations] == [o.reads for o in program.operations]
    assert (same.parts, same.outputs, same.names) == (program.parts, program.outputs, program.names)
    assert [o.key for o in same.tuned] == [o.key for o in program.tuned]


def test_a_map_is_changed_once_for_all_that_read_it() -> None:
    """Its first reader is in the device's own layout, the other two in another one."""
    network = Of(
        lambda n, x: (n.one(n.stem(x)), n.two(n.stem(x)), n.three(n.stem(x))),
        stem=conv(3, 2 * LANES, 3),
        **{name: conv(2 * LANES, 2 * LANES) for name in ("one", "two", "three")},
    )
    program = lowered(network, SHAPE)
    _, one, two, three = sorted(program.tuned_numbers())[-4:]
    other = in_layouts(program, {two: OTHERS[0], three: OTHERS[0]}, HOST)
    of_stem = [o for o in changes(other) if o.value.lanes == OTHERS[0]]
    assert len(of_stem) == 1
    assert one in program.tuned_numbers()


def test_neighbours_in_one_layout_hand_maps_over_as_they_are() -> None:
    program = lowered(nn.Sequential(conv(3, 2 * LANES, 3), nn.ReLU(), conv(2 * LANES, 2 * LANES), nn.ReLU()), SHAPE)
    other = in_layouts(program, dict.fromkeys(program.tuned_numbers(), OTHERS[0]), HOST)
    assert [o.value.lanes for o in changes(other)] == [LANES]  # of the output, which the framework's form is made of


def test_views_and_what_is_not_tuned_stay_in_the_devices_own_layout() -> None:
    program = lowered(JOINED, SHAPE)
    other = in_layouts(program, dict.fromkeys(movable(program, OTHERS[0]), OTHERS[0]), HOST)
    assert {o.value.lanes for o in other.operations if isinstance(o, MapView)} == {LANES}
    assert all(other.value(v).lanes == other.value(at.whole).lanes == LANES for v, at in other.parts.items())
    known = (0, LANES, OTHERS[0])
    assert all(o.value.lanes in known for o in other.others)
