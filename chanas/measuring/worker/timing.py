"""Programs checked against their cases, and timed where they are right: the same on every device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from chanas.compiler.cases import relative_error
from chanas.core.arrays import Array, Float32Array
from chanas.devices.timing import Call, Clock, time_calls, time_in_turns
from chanas.measuring.messages import Answer, Measure, Timing, WorkerError
from chanas.operators.precision import from_bits

_NOTHING: dict[str, float] = {"uint16": 0x7FC0, "uint8": 0xA5}
"""The content of an output before a call where that can't be NaN: bits of NaN as a bfloat16, and a byte that few
numbers are."""


@dataclass(frozen=True)
class CheckedProgram:
    """A program in a device's memory whose result was compared.

    calls        in the order in which they take turns; each runs `copies` copies of the program
    num_warm_up  calls before the first that counts
    owner        what has to live as long as the calls are made
    """

    calls: Sequence[Call]
    max_error: float
    tolerance: float
    copies: int = 1
    num_warm_up: int = 1
    owner: object = None

    @property
    def is_right(self) -> bool:
        return self.max_error <= self.tolerance


class Timer(Protocol):
    """A device, as the process has it that times on it."""

    def check(self, library: Path, request: Measure) -> CheckedProgram:
        """Load a program with the arguments of its case, call it, and compare what it computes."""

    def clock(self, programs: Sequence[CheckedProgram], request: Measure) -> Clock:
        """The clock for programs that are right."""


def measure(request: Measure, timer: Timer) -> Timing | WorkerError | list[Answer]:
    """Check what is asked for against its case, then time it if it is right; several programs in turns."""
    settings, num = request.settings, request.num
    libraries = [request.library] if num is None else [request.library / f"{i}.so" for i in range(num)]
    programs = [timer.check(library, request) for library in libraries]
    right = [p for p in programs if p.is_right]
    clock = timer.clock(right, request)
    if num is None:
        limit_s = request.hopeless_s
        found = [
            time_calls(p.calls, p.num_warm_up, settings, None if limit_s is None else p.copies * limit_s, clock)
            for p in right
        ]
    else:
        found = time_in_turns([p.calls for p in right], max((p.num_warm_up for p in right), default=0), settings, clock)
    summaries = iter(found)
    told: list[Timing | WorkerError] = []
    for p in programs:
        if p.is_right:
            calls = next(summaries)
            told.append(Timing(calls.seconds / p.copies, calls.spread_s / p.copies, calls.repeats, p.max_error))
        else:
            told.append(WorkerError.wrong(p.max_error))
    return told[0] if num is None else list(map(Answer.of, told))


def error_of(call: Call, output: Any, expected: Array) -> float:
    """Error of what a call leaves in its output, relative to the largest expected magnitude. The output is not a number
    before, so that nothing passes which an earlier call has left; rows beyond the expected ones are padding."""
    function, arguments = call
    dtype = np.dtype(str(output.dtype))
    output.copyfrom(np.full(tuple(map(int, output.shape)), _NOTHING.get(dtype.name, np.nan), dtype))
    function(*arguments)
    wanted = as_float32(expected).reshape(-1, expected.shape[-1])
    got = as_float32(output.numpy()).reshape(-1, wanted.shape[1])[: len(wanted)]
    return relative_error(got, wanted) if got.shape == wanted.shape else math.inf


def as_float32(array: Array) -> Float32Array:
    """Numbers as float32; uint16 is bits of bfloat16."""
    return from_bits(array) if array.dtype == np.uint16 else np.asarray(array, np.float32)
