"""What a latency table of one device is worth on another, with a few blocks measured there.

    python benchmarks/transfer_tables.py [--quick] [--data TABLE]...

The tables are those that chanas carries of `mbv3`, and TABLE … of other devices (`chanas prescheduler --space mbv3
--num-classes 1000`). One after the other is new: some of its rows count as measured, and all others are predicted from
these and from another table, or from all others together, by

    chosen    chanas.prescheduler.tables.transfer; it chooses the rows that are measured
    random    the same, with rows that are drawn
    factor    the rows that are chosen say by what one factor the other table is off

Only rows that the other table has can be measured, since a block is measured with its schedules there. Here each
table has its own schedules, found with 8 to 28 trials an operator, so that the luck of tuning differs from table to
table too; on a new device it would not.

Each is judged on the rows that were not measured: mean absolute error in percent, and the share of rows inside the
interval that is to hold nine in ten; and on random networks of the sub-spaces that the new table covers, as sums of
rows: mean absolute error, Kendall's tau, and regret: under a limit (each quartile of the networks' latencies) the ten
most accurate networks that are predicted inside are timed, and the most accurate of them that is inside is chosen;
regret is how many points of accuracy the one found with the full table has more. Accuracies are SYNTHETIC (`saturating`
of `labels.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import Figure, finish
from labels import synthetic
from threadpoolctl import threadpool_limits
from transfer import LIMITS, mape_percent, regret_points

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.blocks import BlockConfig
from chanas.core.genome import BlockTable, Genomes, sample
from chanas.core.latency import LatencyLUT
from chanas.prescheduler.tables.transfer.ratios import Prior, choose, fit_scales, predict, prior_of

SHIPPED = Path(__file__).resolve().parent.parent / "chanas" / "luts"
NUM_CLASSES = 1000
NUMS, QUICK_NUMS = (10, 20, 60, 120), (10,)
NUM_DRAWS, NUM_NETWORKS, QUICK_NETWORKS = 5, 2000, 200
# Of the rows, so that some are left to judge by.
MOST = 0.75
# Deviations on either side that hold nine in ten.
NINE_IN_TEN = 1.645
GOAL_NUM = 60
GOALS = {"row_error_percent": 4.0, "network_error_percent": 4.0, "kendall_tau": 0.95, "regret_points": 2.0}
SCORES = (*GOALS, "inside_interval")


@dataclass(frozen=True)
class Judge:
    """Networks of the sub-spaces that the new device's full table covers, their log latencies by it, and accuracies.

    genomes int16[K, L]    log_latencies float64[K]    top1 float64[K]
    """

    space: SearchSpace
    genomes: Genomes
    log_latencies: FloatArray
    top1: FloatArray


@dataclass(frozen=True)
class Row:
    """One contender on one new device after one draw; `draw` is 0 where nothing is drawn."""

    target: str
    sources: str
    num: int
    kind: str
    draw: int
    num_rows: int
    row_error_percent: float
    network_error_percent: float
    kendall_tau: float
    regret_points: float
    inside_interval: float | None


def judge_of(space: SearchSpace, lut: LatencyLUT, num: int, seed: int) -> Judge:
    """`num` random networks, as many of each sub-space."""
    covered, rng = lut.covered(space, NUM_CLASSES), np.random.default_rng(seed)
    genomes = np.vstack([sample(space, -(-num // len(covered)), rng, s) for s in covered])
    return Judge(
        space,
        genomes,
        log_sums(space, {k: r.median_s for k, r in lut.rows.items()}, genomes),
        synthetic(space, seed)["saturating"](genomes),
    )


def log_sums(space: SearchSpace, seconds: dict[str, float], genomes: Genomes) -> FloatArray:
    """float64[K]: logarithms of sums of blocks."""
    out: FloatArray = np.log(BlockTable(space, NUM_CLASSES, lambda b: seconds.get(b.key, np.nan)).of(genomes))
    return out


def judged(
    judge: Judge, blocks: Sequence[BlockConfig], truth: FloatArray, found: FloatArray, chosen: list[int]
) -> dict[str, float]:
    """Scores of log seconds `found` float64[N] of the blocks; those measured are the `truth`'s."""
    from scipy.stats import kendalltau

    others = np.setdiff1d(np.arange(len(truth)), chosen)
    mixed = found.copy()
    mixed[chosen] = truth[chosen]
    networks = log_sums(
        judge.space, dict(zip((b.key for b in blocks), np.exp(mixed).tolist(), strict=True)), judge.genomes
    )
    real = judge.log_latencies
    limits = np.quantile(real, LIMITS)
    return {
        "row_error_percent": mape_percent(found[others], truth[others]),
        "network_error_percent": mape_percent(networks, real),
        "kendall_tau": float(kendalltau(networks, real).statistic),
        "regret_points": float(np.mean([regret_points(networks, real, judge.top1, limit) for limit in limits])),
    }


