"""The whole search on synthetic tables, accuracies and measurements."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import BlockTable, Genomes, decode, encode, sample
from chanas.core.latency import Calibration, LatencyLUT
from chanas.core.task import Task
from chanas.errors import ConfigError, InfeasibleError, LUTError
from chanas.files.run import RunDirectory
from chanas.search.accuracy.table import AccuracyTable
from chanas.search.config import SearchConfig
from chanas.search.cosearch import SearchOutcome, new_job, search
from chanas.search.evolution.constraints import Constraint, least, macs_constraint
from chanas.search.learning import Source
from chanas.search.proof import Proof, Timing
from chanas.search.target import SearchTarget

from .settings import FAST


def target_of(lut: LatencyLUT, budget_s: float) -> SearchTarget:
    return SearchTarget(lut.header.target, budget_s, lut)


class Bench:
    """A space with its table, its accuracies, and a device that is `ratio` times slower than the table says."""

    def __init__(self, space: SearchSpace, lut: LatencyLUT, truth: Any, root: Path, ratio: float = 1.02) -> None:
        self.space, self.lut, self.truth, self.ratio = space, lut, truth, ratio
        self.run = RunDirectory(root)
        self.proven: list[str] = []

    def latency_s(self, architecture: Architecture) -> float:
        table = self.lut.table(self.space, 10, with_holes=True)
        return float(table.of(encode(self.space, [architecture]))[0])

    def timings(self, architecture: Architecture) -> tuple[Timing, ...]:
        return (Timing("cpu", self.ratio * self.latency_s(architecture), 1e-7),)

    def prove(self, architectures: Sequence[Architecture]) -> list[Proof]:
        self.proven += [a.key for a in architectures]
        return [
            Proof(a, self.timings(a), float(self.truth.many(encode(self.space, [a]))[0]), 1e-6) for a in architectures
        ]

    def search(self, budget_s: float, config: SearchConfig = FAST, **more: Any) -> SearchOutcome:
        targets = [target_of(self.lut, budget_s), *more.get("others", ())]
        task = Task(self.space, 10, more.get("left_out", ()))
        job = new_job(task, targets, more.get("constraints", ()), config, more.get("seed", 0))
        source = Source(self.run, more.get("supernet", "abc"), self.truth, more.get("table"))
        return search(job, source, self.prove, progress=False)

    @property
    def result(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.run.search / "result.json").read_text())
        return data


@pytest.fixture
def bench(
    tmp_path: Path, demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], make_accuracy: Callable[..., Any]
) -> Bench:
    return Bench(demo_space, make_lut(demo_space), make_accuracy(demo_space, noise=0.0), tmp_path)


def test_the_winner_measures_inside_and_everything_is_written_down(bench: Bench) -> None:
    config = FAST.model_copy(update={"predictor": "mlp", "cross_validate": True})
    outcome = bench.search(1.2e-4, config)
    assert outcome.winner.measured_s[0] <= 1.2e-4
    assert outcome.winner.predicted_s == (bench.latency_s(outcome.architecture),)
    assert abs(outcome.winner.proposal.predicted_top1 - outcome.winner.proof.top1_holdout) < 0.05
    inside = [f.proof.top1_holdout for f in outcome.finalists if f.measured_s[0] <= 1.2e-4]
    assert outcome.winner.proof.top1_holdout == max(inside)
    result = bench.result
    assert result["winner"] == outcome.architecture.key
    assert result["schema"] == 1
    assert result["budget_s"] == 1.2e-4
    assert result["space"] == {"name": "mbv3-32", "digest": bench.space.digest}
    assert len(result["cloud"]["latency_s"]) == len(result["cloud"]["top1"]) == 50
    assert len(result["evaluated"]["latency_s"]) == outcome.num_evaluations == len(bench.truth.asked) <= 48
    assert [f["key"] for f in result["finalists"]] == bench.proven
    assert len(result["division"]["sub_spaces"]) == 4
    assert set(result["predictor"]["cross_validation"]) == {"mlp"}
    assert result["evolution"]["num_evaluated"] <= 1200
    assert set(result["seconds"]) == {"learning", "searching", "proving"}
    assert all(value >= 0 for value in result["seconds"].values())
    front = result["pareto"]
    assert all(a["latency_s"] < b["latency_s"] and a["top1"] < b["top1"] for a, b in pairwise(front))


def test_it_finds_better_than_what_was_evaluated_at_random(bench: Bench) -> None:
    outcome = bench.search(1.2e-4)
    rows = [json.loads(line) for line in (bench.run.search / "evaluations.jsonl").read_text().splitlines()]
    explored = [
        r["top1"]
        for r in rows
        if r["purpose"] == "explore" and 1.02 * bench.latency_s(Architecture.from_key(r["architecture"])) <= 1.2e-4
    ]
    assert outcome.winner.proof.top1_holdout > max(explored)


def test_evaluations_are_reused_when_the_weights_are_the_same(bench: Bench) -> None:
    first = bench.search(1.2e-4)
    bench.truth.asked.clear()
    again = bench.search(1.2e-4)
    assert bench.truth.asked == []
    assert again.architecture == first.architecture
    assert again.winner.proposal == first.winner.proposal
    other_budget = bench.search(1.0e-4)
    assert other_budget.winner.measured_s[0] <= 1.0e-4
    assert len(bench.truth.asked) <= FAST.refine_evaluations
    bench.truth.asked.clear()
    bench.search(1.2e-4, supernet="other weights")
    assert len(bench.truth.asked) >= FAST.initial_evaluations


def test_equal_seeds_give_equal_results(bench: Bench, tmp_path: Path, make_accuracy: Callable[..., Any]) -> None:
    one = bench.search(1.2e-4, seed=5)
    other = Bench(bench.space, bench.lut, make_accuracy(bench.space), tmp_path / "other")
    two = other.search(1.2e-4, seed=5)
    assert one.architecture == two.architecture
    results = [{k: v for k, v in b.result.items() if k not in {"created", "seconds"}} for b in (bench, other)]
    assert results[0] == results[1]


def test_a_slow_device_tightens_the_budget(bench: Bench) -> None:
    bench.ratio = 1.3
    outcome = bench.search(9e-5)
    assert outcome.winner.measured_s[0] <= 9e-5
    assert {f.round for f in outcome.finalists} == {1, 2}
    assert len(set(bench.proven)) == len(bench.proven)


def test_half_of_the_finalists_keep_room_for_the_tables_error(bench: Bench) -> None:
    bench.ratio = 1.08
    outcome = bench.search(9e-5)
    assert {f.round for f in outcome.finalists} == {1}
    assert sum(f.predicted_s[0] <= 9e-5 / 1.1 for f in outcome.finalists) >= 2
    assert any(f.measured_s[0] > 9e-5 for f in outcome.finalists)


def test_confidence_keeps_a_margin(bench: Bench) -> None:
    config = FAST.model_copy(update={"confidence": 0.95, "latency_error": 0.05})
    outcome = bench.search(1.2e-4, config)
    margin = 1.0 + 1.6449 * 0.05
    assert all(f.predicted_s[0] <= 1.2e-4 / margin * 1.0001 for f in outcome.finalists)
    assert bench.result["latency_limit_s"] == pytest.approx(1.2e-4 / margin, rel=1e-4)


def test_the_margin_is_that_of_the_tables_own_calibration(bench: Bench) -> None:
    bench.lut.calibration = Calibration(
        0.0, 1.0, 0.0, 12, mape=0.02, worst=0.06, kendall_tau=0.97, uncorrected_mape=0.03
    )
    bench.search(1.2e-4, FAST.model_copy(update={"confidence": 0.95}))
    margin = 1.0 + 1.6449 * 0.02 * (np.pi / 2) ** 0.5
    assert bench.result["latency_limit_s"] == pytest.approx(1.2e-4 / margin, rel=1e-4)
    assert bench.result["config"]["latency_error"] == pytest.approx(0.0251, abs=1e-4)


def test_accuracies_of_a_table_take_the_place_of_evaluations(bench: Bench) -> None:
    genomes = sample(bench.space, 200, np.random.default_rng(3))
    architectures = tuple(dict.fromkeys(decode(bench.space, genomes)))
    genomes = encode(bench.space, architectures)
    table = AccuracyTable(architectures, genomes, bench.truth.many(genomes), len(genomes), (), "d1")
    truth, bench.truth = bench.truth, None

    def prove(found: Sequence[Architecture]) -> list[Proof]:
        known = dict(zip(architectures, table.top1.tolist(), strict=True))
        return [Proof(a, bench.timings(a), known.get(a, float("nan")), 1e-6) for a in found]

    bench.prove = prove  # type: ignore[method-assign]
    outcome = bench.search(1.2e-4, table=table, supernet="d1")
    assert outcome.num_evaluations == len(architectures)
    assert not (bench.run.search / "evaluations.jsonl").exists()
    allowed = table.top1[bench.lut.latency_s(bench.space, 10, genomes) <= 1.2e-4]
    assert float(truth.many(encode(bench.space, [outcome.architecture]))[0]) >= np.quantile(allowed, 0.9)
    unknown = [f for f in outcome.finalists if f.architecture not in architectures]
    assert all(f.top1 == f.proposal.predicted_top1 for f in unknown)


def test_the_fastest_architecture_is_the_last_hope(bench: Bench) -> None:
    smallest_s, genome = least(bench.lut.table(bench.space, 10))
    fastest = decode(bench.space, genome)[0]
    outcome = bench.search(1.03 * smallest_s)
    assert outcome.winner.measured_s[0] <= 1.03 * smallest_s
    bench.ratio = 1.5
    with pytest.raises(InfeasibleError, match=r"finalists measured inside the budget of .* the smallest reached is"):
        bench.search(1.03 * smallest_s)
    assert fastest.key in bench.proven


def test_an_infeasible_budget_is_told_before_anything_is_evaluated(bench: Bench) -> None:
    with pytest.raises(InfeasibleError, match="latency of at most 1 us: the smallest reachable is"):
        bench.search(1e-6)
    with pytest.raises(InfeasibleError, match="multiply-accumulates of at most 5 MACs"):
        bench.search(1e-3, constraints=[macs_constraint(bench.space, 10, 5.0)])
    assert bench.truth.asked == []
    assert not bench.run.search.exists()


def test_several_constraints_hold_for_every_finalist(bench: Bench) -> None:
    limit = 2.6e6
    outcome = bench.search(1.2e-4, constraints=[macs_constraint(bench.space, 10, limit)])
    assert all(f.architecture.num_macs(bench.space, 10) <= limit for f in outcome.finalists)
    assert [c["name"] for c in bench.result["constraints"]] == ["latency", "multiply-accumulates"]


def test_limits_that_exclude_each_other_are_told_before_anything_is_evaluated(bench: Bench) -> None:
    smallest_s, genome = least(bench.lut.table(bench.space, 10))
    macs = macs_constraint(bench.space, 10, 1.0)
    fastest_macs = float(macs.cost(genome)[0])
    fewest = least(macs.table)[0]
    table = BlockTable(bench.space, 10, lambda b: 1e6 - b.num_macs / 10)  # few of it means much work
    busy = Constraint("idleness", least(table)[0] * 1.001, table, "")
    assert fewest <= fastest_macs
    with pytest.raises(
        InfeasibleError, match=r"together; each alone can be met\. The smallest found beside the others"
    ):
        bench.search(1.01 * smallest_s, constraints=[busy])
    assert bench.truth.asked == []


class Pair(Bench):
    """A second device, on which everything but the 1×1 convolutions of wide blocks is faster."""

    second_ratio = 1.0

    @property
    def second(self) -> LatencyLUT:
        target = dataclasses.replace(self.lut.header.target, name="cpu-2t", num_threads=2)
        rows = {
            k: dataclasses.replace(r, median_s=r.median_s * (0.5 if "k3" in k else 0.9))
            for k, r in self.lut.rows.items()
        }
        return LatencyLUT(dataclasses.replace(self.lut.header, target=target), rows)

    def second_s(self, architecture: Architecture) -> float:
        return float(self.second.latency_s(self.space, 10, encode(self.space, [architecture]))[0])

    def timings(self, architecture: Architecture) -> tuple[Timing, ...]:
        second = Timing("cpu-2t", self.second_ratio * self.second_s(architecture), 1e-8)
        return (*super().timings(architecture), second)


@pytest.fixture
def pair(bench: Bench, tmp_path: Path) -> Pair:
    return Pair(bench.space, bench.lut, bench.truth, tmp_path)


def test_the_winner_is_inside_the_budget_of_every_target(pair: Pair) -> None:
    outcome = pair.search(1.2e-4, others=[target_of(pair.second, 5e-5)])
    assert all(pair.second_s(f.architecture) <= 5e-5 for f in outcome.finalists)
    assert [(t.name, t.budget_s) for t in outcome.targets] == [("cpu", 1.2e-4), ("cpu-2t", 5e-5)]
    assert outcome.winner.predicted_s[1] == pair.second_s(outcome.architecture)
    assert outcome.winner.measured_s[1] <= 5e-5
    result = pair.result
    assert [c["name"] for c in result["constraints"]] == ["latency on cpu", "latency on cpu-2t"]
    (stored,) = result["further_targets"]
    assert (stored["target"], stored["budget_s"]) == ("cpu-2t", 5e-5)
    assert all(f["further"][0]["target"] == "cpu-2t" for f in result["finalists"])
    alone = pair.search(1.2e-4, others=[target_of(pair.second, 1.0)])
    assert alone.winner.measured_s[1] > 5e-5  # the second budget did decide


def test_a_second_target_that_is_slower_than_predicted_has_its_own_limit_tightened(pair: Pair) -> None:
    pair.second_ratio = 1.3
    outcome = pair.search(1.2e-4, others=[target_of(pair.second, 6e-5)])
    assert {f.round for f in outcome.finalists} == {1, 2}
    assert outcome.winner.measured_s[1] <= 6e-5


def test_budgets_of_two_targets_that_exclude_each_other_are_one_line(pair: Pair) -> None:
    with pytest.raises(InfeasibleError, match="latency on cpu-2t of at most 1 us: the smallest reachable is"):
        pair.search(1.2e-4, others=[target_of(pair.second, 1e-6)])
    assert pair.truth.asked == []


def test_a_table_with_holes_is_searched_where_it_is_covered(bench: Bench) -> None:
    home = bench.space.sub_spaces[1]
    inside = {b.key for b in bench.space.all_blocks(10, (home,))}
    for key in [k for k in bench.lut.rows if k not in inside]:
        del bench.lut.rows[key]
    with pytest.raises(LUTError, match=r"lacks \d+ blocks of space 'mbv3-32'"):
        bench.search(1.2e-4)
    outcome = bench.search(1.2e-4, FAST.model_copy(update={"covered_only": True}))
    assert {f.architecture.sub_space for f in outcome.finalists} == {home}
    assert outcome.winner.measured_s[0] <= 1.2e-4
    unknown = [s for s in bench.result["division"]["sub_spaces"] if s["key"] != home.key]
    assert {s["smallest_latency_s"] for s in unknown} == {None}
    assert all(math.isfinite(p["latency_s"]) for p in bench.result["pareto"])
    # where accuracies are known of the same sub-space alone, the holes are of no interest
    left_out = tuple(s for s in bench.space.sub_spaces if s != home)
    found = bench.search(1.2e-4, left_out=left_out)
    assert {f.architecture.sub_space for f in found.finalists} == {home}
    assert all(math.isfinite(p["latency_s"]) for p in bench.result["pareto"])
    with pytest.raises(LUTError, match="covers no sub-space that accuracies are known of"):
        bench.search(1.2e-4, FAST.model_copy(update={"covered_only": True}), left_out=(home,))


def test_what_each_rule_costs_is_told_when_it_is_asked_for(bench: Bench) -> None:
    assert bench.search(1.2e-4).regrets == ()
    config = FAST.model_copy(update={"compare_rules": True})
    regrets = {r.rule: r for r in bench.search(1.2e-4, config).regrets}
    assert set(regrets) == {"paper", "accuracy", "all"}
    assert min(r.regret for r in regrets.values()) == 0.0
    assert regrets["paper"].regret >= regrets["accuracy"].regret
    assert regrets["all"].sub_space is None
    assert bench.result["rule_regrets"] == [r.to_json() for r in regrets.values()]
    assert len(bench.search(1.2e-4, FAST.model_copy(update={"rule": "all"})).regrets) == 3


def test_too_few_evaluations_to_learn_from_are_one_line(tmp_path: Path, bench: Bench) -> None:
    genomes = sample(bench.space, 3, np.random.default_rng(0))
    known = AccuracyTable(tuple(decode(bench.space, genomes)), genomes, bench.truth.many(genomes), 3, (), "d")
    with pytest.raises(
        ConfigError, match="expected at least 8 evaluated architectures to learn accuracies from, got 3"
    ):
        bench.search(1.2e-4, table=known)


@pytest.mark.parametrize("rule", ["paper", "accuracy", "all"])
def test_the_rule_chooses_where_finalists_come_from(rule: str, bench: Bench) -> None:
    outcome = bench.search(1.2e-4, FAST.model_copy(update={"rule": rule}))
    chosen = outcome.division.chosen
    assert (chosen is None) == (rule == "all")
    if chosen is not None:
        assert {f.architecture.sub_space for f in outcome.finalists} == {chosen}


def test_the_choice_is_close_to_the_best_of_a_space_that_can_be_listed(
    tmp_path: Path,
    tiny_space: SearchSpace,
    tiny_genomes: Genomes,
    make_lut: Callable[..., LatencyLUT],
    make_accuracy: Callable[..., Any],
) -> None:
    lut, truth = make_lut(tiny_space), make_accuracy(tiny_space)
    latency_s = lut.latency_s(tiny_space, 10, tiny_genomes)
    for quantile in (0.1, 0.5, 0.9):
        budget_s = float(np.quantile(latency_s, quantile))
        bench = Bench(tiny_space, lut, truth, tmp_path / str(quantile), ratio=1.0)
        outcome = bench.search(budget_s, FAST.model_copy(update={"rule": "all"}))
        best = truth.many(tiny_genomes[latency_s <= budget_s]).max()
        assert outcome.winner.proof.top1_holdout >= best - 0.005


def test_importing_the_search_imports_neither_torch_nor_scikit_learn(
    no_torch: Callable[[Iterable[str]], str],
) -> None:
    program = no_torch(
        ["chanas.search.cosearch", "chanas.search.accuracy.predictor", "chanas.search.accuracy.validation"]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"
