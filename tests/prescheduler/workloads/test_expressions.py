"""chanas/prescheduler/workloads/expressions.py: epilogues as compiled code computes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import tvm
from torch.nn import functional
from tvm import s_tir, te

from chanas.errors import ScheduleError
from chanas.operators.workload import Workload
from chanas.prescheduler.codegen.cpu.lowering import pipeline
from chanas.prescheduler.kernels.cpu.families import schedule_operator
from chanas.prescheduler.kernels.cpu.space import pointwise
from chanas.prescheduler.workloads.expressions import epilogue, exp

from ..cases import HOST

Numbers = npt.NDArray[np.float32]
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu6": functional.relu6,
    "sigmoid": torch.sigmoid,
    "swish": functional.silu,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "leaky0.1": lambda x: functional.leaky_relu(x, 0.1),
}
NEAR, FAR = np.linspace(-20, 20, 1 << 16), np.linspace(-1e4, 1e4, 1 << 16)


def computed(function: Callable[[Any], Any], values: Numbers) -> Numbers:
    """A function of each value as compiled vectors compute it."""
    x = te.placeholder(values.shape, name="x")
    schedule = s_tir.Schedule(te.create_prim_func([x, te.compute(values.shape, lambda i: function(x[i]), name="y")]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.vectorize(schedule.split(loop, [None, HOST.vector_lanes])[1])
    out = tvm.runtime.tensor(np.zeros_like(values))
    tvm.tirx.build(schedule.mod["main"], HOST.tvm_target(), pipeline())(tvm.runtime.tensor(values), out)
    result: Numbers = out.numpy()
    return result


def test_the_exponential_is_right_to_the_last_bits() -> None:
    x = np.linspace(-87, 88, 1 << 18).astype(np.float32)
    assert np.abs(computed(exp, x) / np.exp(x.astype(np.float64)) - 1).max() < 2e-7


def test_the_exponential_stays_finite_beyond_what_float32_holds() -> None:
    low, zero, high = computed(exp, np.array([-1e30, 0.0, 1e30] + [0.0] * 13, np.float32))[:3]
    assert 0.0 <= low < 1e-37
    assert zero == 1.0
    assert 1e38 < high < np.inf


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
