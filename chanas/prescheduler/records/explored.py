"""The schedule space of an operator as a person looks at it: its knobs, their candidates, and what records say of each.

A knob is a coordinate of the space, a candidate one of its options (AutoTVM's words; Chen et al., 2018).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chanas.compiler.backends import backend_of
from chanas.compiler.space import ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.core.units import format_latency
from chanas.operators.workload import Workload
from chanas.prescheduler.records.remeasure import rank_records
from chanas.prescheduler.records.store import TuningRecord


@dataclass(frozen=True)
class Candidate:
    """An option of a knob; `best_s` is the least of the records that have it, None where none has it and works."""

    values: tuple[int, ...]
    num_tried: int
    best_s: float | None
    is_best: bool

    def describe(self) -> str:
        """`2·7·1` for the factors of a loop from the outside to the inside."""
        return "·".join(map(str, self.values))


@dataclass(frozen=True)
class Knob:
    """A coordinate of a space."""

    name: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class ExploredSpace:
    """The space of an operator on a target.

    best    the fastest record, by the last measurement in turns where there was one
    points  of records that work: the number of each knob's candidate, and GFLOP/s
    """

    space: ScheduleSpace[Any]
    target: HardwareTarget
    knobs: tuple[Knob, ...]
    num_tried: int
    num_failed: int
    best: TuningRecord | None
    points: tuple[tuple[tuple[int, ...], float], ...] = ()

    @property
    def workload(self) -> Workload:
        return self.space.workload

    @property
    def num_points(self) -> int | None:
        """Legal points; None where they are too many to be listed."""
        return self.space.num_points if self.space.is_listed else None

    @property
    def best_gflops(self) -> float | None:
        return None if self.best is None else self.workload.gflops(self.best.last_s)

    def lines(self) -> Iterator[str]:
        """The space for people, one knob a line; `*` marks the candidates of the best point."""
        points = "too many points to list" if self.num_points is None else f"{self.num_points:,} legal points"
        yield f"operator   {self.workload.key}"
        yield f"target     {self.target.name} ({self.target.device})"
        yield f"space      {len(self.knobs)} knobs, {self.space.num_combinations:,} combinations, {points}"
        yield f"tried      {self.num_tried}" + (f", of which {self.num_failed} failed" if self.num_failed else "")
        if self.best is not None:
            words = backend_of(self.target).in_words(self.space.groups(self.best.point))
            seconds = format_latency(self.best.last_s)
            yield f"best       {self.best_gflops:.1f} GFLOP/s ({seconds}), point {list(self.best.point)}"
            yield f"           {words}"
        width = max(len(knob.name) for knob in self.knobs)
        yield "knobs      candidates, with the best GFLOP/s of the points that were tried with each"
        for knob in self.knobs:
            shown = (_shown(self.workload, candidate) for candidate in knob.candidates)
            yield f"  {knob.name:{width}s}  {'  '.join(shown)}"

    def line(self) -> str:
        """The same in one line of a table."""
        points = f"< {self.space.num_combinations:,}" if self.num_points is None else f"{self.num_points:,}"
        best = "-" if self.best_gflops is None else f"{self.best_gflops:.1f}"
        return f"{len(self.knobs):5d}  {points:>12s}  {self.num_tried:5d}  {best:>7s}  {self.workload.key}"

    def to_json(self) -> dict[str, Any]:
        """The same as JSON, seconds in s."""
        best = None
        if self.best is not None:
            best = {"point": self.best.point, "seconds": self.best.last_s, "gflops": self.best_gflops}
        knobs = {
            knob.name: [
                {"values": c.values, "tried": c.num_tried, "best_s": c.best_s, "is_best": c.is_best}
                for c in knob.candidates
            ]
            for knob in self.knobs
        }
        return {
            "workload": self.workload.key,
            "target": self.target.name,
            "fingerprint": self.target.fingerprint,
            "space_version": backend_of(self.target).space_version,
            "num_combinations": self.space.num_combinations,
            "num_points": self.num_points,
            "tried": self.num_tried,
            "failed": self.num_failed,
            "best": best,
            "knobs": knobs,
        }


def explored(space: ScheduleSpace[Any], target: HardwareTarget, records: Sequence[TuningRecord] = ()) -> ExploredSpace:
    """A space with what records, failures too, say of it; points of other spaces are left aside."""
    known = [(record, space.groups(record.point)) for record in records if space.contains(record.point)]
    ranked = rank_records([record for record, _ in known])
    best = ranked[0] if ranked else None
    at_best = {} if best is None else space.groups(best.point)
    knobs = []
    for coordinate in space.coordinates:
        candidates = []
        for option in coordinate.options:
            with_it = [record for record, groups in known if groups[coordinate.name] == option]
            seconds = [record.last_s for record in with_it if record.is_valid]
            is_best = at_best.get(coordinate.name) == option
            candidates.append(Candidate(option, len(with_it), min(seconds, default=None), is_best))
        knobs.append(Knob(coordinate.name, tuple(candidates)))
    num_failed = sum(not record.is_valid for record, _ in known)
    points = tuple(
        (
            tuple(c.options.index(groups[c.name]) for c in space.coordinates),
            space.workload.gflops(record.last_s),
        )
        for record, groups in known
        if record.is_valid
    )
    return ExploredSpace(space, target, tuple(knobs), len(known), num_failed, best, points)


def _shown(workload: Workload, candidate: Candidate) -> str:
    speed = "" if candidate.best_s is None else f" ({workload.gflops(candidate.best_s):.1f})"
    return f"{candidate.describe()}{speed}{'*' if candidate.is_best else ''}"
