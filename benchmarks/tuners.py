"""Which tuner finds the best schedule, and after how many trials: all of them on the same operators, replayed.

    python benchmarks/tuners.py [--quick] [--tuners gp,random] [--trials 64] [--seeds 10] [--points 1000]
        [--records runs/tuners] [--recorded intel-sapphirerapids] [--constants]

24 operators of seven families. Of twelve all points of chanas' own spaces are measured (45 to 654); of twelve others
--points random ones of larger spaces (10,000 to 48,000 points: loops written out by LLVM or in the program in 16 ways).
They are measured as chanas tunes: checked, weights and code cold. Then each tuner is played on these records
(`prescheduler/tuning/replay.py`) with --seeds seeds; a record served counts as one trial. A full run leaves all records
in `results/tuners-recorded-KIND.csv.gz`, a row for each point; --recorded KIND plays tuners on them, on any machine,
and measures nothing.

After how many trials is the best so far within 5 % and within 1 % of the best of all? A tuner that does not get there
in --trials counts as getting there with the next one. Of each seed the geometric mean over operators, of the seeds the
geometric mean with its 95 % interval. Seconds are the tuner's own and TRIAL_S for each trial.

Beside chanas' tuners `pattern` is played: a pattern search guided by a forest that tells promising points from others,
as in Helion, and `metaschedule`, boosted trees and MetaSchedule's constants (64 points at a time, the first of them at
random), and, where Kernel Tuner is installed, four of its strategies in its own simulation
(in small spaces alone: it lists all combinations of a space for each run).

Figures: `default_beaten_in_families` counts families and groups in which some other tuner needs fewer trials to 1 %
than the lower end of the default's interval (goal: 0); `default_over_random_large`, the default's trials to 1 % over
those of random points (goal: at most 1/3).

With --constants the default is played with other constants of its search, one changed at a time, on the operators with
small spaces and, as a check, on the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import kernel_tuner_replay
import numpy as np
import yaml
from common import Figure, finish, machine_kind, read_result, result_path
from tuning import measure_points

from chanas.compiler.backends import has_schedules, schedule_space
from chanas.compiler.knobs import changed_spaces
from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.arch import SearchSpace
from chanas.core.effort import Effort, Search
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.errors import ChanasError, DataError
from chanas.files.csv_files import read_csv, write_csv
from chanas.files.writing import replacing
from chanas.operators.workload import Workload
from chanas.prescheduler.blocks import surroundings
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.budget import TRIAL_S
from chanas.prescheduler.tuning.plain_tuners import Tried
from chanas.prescheduler.tuning.proposals import trials_until
from chanas.prescheduler.tuning.replay import replay
from chanas.prescheduler.tuning.tuners import Tuners

DEFAULT, RANDOM, PATTERN, METASCHEDULE = Effort().tuner, "random", "pattern", "metaschedule"
TUNERS = (DEFAULT, "xgb", "lgbm", "forest", "mlp", "ga", RANDOM, "grid", "optuna:TPESampler", PATTERN, METASCHEDULE)
KERNEL_TUNERS = tuple(
    kernel_tuner_replay.PREFIX + s for s in ("greedy_ils", "genetic_algorithm", "simulated_annealing", "bayes_opt")
)
METASCHEDULES_SEARCH = Search(num_initial=64, batch_size=64, num_children=512, random_share=0.05, crossover_share=0.0)
SMALL, LARGE = "small", "large"
LARGER = {"all": {"auto_unroll": [0, 8, 16, 32, 64, 128, 256, 512], "unroll_explicit": [0, 1]}}
"""Knobs of the larger spaces."""
OPERATORS: dict[str, tuple[Workload, ...]] = {
    SMALL: (
        Workload("pointwise", 28, 40, 240, epilogue="relu"),
        Workload("pointwise", 14, 512, 512, residual=True),
        Workload("pointwise", 28, 192, 512, epilogue="relu"),
        Workload("conv", 160, 3, 16, 3, 2, "hswish"),
        Workload("conv", 224, 3, 32, 3, 2, "relu"),
        Workload("conv", 224, 3, 64, 7, 2, "relu"),
        Workload("blockconv", 14, 160, 160, 3, 1, "relu"),
        Workload("blockconv", 28, 80, 112, 3, 1, "relu"),
        Workload("blockconv", 7, 512, 512, 3, 1, "relu"),
        Workload("winograd", 14, 256, 256, 3, 1, "relu"),
        Workload("winograd2", 28, 128, 128, 3, 1, "relu"),
        Workload("upconv", 14, 128, 64, 4, 2),
    ),
    LARGE: (
        Workload("blockconv", 112, 32, 64, 3, 1, "relu"),
        Workload("blockconv", 56, 64, 64, 3, 1, "relu"),
        Workload("blockconv", 56, 128, 128, 3, 2, "relu"),
        Workload("blockconv", 28, 128, 128, 3, 1, "relu"),
        Workload("blockconv", 14, 160, 160, 3, 1, "relu"),
        Workload("blockconv", 14, 256, 256, 3, 1, "relu"),
        Workload("winograd", 112, 64, 64, 3, 1, "relu"),
        Workload("winograd", 56, 128, 128, 3, 1, "relu"),
        Workload("winograd", 56, 256, 256, 3, 1, "relu"),
        Workload("groupconv", 56, 128, 128, 3, 1, "relu", groups=32),
        Workload("groupconv", 56, 256, 256, 3, 2, "relu", groups=32),
        Workload("groupconv", 28, 256, 256, 3, 1, "relu", groups=32),
    ),
}
NEAR = {"5 %": 1.05, "1 %": 1.01}
CONSTANTS: dict[str, tuple[Any, ...]] = {
    "num_initial": (2, 8, 16),
    "batch_size": (1, 2, 8),
    "num_children": (16, 192),
    "num_drawn": (0, 64, 4096),
    "gamma": (2.0, 16.0),
    "crossover_share": (0.0, 0.6),
    "exploration": (0.0, 0.25, 1.0, 2.0),
    "random_share": (0.0, 0.05, 0.2),
}


# ---- measuring -------------------------------------------------------------------------------------------------------
Records = dict[str, dict[Workload, list[TuningRecord]]]
"""What was measured of the operators of each group."""


def measure_all(num_points: int, target: HardwareTarget, folder: Path, quick: bool) -> Records:
    """Up to so many random points of each operator."""
    around = surroundings(SearchSpace.load("mbv3"), 1000)
    measured: Records = {}
    for group, workloads in OPERATORS.items():
        knobs = _knobs_file(group, folder)
        effort = Effort(
            trials=num_points, tuner=RANDOM, early_stopping="no", knobs=None if knobs is None else str(knobs)
        )
        known = [w for w in workloads if has_schedules(w, target)]  # groups that fill shorter vectors have none
        chosen = known[:2] if quick else known
        measured[group] = measure_points(chosen, target, around, effort, folder / f"{group}.sqlite")
    return measured


def write_recorded(measured: Records, path: Path) -> None:
    """A row for each point: the integers of the schedule, and milliseconds or nothing where it failed."""
    rows = [(group, w.key, r) for group, its in measured.items() for w, records in its.items() for r in records]
    write_csv(
        path,
        {
            "group": [group for group, _, _ in rows],
            "operator": [key for _, key, _ in rows],
            "point": [" ".join(map(str, r.point)) for _, _, r in rows],
            "ms": ["" if r.seconds is None else f"{1e3 * r.seconds:.5g}" for _, _, r in rows],
        },
    )


def read_recorded(path: Path) -> Records:
    """Records of a file that `write_recorded` wrote.

    Raises:
        DataError: the file cannot be read, or a row is none of these; names it.
    """
    by_key = {(group, w.key): w for group, workloads in OPERATORS.items() for w in workloads}
    found: Records = {}
    _, rows = read_csv(path, "records")
    for row in rows:
        try:
            group, key, point, ms = row.cells
            record = TuningRecord(tuple(map(int, point.split())), float(ms) / 1e3 if ms else None)
            found.setdefault(group, {}).setdefault(by_key[group, key], []).append(record)
        except (KeyError, ValueError) as error:
            raise DataError(
                f"{path}, line {row.line}: expected a group, an operator of it, a schedule's whole numbers, and "
                f"milliseconds or nothing; got {', '.join(row.cells)}"
            ) from error
    return found


def tables_of(measured: Records, target: HardwareTarget, folder: Path) -> list[Table]:
    """The spaces of operators, and those of their records that are of points in them."""
    made = []
    for group, its in measured.items():
        for space in changed_spaces(its, target, _knobs_file(group, folder)):
            kept = [r for r in its[space.workload] if space.contains(r.point)]
            made.append(Table(group, space.workload, space.num_points, space.coordinates, kept))
    return made


def _recorded_path(kind: str) -> Path:
    return result_path("tuners-recorded", kind, ".csv.gz")


def _knobs_file(group: str, folder: Path) -> Path | None:
    """The file of knobs that a group's spaces have more."""
    if group != LARGE:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "larger.yaml") as part:
        part.write_text(yaml.safe_dump(LARGER), encoding="utf-8")
    return folder / "larger.yaml"


