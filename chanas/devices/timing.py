"""Seconds of calls in turns, by a clock that may be the processor's or a GPU's."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

_CALLS_FOR_ESTIMATE = 3
# Seconds of repeats after which a timing that is asked for no more of them ends, whatever their spread.
_MOST_S = 1.0

Call = tuple[Callable[..., Any], Sequence[Any]]
Clock = Callable[[Iterator[Call], int], float]
"""Seconds per call of the next so many calls."""


@dataclass(frozen=True)
class TimingSettings:
    """Settings of one timing.

    repeats       how often it is repeated; up to four times as often, or for a second, until the spread is small enough
    min_repeat_s  seconds of calls in one repeat, at least
    max_spread    interquartile range of the repeats, as a share of their median, that is small enough
    cold_bytes    bytes of the copies of the weights that calls take turns among, so that each finds its own cold; on a
                  GPU the L2 cache is flushed before each launch where this is above 0
    code_copies   copies of the code that calls take turns among
    """

    repeats: int = 5
    min_repeat_s: float = 0.002
    max_spread: float = 0.02
    cold_bytes: int = 0
    code_copies: int = 1

    def cold(self, cold_bytes: int, code_copies: int = 1) -> TimingSettings:
        """The same with weights, and code, as cold as they are inside a network."""
        return replace(self, cold_bytes=cold_bytes, code_copies=code_copies)


ONCE = TimingSettings(repeats=1, min_repeat_s=1e-6)
"""One short repeat, where the question is whether a program works."""
TRIAL = TimingSettings(repeats=5, min_repeat_s=0.001, max_spread=0.04)
"""A schedule of an operator."""
TURNS = TimingSettings(repeats=15, min_repeat_s=0.002)
"""The best schedules of an operator again, in turns."""
BLOCK = TimingSettings(repeats=7, min_repeat_s=0.002, max_spread=0.02)
"""One of several rounds of a block."""
NETWORK = TimingSettings(repeats=5, min_repeat_s=0.01)
"""One of many short rounds of a whole network. They tell more than a third as many of 15 repeats, which take as long:
what disturbs outlasts either."""
CANARY = TimingSettings(repeats=7, min_repeat_s=0.0005)
"""A reading of the canary."""


@dataclass(frozen=True)
class Summary:
    """Seconds per call: the median of `repeats` samples, and their interquartile range."""

    seconds: float
    spread_s: float
    repeats: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        return cls(statistics.median(samples), interquartile_range(samples), len(samples))


def seconds_per_call(turns: Iterator[Call], num_calls: int) -> float:
    """The processor's clock."""
    start = time.perf_counter()
    for function, arguments in itertools.islice(turns, num_calls):
        function(*arguments)
    return (time.perf_counter() - start) / num_calls


def time_calls(
    calls: Sequence[Call],
    num_warm_up: int,
    settings: TimingSettings,
    hopeless_s: float | None = None,
    clock: Clock = seconds_per_call,
) -> Summary:
    """Seconds per call.

    The calls (function and arguments) take turns, over the end of a repeat too. Up to four times as many repeats are
    made, or for a second, until the interquartile range is small enough. A candidate slower than `hopeless_s` at first
    is not measured further.
    """
    turns = itertools.cycle(calls)
    with _undisturbed():
        clock(turns, num_warm_up)
        estimate = max(clock(turns, _CALLS_FOR_ESTIMATE), 1e-8)
        num_calls = max(1, math.ceil(settings.min_repeat_s / estimate))
        samples = [estimate] if hopeless_s is not None and estimate > hopeless_s else []
        while not samples or hopeless_s is None or samples[0] <= hopeless_s:
            samples.append(clock(turns, num_calls))
            if len(samples) < settings.repeats:
                continue
            is_enough = len(samples) >= 4 * settings.repeats or math.fsum(samples) * num_calls >= _MOST_S
            if is_enough or interquartile_range(samples) <= settings.max_spread * statistics.median(samples):
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


def time_single_calls(
    function: Callable[[], Any], num_calls: int, num_warm_up: int, clock: Clock = seconds_per_call
) -> list[float]:
    """Seconds of each of `num_calls` calls, after some that are not counted."""
    turns = itertools.repeat((function, ()))
    with _undisturbed():
        clock(turns, num_warm_up)
        return [clock(turns, 1) for _ in range(num_calls)]


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
