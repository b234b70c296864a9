"""What it is worth to search precision together with the architecture: ways to a network, at five latency budgets.

    python benchmarks/mixed_precision.py --run RUN [--budgets 41 45 50 60 80] [--seeds 5] [--name NAME] [--quick]

RUN has a trained supernet, and the latency tables `cpu` and `cpu-int8` of one device, and `cpu-bf16` where it has
bfloat16. The ways:

    float32   a search in float32
    bfloat16  a search in bfloat16, all blocks in it, where there is a table of it
    int8      a search in int8, all blocks in it
    after     architectures by searches in float32 at this budget and larger ones, each in the dtypes that lose the
              least inside the budget: of those that are inside, the one that is predicted to be the most accurate
    joint     a search in all of them (`chanas search --dtypes f32,bf16,int8`)

Each search evaluates, learns, evolves and picks finalists as `chanas search` does; what it does not do is compile them.
Latencies are by the tables, with their calibrations. Accuracies of what is in other dtypes are of calibrated networks
whose numbers are rounded as compiled ones round them; finalists are judged on holdout, and the winner's figures are of
test.

Figures: the mean top-1 over seeds, on holdout and on test, in points above that of `float32` at the same budget, with
the half width of its interval (95 %, Student); and the smallest latency that each way can reach.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import Figure, finish, machine_kind, result_path
from tqdm import tqdm

from chanas.core.arch import Architecture
from chanas.core.genome import decode, encode
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget
from chanas.core.units import format_latency
from chanas.core.usage import DTYPES
from chanas.errors import InfeasibleError
from chanas.files.run import RunDirectory
from chanas.search.config import SearchConfig
from chanas.search.cosearch import new_job, search
from chanas.search.evolution.constraints import least
from chanas.search.learning import Source, learn
from chanas.search.proof import Proof, Timing
from chanas.search.target import SearchTarget
from chanas.workflows.searching.sources import SupernetSource

TABLES = {"float32": "cpu", "bfloat16": "cpu-bf16", "int8": "cpu-int8"}
"""The latency table of each dtype."""
AFTER, JOINT = "after", "joint"
BUDGETS_US = (41.0, 45.0, 50.0, 60.0, 80.0)
FARTHER = (1.0, 1.2, 1.5, 2.0)
"""Budgets of the searches in float32 of `after`, over its own."""
_T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
Row = dict[str, Any]


class Lab:
    """One run's supernet and tables; what is evaluated for a seed is kept in a folder of its own."""

    def __init__(self, run: RunDirectory, folder: Path, quick: bool) -> None:
        self.run, self.source, self.folder = run, SupernetSource(run), folder
        names = {d: name for d, name in TABLES.items() if d != "bfloat16" or run.lut(name).is_file()}
        alone = {dtype: LatencyLUT.load(run.lut(name)) for dtype, name in names.items()}
        self.dtypes, (plain, *_) = tuple(alone), alone.values()
        others = {dtype: table for dtype, table in alone.items() if table is not plain}
        self.tables = {**alone, JOINT: dataclasses.replace(plain, others=others)}
        few: dict[str, Any] = {"num_evaluations": 20, "initial_evaluations": 16, "refine_evaluations": 4}
        few |= {"loss_evaluations": 8, "evolution": {"generations": 20}, "cross_validate": False}
        self.config = SearchConfig.parse({"max_rounds": 1, **(few if quick else {})})
        self.top1 = functools.cache(self._top1)

    def accuracies(self, seed: int) -> Source:
        found = self.source.accuracies()
        return dataclasses.replace(found, store=RunDirectory(self.folder / f"seed-{seed}"))

    def target(self, way: str, budget_s: float) -> SearchTarget:
        lut = self.tables[way]
        hardware: HardwareTarget = lut.header.target
        return SearchTarget(hardware, budget_s, lut)

    def config_of(self, way: str) -> SearchConfig:
        dtypes = tuple(short for short, dtype in DTYPES.items() if dtype in self.dtypes)
        return self.config.model_copy(update={"dtypes": dtypes}) if way == JOINT else self.config

    def latency_s(self, way: str, architecture: Architecture) -> float:
        task = self.source.task
        space = task.space.with_dtypes(self.dtypes) if way == JOINT else task.space
        return float(self.tables[way].latency_s(space, task.num_classes, encode(space, [architecture]))[0])

    def _top1(self, architecture: Architecture, split: str) -> float:
        """Accuracy on a split, numbers rounded where blocks are in other dtypes."""
        if not architecture.dtypes:
            return self.source.supernet.top1(architecture, split)
        return self.source.top1_rounded(architecture, split)

    def in_dtype(self, architecture: Architecture, dtype: str) -> Architecture:
        num = sum(architecture.depths) + 4
        return dataclasses.replace(architecture, dtypes=(dtype,) * num)

    def searched(self, way: str, budget_s: float, seed: int) -> Architecture:
        """The winner of a search, judged on holdout."""

        def changed(architecture: Architecture) -> Architecture:
            return self.in_dtype(architecture, way) if way in self.dtypes[1:] else architecture

        def prove(finalists: Sequence[Architecture]) -> list[Proof]:
            return [
                Proof(a, (Timing("cpu", self.latency_s(way, a), 0.0),), self.top1(changed(a), "holdout"), 0.0)
                for a in finalists
            ]

        job = new_job(self.source.task, [self.target(way, budget_s)], config=self.config_of(way), seed=seed)
        with tempfile.TemporaryDirectory() as scratch:
            result = Path(scratch) / "result.json"
            outcome = search(job, self.accuracies(seed), prove, result=result, progress=False)
        return changed(outcome.architecture)

    def quantised_after(self, budget_s: float, seed: int) -> Architecture:
        """The best of searches in float32 at this budget and larger ones, then quantised to be inside."""
        both = new_job(self.source.task, [self.target(JOINT, budget_s)], config=self.config_of(JOINT), seed=seed)
        learned = learn([both], self.accuracies(seed), progress=False)
        choice = both.dtypes(learned.predictor, both.limits((budget_s,)))
        found: list[tuple[float, Architecture]] = []
        for share in FARTHER:
            try:
                job = new_job(
                    self.source.task, [self.target("float32", share * budget_s)], config=self.config, seed=seed
                )
                limits_s = job.first_limits()
                alone = learn([job], self.accuracies(seed), progress=False).predictor
                best = job.evolve(alone, limits_s, job.divide(alone, limits_s).chosen).genomes[:1]
            except InfeasibleError:
                continue
            rows = choice.within(encode(both.space, decode(job.space, best)))
            if both.latencies[0].cost(rows)[0] <= budget_s:
                found.append((float(learned.predictor.mean(rows)[0]), decode(both.space, rows)[0]))
        if not found:
            raise InfeasibleError("nothing that was found in float32 is inside the budget in any dtypes")
        return max(found, key=lambda pair: pair[0])[1]

    def network(self, way: str, budget_s: float, seed: int) -> Row:
        """A way's network, or why there is none."""
        row: Row = {"way": way, "budget_us": round(1e6 * budget_s, 6), "seed": seed}
        try:
            if way == AFTER:
                found = self.quantised_after(budget_s, seed)
            else:
                found = self.searched(way, budget_s, seed)
        except InfeasibleError as error:
            return {**row, "error": str(error)}
        is_alone = way in self.dtypes[1:]
        latency_s = self.latency_s(way if is_alone else JOINT, found.plain if is_alone else found)
        accuracies = {f"top1_{split}": self.top1(found, split) for split in ("holdout", "test")}
        return {**row, "architecture": found.key, "latency_us": 1e6 * latency_s, **accuracies}

    def smallest_us(self, way: str) -> float:
        job = new_job(self.source.task, [self.target(way, 1e9)], config=self.config_of(way))
        return 1e6 * least(job.latencies[0].table)[0]


