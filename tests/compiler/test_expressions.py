"""chanas/compiler/expressions.py: epilogues as compiled code computes them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from tvm import s_tir, te

from chanas.compiler.backends import schedule_operator
from chanas.compiler.cpu.lowering import pipeline
from chanas.compiler.cpu.space import pointwise
from chanas.compiler.expressions import at_least, at_most, epilogue, exp, maximum, minimum
from chanas.errors import ScheduleError
from chanas.operators.workload import Workload

from .workbench import HOST

Numbers = npt.NDArray[np.float32]
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "hswish": functional.hardswish,
    "hsigmoid": functional.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "swish": functional.silu,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "leaky0.1": lambda x: functional.leaky_relu(x, 0.1),
}
NEAR, FAR = np.linspace(-20, 20, 1 << 16), np.linspace(-1e4, 1e4, 1 << 16)
ODD = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 89.0, -89.0, 1e-40, -1e-40)
X86 = ("vmaxps", "vminps")
INSTRUCTIONS = {
    ("haswell", 8): X86,
    ("skylake-avx512", 16): X86,
    ("cortex-a72", 4): ("fmax", "fmin"),
}
"""Of processors and the lanes of their vectors: both bounds."""


def built(
    function: Callable[..., Any], num: int, target: Any, lanes: int = HOST.vector_lanes, num_inputs: int = 1
) -> Any:
    """A function of each of so many values, in vectors."""
    inputs = [te.placeholder((num,), name=f"x{i}") for i in range(num_inputs)]
    y = te.compute((num,), lambda i: function(*(x[i] for x in inputs)), name="y")
    schedule = s_tir.Schedule(te.create_prim_func([*inputs, y]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.vectorize(schedule.split(loop, [None, lanes])[1])
    return tvm.tirx.build(schedule.mod["main"], target, pipeline())


def computed(function: Callable[[Any], Any], values: Numbers) -> Numbers:
    """A function of each value as compiled vectors compute it."""
    return called(built(function, len(values), HOST.tvm_target()), values)


def called(program: Any, *values: Numbers) -> Numbers:
    out = tvm.runtime.tensor(np.zeros_like(values[0]))
    program(*map(tvm.runtime.tensor, values), out)
    result: Numbers = out.numpy()
    return result


@functools.cache
def compiled(kind: str) -> Any:
    """An epilogue of 64 values; "exp" is the exponential."""
    return built(exp if kind == "exp" else functools.partial(epilogue, kind), 64, HOST.tvm_target())


def test_the_exponential_is_right_to_the_last_bits() -> None:
    x = np.linspace(-87, 88.72, 1 << 18).astype(np.float32)
    assert np.abs(computed(exp, x) / np.exp(x.astype(np.float64)) - 1).max() < 4e-7


def test_the_exponential_is_infinity_where_it_is_and_nearly_zero_below_the_normal_numbers() -> None:
    x = np.linspace(-200, 200, 1 << 18).astype(np.float32)
    found = computed(exp, x)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(np.isinf(found), np.isinf(np.exp(x.astype(np.float64)).astype(np.float32)))
    assert (found[x < -87.4] < np.finfo(np.float32).tiny).all()
    assert (found[x < -88] == 0).all()


@settings(max_examples=20)
@given(st.data())
@pytest.mark.parametrize("kind", ["exp", *FUNCTIONS])
def test_nan_and_infinity_go_through_as_in_pytorch(kind: str, data: st.DataObject) -> None:
    x = np.random.default_rng(data.draw(st.integers(0, 99))).standard_normal(64).astype(np.float32)
    places = data.draw(st.lists(st.integers(0, 63), min_size=1, unique=True))
    x[places] = data.draw(st.lists(st.sampled_from(ODD), min_size=len(places), max_size=len(places)))
    # in float64: the float32 of some libraries that PyTorch calls has no gelu of infinity
    expected = {"exp": torch.exp, **FUNCTIONS}[kind](torch.from_numpy(x.astype(np.float64))).numpy()
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(called(compiled(kind), x), expected.astype(np.float32), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("function", "of_numpy"), [(maximum, np.maximum), (minimum, np.minimum)])
def test_the_larger_and_the_smaller_of_two_are_nan_where_one_is(
    function: Callable[[Any, Any], Any], of_numpy: Callable[[Any, Any], Numbers]
) -> None:
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, 1.0, -2.0, 1e30], np.float32)
    first, second = np.repeat(values, 8), np.tile(values, 8)
    both = built(function, 64, HOST.tvm_target(), num_inputs=2)
    np.testing.assert_array_equal(called(both, first, second), of_numpy(first, second))


@pytest.mark.parametrize(("processor", "lanes"), INSTRUCTIONS)
def test_bounds_are_an_instruction_each(processor: str, lanes: int) -> None:
    arm = {"mtriple": "aarch64-linux-gnu"} if processor.startswith("cortex") else {}
    target = tvm.target.Target({"kind": "llvm", "mcpu": processor, **arm})
    code = built(lambda x: at_most(6.0, at_least(0.0, x)), 64, target, lanes).inspect_source("s")
    found = re.findall(r"\b(v?max[ps]s|v?min[ps]s|vcmp\w+|v?and\w*ps|vblend\w+|f(?:max|min|cm)\w*|bsl|bit|bif)\b", code)
    assert set(found) == set(INSTRUCTIONS[processor, lanes])


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("values", [NEAR, FAR], ids=["near", "far"])
def test_an_epilogue_is_pytorchs_function(kind: str, values: npt.NDArray[np.float64]) -> None:
    x = values.astype(np.float32)
    expected = FUNCTIONS[kind](torch.from_numpy(x.astype(np.float64))).numpy()
    np.testing.assert_allclose(computed(lambda v: epilogue(kind, v), x), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["hardswish", "", "softmax"])
def test_an_unknown_epilogue_is_none_of_the_known(kind: str) -> None:
    with pytest.raises(ScheduleError, match="unknown epilogue"):
        epilogue(kind, te.placeholder((1,), name="x")[0])


def calls(kind: str) -> set[str]:
    """What the machine code of a 1×1 convolution with an epilogue calls."""
    workload = Workload("pointwise", 8, 16, 64, epilogue=kind)
    function = schedule_operator(workload, pointwise(workload, HOST).middle, HOST)
    code = tvm.tirx.build(function, HOST.tvm_target(), pipeline()).inspect_source("s")
    return {re.sub(r"\d+", "", name) for name in re.findall(r"^\s(?:callq?|bl)\s+(\S+)", code, re.MULTILINE)}


def test_no_function_is_called_for_each_value_of_a_vector() -> None:
    plain = calls("relu")
    assert any("compute" in name for name in plain)
    for kind in ("swish", "tanh", "gelu"):
        assert calls(kind) == plain
