"""chanas/models/quantised.py: a network that is quantised already has the grids and whole weights of its file, fuses as
any other, and what cannot be in int8 stays in float32 and is counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from quantised_networks import SIZE, QuantisedNetwork, save_gated, save_pooled

from chanas.core.processor import host_processor
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.errors import ConfigError
from chanas.models.lowering import lower
from chanas.models.quantised import QuantisedGraph, QuantisedProgram, lower_quantised, without_roundings
from chanas.models.reading.reader import read_graph
from chanas.models.sources.opening import open_model
from chanas.workflows.models.chain import Model

pytestmark = pytest.mark.skipif("avx2" not in host_processor().used_flags, reason="int8 needs AVX2")
MAP = (1, 16, SIZE, SIZE)


def target(*, has_dots: bool = False) -> HardwareTarget:
    return dataclasses.replace(load_target("cpu", 1, "int8"), has_dots=has_dots)


def graph_of(path: Path) -> QuantisedGraph:
    opened = open_model(path)
    found = without_roundings(read_graph(opened.proto, opened.inputs))
    assert found is not None
    return found


def program_of(path: Path, *, has_dots: bool = False) -> QuantisedProgram:
    return lower_quantised(graph_of(path), load_target("cpu", 1), target(has_dots=has_dots))


def keys(found: QuantisedProgram) -> dict[str, str]:
    """Keys of the tuned operators by the names of their values."""
    program = found.program
    return {program.names.get(n, ""): o.choices[0].key for n, o in program.tuned_numbers().items()}


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_values_have_the_grids_of_the_file(dtype: str, tmp_path: Path) -> None:
    found = graph_of(save_gated(tmp_path / "net.onnx", dtype))
    assert found.rounded == ()
    swish, total, first = (found.grids[name] for name in ("swish", "sum", "first_rounded"))
    assert (swish.zero, total.zero, first.zero) == (20, 100, 0)
    assert (swish.step, total.step, first.step) == tuple(float(np.float32(s)) for s in (0.03, 0.04, 6 / 255))


def test_all_operators_can_be_in_int8_and_fuse_as_without_roundings(tmp_path: Path) -> None:
    found = program_of(save_gated(tmp_path / "net.onnx"))
    assert len(found.able) == len(found.program.tuned) == 10
    assert (found.too_wide, found.inexact) == (0, 0)
    by_name = keys(found)
    parts = {
        "first_rounded": "relu6",
        "swish": "hswish",
        "spatial_rounded": "relu6",
        "gate": "hsigmoid",
        "sum": "none-scaled-res",
        "last_rounded": "relu-",
    }
    assert all(part in by_name[name] for name, part in parts.items()), by_name


def test_weights_are_those_of_the_file(tmp_path: Path) -> None:
    net = QuantisedNetwork()
    x = net.rounded(net.conv(net.rounded("x", 0.04, 128), 0.04, (24, 16, 3, 3), "a", pads=[1, 1, 1, 1]), 0.03, 0)
    net.rounded(net.conv(x, 0.03, (8, 24, 1, 1), "b", by_channel=False), 0.03, 100, "y")
    found = program_of(net.save(tmp_path / "net.onnx", MAP, ["y"]))
    assert found.program.weights is not None
    whole = dict(zip(("a_weight", "b_weight"), found.program.weights.values(), strict=True))
    np.testing.assert_array_equal(whole["a_weight"][0], net.whole["a_weight"])
    np.testing.assert_array_equal(whole["a_weight"][1], net.steps["a_weight"])
    np.testing.assert_array_equal(whole["b_weight"][0], net.whole["b_weight"])
    factors = whole["b_weight"][1] / net.steps["b_weight"]  # what the output is divided by is part of its weights
    np.testing.assert_allclose(factors, 1 / 0.03, rtol=1e-6)


def test_a_value_that_other_operators_read_unrounded_is_theirs_as_it_is(tmp_path: Path) -> None:
    """A relu that a rounding stands for is not before what reads the sum itself."""
    net = QuantisedNetwork()
    first = net.conv(net.rounded("x", 0.04, 128), 0.04, (16, 16, 1, 1), "a")
    second = net.conv(net.rounded(first, 0.03, 0), 0.03, (16, 16, 1, 1), "b")
    net.add("Add", [first, second], "y")
    program = lower(graph_of(net.save(tmp_path / "net.onnx", MAP, ["y"])).graph, load_target("cpu", 1))
    names = {program.names[number]: operation for number, operation in program.tuned_numbers().items()}
    assert names["a"].choices[0].epilogue == "none"
    assert names["y"].choices[0].prologue == "relu"


def test_a_hard_swish_whose_grid_begins_at_0_is_followed_by_no_relu(tmp_path: Path) -> None:
    """Its least number is less than half a step."""
    net = QuantisedNetwork()
    x = net.rounded(net.conv(net.rounded("x", 0.04, 128), 0.04, (16, 16, 1, 1), "a"), 1.0, 100)
    gate = net.rounded(net.add("HardSigmoid", [x], "gate", alpha=1 / 6), 1 / 255, 0)
    x = net.rounded(net.add("Mul", [x, gate], "swish"), 1.0, 0)
    net.conv(x, 1.0, (16, 16, 1, 1), "b")
    found = program_of(net.save(tmp_path / "net.onnx", MAP, ["b"]))
    assert [o.choices[0].epilogue for o in found.program.tuned] == ["hswish", "none"]
    assert len(found.able) == 2


def by_channel(net: QuantisedNetwork, x: str) -> str:
    steps = np.linspace(0.01, 0.05, 16)
    whole = net.add(
        "QuantizeLinear", [x, net.constant(steps), zeros := net.constant([0] * 16, "uint8")], "whole", axis=1
    )
    return net.add("DequantizeLinear", [whole, net.constant(steps), zeros], "rounded", axis=1)


def of_sixteen_bits(net: QuantisedNetwork, x: str) -> str:
    return net.rounded(x, 0.001, 0, dtype="int16")


def back_by_another_step(net: QuantisedNetwork, x: str) -> str:
    return net.rounded(x, 0.03, 128, back=0.06)


ROUNDED = {"by channel": by_channel, "16 bits": of_sixteen_bits, "another step": back_by_another_step}


@pytest.mark.parametrize("rounding", ROUNDED.values(), ids=ROUNDED)
def test_other_roundings_stay_and_are_named(rounding: Callable[[QuantisedNetwork, str], str], tmp_path: Path) -> None:
    net = QuantisedNetwork()
    first = net.conv(net.rounded("x", 0.04, 128), 0.04, (16, 16, 1, 1), "a")
    second = net.conv(rounding(net, first), 0.03, (16, 16, 1, 1), "b")
    third = net.conv(net.rounded(second, 0.03, 128), 0.03, (16, 16, 1, 1), "c")
    net.conv(net.rounded(third, 0.03, 128), 0.03, (16, 16, 1, 1), "d")
    found = program_of(net.save(tmp_path / "net.onnx", MAP, ["d"]))
    assert len(found.rounded) == 1
    assert "whole" in found.rounded[0]
    able = {found.program.names.get(number) for number in found.able}
    assert "c" in able
    assert "b" not in able
    assert "round" in {operation.name for operation in found.program.others}


def two_convolutions(path: Path, most: int) -> Path:
    net = QuantisedNetwork(most=most)
    x = net.rounded(net.conv(net.rounded("x", 0.04, 128), 0.04, (16, 16, 1, 1), "a"), 0.03, 128)
    x = net.rounded(net.conv(x, 0.03, (16, 1, 3, 3), "b", group=16), 0.03, 128)
    net.conv(x, 0.03, (16, 16, 1, 1), "c")
    return net.save(path, MAP, ["c"])


def test_pairs_of_weights_that_take_more_than_sixteen_bits_need_vnni(tmp_path: Path) -> None:
    path = two_convolutions(tmp_path / "net.onnx", 127)
    without, with_dots = program_of(path), program_of(path, has_dots=True)
    assert (len(without.able), without.too_wide) == (1, 2)
    assert (len(with_dots.able), with_dots.too_wide) == (3, 0)


def test_weights_around_another_zero_stay_in_float32(tmp_path: Path) -> None:
    net = QuantisedNetwork()
    x = net.rounded(net.conv(net.rounded("x", 0.04, 128), 0.04, (16, 16, 1, 1), "a"), 0.03, 128)
    whole = net.rng.integers(0, 256, (16, 16, 1, 1))
    weight = net.add(
        "DequantizeLinear", [net.constant(whole, "uint8"), net.constant(0.01), net.constant(3, "uint8")], "w"
    )
    net.add("Conv", [x, weight], "y")
    found = program_of(net.save(tmp_path / "net.onnx", MAP, ["y"]))
    assert found.inexact == 1
    assert len(found.able) == 1


def test_nothing_in_int8_is_refused_in_one_line(tmp_path: Path) -> None:
    net = QuantisedNetwork(most=127)
    net.conv(net.rounded("x", 0.04, 128), 0.04, (16, 16, 1, 1), "a")
    with pytest.raises(ConfigError, match=r"no operator of the network can be in int8 \(1 have pairs"):
        program_of(net.save(tmp_path / "net.onnx", MAP, ["a"]))


def test_a_network_without_roundings_is_none(tmp_path: Path) -> None:
    net = QuantisedNetwork()
    net.conv("x", 0.04, (16, 16, 1, 1), "a")
    opened = open_model(net.save(tmp_path / "net.onnx", MAP, ["a"]))
    assert without_roundings(read_graph(opened.proto, opened.inputs)) is None


def test_without_int8_roundings_are_computed_in_float32(tmp_path: Path) -> None:
    loaded = Model.load(save_gated(tmp_path / "net.onnx"))
    program = lower(loaded.graph, load_target("cpu", 1))
    assert sum(operation.name == "round" for operation in program.others) > 10
    assert not program.grids


def test_maps_in_nhwc_have_their_grids_too(tmp_path: Path) -> None:
    """As TensorFlow Lite's networks come: transposed before and behind each convolution."""
    net, x = QuantisedNetwork("int8"), "x"
    for name, step, shape in (("a", 0.04, (16, 3, 3, 3)), ("b", 0.03, (24, 16, 1, 1)), ("c", 0.03, (16, 24, 3, 3))):
        x = net.add("Transpose", [net.rounded(x, step, 128)], f"{name}_in", perm=[0, 3, 1, 2])
        x = net.conv(x, step, shape, name, pads=[shape[2] // 2] * 4)
        x = net.add("Relu", [net.add("Transpose", [x], f"{name}_out", perm=[0, 2, 3, 1])], f"{name}_relu")
    found = program_of(net.save(tmp_path / "net.onnx", (1, SIZE, SIZE, 3), [x]))
    assert len(found.able) == len(found.program.tuned) == 3
    assert [o.choices[0].epilogue for o in found.program.tuned] == ["relu"] * 3


def test_operators_on_whole_numbers_are_those_between_roundings(tmp_path: Path) -> None:
    of_floats, of_numbers = (
        program_of(save_pooled(tmp_path / f"{of_operators}.onnx", of_operators=of_operators))
        for of_operators in (False, True)
    )
    assert list(keys(of_numbers).values()) == list(keys(of_floats).values())
    assert of_numbers.able == of_floats.able
    assert len(of_floats.able) == 4
    assert of_numbers.rounded == of_floats.rounded == ()
    grids = [[found.program.grids.get(n) for n in found.program.tuned_numbers()] for found in (of_floats, of_numbers)]
    assert grids[0] == grids[1]
    for number, (weight, steps) in of_floats.program.weights.items():
        same = of_numbers.program.weights[number]
        np.testing.assert_array_equal(weight, same[0])
        np.testing.assert_array_equal(steps, same[1])
