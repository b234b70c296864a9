"""chanas/measuring/local/timing.py: only what is right is timed, and its seconds are those of one copy."""

from __future__ import annotations

from collections.abc import Iterator

from chanas.devices.timing import Call, TimingSettings
from chanas.measuring.local.timing import CheckedProgram, time_program, time_programs_in_turns
from chanas.measuring.messages import ErrorKind, WorkerError

NOTHING: Call = (lambda: None, ())
SHORT = TimingSettings(repeats=4, min_repeat_s=0.0)


def two_seconds(turns: Iterator[Call], num_calls: int) -> float:
    """A clock that always shows the same."""
    return 2.0


def test_seconds_and_hope_are_those_of_one_copy() -> None:
    program = CheckedProgram([NOTHING], 1e-7, 1e-4, copies=4)
    timing = time_program(program, 1, SHORT, hopeless_s=1.0, clock=two_seconds)
    assert not isinstance(timing, WorkerError)
    assert (timing.seconds, timing.repeats, timing.max_error) == (0.5, 4, 1e-7)


def test_what_is_wrong_is_not_timed() -> None:
    right, wrong = CheckedProgram([NOTHING], 1e-4, 1e-4), CheckedProgram([NOTHING], 2e-4, 1e-4)
    assert time_program(wrong, 1, SHORT, clock=two_seconds) == WorkerError.wrong(2e-4)
    first, second, third = time_programs_in_turns([wrong, right, wrong], 1, SHORT, two_seconds)
    assert [a.error is not None and a.error.kind for a in (first, third)] == [ErrorKind.WRONG, ErrorKind.WRONG]
    assert second.timing.seconds == 2.0
