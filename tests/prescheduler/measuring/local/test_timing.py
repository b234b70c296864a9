"""chanas/prescheduler/measuring/local/timing.py: medians of enough repeats, in turns, of what is right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from chanas.prescheduler.measuring.answers import ErrorKind, WorkerError
from chanas.prescheduler.measuring.local.timing import (
    Call,
    CheckedProgram,
    Clock,
    Summary,
    interquartile_range,
    time_calls,
    time_in_turns,
    time_program,
    time_programs_in_turns,
)
from chanas.prescheduler.measuring.requests import TimingSettings

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
    assert time_calls([NOTHING], 1, SHORT, clock=clock_of(1.0, 2.0, 3.0)).repeats == 16


def test_what_is_hopeless_at_first_is_not_timed_further() -> None:
    assert time_calls([NOTHING], 1, SHORT, hopeless_s=1.0, clock=clock_of(2.0)) == Summary(2.0, 0.0, 1)


def test_seconds_and_hope_are_those_of_one_copy() -> None:
    program = CheckedProgram([NOTHING], 1e-7, 1e-4, copies=4)
    timing = time_program(program, 1, SHORT, hopeless_s=1.0, clock=clock_of(2.0))
    assert not isinstance(timing, WorkerError)
    assert (timing.seconds, timing.repeats, timing.max_error) == (0.5, 4, 1e-7)


def test_what_is_wrong_is_not_timed() -> None:
    right, wrong = CheckedProgram([NOTHING], 1e-4, 1e-4), CheckedProgram([NOTHING], 2e-4, 1e-4)
    assert time_program(wrong, 1, SHORT, clock=clock_of()) == WorkerError.wrong(2e-4)
    first, second, third = time_programs_in_turns([wrong, right, wrong], 1, SHORT, clock_of(2.0))
    assert [a.error is not None and a.error.kind for a in (first, third)] == [ErrorKind.WRONG, ErrorKind.WRONG]
    assert second.timing.seconds == 2.0


def test_turns_alternate() -> None:
    called: list[str] = []
    contenders = [[(called.append, (name,))] for name in "abc"]
    time_in_turns(contenders, 1, TimingSettings(repeats=3, min_repeat_s=0.0))
    assert "".join(called[-9:]) == "abcabcabc"
