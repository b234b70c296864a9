"""chanas/prescheduler/tables/transfer/ratios.py and shares.py: a few blocks of a new device, and a table of a known
one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from chanas.errors import LUTError
from chanas.operators.steps import block_workloads
from chanas.prescheduler.tables.transfer.ratios import Prior, choose, complete, predict, prior_of
from chanas.prescheduler.tables.transfer.shares import family, take_apart

from .devices import BLOCKS, KNOWN, NEW, Invented

TRUTH = NEW.log_seconds(BLOCKS)


@pytest.fixture(scope="module")
def prior() -> Prior:
    return prior_of(BLOCKS, [KNOWN.table(BLOCKS)])


def error(found: np.ndarray, chosen: list[int], truth: np.ndarray = TRUTH) -> float:
    """Mean error of the blocks that were not measured."""
    others = np.setdiff1d(np.arange(len(truth)), chosen)
    return float(np.abs(np.expm1(found[others] - truth[others])).mean())


# ---- predicting -----------------------------------------------------------------------------------------------------
def test_a_device_of_other_rates_is_known_from_few_blocks(prior: Prior) -> None:
    chosen = choose(prior, 20)
    found = predict(prior, chosen, TRUTH[chosen])
    factor = prior.log_seconds + np.median(TRUTH[chosen] - prior.log_seconds[chosen])
    assert error(found.log_seconds, chosen) < 0.02 < error(factor, chosen) / 5


def test_a_device_that_is_slower_by_a_factor_is_known_from_one_block(prior: Prior) -> None:
    slower = prior.log_seconds + np.log(2.5)
    found = predict(prior, [7], slower[[7]])
    assert found.log_seconds == pytest.approx(slower, abs=1e-6)


def test_blocks_share_the_luck_of_their_operators() -> None:
    """Of two blocks that differ in the kernel alone the one says of the other what the table cannot."""
    lucky = dataclasses.replace(KNOWN, flops_per_s=4.9e10, luck=0.15).log_seconds(BLOCKS)
    prior = prior_of(BLOCKS, [KNOWN.table(BLOCKS)])
    half = choose(prior, len(BLOCKS) // 2)
    found = predict(prior, half, lucky[half])
    factor = prior.log_seconds + np.median(lucky[half] - prior.log_seconds[half])
    assert error(found.log_seconds, half, lucky) < 0.75 * error(factor, half, lucky)


def test_intervals_hold_about_what_they_say(prior: Prior) -> None:
    noisy = TRUTH + np.random.default_rng(0).normal(0.0, 0.03, len(TRUTH))
    chosen = choose(prior, 30)
    found = predict(prior, chosen, noisy[chosen])
    others = np.setdiff1d(np.arange(len(noisy)), chosen)
    inside = np.abs(noisy - found.log_seconds)[others] < 1.645 * found.deviations[others]
    assert 0.75 < inside.mean() <= 1.0


def test_what_was_measured_is_surer_than_what_was_not(prior: Prior) -> None:
    chosen = choose(prior, 10)
    deviations = predict(prior, chosen, TRUTH[chosen]).deviations
    others = np.setdiff1d(np.arange(len(TRUTH)), chosen)
    assert np.median(deviations[chosen]) < np.median(deviations[others])


def test_timings_that_something_disturbed_count_for_little(prior: Prior) -> None:
    chosen = choose(prior, 30)
    disturbed = TRUTH[chosen]
    disturbed[[4, 17]] += np.log(2.0)
    calm, found = predict(prior, chosen, TRUTH[chosen]), predict(prior, chosen, disturbed)
    assert error(found.log_seconds, chosen) < error(calm.log_seconds, chosen) + 0.01


def test_a_further_device_like_the_new_one_helps() -> None:
    alike = dataclasses.replace(NEW, flops_per_s=2.2e10, luck=0.0)
    strange = Invented(flops_per_s=9e10, bytes_per_s=5e9, depthwise=0.4)
    truth, chosen = NEW.log_seconds(BLOCKS), [3, 40, 90, 130]
    alone = prior_of(BLOCKS, [strange.table(BLOCKS)])
    both = prior_of(BLOCKS, [strange.table(BLOCKS), alike.table(BLOCKS)])
    found = [error(predict(p, chosen, truth[chosen]).log_seconds, chosen) for p in (alone, both)]
    assert found[1] < found[0]


@pytest.mark.parametrize("seconds", [[], [float("nan")]])
def test_nothing_is_predicted_from_nothing(prior: Prior, seconds: list[float]) -> None:
    with pytest.raises(LUTError):
        predict(prior, list(range(len(seconds))), np.array(seconds))


# ---- tables with holes ----------------------------------------------------------------------------------------------
def test_a_table_is_completed_by_its_own_rows() -> None:
    rows = {b.key: KNOWN.block_s(b) for b in BLOCKS[::2]}
    found, truth = complete(BLOCKS, rows), KNOWN.log_seconds(BLOCKS)
    assert found[::2] == pytest.approx(truth[::2])
    assert np.abs(np.expm1(found - truth)[1::2]).mean() < 0.03


def test_a_table_that_has_none_of_the_blocks_is_refused() -> None:
    with pytest.raises(LUTError, match="none of"):
        prior_of(BLOCKS[:5], [KNOWN.table(BLOCKS[5:])])


# ---- choosing -------------------------------------------------------------------------------------------------------
def test_only_blocks_that_the_first_table_has_are_chosen_and_each_once() -> None:
    prior = prior_of(BLOCKS, [KNOWN.table(BLOCKS[:30]), KNOWN.table(BLOCKS)])
    chosen = choose(prior, 100)
    assert sorted(chosen) == list(range(30))


def test_what_is_measured_already_is_not_chosen_again(prior: Prior) -> None:
    first = choose(prior, 10)
    assert not set(choose(prior, 10, first)) & set(first)


def test_fewer_blocks_are_the_first_of_more(prior: Prior) -> None:
    assert choose(prior, 12)[:5] == choose(prior, 5)


def test_blocks_of_every_kind_are_among_the_first(prior: Prior) -> None:
    assert {BLOCKS[i].kind for i in choose(prior, 12)} == {"stem", "mbconv", "head", "classifier"}


# ---- shares of a block's time ----------------------------------------------------------------------------------------
def test_the_seconds_of_a_device_that_adds_up_are_found_with_those_of_its_operators() -> None:
    parts = take_apart(BLOCKS, {b.key: KNOWN.block_s(b) for b in BLOCKS})
    assert parts.seconds == pytest.approx([KNOWN.block_s(b) for b in BLOCKS], rel=0.01)
    for block, shares in zip(BLOCKS, parts.of_operator, strict=True):
        for workload in block_workloads(block):
            share = KNOWN.operator_s(workload) * block_workloads(block).count(workload) / KNOWN.block_s(block)
            assert shares[parts.operators.index(workload)] == pytest.approx(share, abs=0.1)


def test_shares_sum_to_one_and_none_is_negative() -> None:
    parts = take_apart(BLOCKS, {b.key: KNOWN.block_s(b) for b in BLOCKS})
    for shares in (parts.of_operator, parts.of_cost):
        assert shares.min() >= 0.0
        assert shares.sum(axis=1) == pytest.approx(np.ones(len(BLOCKS)))


def test_blocks_that_the_table_lacks_are_taken_apart_too() -> None:
    blocks = [b for b in BLOCKS if b.kind == "mbconv"]
    parts = take_apart(blocks, {b.key: KNOWN.block_s(b) for b in blocks[::3]})
    assert parts.seconds == pytest.approx([KNOWN.block_s(b) for b in blocks], rel=0.1)


def test_operators_that_no_known_block_has_still_get_a_share() -> None:
    """A table without its classifier: no dense layer, and no stem, was ever timed."""
    known = {b.key: KNOWN.block_s(b) for b in BLOCKS if b.kind == "mbconv" and not b.use_se}
    parts = take_apart(BLOCKS, known)
    assert np.isfinite(parts.of_operator).all()
    assert {
        family(w) for w, share in zip(parts.operators, parts.of_operator.max(axis=0), strict=True) if share > 0
    } == {family(w) for w in parts.operators}
