"""What latencies of networks on known devices are worth on a new one.

    python benchmarks/transfer.py [--quick] --data FILE

FILE is a CSV file as `chanas lut predict` reads it, gzipped or not, with a row for each network: one `DEVICE_ms` for
each device, maybe `accuracy` (or `top1`; from 0 to 1, or in percent), and columns of any other names that say what the
network is, in numbers or words; a cell may be a list, its words apart by blanks. A column of more than 100 words names
networks and is left out, and so is a network that lacks a latency. Devices whose names differ only in a number at the
end (`v100_1`, `v100_32`) are one GPU with several batches.

Ours is 5,000 once-for-all networks on four GPUs at batch 1, 32 and 64, as HELP published them (Lee et al., NeurIPS
2021, MIT; github.com/HayeonLee/HELP): columns `d` (depths of the five stages), `ks` and `e` (kernel sizes and expand
ratios of 20 slots; those beyond a depth do not count) and `r` (resolution). Features are then those of `mbv3`,
accuracies are SYNTHETIC (`saturating` of `labels.py`), and `titan_rtx_64` is left out: it is `titan_rtx_32` times 1.95.

One GPU after the other is new, with all its batches. A few of its networks, drawn anew each time, are measured; all
others are predicted from these and from the other GPUs' latencies, by

    chanas           as `chanas lut predict` does: all known devices without their noise, mixed by Bayesian averaging
    ridge            known devices' log latencies, standardised, λ = 3
    ridge-smoothed   the same on latencies without their noise: what smoothing alone brings
    nearest          the known device that orders the measured networks most alike, times one factor
    table            seconds of blocks of that device, summed, times one factor, with corrections of blocks by a ridge

Each is judged on the networks that were not measured: Spearman's rank correlation, mean absolute error in percent, and,
where accuracies are known, regret: under a limit (each quartile of the new device's latencies), the ten most accurate
networks that are predicted inside are timed, and the most accurate of them that is inside is chosen, or else the one
predicted fastest; regret is how many points of accuracy the best network inside has more.

`spearman_10_by_command` and `mape_percent_10_by_command` are of files that the command has written, for each device
once: it reads the same table with all latencies of the new GPU taken out but those of ten networks.

The ceiling: gradient boosting taught by four fifths of the networks measured on the new device itself, judged on the
others; with what was measured of the same networks on the other GPUs, and without.
"""

from __future__ import annotations

import argparse
import csv
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import Figure, finish
from threadpoolctl import threadpool_limits
from transfer_data import Measured, read_measured

from chanas.core.arrays import FloatArray
from chanas.errors import ChanasError
from chanas.search.transfer.latencies import adapt, fit_known
from chanas.workflows.stages import adaptation

OURS = "chanas"
BASELINES = ("ridge", "nearest", "table")
NUMS, QUICK_NUMS = (5, 10, 20, 50), (5, 10)
NUM_DRAWS, QUICK_DRAWS = 20, 1
QUICK_NETWORKS = 600
SHARE_TAUGHT = 0.8
SPEARMAN_GOAL, MAPE_GOAL, GOAL_NUM = 0.93, 6.0, 10
LIMITS = (0.25, 0.5, 0.75)
NUM_FINALISTS = 10
SCORES = ("spearman", "mape_percent", "regret_points")
_RIDGE = 3.0
# Of the table: of seconds against counts of blocks, and of corrections against shares of the time (a block is off by
# about 30 % and a measurement by 5 %: their squares' ratio).
_TABLE_RIDGE, _CORRECTION_RIDGE = 3.0, 0.03
# Sums of blocks may be negative where blocks are not all that takes time: least share of the middle one.
_LEAST_OF_TABLE = 0.2

Predict = Callable[[Sequence[int], np.ndarray, FloatArray], FloatArray]
"""Columns of known devices, networks int[n], log latencies float64[n] -> log latencies float64[N] of all."""


@dataclass(frozen=True)
class Row:
    """One contender on one new device after one draw of measured networks."""

    num: int
    device: str
    draw: int
    kind: str
    spearman: float
    mape_percent: float
    regret_points: float


# ---- contenders -----------------------------------------------------------------------------------------------------
def ridge(known: FloatArray, chosen: np.ndarray, measured: FloatArray) -> FloatArray:
    """float64[N] by known log latencies float64[N, D]."""
    z = (known - known.mean(axis=0)) / known.std(axis=0)
    x, mean = z[chosen], measured.mean()
    out: FloatArray = z @ np.linalg.solve(x.T @ x + _RIDGE * np.eye(z.shape[1]), x.T @ (measured - mean)) + mean
    return out


