"""The kinds of accuracy predictor beside each other, taught by 50 to 1000 evaluated architectures.

    python benchmarks/accuracy_predictor.py [--quick] [--run DIR] [--space mbv3] [--seeds 4] [--seed 0]
    python benchmarks/accuracy_predictor.py --data FILE [--quick] [--space mbv3] [--seeds 20] [--seed 0]

Accuracies are SYNTHETIC, of three kinds and with two amounts of noise of evaluation (`benchmarks/labels.py`). With
--run they are those of the run's own sub-networks on its holdout images, too. Kinds of predictors: `pairs`, the
default; `mlp`, the paper's perceptrons; `ridge`. All learn from the same architectures and are judged on others.

Figures, each over seeds: root mean square error in points (hundredths of top-1), Kendall's tau, and the share of the
true best tenth that is in the predicted best tenth. The goal: at no number of architectures is the error of the default
above the ridge's (geometric mean over seeds of their ratio, the largest of all cases and numbers).

With --data they are those of a table as `chanas search --accuracy-table` reads it, for example what IntelLabs/DyNAS-T
publishes of once-for-all's MobileNetV3 (notebooks/data). Of every number of architectures, 30 to 1000, there are 20
draws, judged on the rest of the table. The yardstick is then a ridge that has a column for "no block here", too. The
goals: `pairs` has no larger error from 30 on, 0.9 times its error at 100, 0.4 times at 1000. Its result is named by
the file.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from common import Figure, finish, geometric_mean
from labels import Accuracies, draw, of_supernet, synthetic
from threadpoolctl import threadpool_limits

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import GenomeLayout, Genomes
from chanas.core.statistics import kendall_tau
from chanas.errors import ChanasError
from chanas.search.accuracy.encoding import Features, features
from chanas.search.accuracy.predictor import KINDS, AccuracyPredictor
from chanas.search.accuracy.regression import fit_ridge
from chanas.search.accuracy.table import load_accuracy_table
from chanas.search.accuracy.validation import top_decile_recall

DEFAULT, YARDSTICK = "pairs", "ridge"
# Of a table: a ridge that knows absent blocks. It is no kind of predictor.
ABSENT = "ridge-absent"
TABLE_KINDS = (ABSENT, "ridge", "mlp", "pairs")
TABLE_SIZES, NUM_DRAWS = (30, 50, 100, 1000), 20
TABLE_GOALS = {100: 0.9, 1000: 0.4}
SIZES, QUICK_SIZES = (50, 100, 200, 350, 500, 1000), (50, 100)
NUM_TEST, QUICK_TEST = 2000, 300
NUM_TEST_SUPERNET = 500
NUM_SEEDS, QUICK_SEEDS = 4, 1
# The goal is about the other two; this one takes longest, and is compared on as many seeds.
SIDE_KINDS, SIDE_SEEDS = ("mlp",), 2
NOISE_POINTS = (0.1, 0.4)
HEADING = f"{'accuracies':<28}{'number':>6}  {'kind':<13}{'RMSE':>8}{'ratio':>8}{'tau':>8}{'top 10%':>8}{'fit s':>8}"


@dataclass(frozen=True)
class Row:
    """One fit: a kind of predictor, taught by `num` architectures of a case, judged on others."""

    case: str
    num: int
    seed: int
    kind: str
    rmse_points: float
    kendall_tau: float | None
    top_decile_recall: float
    fit_s: float


def with_absent(space: SearchSpace, genomes: Genomes) -> Features:
    """The usual one-hot columns, and for kernel size and expand ratio of every slot one for "no block here"."""
    absent = (genomes[:, GenomeLayout(space).kernels.start :] < 0).astype(np.float32)
    return np.concatenate([features(space, genomes), absent], axis=1)


def fitted(kind: str, space: SearchSpace, genomes: Genomes, top1: FloatArray, seed: int) -> Callable[..., FloatArray]:
    """What a kind predicts of genomes, once it has learnt these."""
    if kind != ABSENT:
        return AccuracyPredictor(space, kind, seed=seed).fit(genomes, top1).mean
    ridge, _ = fit_ridge(with_absent(space, genomes), top1)
    return lambda asked: ridge.mean(with_absent(space, asked))


def judged(case: Accuracies, num: int, num_test: int, kinds: Sequence[str], seed: int) -> Iterator[Row]:
    """Each kind, taught by `num` of the architectures and judged on `num_test` others."""
    order = np.random.default_rng([seed, num]).permutation(len(case.genomes))
    taught, asked = order[:num], order[num : num + num_test]
    for kind in kinds:
        start = time.perf_counter()
        predict = fitted(kind, case.space, case.genomes[taught], case.labels[taught], seed)
        fit_s = time.perf_counter() - start
        predicted, truth = predict(case.genomes[asked]), case.truth[asked]
        rmse = 100.0 * float(np.sqrt(np.mean((predicted - truth) ** 2)))
        tau, recall = kendall_tau(truth, predicted), top_decile_recall(truth, predicted)
        yield Row(case.name, num, seed, kind, rmse, tau, recall, fit_s)


def ratios(rows: Sequence[Row], kind: str, yardstick: str = YARDSTICK) -> dict[tuple[str, int], list[float]]:
    """Error of `kind` over the yardstick's, fit by fit, for each case and number of architectures."""
    plain = {(r.case, r.num, r.seed): r.rmse_points for r in rows if r.kind == yardstick}
    out: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row.kind == kind:
            out.setdefault((row.case, row.num), []).append(row.rmse_points / plain[row.case, row.num, row.seed])
    return out


