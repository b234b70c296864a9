"""chanas/compiler/cpu/families.py: what a row says fits together."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from chanas.compiler.cases import operator_case
from chanas.compiler.cpu.families import FAMILIES, operator_arguments
from chanas.errors import ScheduleError
from chanas.operators.workload import Workload

from ..workbench import device

SMALL = {
    "conv": Workload("conv", 9, 3, 24, 3, 2, "hswish"),
    "blockconv": Workload("blockconv", 7, 20, 24, 5, 2, "relu"),
    "groupconv": Workload("groupconv", 7, 40, 40, 3, 2, "relu", groups=5),
    "winograd": Workload("winograd", 7, 20, 24, 5, 2, "relu"),
    "winograd2": Workload("winograd2", 7, 20, 24, 5, 1, "relu"),
    "pointwise": Workload("pointwise", 7, 21, 24, scaled=True, residual=True),
    "depthwise": Workload("depthwise", 7, 24, 24, 5, 2, "relu"),
    "pool": Workload("pool", 7, 24, 24),
    "upconv": Workload("upconv", 7, 20, 24, 3, 2, "relu"),
}
ROWS = [Workload(**{**SMALL[op].to_json(), "dtype": dtype}) for op, dtype in FAMILIES]
WITH_RESIDUAL = [replace(w, residual=True) for w in ROWS if w.has_weights and w.dtype == "float32"]


@pytest.mark.parametrize("workload", [*ROWS, *WITH_RESIDUAL], ids=lambda w: w.key)
def test_the_expression_takes_what_the_reference_case_gives(workload: Workload) -> None:
    case = operator_case(workload, device(16))
    *inputs, output = operator_arguments(workload, device(16))
    assert [tuple(int(n) for n in t.shape) for t in inputs] == [a.shape for a in case.arguments]
    assert [str(t.dtype) for t in inputs] == [str(a.dtype) for a in case.arguments]
    assert np.prod([int(n) for n in output.shape]) == case.expected.size


def test_a_dtype_without_a_row_is_refused() -> None:
    workload = Workload("blockconv", 7, 16, 16, 3, dtype="bfloat16")
    with pytest.raises(ScheduleError, match=r"^operator blockconv is not there in bfloat16 \(workload blockconv-7px"):
        FAMILIES.of(workload)


def test_spaces_are_there_without_tvm() -> None:
    code = """
import sys
from chanas.compiler.cpu.families import FAMILIES
assert FAMILIES
print("tvm" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