def contend(
    prior: Prior, judge: Judge, blocks: Sequence[BlockConfig], truth: FloatArray, num: int, draws: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Scores of each contender and draw after `num` measurements, with `kind` and `draw`."""
    pool = np.flatnonzero(prior.known)
    best = choose(prior, num)
    drawn = [np.random.default_rng([seed, num, i]).choice(pool, num, replace=False).tolist() for i in range(draws)]
    for kind, draw, chosen in [("chosen", 0, best), *(("random", i, some) for i, some in enumerate(drawn))]:
        found = predict(prior, chosen, truth[chosen])
        others = np.setdiff1d(np.arange(len(truth)), chosen)
        error = np.abs(found.log_seconds - truth)[others]
        inside = float((error < NINE_IN_TEN * found.deviations[others]).mean())
        scores = judged(judge, blocks, truth, found.log_seconds, chosen)
        yield {"kind": kind, "draw": draw, **scores, "inside_interval": inside}
    scaled = prior.log_seconds + np.median(truth[best] - prior.log_seconds[best])
    yield {"kind": "factor", "draw": 0, **judged(judge, blocks, truth, scaled, best), "inside_interval": None}


def rows_of(
    tables: dict[str, LatencyLUT], target: str, nums: Sequence[int], draws: int, networks: int, seed: int
) -> Iterator[Row]:
    """All of one new device: from each other table, and from all of them."""
    space, lut = SearchSpace.load("mbv3"), tables[target]
    blocks = [b for b in space.all_blocks(NUM_CLASSES) if b.key in lut.rows]
    truth = np.log([lut.rows[b.key].median_s for b in blocks])
    judge = judge_of(space, lut, networks, seed)
    others = by_size(tables, target)
    for names in [*((name,) for name in others), tuple(others)]:
        prior = prior_of(blocks, [tables[name] for name in names])
        for num in nums:
            if num <= MOST * min(int(prior.known.sum()), len(blocks)):
                for scores in contend(prior, judge, blocks, truth, num, draws, seed):
                    yield Row(target=target, sources="+".join(names), num=num, num_rows=len(blocks), **scores)


def left_out_error(tables: dict[str, LatencyLUT], target: str) -> float:
    """Mean error in percent of each row of a new device, predicted from all its other rows and from all other tables:
    the best that the model can do, since how lucky the tuning of a block was is in no other row."""
    blocks = [b for b in SearchSpace.load("mbv3").all_blocks(NUM_CLASSES) if b.key in tables[target].rows]
    truth = np.log([tables[target].rows[b.key].median_s for b in blocks])
    prior = prior_of(blocks, [tables[name] for name in by_size(tables, target)])
    scales, ratios = fit_scales(prior, range(len(blocks)), truth), truth - prior.log_seconds
    precision = np.linalg.inv(prior.covariance(scales) + np.exp(2.0 * scales[-1]) * np.eye(len(blocks)))
    return 100.0 * float(np.abs(np.expm1(precision @ (ratios - np.median(ratios)) / np.diag(precision))).mean())


def by_size(tables: dict[str, LatencyLUT], target: str) -> list[str]:
    """The other tables, that of the most rows first."""
    return sorted((name for name in tables if name != target), key=lambda name: -len(tables[name].rows))


def means(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For the result file: means over draws."""
    groups: dict[tuple[str, str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.target, row.sources, row.num, row.kind), []).append(row)
    out = []
    for own in groups.values():
        content = {k: v for k, v in asdict(own[0]).items() if k != "draw"}
        for score in SCORES:
            values = [getattr(row, score) for row in own]
            content[score] = None if None in values else float(np.mean(values))
        out.append(content)
    return out


def figures_of(table: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Of each new device with all other tables, and their mean, at the number of measurements that goals are for; the
    lead of choosing over drawing, and over one factor."""
    figures = {}
    own = {(r["target"], r["kind"]): r for r in table if r["num"] == GOAL_NUM and r["sources"] == _all_of(table, r)}
    targets = list(dict.fromkeys(target for target, _ in own))
    for score, goal in GOALS.items():
        lower = score != "kendall_tau"
        by_target = {t: float(own[t, "chosen"][score]) for t in targets}
        figures[score] = Figure(float(np.mean(list(by_target.values()))), goal, lower_is_better=lower)
        for target, value in by_target.items():
            figures[f"{score}_{target}"] = Figure(value, goal, lower_is_better=lower)
        for kind in ("random", "factor"):
            mean = float(np.mean([own[t, kind][score] for t in targets]))
            ours = float(np.mean(list(by_target.values())))
            lead = mean - ours if lower else ours - mean
            figures[f"{score}_lead_over_{kind}"] = Figure(lead, 0.0)
    return figures


def _all_of(table: Sequence[dict[str, Any]], row: dict[str, Any]) -> str:
    """The longest list of sources of a row's target."""
    return max((str(r["sources"]) for r in table if r["target"] == row["target"]), key=lambda s: s.count("+"))


def print_means(target: str, table: Sequence[dict[str, Any]], heads: str) -> None:
    """One new device, a line for each number of measurements and contender, below what it was predicted from."""
    for sources in dict.fromkeys(r["sources"] for r in table):
        print(f"\n{target} from {sources}\n{heads}")
        for r in (r for r in table if r["sources"] == sources):
            inside = "-" if r["inside_interval"] is None else f"{r['inside_interval']:.2f}"
            networks = f"{r['network_error_percent']:>13.2f}{r['kendall_tau']:>7.3f}{r['regret_points']:>8.3f}"
            print(f"{r['num']:>9}  {r['kind']:<8}{r['row_error_percent']:>9.2f}{inside:>8}{networks}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few measurements, one draw; nothing is written")
    parser.add_argument("--data", type=Path, action="append", default=[], help="a table of another device; repeatable")
    parser.add_argument("--draws", type=int, default=NUM_DRAWS, help="of rows that are measured at random")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    quick = options.quick
    paths = [*sorted(SHIPPED.glob("mbv3-*.json")), *options.data]
    tables = {path.stem.removeprefix("mbv3-"): LatencyLUT.load(path) for path in paths}

    heads = f"{'measured':>9}  {'kind':<8}{'rows, %':>9}{'inside':>8}{'networks, %':>13}{'tau':>7}{'regret':>8}"
    rows: list[Row] = []
    left_out: dict[str, float] = {}
    with threadpool_limits(1):
        for target in [min(tables, key=lambda name: len(tables[name].rows))] if quick else tables:
            nums, networks = (QUICK_NUMS, QUICK_NETWORKS) if quick else (NUMS, NUM_NETWORKS)
            found = list(rows_of(tables, target, nums, 1 if quick else options.draws, networks, options.seed))
            print_means(target, means(found), heads)
            rows += found
            left_out[target] = left_out_error(tables, target)
            print(f"{target}: each row from all the others is off by {left_out[target]:.2f} %", flush=True)
    table = means(rows)
    extra = {
        "seed": options.seed,
        "draws": options.draws,
        "tables": {n: len(t.rows) for n, t in tables.items()},
        "left_out_percent": left_out,
        "rows": table,
    }
    print()
    finish("transfer-tables", {} if quick else figures_of(table), quick, extra)


if __name__ == "__main__":
    main()