def figures_of(rows: Sequence[Row]) -> dict[str, Figure]:
    """The goal, then each kind's means over all cases and numbers, of those seeds that all kinds have."""
    default = ratios(rows, DEFAULT)
    means = {key: geometric_mean(values) for key, values in default.items()}
    single = [ratio for values in default.values() for ratio in values]
    found = {
        "largest_mean_ratio_to_ridge": Figure(max(means.values(), default=None), 1.0, lower_is_better=True),
        "largest_single_ratio_to_ridge": Figure(max(single, default=None)),
        "mean_ratio_to_ridge": Figure(geometric_mean(single)),
    }
    for num in (min(r.num for r in rows), max(r.num for r in rows)):
        found[f"mean_ratio_to_ridge_{num}"] = Figure(geometric_mean([m for (_, n), m in means.items() if n == num]))
    by_kind = {kind: {r.seed for r in rows if r.kind == kind} for kind in dict.fromkeys(r.kind for r in rows)}
    shared = set.intersection(*by_kind.values())
    for kind in by_kind:
        own = [r for r in rows if r.kind == kind and r.seed in shared]
        taus = [r.kendall_tau for r in own if r.kendall_tau is not None]
        name = kind.replace("-", "_")
        found[f"{name}_rmse_points"] = Figure(geometric_mean([r.rmse_points for r in own]))
        found[f"{name}_kendall_tau"] = Figure(float(np.mean(taus)) if taus else None)
        found[f"{name}_top_decile_recall"] = Figure(float(np.mean([r.top_decile_recall for r in own])))
    return found


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of positive values, and the ends of its 95 % confidence interval (Student's t of logarithms)."""
    from scipy.stats import t

    logs = np.log(values)
    half = t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    middle = logs.mean()
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def figures_of_table(rows: Sequence[Row]) -> dict[str, Figure]:
    """The goals, then of every kind and number the mean ratio to the yardstick and its interval over draws."""
    found: dict[str, Figure] = {}
    of_pairs = []
    for kind in dict.fromkeys(r.kind for r in rows if r.kind != ABSENT):
        for (_, num), values in ratios(rows, kind, ABSENT).items():
            name = f"{kind}_ratio_to_ridge_{num}"
            mean, low, high = interval(values)
            of_pairs += [mean] if kind == "pairs" else []
            found[name] = Figure(mean, TABLE_GOALS.get(num) if kind == "pairs" else None, lower_is_better=True)
            found |= {f"{name}_low": Figure(low), f"{name}_high": Figure(high)}
    return {"largest_pairs_ratio_to_ridge": Figure(max(of_pairs), 1.0, lower_is_better=True), **found}


def print_rows(rows: Sequence[Row], yardstick: str = YARDSTICK) -> None:
    """Means over seeds of one case and number of architectures, a line for each kind."""
    for kind in dict.fromkeys(r.kind for r in rows):
        own = [r for r in rows if r.kind == kind]
        tau = float(np.mean([math.nan if r.kendall_tau is None else r.kendall_tau for r in own]))
        ratio = geometric_mean(ratios(rows, kind, yardstick)[own[0].case, own[0].num])
        rmse, recall, fit_s = (
            float(np.mean([getattr(r, name) for r in own])) for name in ("rmse_points", "top_decile_recall", "fit_s")
        )
        numbers = f"{rmse:>8.3f}{ratio:>8.3f}{tau:>8.3f}{recall:>8.2f}{fit_s:>8.2f}"
        print(f"{own[0].case:<28}{own[0].num:>6}  {kind:<13}{numbers}", flush=True)


def judge_table(path: Path, space: SearchSpace, seeds: Sequence[int], quick: bool) -> None:
    """Draws of a table's architectures, judged on its other rows."""
    table = load_accuracy_table(path, space)
    case = Accuracies(path.stem, space, table.genomes, table.top1, table.top1)
    rows: list[Row] = []
    print(table.describe())
    for num in QUICK_SIZES if quick else TABLE_SIZES:
        if num < len(case.labels):
            found = [row for seed in seeds for row in judged(case, num, len(case.labels), TABLE_KINDS, seed)]
            print_rows(found, ABSENT)
            rows += found
    print()
    extra = {
        "seed": seeds[0],
        "num_seeds": len(seeds),
        "space": space.name,
        "accuracies": f"of the table {path.name}, SHA-256 {table.digest}",
        "rows": [asdict(row) for row in rows],
    }
    finish(f"accuracy_predictor-{path.stem.replace('_', '-')}", figures_of_table(rows), quick, extra)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few architectures, one seed; nothing is written")
    parser.add_argument("--run", type=Path, help="also accuracies of this run's sub-networks, evaluated on holdout")
    parser.add_argument("--data", type=Path, help="accuracies of this table (CSV) instead of all others")
    parser.add_argument("--space", default="mbv3", help="of the accuracies: a preset or a YAML file")
    number = f"draws of each ({NUM_SEEDS}; of a table {NUM_DRAWS}; {QUICK_SEEDS} with --quick)"
    parser.add_argument("--seeds", type=int, help=number)
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    options = parser.parse_args(arguments)
    quick = options.quick
    sizes, num_test = (QUICK_SIZES, QUICK_TEST) if quick else (SIZES, NUM_TEST)
    full = NUM_SEEDS if options.data is None else NUM_DRAWS
    seeds = range(options.seed, options.seed + (options.seeds or (QUICK_SEEDS if quick else full)))
    space = SearchSpace.load(options.space)

    print(HEADING)
    rows: list[Row] = []

    def judge(cases: dict[int, Accuracies], num_asked: int) -> None:
        for num in sizes:
            found: list[Row] = []
            for seed, case in cases.items():
                kinds = [k for k in KINDS if k not in SIDE_KINDS or seed - options.seed < SIDE_SEEDS]
                found += judged(case, num, num_asked, kinds, seed)
            print_rows(found)
            rows.extend(found)

    import torch

    torch.set_num_threads(1)
    with threadpool_limits(1):
        if options.data is not None:
            return judge_table(options.data, space, seeds, quick)
        if options.run is not None:
            pool = of_supernet(options.run, sizes[-1] + (num_test if quick else NUM_TEST_SUPERNET), options.seed)
            judge(dict.fromkeys(seeds, pool), len(pool.genomes) - sizes[-1])
        functions = {seed: synthetic(space, seed) for seed in seeds}
        for kind in functions[options.seed]:
            for points in NOISE_POINTS:
                name, num = f"{kind}, noise {points} points", sizes[-1] + num_test
                judge({s: draw(name, functions[s][kind], space, num, points / 100.0, s) for s in seeds}, num_test)
    print()
    extra = {
        "seed": options.seed,
        "num_seeds": len(seeds),
        "space": space.name,
        "run": options.run is not None,
        "accuracies": "synthetic, as benchmarks/labels.py makes them",
        "rows": [asdict(row) for row in rows],
    }
    finish("accuracy_predictor", figures_of(rows), quick, extra)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"accuracy_predictor: error: {error}") from error
