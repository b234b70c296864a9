from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from strategies import spaces_and_genomes

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import Genomes
from chanas.errors import ChanasError, InfeasibleError, MeasureError, TargetError
from chanas.search.evolution.population import unique
from chanas.search.proof import Proof, Proposal, Timing, pick, pick_by_prediction, prove_rounds, unmeasured_proofs

BUDGET = {"cpu": 1e-3}


def arch(kernel: int) -> Architecture:
    return Architecture(32, 1.0, (((kernel, 3),),))


def proof(architecture: Architecture, *latencies_s: float, top1: float = float("nan")) -> Proof:
    return Proof(architecture, tuple(Timing(f"target {i}", s, 1e-6) for i, s in enumerate(latencies_s)), top1)


class Device:
    """Proposes architectures by number, and measures them `ratio` times slower than predicted."""

    def __init__(self, ratio: float, failing: frozenset[int] = frozenset()) -> None:
        self.ratio, self.failing = ratio, failing
        self.limits: list[float] = []

    def propose(self, limits_s: tuple[float, ...], tried: set[str]) -> list[Proposal]:
        (limit_s,) = limits_s
        self.limits.append(limit_s)
        fresh = [arch(k) for k in range(3, 200, 2) if arch(k).key not in tried][:2]
        return [Proposal(a, (limit_s * (1 - 0.001 * i),), 0.9, 0.01) for i, a in enumerate(fresh)]

    def prove(self, architectures: Sequence[Architecture]) -> list[Proof]:
        proofs = []
        for a in architectures:
            kernel = a.stages[0][0][0]
            if kernel in self.failing:
                proofs.append(Proof(a, error="LLVM crashed"))
            else:
                proofs.append(proof(a, self.limits[-1] * self.ratio, top1=0.9 + kernel / 1000))
        return proofs


def test_the_most_accurate_inside_the_budget_wins() -> None:
    device = Device(0.99)
    winner, finalists = prove_rounds(device.propose, device.prove, BUDGET, (1e-3,), 3)
    assert winner.architecture == arch(5)
    assert [f.round for f in finalists] == [1, 1]
    assert winner.ratios == pytest.approx((0.99 / 0.999,))


def test_the_budget_is_tightened_by_what_was_observed() -> None:
    device = Device(1.2)
    winner, finalists = prove_rounds(device.propose, device.prove, BUDGET, (1e-3,), 3)
    assert [f.round for f in finalists] == [1, 1, 2, 2]
    assert device.limits[1] == pytest.approx(1e-3 / (1.2 / 0.999))
    assert winner.measured_s[0] <= 1e-3
    assert len({f.architecture.key for f in finalists}) == 4


class Uneven:
    """Proposes what just meets the limit, and something much smaller; both take a fifth longer than predicted."""

    def __init__(self) -> None:
        self.top1 = {3: 0.80, 5: 0.70, 7: 0.78, 9: 0.60, 11: 0.77, 13: 0.77}
        self.limits: list[float] = []
        self.proven: list[int] = []

    def propose(self, limits_s: tuple[float, ...], tried: set[str]) -> list[Proposal]:
        (limit_s,) = limits_s
        self.limits.append(limit_s)
        large, small = [(3, 5), (7, 9), (11, 13)][len(self.limits) - 1]
        return [Proposal(arch(k), (s,), self.top1[k], 0.01) for k, s in ((large, limit_s), (small, limit_s / 2))]

    def prove(self, architectures: Sequence[Architecture]) -> list[Proof]:
        self.proven += (kernels := [a.stages[0][0][0] for a in architectures])
        seconds = {k: 1.2 * self.limits[-1] / (1 if k in (3, 7, 11) else 2) for k in kernels}
        return [proof(a, seconds[k], top1=self.top1[k]) for a, k in zip(architectures, kernels, strict=True)]


