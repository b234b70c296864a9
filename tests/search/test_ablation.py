"""chanas/search/ablation.py: the same search with several tables, on synthetic accuracies and measurements."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.blocks import BlockConfig
from chanas.core.genome import BlockTable, decode, encode, sample
from chanas.errors import ConfigError, InfeasibleError
from chanas.search.ablation import TUNED, Ablation, ablate, points_below, ranking_change
from chanas.search.accuracy.evaluations import TableEvaluations
from chanas.search.accuracy.table import AccuracyTable
from chanas.search.config import SearchConfig
from chanas.search.evolution.constraints import least, macs_constraint
from chanas.search.evolution.evolution import EvolutionConfig
from chanas.search.learning import teach_predictor
from chanas.search.proof import Proof, Timing

CLASSES = 10
FAST = SearchConfig(
    predictor="ridge",
    num_samples=40,
    pareto_generations=10,
    num_finalists=2,
    rule="all",
    evolution=EvolutionConfig(population=40, generations=15),
)


def table(space: SearchSpace, scale: float = 1.0, noise: float = 0.0, seed: int = 0) -> BlockTable:
    """Seconds in proportion to multiply-accumulates, each block off by a factor of its own."""
    rng = np.random.default_rng(seed)
    factors = {b.key: np.exp(noise * rng.normal()) for b in space.all_blocks(CLASSES)}
    return BlockTable(space, CLASSES, lambda b: scale * (b.num_macs * 1e-11 * factors[b.key] + 1e-7))


class Bench:
    """A device on which a network takes what the tuned table says; counts what is asked."""

    def __init__(self, space: SearchSpace, truth: Any) -> None:
        self.space, self.truth, self.tuned = space, truth, table(space)
        self.asked: list[str] = []
        self.slower = 1.0
        drawn = sample(space, 200, np.random.default_rng(1))
        top1 = truth.many(drawn)
        known = AccuracyTable(tuple(decode(space, drawn)), drawn, top1, 200, (), "d")
        self.evaluations = TableEvaluations(space, known, "d")

    def prove(self, architectures: Sequence[Architecture]) -> list[Proof]:
        self.asked += [a.key for a in architectures]
        genomes = encode(self.space, architectures)
        seconds, top1 = self.slower * self.tuned.of(genomes), self.truth.many(genomes)
        timings = [(Timing("cpu", s, 0.0),) for s in seconds.tolist()]
        return [Proof(*row) for row in zip(architectures, timings, top1.tolist(), strict=True)]

    def ablate(self, budget_s: float, other: BlockTable, **changes: Any) -> Ablation:
        predictor, _ = teach_predictor(self.evaluations, [()], (), FAST, 0, progress=False)
        settings = {"budget_s": budget_s, "num_points": 5, "config": FAST, **changes}
        tables = {TUNED: self.tuned, "other": other}
        return ablate(tables, predictor, self.evaluations, self.prove, **settings)


@pytest.fixture
def bench(demo_space: SearchSpace, make_accuracy: Callable[..., Any]) -> Bench:
    return Bench(demo_space, make_accuracy(demo_space, interactions=0.0))


@pytest.fixture
def budget_s(bench: Bench) -> float:
    return float(np.median(bench.tuned.of(sample(bench.space, 500, np.random.default_rng(2)))))


def test_a_table_of_other_units_ranks_and_wins_the_same(bench: Bench, budget_s: float) -> None:
    found = bench.ablate(budget_s, table(bench.space, scale=20.0))
    (other,) = found.others
    assert other.ranking is not None
    assert other.ranking.kendall_tau == pytest.approx(1.0, abs=1e-4)
    assert other.ranking.slowdown == pytest.approx(20.0)
    assert other.limit_s == pytest.approx(20.0 * budget_s, rel=0.01)
    assert 0.45 < found.share_inside < 0.55
    assert found.points_lost(other) == pytest.approx(0.0, abs=0.1)
    assert other.winner is not None
    assert found.tuned.winner is not None
    assert other.winner.top1 == pytest.approx(found.tuned.winner.top1, abs=2e-3)


def test_a_table_that_misleads_loses_accuracy(bench: Bench, budget_s: float) -> None:
    found = bench.ablate(budget_s, table(bench.space, noise=1.5, seed=3))
    (other,) = found.others
    assert other.ranking is not None
    assert other.ranking.kendall_tau is not None
    assert other.ranking.kendall_tau < 0.9
    assert len(other.ranking.sub_spaces) == len(bench.space.sub_spaces)
    lost = found.points_lost(other)
    assert lost is not None
    assert lost > 0.0
    assert found.changed(other)


def test_both_winners_measure_inside_the_one_budget(bench: Bench, budget_s: float) -> None:
    found = bench.ablate(budget_s, table(bench.space, noise=1.0, seed=4))
    for side in (found.tuned, *found.others):
        assert side.winner is not None
        assert side.winner.measured_s[0] <= budget_s
        measured = [p.measured_latency_s for p in side.front]
        assert len(measured) == 5
        assert measured == sorted(measured)


def test_sub_spaces_that_are_left_out_are_neither_searched_nor_ranked(bench: Bench, budget_s: float) -> None:
    home, *left_out = bench.space.sub_spaces
    other = table(bench.space, scale=20.0)
    for seconds in (bench.tuned, other):
        seconds.leave_out(left_out)
    found = bench.ablate(budget_s, other)
    assert {Architecture.from_key(key).sub_space for key in bench.asked} == {home}
    ranking = found.others[0].ranking
    assert ranking is not None
    assert ranking.sub_spaces.keys() == {home.key}
    assert ranking.slowdown == pytest.approx(20.0)


def test_no_network_is_measured_twice(bench: Bench, budget_s: float) -> None:
    bench.ablate(budget_s, table(bench.space, scale=3.0))
    assert len(bench.asked) == len(set(bench.asked))


def test_equal_seeds_find_the_same(bench: Bench, budget_s: float) -> None:
    other = table(bench.space, noise=1.0)
    first, again = (json.dumps(bench.ablate(budget_s, other).to_json(), allow_nan=False) for _ in range(2))
    assert first == again


def test_a_budget_that_nothing_meets_is_answered_before_anything_is_measured(bench: Bench) -> None:
    with pytest.raises(InfeasibleError, match="the smallest reachable is"):
        bench.ablate(least(bench.tuned)[0] / 2, table(bench.space))
    assert bench.asked == []


def test_a_search_that_ends_with_nothing_inside_says_so(bench: Bench) -> None:
    """The other table takes the largest blocks for the fastest, so that even its fastest network is outside."""
    upside_down = BlockTable(bench.space, CLASSES, lambda b: 1e-6 / b.num_macs)
    found = bench.ablate(1.02 * least(bench.tuned)[0], upside_down, seed=1)
    (other,) = found.others
    assert other.winner is None
    assert found.changed(other)
    assert "smallest reached" in str(other.note)
    assert found.to_json()["searched"]["other"]["winner"] is None


def test_fewer_than_two_points_are_refused(bench: Bench, budget_s: float) -> None:
    with pytest.raises(ConfigError, match="at least 2 points of each front, got 1"):
        bench.ablate(budget_s, table(bench.space), num_points=1)


def test_equal_tables_have_one_ranking(demo_space: SearchSpace) -> None:
    change = ranking_change(demo_space, table(demo_space), table(demo_space), seed=0, num=50)
    assert change.kendall_tau == pytest.approx(1.0)
    assert change.known_taus() == pytest.approx([1.0] * len(demo_space.sub_spaces))
    assert change.slowdown == pytest.approx(1.0)


def test_how_far_one_front_lies_below_another() -> None:
    upper = [(1.0, 0.5), (2.0, 0.7), (4.0, 0.8)]
    assert points_below(upper, upper) == 0.0
    assert points_below(upper, [(t, a - 0.02) for t, a in upper]) == pytest.approx(2.0)
    # twice as slow: from 2 to 4 it has 0.5 for 0.7, and at the very end 0.7 for 0.8
    assert points_below(upper, [(2 * t, a) for t, a in upper]) == pytest.approx((20.0 + 10.0) / 2, abs=0.2)
    # a point that another dominates does not count
    assert points_below(upper, [*upper, (3.0, 0.1)]) == 0.0
    assert points_below(upper, []) is None


@pytest.mark.parametrize("num", [1, 3])
def test_as_many_finalists_are_proven_in_the_first_round_as_asked_for(num: int, bench: Bench, budget_s: float) -> None:
    config = FAST.model_copy(update={"num_finalists": num})
    found = bench.ablate(budget_s, table(bench.space), config=config)
    for side in (found.tuned, *found.others):
        assert sum(f.round == 1 for f in side.finalists) == num


def test_limits_besides_latency_hold_for_every_table(bench: Bench, budget_s: float) -> None:
    drawn = decode(bench.space, sample(bench.space, 50, np.random.default_rng(0)))
    limit = float(np.quantile([a.num_macs(bench.space, CLASSES) for a in drawn], 0.4))
    found = bench.ablate(budget_s, table(bench.space, noise=1.0), others=[macs_constraint(bench.space, CLASSES, limit)])
    for side in (found.tuned, *found.others):
        points = [f.architecture for f in side.finalists] + [p.architecture for p in side.front]
        assert points
        assert all(a.num_macs(bench.space, CLASSES) <= limit for a in points)


def test_tables_with_holes_are_compared_where_both_have_rows(bench: Bench, budget_s: float) -> None:
    """As with `covered_only`: what has a block that a table lacks takes for ever."""

    def with_holes(scale: float) -> BlockTable:
        def cost(block: BlockConfig) -> float:
            is_hole = block.kind == "mbconv" and block.kernel_size == 5 and block.stride == 1
            return np.nan if is_hole else scale * (block.num_macs * 1e-11 + 1e-7)

        made = BlockTable(bench.space, CLASSES, cost)
        made.replace_nan(np.inf)
        return made

    bench.tuned = with_holes(1.0)
    found = bench.ablate(budget_s, with_holes(3.0))
    (other,) = found.others
    assert other.ranking is not None
    assert other.ranking.slowdown == pytest.approx(3.0)
    for side in (found.tuned, other):
        seconds = [p.measured_latency_s for p in side.front] + [f.measured_s[0] for f in side.finalists]
        assert seconds
        assert np.isfinite(seconds).all()
