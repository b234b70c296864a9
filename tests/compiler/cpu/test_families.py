"""chanas/compiler/cpu/families.py: what a row says fits together."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from chanas.compiler.cpu.families import FAMILIES, family_of, operator_arguments
from chanas.compiler.cpu.reference import operator_case
from chanas.errors import ScheduleError
from chanas.network.folding import pack_operator
from chanas.operators.workload import Workload

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

each_row = pytest.mark.parametrize("workload", ROWS, ids=lambda w: w.key)


@each_row
@pytest.mark.parametrize("lanes", [4, 16])
def test_parameters_are_packed_as_the_kernel_reads_them(workload: Workload, lanes: int) -> None:
    shape = (workload.out_channels, workload.channels_per_group, workload.kernel_size, workload.kernel_size)
    weight, bias = np.ones(shape, np.float32), np.ones(workload.out_channels, np.float32)
    packed = pack_operator(workload, weight, bias, lanes) if workload.has_weights else []
    assert family_of(workload).parameter_shapes(workload, lanes) == tuple(part.shape for part in packed)


@pytest.mark.parametrize("workload", [*ROWS, *WITH_RESIDUAL], ids=lambda w: w.key)
def test_the_expression_takes_what_the_reference_case_gives(workload: Workload) -> None:
    case = operator_case(workload, 16)
    *inputs, output = operator_arguments(workload, 16)
    assert [tuple(int(n) for n in t.shape) for t in inputs] == [a.shape for a in case.arguments]
    assert [str(t.dtype) for t in inputs] == [str(a.dtype) for a in case.arguments]
    assert np.prod([int(n) for n in output.shape]) == case.expected.size


def test_a_dtype_without_a_row_is_refused() -> None:
    workload = Workload("blockconv", 7, 16, 16, 3, dtype="bfloat16")
    with pytest.raises(ScheduleError, match=r"^operator blockconv is not there in bfloat16 \(workload blockconv-7px"):
        family_of(workload)


def test_spaces_are_there_without_tvm() -> None:
    code = """
import sys
from chanas.compiler.cpu.families import FAMILIES
assert FAMILIES
print("tvm" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