def test_a_more_accurate_one_outside_the_budget_is_worth_another_round() -> None:
    device = Uneven()
    winner, finalists = prove_rounds(device.propose, device.prove, BUDGET, (1e-3,), 3)
    assert winner.architecture == arch(7)  # not 5, which was inside already
    assert winner.measured_s[0] == pytest.approx(1e-3)
    assert device.proven == [3, 5, 7]  # 9 was not predicted to beat 5; nor 11 and 13 to beat 7
    assert [f.round for f in finalists] == [1, 1, 2]


def test_room_that_all_finalists_left_is_used_in_another_round() -> None:
    def propose(limits_s: tuple[float, ...], tried: set[str]) -> list[Proposal]:
        kernel = 3 + 2 * len(tried)
        return [Proposal(arch(kernel), limits_s, limits_s[0] * 500, 0.01)]  # the longer, the more accurate

    def prove(architectures: Sequence[Architecture]) -> list[Proof]:
        (a,) = architectures
        return [proof(a, 0.8e-3 if a == arch(3) else 1e-3)]

    winner, finalists = prove_rounds(propose, prove, BUDGET, (1e-3,), 3)
    assert winner.architecture == arch(5)
    assert [f.predicted_s[0] for f in finalists] == pytest.approx([1e-3, 1e-3 / 0.8])


def test_what_was_inside_stays_the_winner_where_nothing_better_is_found() -> None:
    device = Uneven()
    winner, _ = prove_rounds(device.propose, device.prove, BUDGET, (1e-3,), 1)
    assert winner.architecture == arch(5)


@pytest.mark.parametrize("error", [MeasureError, TargetError])
def test_a_device_that_is_lost_after_one_was_inside_leaves_the_winner(
    error: type[ChanasError], caplog: pytest.LogCaptureFixture
) -> None:
    device = Uneven()

    def lost(architectures: Sequence[Architecture]) -> list[Proof]:
        if device.proven:
            raise error("no device of key 'pi4' came back")
        return device.prove(architectures)

    winner, finalists = prove_rounds(device.propose, lost, BUDGET, (1e-3,), 3)
    assert winner.architecture == arch(5)
    assert [f.round for f in finalists] == [1, 1]
    assert "of 1 round(s) of finalists: no device of key 'pi4' came back" in caplog.text
    with pytest.raises(error, match="came back"):  # device.proven isn't empty: lost in the first round
        prove_rounds(device.propose, lost, BUDGET, (1e-3,), 1)


def test_a_finalist_that_fails_is_passed_over() -> None:
    device = Device(0.9, frozenset({5}))
    winner, finalists = prove_rounds(device.propose, device.prove, BUDGET, (1e-3,), 3)
    assert winner.architecture == arch(3)
    failed = finalists[1].to_json()
    assert failed["error"] == "LLVM crashed"
    assert set(failed["measured"].values()) == {None}


def test_rounds_are_bounded() -> None:
    device = Device(1.0)
    device.prove = lambda architectures: [proof(a, 2e-3, top1=0.9) for a in architectures]  # type: ignore[method-assign]
    with pytest.raises(InfeasibleError, match=r"none of 6 finalists measured inside the budget of 1 ms: .* 2 ms"):
        prove_rounds(device.propose, device.prove, BUDGET, (1e-3,), 3)
    assert len(device.limits) == 3


def test_when_all_fail_the_first_reason_is_named() -> None:
    device = Device(1.0, frozenset(range(200)))
    with pytest.raises(
        MeasureError, match="none of 6 finalists could be compiled and measured; the first: LLVM crashed"
    ):
        prove_rounds(device.propose, device.prove, BUDGET, (1e-3,), 3)


def test_proofs_of_other_architectures_are_refused() -> None:
    device = Device(1.0)
    with pytest.raises(ChanasError, match="a proof for each of 2 finalists"):
        prove_rounds(device.propose, lambda a: device.prove(a)[:1], BUDGET, (1e-3,), 3)


