"""One back end for each kind of device (`HardwareTarget.kind`): what tuning, measuring and tables ask of its kernels,
and the facts about it that they go by.

Another kind of device is a folder of kernels beside `cpu/` and `cuda/`, and an entry of `BACKENDS`. What comes with
TVM is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chanas.compiler.cases import ReferenceCase, block_case, operator_case
from chanas.compiler.cpu.families import FAMILIES as CPU_FAMILIES
from chanas.compiler.cpu.features import cpu_features
from chanas.compiler.cpu.points import in_words
from chanas.compiler.cuda.features import gpu_features
from chanas.compiler.families import Families
from chanas.compiler.space import Named, Point, ScheduleSpace
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The kernels of one kind of device, and facts about it.

    space_version          raised whenever a point comes to mean another program: what is known of points of other
                           versions is not used
    families               the operators that it has kernels of
    features               one point's features for a cost model, as many for every operator
    in_words               a point for people, from its groups
    timing                 how seconds are got, as a table's header says it; empty: by the clock
    has_own_cores          what times has its cores to itself
    keeps_caches           weights that fit into a cache are still there at the next inference
    differs_by_process     a network's time depends on where in memory its process has the weights
    has_default_schedules  blocks can be compiled and timed without our schedules
    has_objects            blocks can be compiled to objects that C code calls
    seeds_others           points mean the same on other devices of the kind whose spaces agree (warm start)
    """

    space_version: int
    families: Callable[[], Families]
    features: Callable[[ScheduleSpace[Any], Named, HardwareTarget], list[float]]
    in_words: Callable[[Named], str]
    timing: str = ""
    has_own_cores: bool = False
    keeps_caches: bool = False
    differs_by_process: bool = False
    has_default_schedules: bool = False
    has_objects: bool = False
    seeds_others: bool = False


def _gpu_words(named: Named) -> str:
    """Groups by their names: blocks, threads and values of each loop, and choices."""
    return ", ".join(f"{name.removeprefix('split_')} {' × '.join(map(str, group))}" for name, group in named.items())


def _gpu_families() -> Families:
    from chanas.compiler.cuda.families import FAMILIES

    return FAMILIES


BACKENDS = {
    "llvm": Backend(
        space_version=1,
        families=lambda: CPU_FAMILIES,
        features=cpu_features,
        in_words=in_words,
        has_own_cores=True,
        keeps_caches=True,
        differs_by_process=True,
        has_default_schedules=True,
        has_objects=True,
        seeds_others=True,
    ),
    "cuda": Backend(
        space_version=2,
        families=_gpu_families,
        features=gpu_features,
        in_words=_gpu_words,
        timing="device events, clock rates settled, L2 cold (flushed before each launch)",
    ),
}


def backend_of(target: HardwareTarget) -> Backend:
    """Return the back end of a target's kind."""
    return BACKENDS[target.kind]


def schedule_space(workload: Workload, target: HardwareTarget) -> ScheduleSpace[Any]:
    """The space of a workload on a target, from its vector width and number of registers, or from a GPU's limits.

    Raises:
        ScheduleError: the operator is not there, or not in its dtype.
    """
    return backend_of(target).families().space(workload, target)


def has_schedules(workload: Workload, target: HardwareTarget) -> bool:
    """True if there is a space of a workload on a target."""
    try:
        schedule_space(workload, target)
    except ScheduleError:
        return False
    return True


def schedule_operator(workload: Workload, point: Point, target: HardwareTarget) -> Any:
    """A `tirx.PrimFunc` of one operator alone, scheduled by `point`; its symbol is `main`.

    Raises:
        ScheduleError: the point is not in the workload's space, or the operator is not there.
    """
    return backend_of(target).families().program(workload, point, target)


def case_of(what: Workload | BlockConfig, target: HardwareTarget) -> ReferenceCase:
    """The case of an operator or of a whole block, laid out as the target's kernels read it."""
    if not isinstance(what, Workload):
        return block_case(what, target)
    return operator_case(what, target, layout=backend_of(target).families().of(what).layout(target))
