"""How long the latency table of a space takes, and what the time goes to.

    python benchmarks/lut_build.py [--quick] [--space mbv3] [--sub-space KEY …] [--trials 8] [--threads 1]
                                  [--dtype f32] [--run DIR] [--seed 0]

`chanas prescheduler` fills the table of a fresh run directory, without the calibration: every operator of the space (or
of some of its sub-spaces) is tuned with --trials schedule points on average, its best points are timed again in turns,
and every fused block is timed. With --run the run directory stays; it must have no records before. With --quick, the
smallest sub-space of `mbv3-32` with one point per operator.

Figures: lut_minutes, the time by the clock, workers' start included (goal: at most 60 for the whole of `mbv3`; no goal
for a part); for information lut_records_per_s, points and blocks timed per second of it, lut_timing_percent, the share
of the time in which the device was timing, lut_building_percent, the time spent building as a share of the time that
all cores had, lut_trials_per_operator, and lut_failed_percent, the share of points that did not work.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Figure, finish

from chanas.core.arch import SearchSpace
from chanas.core.effort import TableEffort
from chanas.core.target import HardwareTarget
from chanas.core.usage import Usage
from chanas.devices.host import load_target
from chanas.errors import ChanasError, ConfigError
from chanas.files.run import RunDirectory

QUICK_SPACE, NUM_CLASSES = "mbv3-32", 1000
GOAL_SPACE, GOAL_MINUTES = "mbv3", 60.0


@dataclass(frozen=True)
class Build:
    """One table and what it took.

    operators, blocks, trials   how many of each: blocks that were timed, points that were tried
    remeasured                  points that were timed again, in turns
    building_s                  summed over the workers
    errors                      failed points by the first words of their errors
    """

    operators: int
    blocks: int
    trials: int
    failed: int
    remeasured: int
    wall_s: float
    timing_s: float
    building_s: float
    database_bytes: int
    drift: str
    errors: dict[str, int]

    @property
    def records_per_s(self) -> float:
        """Points and blocks per second; turns are not counted."""
        return (self.trials + self.blocks) / self.wall_s


def figures_of(build: Build, num_cores: int, whole: bool) -> dict[str, Figure]:
    """The figures; a goal has the whole table alone."""
    return {
        "lut_minutes": Figure(build.wall_s / 60, GOAL_MINUTES if whole else None, lower_is_better=True),
        "lut_records_per_s": Figure(build.records_per_s),
        "lut_timing_percent": Figure(100 * build.timing_s / build.wall_s),
        "lut_building_percent": Figure(100 * build.building_s / (build.wall_s * num_cores)),
        "lut_trials_per_operator": Figure(build.trials / max(1, build.operators)),
        "lut_failed_percent": Figure(100 * build.failed / max(1, build.trials)),
    }


def fill(
    folder: Path, space: SearchSpace, target: HardwareTarget, sub_spaces: Sequence[str], num_trials: int, seed: int
) -> Build:
    """Fill a table from nothing, as `chanas prescheduler` does.

    Raises:
        ChanasError: blocks remain that could not be measured.
    """
    from chanas.operators.steps import block_workloads
    from chanas.prescheduler.records.store import RecordStore
    from chanas.workflows.stages.tuning import preschedule

    run = RunDirectory(folder)
    start = time.monotonic()
    summary = preschedule(
        run,
        usage=Usage(threads=target.num_threads, dtype=target.dtype_name),
        effort=TableEffort(trials=num_trials, seed=seed, sub_spaces=tuple(sub_spaces), calibrate=0),
        space=space.name,
        num_classes=NUM_CLASSES,
    )
    wall_s = time.monotonic() - start
    chosen = [s for s in space.sub_spaces if s.key in sub_spaces]
    blocks = space.all_blocks(NUM_CLASSES, tuple(chosen) or None)
    store = RecordStore(run.records, target)
    try:
        records = [r for w in {w for b in blocks for w in block_workloads(b, target.dtype)} for r in store.load(w.key)]
    finally:
        store.close()
    errors = collections.Counter(" ".join((r.error or "").split()[:4]) for r in records if r.seconds is None)
    return Build(
        operators=summary.num_operators,
        blocks=summary.num_new_blocks,
        trials=len(records),
        failed=sum(errors.values()),
        remeasured=sum(r.was_remeasured for r in records),
        wall_s=wall_s,
        timing_s=summary.work.timing_s,
        building_s=summary.work.building_s,
        database_bytes=sum(p.stat().st_size for p in run.records.parent.glob(f"{run.records.name}*")),
        drift=summary.drift,
        errors=dict(errors),
    )


def print_table(build: Build, figures: dict[str, Figure]) -> None:
    print(f"\n{build.operators} operators, {build.trials} points ({build.failed} failed), {build.blocks} blocks")
    print(f"{build.remeasured} points timed again, in turns; database {build.database_bytes / 1e6:.1f} MB")
    print(f"by the clock {build.wall_s:.0f} s, timing {build.timing_s:.0f} s, building {build.building_s:.0f} s")
    print(f"drift: {build.drift}")
    for error, count in sorted(build.errors.items(), key=lambda pair: -pair[1]):
        print(f"failed {count:6d}: {error}")
    for name, figure in figures.items():
        print(f"{name:26s} {figure.value:10.3g}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small sub-space, one point per operator, no file")
    parser.add_argument("--space", help=f"preset or YAML file ({GOAL_SPACE}; {QUICK_SPACE} with --quick)")
    parser.add_argument("--sub-space", action="append", default=[], help="only this sub-space; may be repeated")
    parser.add_argument("--trials", type=int, help="schedule points per operator on average (8; 1 with --quick)")
    parser.add_argument("--threads", type=int, default=1, help="threads of one inference")
    parser.add_argument("--dtype", default="f32", help="f32 or bf16")
    parser.add_argument("--run", type=Path, help="run directory to fill and keep")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    num_trials = options.trials or (1 if options.quick else 8)
    try:
        target = load_target("cpu", options.threads, options.dtype)
        space = SearchSpace.load(options.space or (QUICK_SPACE if options.quick else GOAL_SPACE))
        sub_spaces = options.sub_space or ([space.smallest.sub_space.key] if options.quick else [])
        with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
            folder = options.run or Path(scratch)
            if RunDirectory(folder).records.exists():
                raise ConfigError(f"expected a run directory without records, got {folder}; name another one")
            build = fill(folder, space, target, sub_spaces, num_trials, options.seed)
    except ChanasError as error:
        raise SystemExit(f"lut_build: error: {error}") from error
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    figures = figures_of(build, num_cores, whole=space.name == GOAL_SPACE and not sub_spaces)
    print_table(build, figures)
    extra: dict[str, Any] = {
        "seed": options.seed,
        "space": space.name,
        "sub_spaces": list(sub_spaces) or "all",
        "trials": num_trials,
        "threads": target.num_threads,
        "dtype": target.dtype,
        "build": dataclasses.asdict(build),
    }
    parts = [space.name] if space.name != GOAL_SPACE else []
    parts += [f"{target.num_threads}t"] if target.num_threads > 1 else []
    parts += [target.dtype_name] if target.dtype != "float32" else []
    finish("-".join(["lut_build", *parts, *sub_spaces]), figures, options.quick, extra)


if __name__ == "__main__":
    main()
