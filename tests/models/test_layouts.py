"""chanas/models/layouts.py: networks whose operators have different forms give what PyTorch gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from torch import Tensor, nn
from torch.nn import functional as F

from chanas.compiler.cpu.build import build_module
from chanas.compiler.program import Form, MapView, OtherOperation, Program
from chanas.core.processor import host_processor
from chanas.core.target import HardwareTarget, in_dtype
from chanas.devices.host import load_target
from chanas.models.layouts import choices_in, in_forms, renumbered, with_one_grid
from chanas.models.lowering import lower, with_outputs
from chanas.models.sources.model import OpenedModel
from chanas.operators.quantised import Grid

from .default_programs import default_module, outputs_of
from .torch_networks import HOST, Of, graphs, lowered, opened

LANES = HOST.vector_lanes
OWN, OTHERS = Form(LANES), tuple(Form(n) for n in ((8, 4) if LANES > 8 else (16, 4)))
SHAPE, SQUARE = (1, 3, 12, 10), (1, 3, 12, 12)
CHANNELS = 2 * LANES + 8


def conv(inputs: int, outputs: int, kernel: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups)


def residual(n: Of, x: Tensor) -> Tensor:
    """A chain with a residual, a gate, a pooling, and a dense layer after a mean."""
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


def movable(program: Program, form: Form, device: HardwareTarget = HOST) -> list[int]:
    target = form.on(device)
    return [n for n in program.tuned_numbers() if choices_in(program, n, target)]


def mixed(program: Program, seed: int) -> Mapping[int, Form]:
    """Layouts at random of the operators that can be in them."""
    rng = np.random.default_rng(seed)
    able = {form: movable(program, form) for form in OTHERS}
    options = {n: [OWN, *(form for form in OTHERS if n in able[form])] for n in program.tuned_numbers()}
    for number in program.keeping_form().values():
        options[number] = [OWN, *(form for form in OTHERS if program.kept_in(number, form))]
    return {n: found[rng.integers(len(found))] for n, found in options.items()}


def keeping(program: Program, form: Form) -> Mapping[int, Form]:
    """A form of all that keeps its form and can have this one."""
    return {number: form for number in program.keeping_form().values() if program.kept_in(number, form)}


def changes(program: Program) -> list[OtherOperation]:
    return [o for o in program.others if o.name.startswith("to blocks of ")]


@pytest.mark.parametrize("network", [RESIDUAL, JOINED], ids=["residual", "joined"])
@pytest.mark.parametrize("seed", [0, 1, 2, "all in the first", "all in the second"])
def test_networks_in_mixed_layouts_give_what_pytorch_gives(network: Of, seed: int | str, tmp_path: Path) -> None:
    model = opened(network, SHAPE)
    program = lower(graphs(model)[1], HOST)
    if isinstance(seed, int):
        forms = mixed(program, seed)
    else:
        one = OTHERS[seed.endswith("second")]
        forms = dict.fromkeys(movable(program, one), one) | keeping(program, one)
    assert_right(model, in_forms(program, forms, HOST), HOST, tmp_path, 1e-5)


def assert_right(model: OpenedModel, program: Program, device: HardwareTarget, folder: Path, error: float) -> None:
    assert changes(program)
    made = default_module(program, device)
    source, library = folder / "net.json", folder / "net.so"
    source.write_text(made.to_json())
    build_module(source, device, library)
    inputs = model.random_inputs(1)
    outputs = outputs_of(tvm.runtime.load_module(str(library)), made, inputs)
    for output, expected in zip(outputs, model.answer(inputs), strict=True):
        assert float(np.abs(output - expected).max() / np.abs(expected).max()) <= error


@pytest.mark.skipif("avx512_bf16" not in host_processor().used_flags, reason="the processor has no AVX512_BF16")
@pytest.mark.parametrize("network", [RESIDUAL, JOINED], ids=["residual", "joined"])
@pytest.mark.parametrize("seed", [0, 1, "all"])
def test_networks_partly_in_bfloat16_give_nearly_what_pytorch_gives(
    network: Of, seed: int | str, tmp_path: Path
) -> None:
    device, halves = load_target("cpu", 1, "bf16"), Form(LANES, "bfloat16")
    model = opened(network, SQUARE)
    program = lower(graphs(model)[1], HOST)
    rng = np.random.default_rng(seed if isinstance(seed, int) else 0)
    some = [n for n in movable(program, halves, device) if seed == "all" or rng.integers(2)]
    kept = keeping(program, halves) if seed == "all" or rng.integers(2) else {}
    other = in_forms(program, dict.fromkeys(some, halves) | kept, device)
    assert {o.value.dtype for o in other.tuned} == ({"uint16"} if seed == "all" else {"uint16", "float32"})
    assert_right(model, other, device, tmp_path, 3e-2)


MOVES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "the largest of windows": lambda x: F.max_pool2d(x, (3, 2), 2, 1),
    "the largest of some that are outside": lambda x: F.max_pool2d(x, 2, 3, 1),
    "a slice": lambda x: x[:, LANES : 2 * LANES],
    "whole blocks joined": lambda x: torch.cat((x[:, LANES : 2 * LANES], x[:, :LANES], x), 1),
    "parts of blocks joined": lambda x: torch.cat((x[:, 3 : LANES + 5], x), 1),
    "shuffled": lambda x: x.unflatten(1, (4, -1)).transpose(1, 2).flatten(1, 2),
    "repeated": lambda x: F.interpolate(x, scale_factor=2.0),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_moved_numbers_are_those_that_were_there_to_the_bit(
    move: Callable[[Tensor], Tensor], dtype: str, tmp_path: Path
) -> None:
    flags = host_processor().used_flags
    if (dtype == "bfloat16" and "avx512_bf16" not in flags) or (dtype == "int8" and "avx2" not in flags):
        pytest.skip(f"the processor has no {dtype}")
    shape = (2, CHANNELS, 12, 10)
    end = conv(move(torch.zeros(shape)).shape[1], LANES)
    model = opened(Of(lambda n, x: n.end(move(n.only(x))), only=conv(CHANNELS, CHANNELS), end=end), shape)
    program = lower(graphs(model)[1], HOST)
    program.grids = dict.fromkeys(range(len(program.inputs) + len(program.operations)), Grid(0.02, 100))
    device, form = in_dtype(HOST, dtype), Form(LANES, dtype)
    forms = dict.fromkeys(movable(program, form, device), form) | keeping(program, form)
    other, became = renumbered(program, forms, device)
    first, last = program.tuned_numbers()
    [moved] = {became[program.operation(last).reads[0]]}
    assert other.value(moved).form == other.value(became[first]).form == form
    made = default_module(with_outputs(other, [became[first], moved], device), device)
    source, library = tmp_path / "net.json", tmp_path / "net.so"
    source.write_text(made.to_json())
    build_module(source, device, library)
    [x] = model.random_inputs(1)
    if dtype != "int8":
        x[0, 0, 3, 4], x[0, 0, 8, 9], x[0, 0, :, 0] = np.nan, np.inf, -np.inf
    found, then = outputs_of(tvm.runtime.load_module(str(library)), made, [x])
    np.testing.assert_array_equal(then, move(torch.from_numpy(found)))


def test_operators_stay_where_nothing_is_to_change() -> None:
    program = lowered(RESIDUAL, SHAPE)
    same = in_forms(program, {}, HOST)
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
    other = in_forms(program, {two: OTHERS[0], three: OTHERS[0]}, HOST)
    of_stem = [o for o in changes(other) if o.value.form == OTHERS[0]]
    assert len(of_stem) == 1
    assert one in program.tuned_numbers()


def test_poolings_by_maximum_read_and_write_maps_in_any_form() -> None:
    network = nn.Sequential(
        conv(3, 2 * LANES, 3), nn.ReLU(), nn.MaxPool2d(2), conv(2 * LANES, 2 * LANES), nn.AvgPool2d(2)
    )
    program = lowered(network, SHAPE)
    [pooled] = program.keeping_form()
    other = in_forms(program, dict.fromkeys([*program.tuned_numbers(), pooled], OTHERS[0]), HOST)
    assert [o.value.form for o in other.others if o.name == "max_pool2d"] == [OTHERS[0]]
    assert [o.value.form for o in changes(other)] == [OWN]  # for the mean


def test_neighbours_in_one_layout_hand_maps_over_as_they_are() -> None:
    program = lowered(nn.Sequential(conv(3, 2 * LANES, 3), nn.ReLU(), conv(2 * LANES, 2 * LANES), nn.ReLU()), SHAPE)
    other = in_forms(program, dict.fromkeys(program.tuned_numbers(), OTHERS[0]), HOST)
    assert [o.value.form for o in changes(other)] == [OWN]  # of the output, which the framework's form is made of


def test_views_of_one_memory_have_one_form_together() -> None:
    network = Of(
        lambda n, x: n.left((y := n.stem(x))[:, :LANES]) + n.right(y[:, LANES:]),
        stem=conv(3, 2 * LANES, 3),
        left=conv(LANES, LANES),
        right=conv(LANES, LANES),
    )
    program = lowered(network, SHAPE)
    keeping_form = program.keeping_form()
    left, right = sorted(n for n in keeping_form if isinstance(program.operation(n), MapView))
    assert program.parts[left].whole == program.parts[right].whole
    assert keeping_form == {left: left, right: left}


def test_what_is_moved_has_one_grid_in_int8_or_stays() -> None:
    program, form = lowered(JOINED, SHAPE), Form(LANES, "int8")
    together, firsts = with_one_grid(program), set(program.keeping_form().values())
    assert not any(a & b for a, b in itertools.combinations(together, 2))
    assert firsts <= set().union(*together)
    assert not any(program.kept_in(first, form) for first in firsts)
    for number, values in enumerate(together):
        program.grids |= dict.fromkeys(values, Grid(0.1, number))
    assert all(program.kept_in(first, form) for first in firsts)
    for first in firsts:
        program.grids[program.operation(first).reads[0]] = Grid(0.2, 0)
    assert not any(program.kept_in(first, form) for first in firsts)


def test_views_and_what_is_not_tuned_stay_in_the_devices_own_layout() -> None:
    program = lowered(JOINED, SHAPE)
    other = in_forms(program, dict.fromkeys(movable(program, OTHERS[0]), OTHERS[0]), HOST)
    assert {o.value.lanes for o in other.operations if isinstance(o, MapView)} == {LANES}
    assert all(other.value(v).lanes == other.value(at.whole).lanes == LANES for v, at in other.parts.items())
    known = (0, LANES, OTHERS[0].lanes)
    assert all(o.value.lanes in known for o in other.others)