class Pair:
    """Two devices: `slow` measures 1.2 times what is predicted, `true` exactly that."""

    def __init__(self) -> None:
        self.budgets = {"true": 1e-3, "slow": 2e-3}
        self.limits: list[tuple[float, ...]] = []

    def propose(self, limits_s: tuple[float, ...], tried: set[str]) -> list[Proposal]:
        self.limits.append(limits_s)
        return [Proposal(arch(k), limits_s, 0.9, 0.01) for k in range(3, 200, 2) if arch(k).key not in tried][:1]

    def prove(self, architectures: Sequence[Architecture]) -> list[Proof]:
        true_s, slow_s = self.limits[-1]
        timings = Timing("true", true_s, 0.0), Timing("slow", 1.2 * slow_s, 0.0)
        return [Proof(a, timings, 0.9) for a in architectures]


def test_it_wins_only_inside_every_targets_budget() -> None:
    pair = Pair()
    winner, finalists = prove_rounds(pair.propose, pair.prove, pair.budgets, (1e-3, 2e-3), 3)
    assert [f.round for f in finalists] == [1, 2]
    assert pair.limits[1] == pytest.approx((1e-3, 2e-3 / 1.2))  # only the target that measured outside is tightened
    assert winner.measured_s == pytest.approx((1e-3, 2e-3))
    assert winner.to_json()["further"] == [
        {"target": "slow", "predicted_s": pytest.approx(2e-3 / 1.2), "measured_s": pytest.approx(2e-3), "spread_s": 0.0}
    ]


def test_each_target_has_a_limit_of_its_own_to_be_moved() -> None:
    pair = Pair()

    def prove(architectures: Sequence[Architecture]) -> list[Proof]:  # the first device is twice as fast
        true, slow = pair.prove(architectures)[0].timings
        return [Proof(a, (dataclasses.replace(true, latency_s=true.latency_s / 2), slow), 0.9) for a in architectures]

    winner, _ = prove_rounds(pair.propose, prove, pair.budgets, (1e-3, 2e-3), 3)
    assert pair.limits[1] == pytest.approx((2e-3, 2e-3 / 1.2))
    assert winner.measured_s == pytest.approx((1e-3, 2e-3))


def test_budgets_that_are_not_met_are_named_with_their_targets() -> None:
    pair = Pair()
    with pytest.raises(InfeasibleError, match=r"inside the budgets of 1 ms on true and 2 ms on slow: the nearest"):
        prove_rounds(pair.propose, pair.prove, pair.budgets, (1e-3, 2e-3), 1)


def test_a_proof_without_one_of_the_targets_is_refused() -> None:
    device = Device(0.9)
    with pytest.raises(ChanasError, match="finalists measured on each of cpu, moon"):
        prove_rounds(
            lambda limits_s, tried: device.propose(limits_s[:1], tried),
            device.prove,
            {"cpu": 1.0, "moon": 1.0},
            (1.0, 1.0),
            1,
        )


@given(spaces_and_genomes())
def test_finalists_are_distinct_and_far_apart_where_they_can_be(drawn: tuple[SearchSpace, Genomes]) -> None:
    _, genomes = drawn
    value = np.arange(len(genomes), dtype=np.float64)
    chosen = pick(genomes, value, 4, 3)
    assert len(chosen) == min(4, len(unique(genomes)))
    assert chosen[0] == len(genomes) - 1
    assert len(unique(genomes[chosen])) == len(chosen)


# ---- where nothing can be measured ----------------------------------------------------------------------------------
def test_without_measurements_the_best_known_accuracy_wins() -> None:
    known = {arch(3).key: 0.5, arch(5).key: 0.9}
    proposed = [Proposal(arch(k), (1e-3,), top1, 0.01) for k, top1 in ((3, 0.9), (5, 0.8), (7, 0.7))]
    winner, finalists = pick_by_prediction(
        lambda *_: proposed, lambda a: unmeasured_proofs(a, lambda x: known.get(x.key, float("nan"))), (1e-3,)
    )
    assert winner.architecture == arch(5)
    assert winner.measured_s == ()
    assert [f.top1 for f in finalists] == [0.5, 0.9, 0.7]


def test_without_measurements_and_without_a_network_it_is_one_line() -> None:
    with pytest.raises(InfeasibleError, match="no network inside the limits"):
        pick_by_prediction(lambda *_: [], lambda a: unmeasured_proofs(a, None), (1e-3,))
