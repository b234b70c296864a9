"""chanas/prescheduler/tables/transfer/shares.py: blocks in shares of their time."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.operators.steps import block_workloads
from chanas.prescheduler.tables.transfer.shares import family, take_apart

from .devices import BLOCKS, KNOWN


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