def most_alike(known: FloatArray, chosen: np.ndarray, measured: FloatArray) -> int:
    """The column of `known` that orders the measured networks most alike; the first of several."""
    return int(np.argmax([spearman(known[chosen, j], measured) for j in range(known.shape[1])]))


def scaled(known: FloatArray, chosen: np.ndarray, measured: FloatArray) -> FloatArray:
    """One known device's log latencies float64[N], times the factor in the middle of the measured ones'."""
    out: FloatArray = known + np.median(measured - known[chosen])
    return out


def block_seconds(data: Measured) -> list[FloatArray]:
    """For each device float64[N, blocks]: what a table of its blocks says that each block of each network takes.

    A block's time is a sum over multiples of `sizes`; all by ridge from all networks of that device.
    """
    x = np.hstack([data.blocks * size[:, None] for size in data.sizes.T])
    gram = x.T @ x + _TABLE_RIDGE * np.eye(x.shape[1])
    seconds = np.linalg.solve(gram, x.T @ np.exp(data.log_latencies))
    num_sizes = data.sizes.shape[1]
    return [data.blocks * (data.sizes @ s.reshape(num_sizes, -1)) for s in seconds.T]


def table(parts: FloatArray, chosen: np.ndarray, measured: FloatArray) -> FloatArray:
    """float64[N] from the seconds of a known device's blocks float64[N, blocks]."""
    total = parts.sum(axis=1)
    total = np.maximum(total, _LEAST_OF_TABLE * np.median(total))
    sums = scaled(np.log(total), chosen, measured)
    shares = parts / total[:, None]
    x = shares[chosen]
    out: FloatArray = sums + shares @ x.T @ np.linalg.solve(
        x @ x.T + _CORRECTION_RIDGE * np.eye(len(x)), measured - sums[chosen]
    )
    return out


def contenders(data: Measured) -> dict[str, Predict]:
    """The ways to predict. What they keep of a device is made from this device alone, so that whichever is new can be
    left out by its column."""
    smooth = fit_known(data.features, data.log_latencies)
    parts, y = block_seconds(data), data.log_latencies

    def ours(known: Sequence[int], chosen: np.ndarray, measured: FloatArray) -> FloatArray:
        return adapt(smooth.select(known), chosen, measured).log_latencies

    def nearest(known: Sequence[int], chosen: np.ndarray, measured: FloatArray) -> FloatArray:
        return scaled(y[:, known[most_alike(y[:, known], chosen, measured)]], chosen, measured)

    def blocks(known: Sequence[int], chosen: np.ndarray, measured: FloatArray) -> FloatArray:
        return table(parts[known[most_alike(y[:, known], chosen, measured)]], chosen, measured)

    return {
        OURS: ours,
        "ridge": lambda known, chosen, measured: ridge(y[:, known], chosen, measured),
        "ridge-smoothed": lambda known, chosen, measured: ridge(smooth.select(known).log_latencies, chosen, measured),
        "nearest": nearest,
        "table": blocks,
    }


# ---- judgement ------------------------------------------------------------------------------------------------------
def spearman(a: FloatArray, b: FloatArray) -> float:
    """Correlation of ranks, equal values in the order of their places."""
    ranks = np.array([np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (a, b)])
    return float(np.corrcoef(ranks)[0, 1])


def mape_percent(predicted: FloatArray, truth: FloatArray) -> float:
    """Mean absolute error of latencies whose logarithms are given."""
    return 100.0 * float(np.abs(np.expm1(predicted - truth)).mean())


def regret_points(predicted: FloatArray, truth: FloatArray, top1: FloatArray, limit: float) -> float:
    """Accuracy lost under `limit`, in points: see the top of this file."""
    inside = np.flatnonzero(predicted <= limit)
    finalists = inside[np.argsort(-top1[inside], kind="stable")[:NUM_FINALISTS]]
    fitting = finalists[truth[finalists] <= limit]
    chosen = fitting[0] if len(fitting) else np.argmin(predicted)
    return 100.0 * float(top1[truth <= limit].max() - top1[chosen])


def known_columns(data: Measured, column: int) -> list[int]:
    """Devices that are known when one is new: those of other GPUs."""
    return [i for i, gpu in enumerate(data.gpus) if gpu != data.gpus[column]]