def interval(values: Sequence[float]) -> float:
    """Half the width of the interval of a mean."""
    num = len(values)
    return float("nan") if num < 2 else float(_T_95.get(num, 2.0) * np.std(values, ddof=1) / np.sqrt(num))


def figures_of(rows: Sequence[Row], ways: Sequence[str], budgets_us: Sequence[float], seeds: int) -> dict[str, Figure]:
    """Points above float32 at each budget, of the seeds for which both have a network."""
    known = {(r["way"], r["budget_us"], r["seed"]): r for r in rows if "error" not in r}
    figures = {}
    for budget_us, way, split in itertools.product(budgets_us, ways[1:], ("holdout", "test")):
        pairs = [[known.get((w, budget_us, seed)) for w in (way, "float32")] for seed in range(seeds)]
        gains = [100.0 * (a[f"top1_{split}"] - b[f"top1_{split}"]) for a, b in pairs if a and b]
        name = f"{way}_{budget_us:g}us_{split}_points_over_float32"
        figures[name] = Figure(float(np.mean(gains)) if gains else None)
        figures[f"{name}_interval"] = Figure(interval(gains) if len(gains) > 1 else None)
    return figures


def draw(rows: Sequence[Row], ways: Sequence[str], budgets_us: Sequence[float], path: Path) -> None:
    """Top-1 on holdout and on test by budget, a line for each way, with intervals over seeds."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 4), sharey=True)
    for axes, split in zip(panels, ("holdout", "test"), strict=True):
        for way in ways:
            at, means, widths = [], [], []
            for budget_us in budgets_us:
                of_budget = [r for r in rows if (r["way"], r["budget_us"]) == (way, budget_us) and "error" not in r]
                if found := [100 * r[f"top1_{split}"] for r in of_budget]:
                    at.append(budget_us)
                    means.append(np.mean(found))
                    widths.append(interval(found) if len(found) > 1 else 0.0)
            axes.errorbar(at, means, widths, label=way, marker="o", capsize=3)
        axes.set_xlabel("latency budget (us), by the tables")
        axes.set_ylabel(f"top-1 on {split} (%)")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="run directory with a supernet and both tables")
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS_US, help="in microseconds")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--name", help="what the result is called behind mixed_precision, such as the images")
    parser.add_argument("--quick", action="store_true", help="one budget, one seed, short searches; nothing is written")
    options = parser.parse_args()
    budgets, seeds = ((options.budgets[-1],), 1) if options.quick else (tuple(options.budgets), options.seeds)
    with tempfile.TemporaryDirectory() as folder:
        lab, rows = Lab(RunDirectory(options.run), Path(folder), options.quick), list[Row]()
        ways = (*lab.dtypes, AFTER, JOINT)
        asked = [(way, budget, seed) for seed in range(seeds) for budget in budgets for way in ways]
        for way, budget_us, seed in tqdm(asked, unit="search"):
            row = lab.network(way, 1e-6 * budget_us, seed)
            rows.append(row)
            what = row.get("error") or f"{row['top1_test']:.2%} at {row['latency_us']:.1f} us  {row['architecture']}"
            tqdm.write(f"seed {seed}  {format_latency(1e-6 * budget_us):>7}  {way:<8} {what}")
        smallest = {f"{way}_smallest_us": Figure(lab.smallest_us(way)) for way in (*lab.dtypes, JOINT)}
        origin = {"space": lab.source.task.space.name, "supernet": lab.source.digest, "seeds": seeds, "rows": rows}
    figures = figures_of(rows, ways, budgets, seeds) | smallest
    name = f"mixed_precision-{options.name}" if options.name else "mixed_precision"
    finish(name, figures, options.quick, origin)
    if not options.quick:
        draw(rows, ways, budgets, result_path(name, machine_kind()).with_suffix(".svg"))


if __name__ == "__main__":
    main()
