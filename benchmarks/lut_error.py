"""How well a latency table predicts whole compiled networks (equation 5 against the device).

    python benchmarks/lut_error.py [--quick] [--run DIR] [--num 20] [--trials 8] [--seed 0]

Random architectures of the table's space are compiled whole from its schedules, checked against PyTorch and timed;
each is compared with the sum of its blocks in the table, and with what the search reads from the table: that sum after
the table's own calibration, which has not seen these architectures. The table is that of --run DIR (made by `chanas
demo` or `chanas prescheduler` on this machine), or one of space `mbv3-32` made here as `chanas prescheduler` makes it,
with --trials schedule points per operator (with --quick, of one sub-space and without calibration).

Figures: lut_mape_percent, the mean absolute error of the sum as a share of what was measured (goal: at most 15); of the
calibrated table the same (goal: at most 3), its largest such error (at most 10) and the agreement of its order with the
measured one (Kendall's tau, at least 0.97). For information the worst error, bias (mean signed error; below zero:
networks take longer than the sum) and tau of the plain sum, and the error of a sum of operators instead of blocks: each
operator timed alone, with weights and code as cold as a block's.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Figure, finish

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.blocks import BlockConfig
from chanas.core.effort import TableEffort
from chanas.core.latency import LatencyLUT
from chanas.core.statistics import kendall_tau
from chanas.core.target import HardwareTarget
from chanas.core.usage import Usage
from chanas.devices.host import load_target
from chanas.errors import ChanasError
from chanas.files.run import RunDirectory

SPACE, NUM_CLASSES = "mbv3-32", 10
GOAL_PERCENT = 15.0
CALIBRATED_GOAL_PERCENT, WORST_GOAL_PERCENT, TAU_GOAL = 3.0, 10.0, 0.97


@dataclass(frozen=True)
class Pair:
    """One network: the table's sum, its calibrated sum (None without a calibration), and the measured seconds.

    operators_s   the sum of its operators, each timed alone (None where the records of one are gone)
    """

    architecture: str
    sum_s: float
    calibrated_s: float | None
    measured_s: float
    operators_s: float | None = None

    @property
    def error(self) -> float:
        """Of the sum, signed, as a share of what was measured."""
        return self.sum_s / self.measured_s - 1.0

    @property
    def calibrated_error(self) -> float | None:
        """The same of the calibrated sum."""
        return None if self.calibrated_s is None else self.calibrated_s / self.measured_s - 1.0


def figures_of(pairs: Sequence[Pair]) -> dict[str, Figure]:
    """The figures; without pairs there is no value."""
    if not pairs:
        return {"lut_mape_percent": Figure(None, GOAL_PERCENT, lower_is_better=True)}
    plain = [p.error for p in pairs]
    calibrated = [e for p in pairs if (e := p.calibrated_error) is not None]
    measured = [p.measured_s for p in pairs]
    operators = [p.operators_s / p.measured_s - 1.0 for p in pairs if p.operators_s is not None]
    order = [p.calibrated_s for p in pairs if p.calibrated_s is not None]
    return {
        "lut_mape_percent": Figure(mape_percent(plain), GOAL_PERCENT, lower_is_better=True),
        "lut_calibrated_mape_percent": Figure(mape_percent(calibrated), CALIBRATED_GOAL_PERCENT, lower_is_better=True),
        "lut_calibrated_worst_percent": Figure(worst_percent(calibrated), WORST_GOAL_PERCENT, lower_is_better=True),
        "lut_calibrated_kendall_tau": Figure(kendall_tau(order, measured) if calibrated else None, TAU_GOAL),
        "lut_worst_percent": Figure(worst_percent(plain)),
        "lut_bias_percent": Figure(100 * statistics.fmean(plain)),
        "lut_kendall_tau": Figure(kendall_tau([p.sum_s for p in pairs], measured)),
        "operators_mape_percent": Figure(mape_percent(operators)),
        "operators_bias_percent": Figure(100 * statistics.fmean(operators) if operators else None),
    }


def mape_percent(errors: Sequence[float]) -> float | None:
    """Mean absolute error in percent; None without any."""
    return 100 * statistics.fmean(abs(e) for e in errors) if errors else None


def worst_percent(errors: Sequence[float]) -> float | None:
    """Largest absolute error in percent; None without any."""
    return 100 * max(abs(e) for e in errors) if errors else None


def stored_table(run: RunDirectory, target: HardwareTarget) -> tuple[SearchSpace, int, LatencyLUT]:
    """Space, classes and table of a run, checked against this machine.

    Raises:
        ChanasError: there is no table for this machine.
    """
    from chanas.workflows.stages.tables import open_table

    opened = open_table(
        None,
        run,
        usage=Usage(threads=target.num_threads, dtype=target.dtype_name),
    )
    space = opened.required_space()
    opened.lut.check(space, target)
    return space, opened.num_classes, opened.lut


def fresh_table(
    folder: Path, num_trials: int, sub_space: SubSpace | None, seed: int
) -> tuple[SearchSpace, int, LatencyLUT]:
    """A table of the demo's space made by the prescheduler itself; of one sub-space alone, without calibration."""
    from chanas.workflows.stages.tuning import DEFAULT_EFFORT, preschedule

    summary = preschedule(
        RunDirectory(folder),
        space=SPACE,
        num_classes=NUM_CLASSES,
        effort=TableEffort(
            trials=num_trials,
            seed=seed,
            sub_spaces=() if sub_space is None else (sub_space.key,),
            calibrate=DEFAULT_EFFORT.calibrate if sub_space is None else 0,
        ),
    )
    return SearchSpace.load(SPACE), NUM_CLASSES, summary.lut