def judged(data: Measured, num: int, draws: Sequence[int], seed: int, ways: Mapping[str, Predict]) -> Iterator[Row]:
    """Each contender on each device as the new one, after `num` measurements there, drawn anew for each of `draws`."""
    top1 = None if data.top1 is None else data.top1(seed)
    for column, device in enumerate(data.devices):
        known, truth = known_columns(data, column), data.log_latencies[:, column]
        for draw in draws:
            rng = np.random.default_rng([seed, num, column, draw])
            chosen = rng.choice(len(truth), num, replace=False)
            others = np.setdiff1d(np.arange(len(truth)), chosen)
            limits = np.quantile(truth[others], LIMITS)
            for kind, predict in ways.items():
                found, real = predict(known, chosen, truth[chosen])[others], truth[others]
                regret = math.nan
                if top1 is not None:
                    regret = float(np.mean([regret_points(found, real, top1[others], limit) for limit in limits]))
                yield Row(num, device, draw, kind, spearman(found, real), mape_percent(found, real), regret)


def by_command(data: Measured, num: int, seed: int, devices: Sequence[str]) -> dict[str, dict[str, float]]:
    """By device: scores of what `chanas lut predict` writes after `num` measurements there."""
    out = {}
    for device in devices:
        column = data.devices.index(device)
        truth, rng = data.log_latencies[:, column], np.random.default_rng([seed, num, column, 0])
        chosen = rng.choice(len(truth), num, replace=False)
        known = {data.devices[i] for i in known_columns(data, column)}
        latencies = {f"{name}_ms" for name in data.table.devices}
        columns = {
            name: np.array(cells)[data.rows] for name, cells in data.table.columns.items() if name not in latencies
        }
        columns |= {f"{name}_ms": np.array(data.table.columns[f"{name}_ms"])[data.rows] for name in sorted(known)}
        cells = np.full(len(truth), "", dtype=object)
        cells[chosen] = np.array(data.table.columns[f"{device}_ms"])[data.rows][chosen]
        columns[f"{device}_ms"] = cells
        with tempfile.TemporaryDirectory(prefix="chanas-bench-") as folder:
            asked, answer = Path(folder) / "asked.csv", Path(folder) / "answer.csv"
            with asked.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
            adaptation.predict_networks(asked, device, answer)
            with answer.open(encoding="utf-8", newline="") as file:
                found = np.log([float(row[f"{device}_ms"]) for row in csv.DictReader(file)])
        others = np.setdiff1d(np.arange(len(truth)), chosen)
        scores = {"spearman": spearman(found[others], truth[others])}
        out[device] = scores | {"mape_percent": mape_percent(found[others], truth[others])}
        print(f"by command {device:<14}Spearman {scores['spearman']:.3f}", flush=True)
    return out


