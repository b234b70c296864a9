"""Results of kernels (T4) as records: those of others as configurations of parameters, our own as the points that they
were."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from chanas.compiler.backends import backend_of, schedule_space
from chanas.compiler.space import ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.core.units import format_latency
from chanas.errors import ChanasError, printable
from chanas.files.documents import first_fault
from chanas.operators.keys import workload_of_key
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.tuning.offline.exchange.measured import Measured, a_gpu, graphics_processor
from chanas.prescheduler.tuning.offline.exchange.t1 import Parameter, Problem, point_of
from chanas.prescheduler.tuning.offline.exchange.t4 import Result
from chanas.prescheduler.tuning.offline.primitives import NUM_VALUES, Primitive, device, encode, primitive_rows

SYSTEM = "Kernel Tuner"
_MAX_NAME = 120
_MAX_PARAMETERS = 256
_NEAR = 1.1
# Sizes beyond which spaces of ours are not made for a stranger's file.
_MAX_SIZE, _MAX_PIXELS, _MAX_OF_TARGET = 1 << 16, 1 << 22, 1 << 12


@dataclass(frozen=True)
class Own:
    """The facts by which our own T1 files say what they are of."""

    workload: str
    device: str
    compiler: str
    spaces: int
    target: HardwareTarget

    @classmethod
    def of(cls, source: Source, workload: str) -> Own:
        return cls(workload, source.device, source.compiler, source.spaces, source.target)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Own:
        """Raises ValueError: the facts are others, of sizes that no device has, or cannot be printed."""
        if (fault := first_fault(json.dumps(data), cls)) is not None:
            raise ValueError(f"chanas: {fault}")
        target = HardwareTarget.from_json(data["target"])
        sizes = (target.num_threads, target.vector_lanes, target.num_vector_registers, target.batch)
        if not all(1 <= size <= _MAX_OF_TARGET for size in sizes) or min(target.l1_bytes, target.l2_bytes) < 0:
            raise ValueError("chanas: expected a target of usual sizes, got others")
        own = cls(**{**data, "target": target})
        if not all(text.isprintable() for text in (own.device, own.compiler, target.name, target.device)):
            raise ValueError("chanas: expected names that can be printed, got others")
        return own

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "target": self.target.to_json()}

    @functools.cached_property
    def space(self) -> ScheduleSpace[Any]:
        """Raises ValueError: the operator is not there, or too large."""
        try:
            workload = workload_of_key(self.workload)
            sizes = (
                workload.in_channels,
                workload.out_channels,
                *(axis.size for axis in workload.axes),
                workload.batch,
            )
            if max(sizes) > _MAX_SIZE or workload.input_pixels > _MAX_PIXELS:
                raise ValueError(f"chanas: expected an operator of usual sizes, got {self.workload}")
            return schedule_space(workload, self.target)
        except ChanasError as error:
            raise ValueError(f"chanas: {error}") from error

    @property
    def source(self) -> Source:
        return Source(self.device, self.target, self.compiler, self.spaces)


def measured_results(
    results: Sequence[Result], problem: Problem | None, name: str, skipped: Counter[str]
) -> Iterator[Measured]:
    """Results as records; those of no use here are counted.

    Args:
        problem: the space that they are of; None: the values that occur are all that is known of it.
        name: stands for the kernel's where there is no problem.

    Raises:
        ValueError: the problem says that it is one of ours, and is not.
    """
    if problem is not None and problem.own is not None:
        yield from _own_points(results, Own.read(problem.own), skipped)
        return
    parameters = _known_values(results, problem)
    places = {p.name: {value: place for place, value in enumerate(p.values or ())} for p in parameters}
    kernel = name if problem is None else problem.kernel
    language, device = ("", "unknown") if problem is None else (problem.language, problem.device or "unknown")
    source = graphics_processor(SYSTEM, device, [language, device], a_gpu(), label=language.lower() or "gpu")
    for result in results:
        if result.configuration.keys() != places.keys():
            skipped["of other parameters than their space has"] += 1
            continue
        point = tuple(of[value] for n, of in places.items() if (value := result.configuration[n]) in of)
        if len(point) < len(parameters):
            skipped["of values that their space does not have"] += 1
            continue
        rows = encode(_parameter_rows(source.target, parameters, point))
        yield Measured(source, printable(kernel)[:_MAX_NAME], "kernel", result.seconds, rows, point)


def _own_points(results: Sequence[Result], own: Own, skipped: Counter[str]) -> Iterator[Measured]:
    if own.spaces != backend_of(own.target).space_version:
        skipped["of devices with another version of the schedule spaces"] += len(results)
        return
    for result in results:
        point = point_of(own.space, result.configuration)
        if point is None:
            skipped["of points outside their spaces"] += 1
            continue
        workload = own.space.workload
        rows = primitive_rows(own.space, [point], own.target).values
        yield Measured(own.source, workload.key, workload.op, result.seconds, rows, point, workload.num_flops)


def _known_values(results: Sequence[Result], problem: Problem | None) -> list[Parameter]:
    """Parameters with values: those of the problem, or all that occur in the results where they are not known."""
    names = list(results[0].configuration) if problem is None and results else []
    parameters = [Parameter(n, None) for n in names] if problem is None else list(problem.parameters)
    if len(parameters) > _MAX_PARAMETERS:
        raise ValueError(f"expected at most {_MAX_PARAMETERS} parameters, got {len(parameters)}")
    found = []
    for parameter in parameters:
        values = parameter.values
        if values is None:
            there = {r.configuration[parameter.name] for r in results if parameter.name in r.configuration}
            values = tuple(sorted(there, key=lambda v: (isinstance(v, str), v)))
        found.append(Parameter(parameter.name, values))
    return found


def _parameter_rows(target: HardwareTarget, parameters: Sequence[Parameter], point: Sequence[int]) -> list[Primitive]:
    """The device, and the parameters in their order, as many in a row as it has room for: logarithms of numbers, places
    of texts among their values. What a parameter does is not known."""
    numbers = [_as_number(parameter, place) for parameter, place in zip(parameters, point, strict=True)]
    parts = [numbers[i : i + NUM_VALUES] for i in range(0, len(numbers), NUM_VALUES)]
    return [device(target), *(("AN other", tuple(part)) for part in parts)]


def _as_number(parameter: Parameter, place: int) -> float:
    assert parameter.values is not None
    value = parameter.values[place]
    if isinstance(value, str):
        return float(place)
    return math.copysign(math.log2(1.0 + abs(value)), value)


# ---- lines for people -----------------------------------------------------------------------------------------------
def describe_problem(problem: Problem) -> str:
    """A line about a space of parameters."""
    num, conditions = problem.num_combinations, len(problem.conditions)
    combinations = "combinations not known" if num is None else f"{num:,} combinations"
    kept = f", {conditions} condition(s), which are not evaluated" if conditions and problem.own is None else ""
    kernel = printable(problem.kernel)[:_MAX_NAME]
    return f"space      {kernel}: {len(problem.parameters)} parameters, {combinations}{kept}"


def describe_results(name: str, results: Sequence[Result], problem: Problem | None) -> list[str]:
    """Lines about the space of parameters, and how the results lie in it."""
    if problem is None:
        num = max((len(r.configuration) for r in results), default=0)
        lines = [f"space      {printable(name)}: {num} parameters; no T1 file says which values they may have"]
    else:
        lines = [describe_problem(problem)]
    if results:
        seconds = np.sort([result.seconds for result in results])
        near = np.count_nonzero(seconds <= _NEAR * seconds[0])
        lines.append(
            f"results    {len(seconds)}: best {format_latency(seconds[0])}, median "
            f"{format_latency(float(np.median(seconds)))}, {near} no more than a tenth above the best"
        )
    return lines


def same_parameters(problem: Problem, results: Sequence[Result]) -> bool:
    """True if the results are of a problem's parameters."""
    return any(problem.names == result.configuration.keys() for result in results[:1])
