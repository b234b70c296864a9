"""What measurements on other devices are worth in the tuning of one operator on a new one.

    python benchmarks/transfer_tuning.py [--quick] --data FILE

FILE is a CSV file as `chanas records propose` reads it, gzipped or not: a row for each configuration, one `DEVICE_ms`
for each device, and a column for each of its parameters, whatever their names. Here everything is measured, and a
configuration does not work on a device where its cell is empty or no positive number. Ours is every configuration of a
tunable convolution on six GPUs of two makers: the FAIR Benchmark Hub's (github.com/AutoTuningAssociation/benchmark_hub,
MIT). Draws are fewer by default where there are more than 5,000 configurations: as many as their product allows.

One device after the other is new. Searches begin with nothing measured there, by

    chanas    as `chanas records propose` does, with all other devices
    gp        the same without any other device
    nearest   from the fastest to the slowest of the device that ranks the measured configurations most alike
    random    one at random after the other

After each number of measurements: the best configuration found, the best of the one and of the five that are predicted
to be the fastest (all as shares of the optimum's speed), and the share of pairs of configurations that are predicted in
the right order. A configuration that does not work is a measurement that is spent.

Then every other device by itself is a source (as by `chanas records propose --from DEVICE --simulate`): as it is, with
its latencies shuffled among its configurations, and reversed: the fastest is the slowest. The last two have nothing to
say. What asking them costs is by how many more measurements it takes than `gp` with the same seed to come within 5 and
1 % of the optimum, where as many as are made and one count for a search that does not.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import Figure, finish
from threadpoolctl import threadpool_limits

from chanas.core.arrays import FloatArray
from chanas.core.statistics import spearman
from chanas.errors import ChanasError, DataError
from chanas.prescheduler.tuning.configurations import read_configurations
from chanas.prescheduler.tuning.proposals import CLOSE, gaps, play, trials_until
from chanas.prescheduler.tuning.transfer import TransferSearch

BUDGETS, QUICK_BUDGETS = (0, 10, 30, 100), (0, 10)
NUM_DRAWS, QUICK_DRAWS = 50, 1
NUM_PAIR_DRAWS = 10
QUICK_CONFIGURATIONS = 200
FULL_DRAWS_CONFIGURATIONS = 5000
OURS, GP, NEAREST, RANDOM = "chanas", "gp", "nearest", "random"
SCORES = ("found", "top1", "top5", "pairwise")
OVERHEAD_GOAL_PERCENT = 3.0
SHARE_GOAL = 0.29
ALIKE = 0.8
"""Devices are alike whose latencies have at least this rank correlation."""
KINDS: dict[str, Callable[[FloatArray, np.random.Generator], FloatArray]] = {
    "real": lambda log_latencies, rng: log_latencies,
    "shuffled": lambda log_latencies, rng: rng.permutation(log_latencies),
    "reversed": lambda log_latencies, rng: np.where(np.isinf(log_latencies), np.inf, -log_latencies),
}


@dataclass(frozen=True)
class Space:
    """Configurations, float64[N, F], and their log latencies on devices, float64[N, D], infinite where one does not
    work."""

    x: FloatArray
    devices: tuple[str, ...]
    log_latencies: FloatArray

    def others(self, column: int) -> list[int]:
        """Columns of the other devices."""
        return [i for i in range(len(self.devices)) if i != column]


@dataclass(frozen=True)
class Score:
    """One contender on one new device after one draw and so many measurements."""

    num: int
    device: str
    draw: int
    kind: str
    found: float
    top1: float
    top5: float
    pairwise: float


@dataclass(frozen=True)
class Reached:
    """Measurements until a search came within `CLOSE` of the optimum, of each; `source` is "" for no device and "all"
    for all."""

    device: str
    source: str
    kind: str
    draw: int
    trials: tuple[int, ...]


# ---- data -----------------------------------------------------------------------------------------------------------
def read_space(path: Path, num: int | None = None) -> Space:
    """The configurations of the file; `num` of them, evenly spaced, where it is given.

    Raises:
        DataError: it cannot be read, or has not what is compared.
    """
    table = read_configurations(path)
    rows = np.arange(len(table.log_latencies))
    if num is not None:
        rows = rows[:: max(1, len(rows) // num)][:num]
    log_latencies = np.where(np.isnan(table.log_latencies), np.inf, table.log_latencies)[rows]
    if len(table.devices) < 2:
        raise DataError(f"expected a column DEVICE_ms for each of at least two devices in {path}, got 1")
    for device, column in zip(table.devices, log_latencies.T, strict=True):
        if not np.isfinite(column).any():
            raise DataError(f"expected a latency of each device in {path}, got none of {device}; leave the column out")
    return Space(table.x[rows], table.devices, log_latencies)


def draws_for(num: int, num_configurations: int) -> int:
    """How often a search is repeated by default: `num` times, or fewer where there are more configurations than in the
    space that this number was made for."""
    return max(1, num * min(FULL_DRAWS_CONFIGURATIONS, num_configurations) // num_configurations)


# ---- searches -------------------------------------------------------------------------------------------------------
Predict = Callable[[], FloatArray | None]
"""Log latencies float64[N] that are predicted now; None: nothing is."""
Order = Iterator[tuple[int, Predict]]
"""The next configuration, and what is predicted before it is measured."""


def _nothing() -> None:
    """Predict nothing."""


def modelled(space: Space, sources: FloatArray, truth: FloatArray, rng: np.random.Generator) -> Order:
    """Order by chanas, with log latencies float64[N, S] of other devices."""
    search = TransferSearch(space.x, sources, rng)
    for _ in range(len(truth)):
        (index,) = search.ask(1)
        knows = sources.shape[1] > 0 or math.isfinite(search.best)
        yield index, search.model.predict if knows else _nothing
        search.tell([(index, truth[index])])


def nearest(sources: FloatArray, truth: FloatArray) -> Order:
    """Order by the source that ranks what was measured most alike; the first one until there are three."""
    orders = np.argsort(sources, axis=0, kind="stable").T
    is_tried = np.zeros(len(truth), dtype=np.bool_)
    tried: list[int] = []
    for _ in range(len(truth)):
        chosen = 0
        if len(tried) > 2:
            chosen = int(np.argmax([spearman(s[tried], truth[tried]) or 0.0 for s in sources.T]))
        index = int(orders[chosen][np.argmin(is_tried[orders[chosen]])])
        yield index, functools.partial(sources.__getitem__, (slice(None), chosen))
        tried.append(index)
        is_tried[index] = True


def at_random(truth: FloatArray, rng: np.random.Generator) -> Order:
    """Order by chance."""
    for index in rng.permutation(len(truth)).tolist():
        yield index, _nothing


# ---- scores ---------------------------------------------------------------------------------------------------------
def top(predicted: FloatArray, truth: FloatArray, num: int) -> float:
    """The optimum's latency over that of the best of the `num` configurations that are predicted fastest."""
    return math.exp(truth.min() - truth[np.argsort(predicted, kind="stable")[:num]].min())


