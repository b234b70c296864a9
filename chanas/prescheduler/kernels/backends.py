"""Spaces and reference cases of a workload by the target's processor: the one module that knows CPU and GPU."""

from __future__ import annotations

from chanas.core.arch import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Workload
from chanas.prescheduler.kernels.cpu.families import cpu_space
from chanas.prescheduler.kernels.cpu.reference import block_case, operator_case
from chanas.prescheduler.workloads.cases import ReferenceCase
from chanas.prescheduler.workloads.space import SPACE_VERSION, ScheduleSpace


def case_of(what: Workload | BlockConfig, target: HardwareTarget) -> ReferenceCase:
    """The case of an operator or of a whole block, laid out as the target's kernels read it."""
    if target.gpu is not None:
        from chanas.prescheduler.kernels.cuda import reference as cuda_reference

        return cuda_reference.gpu_case_of(what, target)
    if isinstance(what, Workload):
        return operator_case(what, target.vector_lanes)
    return block_case(what, target.vector_lanes, target.dtype)


def space_version(target: HardwareTarget) -> int:
    """The version of the target's schedule spaces: of another one, a point may be another program."""
    if target.gpu is not None:
        from chanas.prescheduler.kernels.cuda import space as cuda_space

        return cuda_space.SPACE_VERSION
    return SPACE_VERSION


def schedule_space(workload: Workload, target: HardwareTarget) -> ScheduleSpace:
    """The space of a workload on a target, from its vector width and number of registers, or from a GPU's limits."""
    if target.gpu is not None:
        from chanas.prescheduler.kernels.cuda.space import gpu_space

        return gpu_space(workload, target)
    return cpu_space(workload, target)