@dataclass(frozen=True)
class Table:
    """What was measured of an operator's space of so many points."""

    group: str
    workload: Workload
    num_points: int
    coordinates: tuple[Any, ...]
    records: list[TuningRecord]

    @property
    def best_s(self) -> float:
        return min(r.seconds for r in self.records if r.seconds is not None)

    def space(self, target: HardwareTarget) -> ScheduleSpace[Any]:
        """The space, of which only measured points are legal."""
        own = schedule_space(self.workload, target)
        return dataclasses.replace(own, coordinates=self.coordinates).restricted(r.point for r in self.records)


# ---- a contender -----------------------------------------------------------------------------------------------------
class PatternSearch(Tried):
    """Neighbours of the best points so far, those first that a forest takes for promising: such as are among the best
    tenth. Where no neighbour is new, the most promising of all points."""

    num_initial, num_centres, share, num_trees = 12, 5, 0.1, 50

    def __init__(self, space: ScheduleSpace[Any], kept: Sequence[TuningRecord], seed: int) -> None:
        super().__init__(space, kept, seed)
        self._points, self._seed = self.drawn(), seed % (1 << 32)

    def ask(self, num: int) -> list[Point]:
        valid = sorted((r for r in self.records.values() if r.seconds is not None), key=lambda r: r.seconds or 0.0)
        if len(self.asked) < self.num_initial or not valid:
            return self.new(num, self._points)
        centres = [self._places(r.point) for r in valid[: self.num_centres]]
        points = [p for p in self.space.points if p not in self.asked]
        if not points:
            return []
        places = np.array([self._places(p) for p in points])
        promise = self._promise(valid, places)
        steps = np.min([np.abs(places - centre).sum(axis=1) for centre in centres], axis=0)
        near = [i for i in np.argsort(-promise, kind="stable") if steps[i] <= 2]
        order = [*near, *np.argsort(-promise, kind="stable")]
        return self.new(num, (points[i] for i in order))

    def _places(self, point: Point) -> Any:
        groups = self.space.groups(point)
        return np.array([c.options.index(groups[c.name]) for c in self.space.coordinates])

    def _promise(self, valid: Sequence[TuningRecord], places: Any) -> Any:
        from sklearn.ensemble import RandomForestClassifier

        num_good = max(1, math.ceil(self.share * len(valid)))
        points = [r.point for r in valid] + [p for p, r in self.records.items() if r.seconds is None]
        x = np.array([self._places(p) for p in points])
        y = np.arange(len(points)) < num_good
        if y.all():
            return np.zeros(len(places))
        forest = RandomForestClassifier(self.num_trees, min_samples_leaf=2, random_state=self._seed, n_jobs=1)
        return forest.fit(x, y).predict_proba(places)[:, 1]


