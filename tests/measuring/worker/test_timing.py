"""chanas/measuring/worker/timing.py: only what is right is timed, and its seconds are those of one copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from chanas.devices.timing import Call, Clock, TimingSettings
from chanas.measuring.messages import ErrorKind, Measure, Timing, WorkerError
from chanas.measuring.worker.timing import CheckedProgram, measure

NOTHING: Call = (lambda: None, ())
SHORT = TimingSettings(repeats=4, min_repeat_s=0.0)


class TwoSeconds:
    """A device whose programs are known by their names, and whose clock always shows the same."""

    def __init__(self, **programs: CheckedProgram) -> None:
        self.programs = programs

    def check(self, library: Path, _request: Measure) -> CheckedProgram:
        return self.programs[f"p{library.stem}"]

    def clock(self, programs: Sequence[CheckedProgram], _request: Measure) -> Clock:
        assert all(p.is_right for p in programs)

        def seconds(turns: Iterator[Call], num_calls: int) -> float:
            return 2.0

        return seconds


def request(name: str, num: int | None = None, hopeless_s: float | None = None) -> Measure:
    return Measure(library=Path(name), case=Path("case.npz"), settings=SHORT, num=num, hopeless_s=hopeless_s)


def test_seconds_and_hope_are_those_of_one_copy() -> None:
    program = CheckedProgram([NOTHING], 1e-7, 1e-4, copies=4)
    assert measure(request("0.so", hopeless_s=1.0), TwoSeconds(p0=program)) == Timing(0.5, 0.0, 4, 1e-7)
    assert measure(request("0.so", hopeless_s=0.25), TwoSeconds(p0=program)) == Timing(0.5, 0.0, 1, 1e-7)


def test_what_is_wrong_is_not_timed() -> None:
    right, wrong = CheckedProgram([NOTHING], 1e-4, 1e-4), CheckedProgram([NOTHING], 2e-4, 1e-4)
    device = TwoSeconds(p0=wrong, p1=right, p2=wrong)
    assert measure(request("0.so"), device) == WorkerError.wrong(2e-4)
    answers = measure(request("folder", num=3), device)
    assert isinstance(answers, list)
    first, second, third = answers
    assert [a.error is not None and a.error.kind for a in (first, third)] == [ErrorKind.WRONG, ErrorKind.WRONG]
    assert second.timing.seconds == 2.0


def test_where_nothing_is_right_nothing_is_timed() -> None:
    wrong = CheckedProgram([NOTHING], 2e-4, 1e-4)
    answers = measure(request("folder", num=2), TwoSeconds(p0=wrong, p1=wrong))
    assert isinstance(answers, list)
    assert [a.error for a in answers] == [WorkerError.wrong(2e-4)] * 2