def pairwise(predicted: FloatArray, truth: FloatArray) -> float:
    """Share of pairs of working configurations that are predicted in the right order; half of those predicted alike."""
    from scipy.stats import kendalltau

    works = np.isfinite(truth)
    return 0.5 + 0.5 * float(kendalltau(predicted[works], truth[works], variant="b").statistic)


def scored(order: Order, truth: FloatArray, budgets: Sequence[int]) -> Iterator[tuple[int, float, dict[str, float]]]:
    """For each measurement its number, the gap before it, and at the budgets the scores of what is predicted then."""
    optimum, best = truth.min(), math.inf
    for num, (index, predict) in enumerate(order):
        found = math.exp(optimum - best) if math.isfinite(best) else 0.0
        scores: dict[str, float] = {}
        if num in budgets and (predicted := predict()) is not None:
            scores = {"top1": top(predicted, truth, 1), "top5": top(predicted, truth, 5)}
            scores["pairwise"] = pairwise(predicted, truth)
        yield num, found, scores
        if num == max(budgets):
            return
        best = min(best, truth[index])


def reached_in(curve: Sequence[float]) -> tuple[int, ...]:
    """Measurements until each of `CLOSE`."""
    return tuple(trials_until(curve, close) for close in CLOSE.values())


def leave_one_out(
    space: Space, column: int, draw: int, seed: int, budgets: Sequence[int]
) -> tuple[list[Score], list[Reached]]:
    """Each contender with all other devices."""
    truth, sources = space.log_latencies[:, column], space.log_latencies[:, space.others(column)]
    none = np.zeros((len(truth), 0))
    device, unknown = space.devices[column], dict.fromkeys(SCORES[1:], math.nan)
    scores, reached = [], []
    for kind in (OURS, GP, NEAREST, RANDOM):
        rng = np.random.default_rng([seed, column, draw])
        if kind in (OURS, GP):
            order = modelled(space, sources if kind == OURS else none, truth, rng)
        else:
            order = nearest(sources, truth) if kind == NEAREST else at_random(truth, rng)
        curve = []
        for num, found, values in scored(order, truth, budgets):
            curve.append(1.0 / found if found else math.inf)
            if num in budgets:
                scores.append(Score(num, device, draw, kind, found, **(unknown | values)))
        reached.append(Reached(device, "all", kind, draw, reached_in(curve[1:])))
    return scores, reached


