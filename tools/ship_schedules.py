"""A file of schedules that come with chanas, from the records of tunings.

    python tools/ship_schedules.py RUN... --out chanas/schedules/avx512.json [--target cpu]

Each RUN is a run directory or a file of records; all of one device, whose records of the target (`cpu`, `cpu-bf16`, …)
are merged. Of each operator the file has the three fastest points that are compiled to different code and take at most
a tenth longer than the fastest, by their last measurement in turns where there was one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from chanas.compiler.backends import schedule_space
from chanas.core.target import HardwareTarget, differences
from chanas.errors import ChanasError, ConfigError
from chanas.files.run import RunDirectory
from chanas.operators.keys import workload_of_key
from chanas.prescheduler.records.schedules import write_schedules
from chanas.prescheduler.records.sources import Source, open_records
from chanas.prescheduler.records.store import TuningRecord

NUM_POINTS, AT_MOST = 3, 1.1
"""Points of an operator, and the seconds of the slowest of them over those of the fastest."""

Records = Mapping[str, Sequence[TuningRecord]]


def read_run(place: Path, target_name: str) -> tuple[Source, Records]:
    """The device of a run's records of a target, and the valid ones of each workload.

    Raises:
        ConfigError: there are no such records, or they are of several devices, or of another version of the spaces.
    """
    path = RunDirectory(place).records if place.is_dir() else place
    if not path.is_file():
        raise ConfigError(f"expected a run directory or a file of records, got {place}")
    with open_records(path) as file:
        known = file.sources()
        found = [s for s in known if s.target.name == target_name]
        if not found:
            names = ", ".join(sorted({s.target.name for s in known})) or "none"
            raise ConfigError(f"{path} has no records of target {target_name}; it has those of: {names}")
        for other in found[1:]:
            check_same(found[0], other, path)
        source = found[0]
        if refusals := source.refusals(source.target):
            raise ConfigError(f"records of {source.describe()} in {path} are out of date ({'; '.join(refusals)})")
        return source, file.load(source)


def check_same(one: Source, other: Source, path: Path) -> None:
    """
    Raises:
        ConfigError: two sources are of different devices, or of different versions of the compiler or of the spaces.
    """
    if one.device != other.device:
        what = differences(other.target, one.target, "before")
        raise ConfigError(
            f"expected records of one device, got {one.describe()}, {one.device}, and in {path} {other.describe()}, "
            f"{other.device}: {what}"
        )


def best_points(key: str, records: Iterable[TuningRecord], target: HardwareTarget) -> list[TuningRecord]:
    """The few fastest points of an operator, no two of which are the same code; those that were measured in turns,
    which only the fastest are, go before others."""
    space = schedule_space(workload_of_key(key), target)
    ranked = sorted(records, key=lambda r: (r.again_s is None, r.last_s, r.point))
    chosen: dict[object, TuningRecord] = {}
    for record in ranked:
        is_close = not chosen or record.last_s <= AT_MOST * next(iter(chosen.values())).last_s
        if is_close and record.again_error is None and space.contains(record.point):
            chosen.setdefault(record.code or record.point, record)
    best = list(chosen.values())[:NUM_POINTS]
    return [TuningRecord(record.point, record.last_s) for record in sorted(best, key=lambda r: r.last_s)]


def merged(runs: Iterable[tuple[Path, Source, Records]]) -> tuple[Source, dict[str, list[TuningRecord]]]:
    """The device of all runs, and the best points of each operator.

    Raises:
        ConfigError: the runs are of different devices.
    """
    sources: list[Source] = []
    of_operators: dict[str, list[TuningRecord]] = {}
    for path, source, records in runs:
        sources.append(source)
        check_same(sources[0], source, path)
        for key, some in records.items():
            of_operators.setdefault(key, []).extend(some)
    target = sources[0].target
    best = {key: best_points(key, some, target) for key, some in of_operators.items()}
    return sources[0], {key: points for key, points in best.items() if points}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory, or a file of records")
    parser.add_argument("--out", type=Path, required=True, help="the file that is written")
    parser.add_argument("--target", default="cpu", help="how the device was used: cpu, or cpu-bf16")
    options = parser.parse_args(arguments)
    source, best = merged((run, *read_run(run, options.target)) for run in options.runs)
    write_schedules(options.out, source, best)
    num_points = sum(map(len, best.values()))
    print(f"{options.out}: {len(best)} operators, {num_points} points of {source.describe()}")


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"ship_schedules: error: {error}") from error
