"""Candidates on their way through building and timing: builds run ahead on free cores while the device times, and when
there are no free cores the two take turns, so that nothing else runs while something is timed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from chanas.prescheduler.pool import Answer, WorkerPool

Token = TypeVar("Token")

BUILD_TIMEOUT_S = 20.0
MEASURE_TIMEOUT_S = 20.0
NETWORK_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Candidate(Generic[Token]):
    """Something to build into `library` (a file, or a folder of several) and time; `token` is the caller's own mark."""

    token: Token
    build: str
    build_arguments: dict[str, Any]
    library: Path
    measure: str
    measure_arguments: dict[str, Any]
    timeout_s: float = BUILD_TIMEOUT_S
    keep_library: bool = False


@dataclass(frozen=True)
class Outcome:
    """Seconds of a candidate, or why there are none; of several that were timed in turns, the outcome of each."""

    seconds: float | None
    spread_s: float | None
    error: str | None
    max_error: float | None = None
    build_s: float = 0.0
    measure_s: float = 0.0
    members: tuple[Outcome, ...] = ()


def _outcome(answer: Answer, build_s: float) -> Outcome:
    if answer.error is not None:
        return Outcome(None, None, answer.error, build_s=build_s, measure_s=answer.wall_s)
    if "members" in answer.result:
        members = tuple(_result(r, build_s, answer.wall_s) for r in answer.result["members"])
        return Outcome(None, None, None, None, build_s, answer.wall_s, members)
    return _result(answer.result, build_s, answer.wall_s)


def _result(result: dict[str, Any], build_s: float, measure_s: float) -> Outcome:
    if "wrong" in result:
        error = f"wrong result: relative error {result['wrong']:.3g} against PyTorch"
        return Outcome(None, None, error, result["wrong"], build_s, measure_s)
    return Outcome(result["seconds"], result["spread_s"], None, result["max_error"], build_s, measure_s)


def _remove(library: Path) -> None:
    """Delete a library, or a folder of them, and what an unfinished build left beside it."""
    if library.is_dir():
        shutil.rmtree(library)
    else:
        library.unlink(missing_ok=True)
        library.with_suffix(".o").unlink(missing_ok=True)


@dataclass
class CandidatePipeline(Generic[Token]):
    """Submit candidates, iterate over what has finished."""

    pool: WorkerPool
    _building: dict[Future[Answer], Candidate[Token]] = field(default_factory=dict)
    _built: list[tuple[Candidate[Token], float]] = field(default_factory=list)
    _measuring: dict[Future[Answer], tuple[Candidate[Token], float]] = field(default_factory=dict)
    _waiting: list[Candidate[Token]] = field(default_factory=list)

    @property
    def num_in_flight(self) -> int:
        return len(self._building) + len(self._built) + len(self._measuring) + len(self._waiting)

    def submit(self, candidate: Candidate[Token]) -> None:
        """Queue a candidate for building."""
        self._waiting.append(candidate)
        self._advance()

    def _advance(self) -> None:
        may_build = self.pool.overlap or not self._measuring
        if may_build:
            for candidate in self._waiting:
                future = self.pool.build(candidate.build, candidate.build_arguments, candidate.timeout_s)
                self._building[future] = candidate
            self._waiting.clear()
        if self.pool.overlap or not self._building:
            for candidate, build_s in self._built:
                arguments = {"library": str(candidate.library), **candidate.measure_arguments}
                measuring = self.pool.measure(candidate.measure, arguments, MEASURE_TIMEOUT_S + candidate.timeout_s)
                self._measuring[measuring] = (candidate, build_s)
            self._built.clear()

    def finished(self) -> Iterator[tuple[Candidate[Token], Outcome]]:
        """Wait until at least one candidate is through, and yield those that are; nothing when none is in flight."""
        while self.num_in_flight:
            self._advance()
            done, _ = wait([*self._building, *self._measuring], return_when=FIRST_COMPLETED)
            outcomes = []
            for future in done:
                answer = future.result()
                if future in self._building:
                    candidate = self._building.pop(future)
                    if answer.error is None:
                        self._built.append((candidate, answer.wall_s))
                    else:
                        _remove(candidate.library)
                        outcomes.append((candidate, Outcome(None, None, answer.error, build_s=answer.wall_s)))
                else:
                    candidate, build_s = self._measuring.pop(future)
                    if not candidate.keep_library:
                        _remove(candidate.library)
                    outcomes.append((candidate, _outcome(answer, build_s)))
            self._advance()
            if outcomes:
                yield from outcomes
                return