class _Patterns(Tuners):
    """What makes pattern searches."""

    def __init__(self, seed: int) -> None:
        super().__init__(RANDOM, seed=seed)
        self._make = PatternSearch


# ---- replaying -------------------------------------------------------------------------------------------------------
class Run(NamedTuple):
    """A tuner on an operator with a seed: the best so far over the best of all after each trial, and the tuner's own
    seconds."""

    tuner: str
    group: str
    workload: str
    seed: int
    curve: tuple[float, ...]
    own_s: float

    def trials_to(self, near: float) -> int:
        """Trials until the best so far is so near the best of all."""
        return trials_until(self.curve, near)


def play(
    table: Table, target: HardwareTarget, tuner: str, num_trials: int, seeds: Sequence[int], search: Search, name: str
) -> list[Run]:
    """A tuner on an operator with each seed, from nothing."""
    space, runs = table.space(target), []
    for seed in seeds:
        start_s = time.process_time()
        if tuner.startswith(kernel_tuner_replay.PREFIX):
            strategy = tuner.removeprefix(kernel_tuner_replay.PREFIX)
            served = kernel_tuner_replay.replay(space, table.records, strategy, num_trials, seed)
        else:
            effort = Effort(trials=num_trials, early_stopping="no", tuner=tuner, seed=seed, search=search)
            made = _Patterns(seed) if tuner == PATTERN else Tuners(tuner, None, seed, search)
            served = [r.seconds for r in replay(space, table.records, target, effort, made)]
        own_s = time.process_time() - start_s
        bests = itertools.accumulate((s or math.inf for s in served), min)
        curve = [s / table.best_s for s in bests][:num_trials]
        curve += curve[-1:] * (num_trials - len(curve))
        runs.append(Run(name, table.group, table.workload.key, seed, tuple(curve), own_s))
    return runs


