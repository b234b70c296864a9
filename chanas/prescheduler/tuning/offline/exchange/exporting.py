"""Our records of one operator as T4, and its schedule space as T1, for the tools of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chanas.compiler.backends import backend_of, schedule_space
from chanas.compiler.space import Point, ScheduleSpace
from chanas.errors import ConfigError, DataError
from chanas.files.writing import write_json
from chanas.operators.keys import workload_of_key
from chanas.prescheduler.records.sources import Source, open_records
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.offline.exchange.kernels import Own
from chanas.prescheduler.tuning.offline.exchange.t1 import configuration_of, lists_points, problem_of
from chanas.prescheduler.tuning.offline.exchange.t4 import results_of

_MAX_NAMED = 4


@dataclass(frozen=True)
class Tuned:
    """An operator on a device: its space and what was tried of it, failures too; `num_outside` points are not of it."""

    source: Source
    space: ScheduleSpace[Any]
    records: Sequence[TuningRecord]
    num_outside: int

    def lines(self) -> list[str]:
        """For people."""
        failed = sum(not record.is_valid for record in self.records)
        legal = f"{self.space.num_points:,} legal points" if self.space.is_listed else "too many points to list"
        conditions = "; its condition lists them" if lists_points(self.space) else ""
        return [
            f"operator   {self.space.workload.key}",
            f"device     {self.source.describe()}",
            f"space      {len(self.space.coordinates)} parameters, {self.space.num_combinations:,} combinations, "
            f"{legal}{conditions}",
            f"results    {len(self.records)}" + (f", of which {failed} failed" if failed else ""),
        ]


def find_tuned(files: Iterable[Path], operator: str | None, target: str | None) -> Tuned:
    """The records of one operator on one device, of several files; the first that has a point counts.

    Args:
        operator: a workload's key; None: the only one.
        target: a target's name, such as `cpu-2t`; None: the only one.

    Raises:
        ConfigError: several operators or devices have records, or none of that name.
        DataError: there are no valid records, or the operator is not there any more.
        CheckpointError: a file is no file of records, or damaged.
    """
    found: dict[str, dict[Source, dict[Point, TuningRecord]]] = {}
    for file in files:
        with open_records(file) as opened:
            for source in opened.sources():
                if source.spaces != backend_of(source.target).space_version:
                    continue
                for key in opened.load(source):
                    points = found.setdefault(key, {}).setdefault(source, {})
                    if operator in (None, key):
                        for record in opened.trials(source.device, key):
                            points.setdefault(record.point, record)
    key = _one_of(found, operator, "operator")
    by_name: dict[str, list[Source]] = {}
    for source in found[key]:
        by_name.setdefault(source.target.name, []).append(source)
    alike = by_name[_one_of(by_name, target, "target")]
    if len(alike) > 1:
        described = "; ".join(source.describe() for source in alike[:_MAX_NAMED])
        raise ConfigError(
            f"expected the records of one device, got those of {len(alike)} ({described}); name one's run"
        )
    space = schedule_space(workload_of_key(key), alike[0].target)
    trials = found[key][alike[0]]
    inside = [record for point, record in trials.items() if space.contains(point)]
    return Tuned(alike[0], space, inside, len(trials) - len(inside))


def write_tuned(tuned: Tuned, results: Path, problem: Path) -> None:
    """Write the T4 file and the T1 file.

    Raises:
        ChanasError: one cannot be written.
    """
    is_gpu = tuned.source.target.gpu is not None
    own = Own.of(tuned.source, tuned.space.workload.key).to_json()
    write_json(problem, problem_of(tuned.space, is_gpu, tuned.source.target.device, own))
    write_json(results, results_of([(configuration_of(tuned.space, r.point), r) for r in tuned.records]))


def _one_of(known: Mapping[str, Any], name: str | None, what: str) -> str:
    """The name that was asked for, or the only one."""
    if not known:
        raise DataError("there are no valid records of known devices in today's schedule spaces in these files")
    if name is None and len(known) == 1:
        return next(iter(known))
    if name is None or name not in known:
        listed = ", ".join(sorted(known)[:_MAX_NAMED]) + (", …" if len(known) > _MAX_NAMED else "")
        asked = f"got '{name[:80]}'" if name else f"as {len(known)} have records"
        raise ConfigError(f"expected --{what}, one of {listed}, {asked}")
    return name