def pairs(space: Space, column: int, draw: int, seed: int, num: int) -> Iterator[Reached]:
    """Without a source, and with every other device as it is, shuffled and reversed."""
    truth = space.log_latencies[:, column]

    def reached(source: str, kind: str, known: FloatArray) -> Reached:
        tried = play(space.x, known, truth, np.random.default_rng([seed, column, draw]), num)
        return Reached(space.devices[column], source, kind, draw, reached_in(gaps(tried, truth)))

    yield reached("", GP, np.zeros((len(truth), 0)))
    for other in space.others(column):
        for kind, change in KINDS.items():
            rng = np.random.default_rng([seed, column, draw, other])
            yield reached(space.devices[other], kind, change(space.log_latencies[:, other], rng)[:, None])


# ---- figures --------------------------------------------------------------------------------------------------------
def mean_and_spread(by_draw: Mapping[int, Sequence[float]]) -> dict[str, float]:
    """Mean over draws of the mean within each, the deviation between draws, and half of the mean's 95 % interval."""
    means = [float(np.mean(values)) for values in by_draw.values()]
    deviation = float(np.std(means, ddof=1)) if len(means) > 1 else 0.0
    return {
        "mean": float(np.mean(means)),
        "deviation": deviation,
        "interval": 1.96 * deviation / math.sqrt(len(means)),
    }