def play_all(
    tables: Sequence[Table],
    target: HardwareTarget,
    contenders: Mapping[str, tuple[str, Search]],
    num_trials: int,
    num_seeds: int,
) -> list[Run]:
    """All tuners on all operators, on two processors."""
    from tqdm import tqdm

    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        tasks = [
            pool.submit(play, table, target, tuner, num_trials, range(num_seeds), search, name)
            for name, (tuner, search) in contenders.items()
            for table in tables
            if table.group == SMALL or not tuner.startswith(kernel_tuner_replay.PREFIX)
        ]
        return [run for task in tqdm(tasks, desc="replaying", unit="operator") for run in task.result()]


class Mean(NamedTuple):
    """A geometric mean over seeds and its 95 % interval."""

    value: float
    low: float
    high: float


def mean_trials(runs: Sequence[Run], near: float) -> Mean:
    """Trials until so near: of each seed the geometric mean over operators."""
    from scipy import stats

    by_seed: dict[int, list[float]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, []).append(math.log(run.trials_to(near)))
    logs = np.array([np.mean(v) for v in by_seed.values()])
    middle, error = logs.mean(), (stats.sem(logs) if len(logs) > 1 else 0.0)
    half = error * stats.t.ppf(0.975, len(logs) - 1) if error > 0.0 else 0.0
    return Mean(*np.exp([middle, middle - half, middle + half]).tolist())


