"""Schedules for a new device from a table of another one, on which they were found.

Where both have the same vectors and registers and compute in the same dtype, a schedule is taken as it is. Elsewhere it
is mapped: the legal schedule of the new space that is most like it (`ideas`), its tile counted in
vectors of channels, as both spaces count them, or in values, so that with vectors half as wide there are twice as many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chanas.compiler.backends import backend_of, schedule_space
from chanas.compiler.space import Point
from chanas.core.blocks import BlockConfig
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget
from chanas.errors import LUTError
from chanas.operators.steps import device_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.blocks import Schedules
from chanas.prescheduler.ideas import agree, ideas, points_of, ranked_points
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.records.store import TuningRecord


def check_source(lut: LatencyLUT, target: HardwareTarget) -> None:
    """Raise LUTError where a table's schedules say nothing about the target's, with what differs."""
    made_on = lut.header.target
    if refusals := _source(lut, target).refusals(target):
        raise LUTError(
            f"the schedules of the table of target '{made_on.name}' ({made_on.device}) can't be used on target "
            f"'{target.name}': {'; '.join(refusals)}; name a table of a processor like this one first, or run "
            "`chanas prescheduler`"
        )


def _source(lut: LatencyLUT, target: HardwareTarget) -> Source:
    """A table's device as a source of points; where the version of the spaces was not stored, it is today's."""
    header = lut.header
    return Source("", header.target, header.compiler, header.space_version or backend_of(target).space_version)


@dataclass(frozen=True)
class KnownSchedules:
    """Schedules of blocks on a device, as far as the table of another one tells them.

    rows         schedules of blocks, by key; without blocks for which there are none
    suggestions  points of each operator to be tried where schedules were mapped, the most like the source's first;
                 empty where they were taken as they are
    """

    rows: dict[str, Schedules]
    suggestions: dict[Workload, list[Point]] = field(default_factory=dict)

    @property
    def are_mapped(self) -> bool:
        """True if the schedules are not those of the source."""
        return bool(self.suggestions)


def known_schedules(blocks: Sequence[BlockConfig], source: LatencyLUT, target: HardwareTarget) -> KnownSchedules:
    """Schedules of a source's rows as points of the target's spaces.

    Where the target has a coordinate that the source has not, such as loops fused for several threads, its first option
    that is legal is taken.
    """
    made_on = source.header.target
    are_same = made_on.dtype == target.dtype and _source(source, target).has_points_of(target)
    found: dict[tuple[Workload, Point], list[Point]] = {}
    suggestions: dict[Workload, list[Point]] = {}
    rows: dict[str, Schedules] = {}
    for block in blocks:
        row = source.rows.get(block.key)
        its = device_workloads(block, made_on)
        if row is None or [w.key for w in its] != [key for key, _ in row.schedules]:
            continue
        chosen: list[tuple[str, Point]] = []
        for workload, other, (_, point) in zip(device_workloads(block, target), its, row.schedules, strict=True):
            if (workload, point) not in found:
                found[workload, point] = _points(workload, target, other, point, made_on, are_same)
            points = found[workload, point]
            if not points:
                break
            if not are_same:
                known = suggestions.setdefault(workload, [])
                known += [p for p in points if p not in known]
            chosen.append((workload.key, points[0]))
        if len(chosen) == len(its):
            rows[block.key] = tuple(chosen)
    for workload, points in suggestions.items():
        points += [p for p in ranked_points(workload, target, 1) if p not in points]
    return KnownSchedules(rows, suggestions)


def _points(
    workload: Workload, target: HardwareTarget, its: Workload, point: Point, source: HardwareTarget, are_same: bool
) -> list[Point]:
    """Points for a workload from one of the source's: where spaces agree the first that says the same, else those that
    are most like it; none where programs would be the same and the spaces disagree all the same."""
    whence, space = schedule_space(its, source), schedule_space(workload, target)
    has_same = agree(whence, space)
    if not whence.contains(point) or (are_same and not has_same):
        return []
    (found,) = points_of([point], whence, space, source.vector_lanes / target.vector_lanes)
    return list(found[:1] if has_same else found)


@dataclass(frozen=True)
class Chosen:
    """Schedules of blocks that are not run, and the operators of them that took over that of another one."""

    rows: dict[str, Schedules]
    taken_over: dict[Workload, Workload] = field(default_factory=dict)


def choose_untried(
    blocks: Sequence[BlockConfig],
    known: KnownSchedules,
    target: HardwareTarget,
    tuned: Mapping[Workload, Sequence[TuningRecord]],
) -> Chosen:
    """Schedules of blocks of which those that are `known` were mapped or not tuned: of each operator what was found
    here, else what was found for the most similar one, as far as schedules were mapped, else what is known.

    `tuned` has valid records, best first.
    """
    points: dict[Workload, Point] = {}
    taken: dict[Workload, Workload] = {}
    rows: dict[str, Schedules] = {}
    for block in blocks:
        if block.key not in known.rows:
            continue
        schedules: list[tuple[str, Point]] = []
        for workload, (key, point) in zip(device_workloads(block, target), known.rows[block.key], strict=True):
            if workload not in points:
                here = tuned if known.are_mapped else {workload: tuned.get(workload, ())}
                idea = next(ideas(workload, target, here), None)
                if idea is not None:
                    points[workload] = idea.point
                    taken |= {workload: idea.source} if idea.source != workload else {}
                elif known.are_mapped:
                    points[workload] = point
            schedules.append((key, points.get(workload, point)))
        rows[block.key] = tuple(schedules)
    return Chosen(rows, taken)