def score_rows(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """By budget, contender and device (`all`: mean over devices): each score's mean, deviation and interval."""
    groups: dict[tuple[int, str, str], list[Score]] = {}
    for score in scores:
        for device in ("all", score.device):
            groups.setdefault((score.num, score.kind, device), []).append(score)
    rows = []
    for (num, kind, device), own in groups.items():
        row: dict[str, Any] = {"num": num, "kind": kind, "device": device}
        for name in SCORES:
            by_draw: dict[int, list[float]] = {}
            for score in own:
                by_draw.setdefault(score.draw, []).append(getattr(score, name))
            row[name] = mean_and_spread(by_draw)
        rows.append(row)
    return rows


def trial_rows(reached: Sequence[Reached]) -> list[dict[str, Any]]:
    """By device, source and kind: measurements until each `CLOSE`."""
    groups: dict[tuple[str, str, str], list[Reached]] = {}
    for one in reached:
        groups.setdefault((one.device, one.source, one.kind), []).append(one)
    rows = []
    for (device, source, kind), own in groups.items():
        row: dict[str, Any] = {"device": device, "source": source, "kind": kind}
        for place, close in enumerate(CLOSE.values()):
            row[f"trials_{close}"] = mean_and_spread({r.draw: [r.trials[place]] for r in own})
        rows.append(row)
    return rows


def overhead_percent(reached: Sequence[Reached], kind: str, place: int = 0) -> dict[str, float]:
    """By how much longer it takes with sources of a kind than without, in percent of what it takes without."""
    alone = {(r.device, r.draw): r.trials[place] for r in reached if r.kind == GP}
    base = float(np.mean(list(alone.values())))
    by_draw: dict[int, list[float]] = {}
    for one in reached:
        if one.kind == kind:
            longer = one.trials[place] - alone[one.device, one.draw]
            by_draw.setdefault(one.draw, []).append(100.0 * longer / base)
    return mean_and_spread(by_draw)


def pair_shares(space: Space, reached: Sequence[Reached]) -> dict[str, float]:
    """Measurements with a source over those without, to within 5 %: mean over pairs that are alike, and over others."""
    shares: dict[str, list[float]] = {"alike": [], "unlike": []}
    for a, source in enumerate(space.devices):
        for b, device in enumerate(space.devices):
            own = [r.trials[0] for r in reached if (r.device, r.source, r.kind) == (device, source, "real")]
            alone = [r.trials[0] for r in reached if (r.device, r.kind) == (device, GP)]
            if own and alone:
                correlation = spearman(space.log_latencies[:, a], space.log_latencies[:, b]) or 0.0
                shares["alike" if correlation >= ALIKE else "unlike"].append(float(np.mean(own) / np.mean(alone)))
    return {kind: float(np.mean(values)) if values else math.nan for kind, values in shares.items()}


def figures_of(
    space: Space, scores: Sequence[Score], alone: Sequence[Reached], paired: Sequence[Reached]
) -> dict[str, Figure]:
    """What was found with and without the others at each budget, trials, and the cost of asking."""
    figures = {}
    for row in score_rows(scores):
        if row["device"] == "all" and row["kind"] in (OURS, GP):
            for name in SCORES:
                value = row[name]["mean"]
                figures[f"{row['kind']}_{name}_{row['num']}"] = Figure(None if math.isnan(value) else value)
    for kind in (OURS, GP, NEAREST, RANDOM):
        figures[f"{kind}_trials"] = Figure(float(np.mean([r.trials[0] for r in alone if r.kind == kind])))
    shares = pair_shares(space, paired)
    figures["pair_share_alike"] = Figure(shares["alike"], SHARE_GOAL, lower_is_better=True)
    figures["pair_share_unlike"] = Figure(shares["unlike"], 1.0, lower_is_better=True)
    for kind in KINDS:
        goal = None if kind == "real" else OVERHEAD_GOAL_PERCENT
        value = overhead_percent(paired, kind)["mean"]
        figures[f"overhead_{kind}_percent"] = Figure(value, goal, lower_is_better=True)
    return figures


def run(
    path: Path, quick: bool, num_draws: int | None, num_pair_draws: int | None, seed: int
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Figures, and rows for the result file."""
    space = read_space(path, QUICK_CONFIGURATIONS if quick else None)
    budgets = QUICK_BUDGETS if quick else BUDGETS
    draws = range(num_draws or (QUICK_DRAWS if quick else draws_for(NUM_DRAWS, len(space.x))))
    pair_draws = range(num_pair_draws or (QUICK_DRAWS if quick else draws_for(NUM_PAIR_DRAWS, len(space.x))))
    print(
        f"{len(space.x)} configurations, {len(space.devices)} devices, {len(draws)} draws, {len(pair_draws)} of pairs"
    )
    scores: list[Score] = []
    alone: list[Reached] = []
    paired: list[Reached] = []
    for column, device in enumerate(space.devices):
        for draw in draws:
            some, reached = leave_one_out(space, column, draw, seed, budgets)
            scores += some
            alone += reached
        for draw in pair_draws:
            paired += pairs(space, column, draw, seed, max(budgets))
        own = [r for r in alone if r.device == device]
        line = ", ".join(f"{k} {np.mean([r.trials[0] for r in own if r.kind == k]):.1f}" for k in (OURS, GP, NEAREST))
        print(f"{device}: measurements to within 5 %: {line}", flush=True)
    rows = score_rows(scores)
    print(f"{'number':>6}  {'kind':<10}" + "".join(f"{name:>18}" for name in SCORES))
    for row in rows:
        if row["device"] == "all":
            cells = "".join(f"{row[s]['mean']:>10.3f} ± {row[s]['interval']:<5.3f}" for s in SCORES)
            print(f"{row['num']:>6}  {row['kind']:<10}{cells}")
    overheads = {kind: [overhead_percent(paired, kind, place) for place in range(len(CLOSE))] for kind in KINDS}
    for kind, found in overheads.items():
        print(f"{kind} sources: {found[0]['mean']:+.1f} ± {found[0]['interval']:.1f} % measurements to within 5 %")
    extra = {
        "seed": seed,
        "draws": len(draws),
        "pair_draws": len(pair_draws),
        "budgets": list(budgets),
        "num_configurations": len(space.x),
        "devices": list(space.devices),
        "data": path.name,
        "scores": rows,
        "trials": trial_rows(alone),
        "pair_trials": trial_rows(paired),
        "overhead_percent": {k: dict(zip(map(str, CLOSE.values()), v, strict=True)) for k, v in overheads.items()},
    }
    return figures_of(space, scores, alone, paired), extra


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few configurations, one draw; writes nothing")
    parser.add_argument("--data", type=Path, required=True, help="measurements: see above")
    parser.add_argument("--draws", type=int, help=f"of searches ({NUM_DRAWS}; fewer in a large space)")
    parser.add_argument("--pair-draws", type=int, help=f"with one source ({NUM_PAIR_DRAWS}; fewer in a large space)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="transfer_tuning", help="of the result file (transfer_tuning)")
    options = parser.parse_args(arguments)
    with threadpool_limits(1):
        try:
            figures, extra = run(options.data, options.quick, options.draws, options.pair_draws, options.seed)
        except ChanasError as error:
            raise SystemExit(
                f"transfer_tuning: error: {error}; --help says what a file has and where one can be had"
            ) from error
    print()
    finish(options.name, figures, options.quick, extra)


if __name__ == "__main__":
    main()