def grouped(runs: Sequence[Run], key: Callable[[Run], Any]) -> Iterator[tuple[Any, list[Run]]]:
    """Runs by what a function says of them, in the order in which that comes first."""
    found: dict[Any, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    yield from found.items()


def summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row for each tuner, group of operators and family (`all`: the whole group)."""
    families = [*((r, r.workload.partition("-")[0]) for r in runs), *((r, "all") for r in runs)]
    rows = []
    by_key: dict[tuple[str, str, str], list[Run]] = {}
    for run, family in families:
        by_key.setdefault((run.group, family, run.tuner), []).append(run)
    for (group, family, tuner), own in by_key.items():
        row: dict[str, Any] = {"group": group, "family": family, "tuner": tuner}
        for label, near in NEAR.items():
            row[f"trials to {label}"] = mean_trials(own, near)
        num_trials = len(own[0].curve)
        row["seconds to 1 %"] = row["trials to 1 %"].value * (TRIAL_S + np.mean([r.own_s for r in own]) / num_trials)
        row["own seconds a trial"] = float(np.mean([r.own_s for r in own])) / num_trials
        row["reached 1 %"] = float(np.mean([r.trials_to(NEAR["1 %"]) <= num_trials for r in own]))
        row["gap after 16"], row["gap at the end"] = (
            float(np.mean([r.curve[n] for r in own]) - 1) for n in (min(15, num_trials - 1), num_trials - 1)
        )
        rows.append(row)
    return rows


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """All figures."""
    to = {(r["group"], r["family"], r["tuner"]): r["trials to 1 %"] for r in rows}
    places = [(group, family) for group, family, tuner in to if tuner == DEFAULT and family != "all"]
    beaten = [
        place
        for place in places
        if any(m.value < to[*place, DEFAULT].low for (g, f, t), m in to.items() if (g, f) == place and t != DEFAULT)
    ]
    means = {(g, t): m.value for (g, family, t), m in to.items() if family == "all"}
    own, random = means.get((LARGE, DEFAULT)), means.get((LARGE, RANDOM))
    return {
        "default_beaten_in_families": Figure(float(len(beaten)) if places else None, 0.0, lower_is_better=True),
        "default_over_random_large": Figure(own / random if own and random else None, 1 / 3, lower_is_better=True),
        "default_trials_to_1_percent_small": Figure(means.get((SMALL, DEFAULT)), lower_is_better=True),
        "default_trials_to_1_percent_large": Figure(own, lower_is_better=True),
    }


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table, a block for each group and family."""
    for (group, family), own in itertools.groupby(rows_in_order(rows), lambda r: (r["group"], r["family"])):
        print(f"\n{group} spaces, {family}")
        print(
            f"{'tuner':24s}{'trials to 5 %':>16s}{'to 1 %':>22s}{'reached':>9s}{'gap 16':>8s}{'end':>7s}{'s/trial':>9s}"
        )
        for r in own:
            five, one = r["trials to 5 %"], r["trials to 1 %"]
            interval = f"{one.value:.1f} ({one.low:.1f}-{one.high:.1f})"
            print(
                f"{r['tuner']:24s}{five.value:16.1f}{interval:>22s}{r['reached 1 %']:9.0%}{r['gap after 16']:8.1%}"
                f"{r['gap at the end']:7.1%}{r['own seconds a trial']:9.3f}"
            )


def rows_in_order(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """By group, family (the whole group first), and trials to 1 %."""
    return sorted(rows, key=lambda r: (r["group"], r["family"] != "all", r["family"], r["trials to 1 %"].value))


def draw(runs: Sequence[Run], path: Path) -> None:
    """Mean distance from the best of all after each trial, small spaces beside large ones."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "chanas", "font.size": 9}):
        figure, both = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
        for axes, (group, own) in zip(both, grouped(runs, lambda r: r.group), strict=False):
            for i, (tuner, its) in enumerate(grouped(own, lambda r: r.tuner)):
                gaps = 100 * (np.mean([r.curve for r in its], axis=0) - 1)
                style = (
                    {"linewidth": 2.2} if tuner == DEFAULT else {"linewidth": 1.0, "linestyle": ("-", "--", ":")[i % 3]}
                )
                axes.plot(range(1, len(gaps) + 1), gaps, label=tuner, **style)
            axes.set_title(f"{group} spaces")
            axes.set_xlabel("trials")
            axes.set_yscale("log")
            axes.set_xscale("log", base=2)
            axes.spines[["top", "right"]].set_visible(False)
        both[0].set_ylabel("above the best of all, %")
        both[1].legend(frameon=False, fontsize=8)
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def contenders(names: Sequence[str], with_constants: bool) -> dict[str, tuple[str, Search]]:
    """Tuners and the constants of their search, by the names that they have here."""
    if with_constants:
        changes = {f"{k} {v:g}": Search(**{k: v}) for k, values in CONSTANTS.items() for v in values}
        return {DEFAULT: (DEFAULT, Search())} | {name: (DEFAULT, search) for name, search in changes.items()}
    return {n: ("xgb", METASCHEDULES_SEARCH) if n == METASCHEDULE else (n, Search()) for n in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four operators, few points and tuners, no result file")
    parser.add_argument("--tuners", help=f"these alone, no result file; by default all: {','.join(TUNERS)}")
    parser.add_argument("--trials", type=int, help="of each tuner (64; 8 with --quick)")
    parser.add_argument("--seeds", type=int, help="(10; 2 with --quick)")
    parser.add_argument("--points", type=int, help="random points measured of larger spaces (1000; 24 with --quick)")
    parser.add_argument(
        "--records", type=Path, default=Path("runs/tuners"), help="kept here, and used if they are there"
    )
    parser.add_argument("--recorded", metavar="KIND", help="play on the published records of this kind of machine")
    parser.add_argument("--constants", action="store_true", help="the default with other constants instead")
    options = parser.parse_args()
    quick = options.quick
    num_trials, num_seeds = options.trials or (8 if quick else 64), options.seeds or (2 if quick else 10)
    num_points = options.points or (24 if quick else 1000)
    names = options.tuners.split(",") if options.tuners else (DEFAULT, RANDOM) if quick else TUNERS
    if not quick and not options.tuners and kernel_tuner_replay.is_installed():
        names = (*names, *KERNEL_TUNERS)
    kind = options.recorded or machine_kind()
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
        folder = Path(scratch) if quick else options.records
        if options.recorded:
            target = HardwareTarget.from_json(read_result("tuners", kind)["target"])
            measured = read_recorded(_recorded_path(kind))
        else:
            target = load_target("cpu")
            measured = measure_all(num_points, target, folder, quick)
            if not quick:
                write_recorded(measured, _recorded_path(kind))
        tables = tables_of(measured, target, folder)
    runs = play_all(tables, target, contenders(names, options.constants), num_trials, num_seeds)
    rows = summary(runs)
    print_rows(rows)
    name = "tuners-constants" if options.constants else "tuners"
    is_whole = not quick and not options.tuners
    if is_whole:
        draw(runs, result_path(name, kind, ".svg"))
    extra = {
        "target": target.to_json(),
        "recorded": options.recorded,
        "num_trials": num_trials,
        "num_seeds": num_seeds,
        "knobs_of_larger_spaces": LARGER,
        "operators": [
            {
                "group": t.group,
                "key": t.workload.key,
                "points": t.num_points,
                "measured": len(t.records),
                "failed": sum(r.seconds is None for r in t.records),
                "best_s": t.best_s,
            }
            for t in tables
        ],
        "rows": [{k: v._asdict() if isinstance(v, Mean) else v for k, v in r.items()} for r in rows_in_order(rows)],
    }
    finish(name, figures_of(rows), not is_whole, extra, kind)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"tuners: error: {error}") from error
