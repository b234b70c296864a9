"""The operator families of CPUs in one table: the schedule space of each, and how a point of it becomes a schedule.

Neither needs TVM before something is scheduled; expressions, which do, have a table of their own in `operators`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.workload import Workload
from chanas.prescheduler.kernels.cpu import bf16_schedules, schedules, space
from chanas.prescheduler.kernels.cpu.schedules import flatten_output
from chanas.prescheduler.workloads.space import Named, Point, ScheduleSpace


@dataclass(frozen=True)
class Family:
    """A family of operators on a CPU.

    space     the schedule space of an operator on a target
    schedule  schedules the stages of an operator (by their prefix, in parallel or not) as a point says
    """

    space: Callable[[Workload, HardwareTarget], ScheduleSpace]
    schedule: Callable[[Any, Workload, Named, str, bool], None]


FAMILIES = {
    "conv": Family(space.conv, schedules.conv),
    "blockconv": Family(space.blockconv, schedules.blockconv),
    "winograd": Family(space.winograd, schedules.winograd),
    "pointwise": Family(space.pointwise, schedules.pointwise),
    "depthwise": Family(space.depthwise, schedules.depthwise),
    "pool": Family(space.pool, schedules.pool),
}
BFLOAT16_FAMILIES = {
    "conv": FAMILIES["conv"],
    "pointwise": Family(bf16_schedules.pointwise_space, bf16_schedules.apply_pointwise),
    "depthwise": FAMILIES["depthwise"],
    "pool": FAMILIES["pool"],
}


def family_of(workload: Workload) -> Family:
    """The family of an operator in its dtype.

    Raises:
        ScheduleError: the operator is not there on CPUs, or not in bfloat16.
    """
    families = BFLOAT16_FAMILIES if workload.dtype == "bfloat16" else FAMILIES
    if workload.op not in families:
        where = "in bfloat16" if workload.op in FAMILIES else "on CPUs"
        raise ScheduleError(f"operator {workload.op} is not there {where} (workload {workload.key})")
    return families[workload.op]


def cpu_space(workload: Workload, target: HardwareTarget) -> ScheduleSpace:
    """The schedule space of a workload on a CPU, from its vector width and number of registers.

    Raises:
        ScheduleError: the operator is not there on CPUs, or not in bfloat16.
    """
    return family_of(workload).space(workload, target)


def apply_point(sch: Any, workload: Workload, point: Point, target: HardwareTarget, prefix: str) -> None:
    """Schedule one operator in place.

    Raises:
        ScheduleError: the point is not in the workload's space.
    """
    named = cpu_space(workload, target).decode(point)
    family_of(workload).schedule(sch, workload, named, prefix, target.num_threads > 1)
    if workload.dtype == "bfloat16":
        from chanas.prescheduler.kernels.cpu.bf16_intrinsics import import_instructions

        import_instructions(sch, sch.get_loops(sch.get_sblock(f"{prefix}out"))[0])


def schedule_operator(workload: Workload, point: Point, target: HardwareTarget) -> Any:
    """A `tirx.PrimFunc` of one operator alone, scheduled by `point`; its symbol is `main`."""
    from tvm import s_tir, te

    from chanas.prescheduler.kernels.cpu.operators import operator_graph

    graph = operator_graph(workload, target.vector_lanes)
    sch = s_tir.Schedule(te.create_prim_func(list(graph.arguments)), error_render_level="none")
    apply_point(sch, workload, point, target, "op0_")
    flatten_output(sch, workload, "op0_")
    return sch.mod["main"]
