"""Comparisons that are fair: every contender in a process of its own, all pinned to the same core, run in turns.

Thread pools, allocators and settings of one cannot disturb another, and whatever slows the machine down for a while
falls on all alike. Nothing else of ours runs while a contender does: the prescheduler's lock is held.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from chanas.devices.cores import split_cores
from chanas.measuring.locks import device_lock

_WORKER = Path(__file__).resolve().parent / "contender_worker.py"


class ContenderError(Exception):
    """A contender that cannot take part: not installed, did not compile, or crashed."""


def timing_core() -> int:
    """The core that everything of one thread is timed on: the one that the prescheduler times on."""
    return split_cores(1)[0][0]


# Thread pools spin for a while after their last call; the next contender waits until the cores are its own.
_PAUSE_S = 0.02


class Contender:
    """One worker process with calls that can be timed; `contender_worker.SETUPS` has the kinds."""

    def __init__(self, kind: str, num_threads: int = 1, **arguments: Any) -> None:
        self.kind = kind
        self.num_threads = num_threads
        variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER), ",".join(map(str, split_cores(num_threads)[0]))],
            env={
                **os.environ,
                **dict.fromkeys(variables, str(num_threads)),
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self.num_calls = int(self._request("setup", kind=kind, arguments=arguments))
        except ContenderError:
            self.close()
            raise

    def _request(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._log.seek(0)
            last = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
            raise ContenderError(f"{self.kind} ended with code {self._process.wait()} {' '.join(last)}".rstrip())
        answer = json.loads(line)
        if "error" in answer:
            raise ContenderError(f"{self.kind}: {answer['error']}")
        return answer["result"]

    def run(self, call: int, num_calls: int) -> float:
        """Seconds per call of `num_calls` in a row, after one more that is not timed."""
        if self.num_threads > 1:
            time.sleep(_PAUSE_S)
        return float(self._request("run", call=call, num_calls=num_calls))

    def output(self, call: int) -> list[float]:
        """What a call gives, flat."""
        return [float(v) for v in self._request("output", call=call)]

    def remark(self) -> str:
        """What is to be known beside its times; empty for most."""
        return str(self._request("remark"))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a request that the process never read
                    pipe.close()
        self._log.close()

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one contender: the median over rounds, and between which values half of them lie."""

    median_s: float
    low_s: float
    high_s: float
    num_rounds: int

    @classmethod
    def of(cls, samples: list[float]) -> Timing:
        low, median, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else samples * 3
        return cls(median, low, high, len(samples))

    @property
    def spread(self) -> float:
        """The interquartile range as a share of the median."""
        return (self.high_s - self.low_s) / self.median_s


def time_in_turns(calls: Mapping[str, tuple[Contender, int]], rounds: int, min_round_s: float) -> dict[str, Timing]:
    """Time the calls (contender and number of the call) in turns, each `rounds` times for at least `min_round_s`.

    Who begins changes from round to round, so that nobody always follows the same neighbour.
    """
    names = list(calls)
    num_calls: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in names}
    with device_lock():
        for name, (contender, call) in calls.items():
            estimate_s = contender.run(call, 1)
            if estimate_s < min_round_s:
                estimate_s = min(contender.run(call, 2) for _ in range(2))
            num_calls[name] = max(1, round(min_round_s / max(estimate_s, 1e-7)))
        for i in range(rounds):
            first = i % len(names)
            for name in names[first:] + names[:first]:
                contender, call = calls[name]
                samples[name].append(contender.run(call, num_calls[name]))
    return {name: Timing.of(values) for name, values in samples.items()}