def operator_seconds(run: RunDirectory, target: HardwareTarget, lut: LatencyLUT) -> dict[str, float]:
    """For each block key the seconds of its operators at the table's schedules, each timed alone, added up.

    Blocks with an operator whose record is gone are left out.
    """
    from chanas.prescheduler.records.store import RecordStore

    sums_s = {}
    store = RecordStore(run.records, target)
    try:
        kept: dict[str, dict[tuple[int, ...], float]] = {}
        for block_key, row in lut.rows.items():
            alone = []
            for key, point in row.schedules:
                if key not in kept:
                    kept[key] = {r.point: r.seconds for r in store.load(key) if r.seconds is not None}
                alone.append(kept[key].get(tuple(point)))
            if None not in alone:
                sums_s[block_key] = sum(s for s in alone if s is not None)
    finally:
        store.close()
    return sums_s


def calibrated_s(lut: LatencyLUT, blocks: Sequence[BlockConfig]) -> float | None:
    """What the search reads from a calibrated table for a network of these blocks."""
    fit = lut.calibration
    if fit is None:
        return None
    return fit.start_s + sum(fit.scale * lut.block_s(b) + fit.boundary_s for b in blocks)


def measure(
    space: SearchSpace,
    num_classes: int,
    lut: LatencyLUT,
    operators_s: Mapping[str, float],
    target: HardwareTarget,
    num: int,
    sub_space: SubSpace | None,
    seed: int,
) -> tuple[list[Pair], list[str]]:
    """Compile and time random architectures; pairs of those that worked, errors of the others."""
    from random_networks import random_architectures, random_job

    from chanas.prescheduler.tables.networks import compile_networks

    architectures = random_architectures(space, num, seed, sub_space)
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as folder:
        jobs = [
            random_job(space, a, num_classes, Path(folder) / f"{i}.so", seed + i) for i, a in enumerate(architectures)
        ]
        outcomes = compile_networks(lut, target, jobs)
    pairs, errors = [], []
    for architecture, job, outcome in zip(architectures, jobs, outcomes, strict=True):
        if outcome.seconds is None:
            errors.append(f"{architecture.key}: {outcome.error}")
            continue
        sum_s = sum(lut.block_s(b) for b in job.blocks)
        alone = [operators_s.get(b.key) for b in job.blocks]
        alone_s = None if None in alone else sum(s for s in alone if s is not None)
        pairs.append(Pair(architecture.key, sum_s, calibrated_s(lut, job.blocks), outcome.seconds, alone_s))
    return pairs, errors


def print_table(pairs: Sequence[Pair]) -> None:
    print(f"\n{'sum':>8s} {'measured':>8s} {'error':>7s} {'calibrated':>10s}   architecture (us)")
    for p in sorted(pairs, key=lambda p: p.measured_s):
        calibrated = "-" if p.calibrated_error is None else f"{p.calibrated_error:+.1%}"
        print(f"{p.sum_s * 1e6:8.1f} {p.measured_s * 1e6:8.1f} {p.error:+7.1%} {calibrated:>10s}   {p.architecture}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="6 networks of one sub-space, under a minute, no result file"
    )
    parser.add_argument("--run", type=Path, help="run directory whose table is judged; without it one is made here")
    parser.add_argument("--num", type=int, help="architectures compiled and timed (20; 6 with --quick)")
    parser.add_argument(
        "--trials", type=int, help="schedule points per operator of a table made here (8; 1 with --quick)"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    num, num_trials = options.num or (6 if options.quick else 20), options.trials or (1 if options.quick else 8)
    target = load_target("cpu")
    try:
        if options.run is not None:
            sub_space = None
            space, num_classes, lut = stored_table(RunDirectory(options.run), target)
            operators_s = operator_seconds(RunDirectory(options.run), target, lut)
        else:
            sub_space = SearchSpace.load(SPACE).smallest.sub_space if options.quick else None
            with tempfile.TemporaryDirectory(prefix="chanas-bench-") as folder:
                space, num_classes, lut = fresh_table(Path(folder), num_trials, sub_space, options.seed)
                operators_s = operator_seconds(RunDirectory(Path(folder)), target, lut)
        pairs, errors = measure(space, num_classes, lut, operators_s, target, num, sub_space, options.seed)
    except ChanasError as error:
        raise SystemExit(f"lut_error: error: {error}") from error

    print_table(pairs)
    for failure in errors:
        print(f"failed: {failure}")
    figures = figures_of(pairs)
    print("\n" + ", ".join(f"{name} {f.value:.3g}" for name, f in figures.items() if f.value is not None))
    extra: dict[str, Any] = {
        "seed": options.seed,
        "table": options.run.name if options.run is not None else f"made here, {num_trials} trials per operator",
        "table_created": lut.header.created,
        "space": space.name,
        "threads": target.num_threads,
        "networks": [dataclasses.asdict(p) for p in pairs],
        "errors": errors,
    }
    finish("lut_error" if space.name == SPACE else f"lut_error-{space.name}", figures, options.quick, extra)


if __name__ == "__main__":
    main()
