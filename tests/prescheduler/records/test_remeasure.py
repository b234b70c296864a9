"""chanas/prescheduler/records/remeasure.py: who is measured again, when that is over, and who is the best."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.prescheduler.records.remeasure import CONTENDER_MARGIN, MAX_CONTENDERS, contenders, is_settled, rank_records
from chanas.prescheduler.records.store import TuningRecord

again = st.one_of(
    st.builds(lambda s: (s, None), st.floats(1e-7, 1e-5)), st.just((None, "crash")), st.just((None, None))
)


@st.composite
def record_lists(draw: st.DrawFn) -> list[TuningRecord]:
    seconds = draw(st.lists(st.one_of(st.none(), st.floats(1e-6, 1.2e-6)), max_size=9))
    records = []
    for i, s in enumerate(seconds):
        again_s, error = draw(again) if s is not None else (None, None)
        records.append(TuningRecord((i,), s, 0.0, None if s else "timeout", again_s, None, error))
    return records


def of(*seconds: float) -> list[TuningRecord]:
    return [TuningRecord((i,), s) for i, s in enumerate(seconds)]


def with_again(records: list[TuningRecord], *seconds: float | None) -> list[TuningRecord]:
    """The first records with second timings; None is a failure."""
    changed = [
        dataclasses.replace(r, again_s=s, again_error="crash" if s is None else None)
        for r, s in zip(records, seconds, strict=False)
    ]
    return changed + records[len(changed) :]


def points(records: list[TuningRecord]) -> list[int]:
    return [r.point[0] for r in records]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((), []),
        ((1.0,), []),
        ((1.0, 1.06), []),
        ((1.04, 1.0), [1, 0]),
        ((1.06, 1.05, 1.04, 1.03, 1.02, 1.01, 1.0), [6, 5, 4, 3]),
    ],
)
def test_contenders_are_few_and_close(seconds: tuple[float, ...], expected: list[int]) -> None:
    assert points(contenders(of(*seconds))) == expected


@given(record_lists())
def test_contenders_are_valid_and_near_the_best(records: list[TuningRecord]) -> None:
    close = contenders(records)
    assert len(close) <= MAX_CONTENDERS
    if close:
        best_s = min(r.seconds for r in records if r.seconds is not None)
        assert all(r.seconds is not None and r.seconds <= (1 + CONTENDER_MARGIN) * best_s for r in close)


@given(record_lists())
def test_ranking_keeps_every_valid_record_once(records: list[TuningRecord]) -> None:
    assert sorted(points(rank_records(records))) == [r.point[0] for r in records if r.is_valid]


@given(record_lists())
def test_once_settled_the_best_is_the_best_of_the_turns(records: list[TuningRecord]) -> None:
    close = contenders(records)
    if close and is_settled(records):
        assert rank_records(records)[0].again_s == min(r.again_s for r in close if r.again_s is not None)


def test_before_the_turns_first_timings_count() -> None:
    assert points(rank_records(of(1.02, 1.0, 1.5))) == [1, 0, 2]
    assert not is_settled(of(1.02, 1.0, 1.5))


def test_second_timings_put_contenders_before_all_others() -> None:
    """The machine may have been slower by then: only contenders share the moment."""
    records = with_again(of(1.0, 1.02, 1.06), 1.3, 1.2)
    assert is_settled(records)
    assert points(rank_records(records)) == [1, 0, 2]


def test_a_failure_in_the_turns_comes_last() -> None:
    assert points(rank_records(with_again(of(1.0, 1.02, 1.5), None, 1.1))) == [1, 2, 0]


def test_failures_alone_settle_nothing() -> None:
    records = with_again(of(1.0, 1.02), None, None)
    assert not is_settled(records)
    assert points(rank_records(records)) == [0, 1]


def test_a_new_best_outdates_the_turns() -> None:
    records = [*with_again(of(1.0, 1.02), 1.1, 1.0), TuningRecord((9,), 0.98)]
    assert not is_settled(records)
    assert points(rank_records(records)) == [9, 0, 1]
