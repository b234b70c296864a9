"""Untuned schedules for GPUs: TVM's default rules (dlight), for comparison, and for what our spaces do not cover."""

from __future__ import annotations

from typing import Any

from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.workload import Workload
from chanas.prescheduler.kernels.cuda.families import family_of
from chanas.prescheduler.kernels.cuda.operators import is_dense, operator_function, weight_type


def default_gpu_operator(workload: Workload, target: HardwareTarget) -> Any:
    """A `tirx.PrimFunc` `main` of one operator as TVM schedules it by default: one kernel, as it was for every operator
    that was tried. Arguments as in `operators.operator_inputs`, then the output.

    Raises:
        ScheduleError: the operator is not there for GPUs, or is none of TVM's (`squeeze`).
    """
    from tvm import s_tir
    from tvm.s_tir import dlight

    if workload.op == "squeeze":
        raise ScheduleError(f"operator squeeze has no default schedule; its two operators have ({workload.key})")
    function = operator_function(workload, family_of(workload).compute)
    sch = s_tir.Schedule(function, error_render_level="none")
    if workload.op != "pool" and not is_dense(workload):
        sch.compute_inline(sch.get_sblock("input"))  # as TVM's fusion does to padding
    rules = [dlight.gpu.GeneralReduction(), dlight.gpu.Fallback()]
    if weight_type(workload) != "float16":  # these fail at weights of which neighbours stand side by side
        rules = [dlight.gpu.GEMV(), dlight.gpu.Reduction(), *rules]
        if workload.op not in ("conv", "blockconv"):  # of a window it forgets where the map ends, and reads beyond
            rules = [dlight.gpu.Matmul(), *rules]
    with target.tvm_target():
        return dlight.ApplyDefaultSchedule(*rules)(sch.mod)["main"]
