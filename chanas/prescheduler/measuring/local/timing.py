"""Seconds of calls in turns, for a clock that may be the processor's or a GPU's."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chanas.prescheduler.measuring.answers import Answer, Timing, WorkerError
from chanas.prescheduler.measuring.requests import TimingSettings

_CALLS_FOR_ESTIMATE = 3

Call = tuple[Callable[..., Any], Sequence[Any]]
Clock = Callable[[Iterator[Call], int], float]
"""Seconds per call of the next so many calls."""


@dataclass(frozen=True)
class Summary:
    """Seconds per call: the median of `repeats` samples, and their interquartile range."""

    seconds: float
    spread_s: float
    repeats: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        return cls(statistics.median(samples), interquartile_range(samples), len(samples))


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


def seconds_per_call(turns: Iterator[Call], num_calls: int) -> float:
    """The processor's clock."""
    start = time.perf_counter()
    for function, arguments in itertools.islice(turns, num_calls):
        function(*arguments)
    return (time.perf_counter() - start) / num_calls


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


def time_calls(
    calls: Sequence[Call],
    num_warm_up: int,
    settings: TimingSettings,
    hopeless_s: float | None = None,
    clock: Clock = seconds_per_call,
) -> Summary:
    """Seconds per call.

    The calls (function and arguments) take turns, over the end of a repeat too. Up to four times as many repeats are
    made until the interquartile range is small enough. A candidate slower than `hopeless_s` at first is not measured
    further.
    """
    turns = itertools.cycle(calls)
    with _undisturbed():
        clock(turns, num_warm_up)
        estimate = max(clock(turns, _CALLS_FOR_ESTIMATE), 1e-8)
        num_calls = max(1, math.ceil(settings.min_repeat_s / estimate))
        samples = [estimate] if hopeless_s is not None and estimate > hopeless_s else []
        while not samples or hopeless_s is None or samples[0] <= hopeless_s:
            samples.append(clock(turns, num_calls))
            median = statistics.median(samples)
            if len(samples) >= settings.repeats and (
                interquartile_range(samples) <= settings.max_spread * median or len(samples) >= 4 * settings.repeats
            ):
                break
    return Summary.of(samples)


def time_in_turns(
    contenders: Sequence[Sequence[Call]],
    num_warm_up: int,
    settings: TimingSettings,
    clock: Clock = seconds_per_call,
) -> list[Summary]:
    """Seconds per call of several functions that take turns, A B C A B C …: a slow moment hits all of them alike.

    Each is called for at least `min_repeat_s` in each of its `repeats` turns.
    """
    turns = [itertools.cycle(calls) for calls in contenders]
    samples: list[list[float]] = [[] for _ in turns]
    with _undisturbed():
        nums_calls = []
        for turn in turns:
            clock(turn, num_warm_up)
            estimate = max(clock(turn, _CALLS_FOR_ESTIMATE), 1e-8)
            nums_calls.append(max(1, math.ceil(settings.min_repeat_s / estimate)))
        for _ in range(settings.repeats):
            for turn, num_calls, own in zip(turns, nums_calls, samples, strict=True):
                own.append(clock(turn, num_calls))
    return [Summary.of(own) for own in samples]


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def interquartile_range(samples: Sequence[float]) -> float:
    """The range of the middle half of the samples; of all where there are fewer than four."""
    if len(samples) < 4:
        return max(samples) - min(samples)
    low, _, high = statistics.quantiles(samples, n=4)
    return high - low
