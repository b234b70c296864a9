"""Programs whose results were compared, timed where they are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chanas.devices.timing import (
    Call,
    Clock,
    Summary,
    TimingSettings,
    seconds_per_call,
    time_calls,
    time_in_turns,
)
from chanas.measuring.messages import Answer, Timing, WorkerError


@dataclass(frozen=True)
class CheckedProgram:
    """A program whose result was compared: its calls in the order in which they take turns, and its error.

    Each call runs `copies` copies of the program.
    """

    calls: Sequence[Call]
    max_error: float
    tolerance: float
    copies: int = 1

    @property
    def is_right(self) -> bool:
        return self.max_error <= self.tolerance

    def timing(self, calls: Summary) -> Timing:
        """The timing of one copy, from that of the calls."""
        return Timing(calls.seconds / self.copies, calls.spread_s / self.copies, calls.repeats, self.max_error)


def time_program(
    checked: CheckedProgram,
    num_warm_up: int,
    settings: TimingSettings,
    hopeless_s: float | None = None,
    clock: Clock = seconds_per_call,
) -> Timing | WorkerError:
    """Time one program (`time_calls`) if it is right; one copy of it is hopeless from `hopeless_s` on."""
    if not checked.is_right:
        return WorkerError.wrong(checked.max_error)
    hopeless_s = None if hopeless_s is None else checked.copies * hopeless_s
    return checked.timing(time_calls(checked.calls, num_warm_up, settings, hopeless_s, clock))


def time_programs_in_turns(
    checked: Sequence[CheckedProgram], num_warm_up: int, settings: TimingSettings, clock: Clock = seconds_per_call
) -> list[Answer]:
    """Time the right ones of several programs in turns against each other; an answer about each."""
    summaries = iter(time_in_turns([c.calls for c in checked if c.is_right], num_warm_up, settings, clock))
    return [Answer.of(c.timing(next(summaries)) if c.is_right else WorkerError.wrong(c.max_error)) for c in checked]
