"""chanas/devices/timing.py: medians of enough repeats, in turns."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator

import pytest

from chanas.devices.timing import (
    Call,
    Clock,
    Summary,
    TimingSettings,
    interquartile_range,
    time_calls,
    time_in_turns,
    time_single_calls,
)

NOTHING: Call = (lambda: None, ())
SHORT = TimingSettings(repeats=4, min_repeat_s=0.0)


def clock_of(*seconds: float) -> Clock:
    """A clock that shows these seconds, one after the other, after warming up."""
    shown = itertools.chain((9.0,), itertools.cycle(seconds))

    def clock(turns: Iterator[Call], num_calls: int) -> float:
        return next(shown)

    return clock


@pytest.mark.parametrize(
    ("samples", "expected"), [([3.0], 0.0), ([1.0, 4.0, 2.0], 3.0), ([float(i) for i in range(1, 12)], 6.0)]
)
def test_the_spread_is_the_interquartile_range(samples: list[float], expected: float) -> None:
    assert interquartile_range(samples) == expected


def test_enough_repeats_are_made_when_they_agree() -> None:
    assert time_calls([NOTHING], 1, SHORT, clock=clock_of(2.0)) == Summary(2.0, 0.0, 4)


def test_four_times_as_many_repeats_are_made_while_they_disagree() -> None:
    assert time_calls([NOTHING], 1, SHORT, clock=clock_of(0.01, 0.02, 0.03)).repeats == 16


def test_they_disagree_for_no_longer_than_a_second() -> None:
    assert time_calls([NOTHING], 1, SHORT, clock=clock_of(0.1, 0.2)).repeats == 7
    assert time_calls([NOTHING], 1, SHORT, clock=clock_of(1.0, 2.0)).repeats == 4


def test_what_is_hopeless_at_first_is_not_timed_further() -> None:
    assert time_calls([NOTHING], 1, SHORT, hopeless_s=1.0, clock=clock_of(2.0)) == Summary(2.0, 0.0, 1)


def test_single_calls_are_all_shown_without_those_that_warm_up() -> None:
    called: list[bool] = []
    assert time_single_calls(lambda: called.append(gc.isenabled()), 3, 2, clock=clock_of(1.0, 2.0, 4.0)) == [1, 2, 4]
    assert called == []  # it is the clock that calls
    assert min(time_single_calls(lambda: called.append(gc.isenabled()), 3, 2)) > 0
    assert called == [False] * 5
    assert gc.isenabled()


def test_turns_alternate() -> None:
    called: list[str] = []
    contenders = [[(called.append, (name,))] for name in "abc"]
    time_in_turns(contenders, 1, TimingSettings(repeats=3, min_repeat_s=0.0))
    assert "".join(called[-9:]) == "abcabcabc"
