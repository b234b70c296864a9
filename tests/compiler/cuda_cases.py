"""Small operators of every kind that GPUs have spaces for."""

from __future__ import annotations

import dataclasses

from chanas.devices.target_files import arch_target
from chanas.operators.workload import Workload

GPU = arch_target("sm_90")
WORKLOADS = (
    Workload("pointwise", 7, 16, 24, 1, 1, "hswish", scaled=True, residual=True),
    Workload("pointwise", 4, 24, 40, epilogue="relu"),
    Workload("conv", 10, 3, 16, 3, 2, "hswish"),
    Workload("blockconv", 5, 8, 16, 3, 1, "relu"),
    Workload("blockconv", 7, 8, 8, 5, 2),
    Workload("depthwise", 7, 16, 16, 5, 2, "relu"),
    Workload("depthwise", 8, 24, 24, 3, 1, "hswish"),
    Workload("pool", 7, 24, 24),
    Workload("pointwise", 1, 24, 10),
    Workload("pointwise", 1, 32, 48, epilogue="hsigmoid", scaled=True, residual=True),
    Workload("squeeze", 7, 72, 24, epilogue="relu"),
    Workload("squeeze", 2, 256, 8, epilogue="relu"),
)
IN_HALVES = tuple(dataclasses.replace(w, dtype="float16") for w in WORKLOADS)
IN_TF32 = tuple(dataclasses.replace(w, dtype="tf32") for w in (*WORKLOADS[:2], WORKLOADS[3]))
OF_THREE = tuple(dataclasses.replace(w, batch=3) for w in WORKLOADS if w.op != "squeeze")
"""Three images: rows that no tile of two divides, some of them spare; dense layers are products."""
OF_TWO_IN_HALVES = tuple(
    dataclasses.replace(w, batch=2, wide=w.out_channels == 10) for w in IN_HALVES if w.op in ("pointwise", "blockconv")
)


def key(workload: Workload) -> str:
    return workload.key
