"""One back end for each kind of device (`HardwareTarget.kind`): what tuning, measuring and tables ask of its kernels,
and the facts about it that they go by.

Another kind of device is a folder of kernels beside `cpu/` and `cuda/`, and an entry of `BACKENDS`. What comes with
TVM is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chanas.compiler.cases import ReferenceCase
from chanas.compiler.cpu import reference as cpu_reference
from chanas.compiler.cpu.families import cpu_space
from chanas.compiler.cpu.features import cpu_features
from chanas.compiler.cpu.points import in_words
from chanas.compiler.cuda import reference as cuda_reference
from chanas.compiler.cuda.features import gpu_features
from chanas.compiler.space import Named, ScheduleSpace
from chanas.core.arch import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.network.folding import Array
from chanas.operators.workload import Workload

NetworkCase = Callable[
    [Sequence[BlockConfig], Sequence[Mapping[str, Array]], Array, Array, HardwareTarget], ReferenceCase
]
"""Blocks, PyTorch's parameters by name of each, images float32[B, 3, R, R] and logits float32[B, classes] to a case."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The kernels of one kind of device, and facts about it.

    space_version          raised whenever a point comes to mean another program: what is known of points of other
                           versions is not used
    space                  the schedule space of an operator; ScheduleError where it is not there, or not in its dtype
    features               one point's features for a cost model, as many for every operator
    case                   the case of an operator or of a whole block, laid out as the kernels read it
    network_case           the case of a whole network, for as many images as the target takes at once
    in_words               a point for people, from its groups
    worker                 arguments of Python that start a process which compiles and times
    timing                 how seconds are got, as a table's header says it; empty: by the clock
    has_own_cores          what times has its cores to itself
    keeps_caches           weights that fit into a cache are still there at the next inference
    differs_by_process     a network's time depends on where in memory its process has the weights
    has_slow_dtypes        a dtype of half the bytes may take longer than float32
    has_default_schedules  blocks can be compiled and timed without our schedules
    has_objects            blocks can be compiled to objects that C code calls
    seeds_others           points mean the same on other devices of the kind whose spaces agree (warm start)
    """

    space_version: int
    space: Callable[[Workload, HardwareTarget], ScheduleSpace[Any]]
    features: Callable[[ScheduleSpace[Any], Named, HardwareTarget], list[float]]
    case: Callable[[Workload | BlockConfig, HardwareTarget], ReferenceCase]
    network_case: NetworkCase
    in_words: Callable[[Named], str]
    worker: tuple[str, ...]
    timing: str = ""
    has_own_cores: bool = False
    keeps_caches: bool = False
    differs_by_process: bool = False
    has_slow_dtypes: bool = False
    has_default_schedules: bool = False
    has_objects: bool = False
    seeds_others: bool = False


def _gpu_words(named: Named) -> str:
    """Groups by their names: blocks, threads and values of each loop, and choices."""
    return ", ".join(f"{name.removeprefix('split_')} {' × '.join(map(str, group))}" for name, group in named.items())


def _gpu_space(workload: Workload, target: HardwareTarget) -> ScheduleSpace[Any]:
    from chanas.compiler.cuda.families import gpu_space

    return gpu_space(workload, target)


BACKENDS = {
    "llvm": Backend(
        space_version=1,
        space=cpu_space,
        features=cpu_features,
        case=cpu_reference.case_of,
        network_case=cpu_reference.network_case,
        in_words=in_words,
        worker=("-m", "chanas.measuring.worker.cpu"),
        has_own_cores=True,
        keeps_caches=True,
        differs_by_process=True,
        has_slow_dtypes=True,
        has_default_schedules=True,
        has_objects=True,
        seeds_others=True,
    ),
    "cuda": Backend(
        space_version=2,
        space=_gpu_space,
        features=gpu_features,
        case=cuda_reference.gpu_case_of,
        network_case=cuda_reference.gpu_network_case,
        in_words=_gpu_words,
        worker=("-m", "chanas.measuring.worker.cuda"),
        timing="device events, clock rates settled, L2 cold (flushed before each launch)",
    ),
}


def backend_of(target: HardwareTarget) -> Backend:
    """Return the back end of a target's kind."""
    return BACKENDS[target.kind]


def schedule_space(workload: Workload, target: HardwareTarget) -> ScheduleSpace[Any]:
    """The space of a workload on a target, from its vector width and number of registers, or from a GPU's limits."""
    return backend_of(target).space(workload, target)


def case_of(what: Workload | BlockConfig, target: HardwareTarget) -> ReferenceCase:
    """The case of an operator or of a whole block, laid out as the target's kernels read it."""
    return backend_of(target).case(what, target)