def ceiling(data: Measured, seed: int) -> dict[str, dict[str, float]]:
    """By device: scores of gradient boosting that was taught by this device's own networks; alone, and with what was
    measured of each network on the other GPUs as further columns.

    Its loss is the absolute error, since measurements have outliers to one side."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    alone = data.trees
    taught, asked = np.split(np.random.default_rng(seed).permutation(len(alone)), [int(SHARE_TAUGHT * len(alone))])
    out: dict[str, dict[str, float]] = {}
    for column, device in enumerate(data.devices):
        y, scores = data.log_latencies[:, column], out.setdefault(device, {})
        further = data.log_latencies[:, known_columns(data, column)]
        for name, x in (("", alone), ("_with_known", np.hstack([alone, further]))):
            model = HistGradientBoostingRegressor(
                loss="absolute_error", max_iter=150, learning_rate=0.06, random_state=seed
            )
            found = model.fit(x[taught], y[taught]).predict(x[asked])
            scores[f"spearman{name}"] = spearman(found, y[asked])
            scores[f"mape_percent{name}"] = mape_percent(found, y[asked])
    return out


# ---- figures --------------------------------------------------------------------------------------------------------
def summary(rows: Sequence[Row], score: str) -> tuple[float, float]:
    """Mean over devices and draws, and the standard deviation between draws of the mean over devices."""
    by_draw: dict[int, list[float]] = {}
    for row in rows:
        by_draw.setdefault(row.draw, []).append(getattr(row, score))
    means = [float(np.mean(values)) for values in by_draw.values()]
    return float(np.mean(means)), float(np.std(means))


def figures_of(
    rows: Sequence[Row],
    ceilings: Mapping[str, Mapping[str, float]],
    commanded: Mapping[str, Mapping[str, float]],
) -> dict[str, Figure]:
    """Ours with its goals, its lead over the best baseline at each number of measurements, what the command has
    written, the ceiling; no regret where no accuracies are known."""
    found = {}
    errors = [score for score in SCORES[1:] if not any(math.isnan(getattr(row, score)) for row in rows)]
    for num in dict.fromkeys(r.num for r in rows):
        own = {kind: [r for r in rows if (r.num, r.kind) == (num, kind)] for kind in (OURS, *BASELINES)}
        mean = {kind: {score: summary(some, score)[0] for score in SCORES} for kind, some in own.items()}
        spearman_goal, mape_goal = (SPEARMAN_GOAL, MAPE_GOAL) if num == GOAL_NUM else (None, None)
        found[f"spearman_{num}"] = Figure(mean[OURS]["spearman"], spearman_goal)
        found[f"mape_percent_{num}"] = Figure(mean[OURS]["mape_percent"], mape_goal, lower_is_better=True)
        if "regret_points" in errors:
            found[f"regret_points_{num}"] = Figure(mean[OURS]["regret_points"], lower_is_better=True)
        best = max(mean[k]["spearman"] for k in BASELINES)
        found[f"spearman_lead_{num}"] = Figure(mean[OURS]["spearman"] - best, 0.0)
        for score in errors:
            best = min(mean[k][score] for k in BASELINES)
            found[f"{score}_lead_{num}"] = Figure(best - mean[OURS][score], 0.0)
    for score, goal in (("spearman", SPEARMAN_GOAL), ("mape_percent", MAPE_GOAL)):
        value = float(np.mean([scores[score] for scores in commanded.values()]))
        found[f"{score}_{GOAL_NUM}_by_command"] = Figure(value, goal, lower_is_better=score == "mape_percent")
    for score in next(iter(ceilings.values())):
        found[f"ceiling_{score}"] = Figure(float(np.mean([c[score] for c in ceilings.values()])))
    return found


def print_rows(rows: Sequence[Row]) -> None:
    """Means and spread of one number of measurements, a line for each contender."""
    for kind in dict.fromkeys(r.kind for r in rows):
        own = [r for r in rows if r.kind == kind]
        numbers = "".join(f"{mean:>12.3f} ± {spread:<7.3f}" for mean, spread in (summary(own, s) for s in SCORES))
        print(f"{own[0].num:>6}  {kind:<16}{numbers}", flush=True)


def table_of(rows: Sequence[Row]) -> list[dict[str, object]]:
    """For the result file: means over draws and their spread, by number and contender, of `all` devices and of each."""
    groups: dict[tuple[int, str, str], list[Row]] = {}
    for row in rows:
        for device in ("all", row.device):
            groups.setdefault((row.num, row.kind, device), []).append(row)
    out: list[dict[str, object]] = []
    for (num, kind, device), own in groups.items():
        content: dict[str, object] = {"num": num, "kind": kind, "device": device}
        for score in SCORES:
            content[score], content[f"{score}_deviation"] = summary(own, score)
        out.append(content)
    return out


def run(options: argparse.Namespace) -> tuple[dict[str, Figure], dict[str, object]]:
    """Figures, and rows for the result file."""
    quick = options.quick
    draws = range(options.draws or (QUICK_DRAWS if quick else NUM_DRAWS))
    data = read_measured(options.data, QUICK_NETWORKS if quick else None)
    if len(set(data.gpus)) < 2:
        raise SystemExit(
            f"transfer: error: expected devices of at least two kinds in {options.data.name}, "
            f"got batches of one: {data.gpus[0]}"
        )
    print(
        f"{len(data.log_latencies)} networks, {len(data.devices)} devices of {len(set(data.gpus))} GPUs, "
        f"{len(draws)} draws"
    )
    print(f"{'number':>6}  {'kind':<16}{'Spearman':>12}{'error, %':>22}{'regret, points':>22}")
    rows: list[Row] = []
    ways = contenders(data)
    for num in (n for n in (QUICK_NUMS if quick else NUMS) if n < len(data.log_latencies)):
        found = list(judged(data, num, draws, options.seed, ways))
        print_rows(found)
        rows += found
    ceilings = ceiling(data, options.seed)
    for device, scores in ceilings.items():
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
        print(f"ceiling {device:<14}{numbers}")
    commanded = by_command(data, GOAL_NUM, options.seed, data.devices[:1] if quick else data.devices)
    extra = {
        "seed": options.seed,
        "draws": len(draws),
        "data": options.data.name,
        "num_networks": len(data.log_latencies),
        "devices": list(data.devices),
        "rows": table_of(rows),
        "ceiling": ceilings,
        "by_command": commanded,
    }
    return figures_of(rows, ceilings, commanded), extra


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few networks, one draw; writes nothing")
    parser.add_argument("--data", type=Path, required=True, help="measurements: see above")
    parser.add_argument("--draws", type=int, help=f"of measured networks ({NUM_DRAWS})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="transfer-latency", help="of the result file (transfer-latency)")
    options = parser.parse_args(arguments)
    with threadpool_limits(1):
        try:
            figures, extra = run(options)
        except ChanasError as error:
            raise SystemExit(
                f"transfer: error: {error}; --help says what a file has and where one can be had"
            ) from error
    print()
    finish(options.name, figures, options.quick, extra)


if __name__ == "__main__":
    main()
