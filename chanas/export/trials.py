"""The example of an exported network run, and compared with what it has to give."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chanas.compiler.toolchains import is_native
from chanas.core.arrays import Array
from chanas.core.target import HardwareTarget
from chanas.errors import MeasureError, TargetError
from chanas.measuring.checks.qemu import emulator_program

RunExample = Callable[[Sequence[str], str], bytes]
"""A function such as `run_example`."""
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Check:
    """The example run and compared.

    tried      what it was run on
    result     what was compared, and with what
    under      the emulator that ran it; empty: this machine itself
    max_error  largest difference, relative to the largest magnitude (`largest_error`)
    """

    tried: str
    result: tuple[str, str]
    under: str
    max_error: float

    def describe(self) -> str:
        where = f"under {self.under}" if self.under else "on this machine"
        return f"{self.tried} {where}: {self.result[0]} within {self.max_error:.1g} of {self.result[1]}"


def try_example(
    program: Path,
    runner: Sequence[str] | str,
    errors: Callable[[Sequence[str]], Iterable[float]],
    tried: str,
    result: tuple[str, str],
    tolerance: float,
) -> Check | str:
    """Run the example, if it can be run here; a text says why it can't.

    Args:
        runner: the command that it is run with, of `find_runner`.
        errors: runs it with that command on what is `tried`, and compares each output.
        result: what is compared, and with what.

    Raises:
        MeasureError: it fails, or computes something else.
    """
    if isinstance(runner, str):
        return runner
    try:
        largest = max(errors(runner))
    except TargetError as elsewhere:
        return f"there is nothing to compare with: {elsewhere}"
    except OSError as reason:  # temporary files that must not be run, say
        return f"{reason.strerror or reason}: {program}"
    if not largest <= tolerance:
        what, whose = result
        raise MeasureError(f"the exported example's {what} are {largest:.2g} away from {whose}; nothing was written")
    return Check(tried, result, Path(runner[0]).name if runner else "", largest)


def find_runner(target: HardwareTarget, why_not: str = "") -> list[str] | str:
    """The command that runs a target's programs here: nothing, or an emulator; a text if nothing runs them.

    Args:
        why_not: why this machine's processor does not run them, where it is of the same platform.
    """
    if is_native(target.mtriple):
        return why_not or []
    found = emulator_program(target.mtriple)
    if found is None:
        return f"this machine is none of {target.mtriple} and has no emulator of one (qemu-user-static)"
    return [found]


def run_example(command: Sequence[str], what: str, timeout_s: float = _TIMEOUT_S) -> bytes:
    """The standard output of the example, run on `what`.

    Raises:
        OSError: it can't be run at all: temporary files that must not be run, say.
        MeasureError: it fails, or does not end.
    """
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise MeasureError(
            f"the exported example took over {timeout_s:.0f} s for {what}; nothing was written"
        ) from None
    if done.returncode:
        reason = (done.stderr.decode(errors="replace").strip() or "no message").splitlines()[-1]
        raise MeasureError(f"the exported example ended with code {done.returncode} ({reason}); nothing was written")
    return done.stdout


def largest_error(found: Array, expected: Array, least: float = 1.0) -> float:
    """The largest difference, relative to the largest magnitude (`least` at least); infinite where NaN or infinity
    differ."""
    there = np.isfinite(expected)
    if not (np.isfinite(found[there]).all() and np.array_equal(found[~there], expected[~there], equal_nan=True)):
        return math.inf
    if not there.any():
        return 0.0
    number = np.float64  # whole numbers and truth values have differences, too
    difference = np.abs(found[there].astype(number) - expected[there].astype(number)).max()
    return float(difference / max(least, np.abs(expected[there].astype(number)).max()))
