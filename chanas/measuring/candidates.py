"""Candidates on their way through building and timing: builds run ahead on free cores while the device times, and when
there are no free cores the two take turns, so that nothing else runs while something is timed.

Where several devices time, candidates of one family go to one of them, and so do all timings of one candidate: what is
compared most closely met the same device.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from chanas.core.target import HardwareTarget
from chanas.devices.timing import TimingSettings
from chanas.files.scratch import raise_if_full
from chanas.measuring.canary import Canary
from chanas.measuring.fleet import Pool, wait_for_one
from chanas.measuring.messages import (
    Answer,
    Build,
    Measure,
    ModuleFile,
    NetworkAt,
    OperatorsAt,
    Outcome,
    UntunedBlock,
    What,
    median_outcome,
)

Token = TypeVar("Token")
Identity = tuple[str, str]

BUILD_TIMEOUT_S = 20.0
MEASURE_TIMEOUT_S = 20.0
NETWORK_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Candidate(Generic[Token]):
    """Something to build for a target into a library (a file, or a folder of several), to check against the case in a
    file, and to time; `token` is the caller's own mark."""

    token: Token
    what: What
    target: HardwareTarget
    library: Path
    case: Path
    settings: TimingSettings
    hopeless_s: float | None = None
    """One slower than this at first is not timed further."""
    timeout_s: float = BUILD_TIMEOUT_S
    keep_library: bool = False
    family: str | None = None
    """Candidates of one family are timed by one device, and those that compile to the same machine code once."""

    @property
    def build(self) -> Build:
        return Build(target=self.target, what=self.what, path=self.library)

    @property
    def timing(self) -> Measure:
        """Several points are timed in turns, networks as a user runs them."""
        timing = Measure(library=self.library, case=self.case, settings=self.settings, hopeless_s=self.hopeless_s)
        match self.what:
            case OperatorsAt(points=points):
                return dataclasses.replace(timing, num=len(points))
            case NetworkAt() | UntunedBlock():
                return dataclasses.replace(timing, form="network")
            case ModuleFile():
                return dataclasses.replace(timing, form="module")
        return timing


def _outcome(answer: Answer, build_s: float, measure_s: float) -> Outcome:
    if answer.error is not None:
        return Outcome(None, None, str(answer.error), answer.error.max_error, build_s, measure_s)
    if answer.members:
        members = tuple(_outcome(m, build_s, measure_s) for m in answer.members)
        return Outcome(None, None, None, None, build_s, measure_s, members)
    timing = answer.timing
    return Outcome(timing.seconds, timing.spread_s, None, timing.max_error, build_s, measure_s)


def _remove(library: Path) -> None:
    """Delete a library, or a folder of them, and what an unfinished build left beside it."""
    if library.is_dir():
        shutil.rmtree(library)
    else:
        library.unlink(missing_ok=True)
        library.with_suffix(".o").unlink(missing_ok=True)


@dataclass(frozen=True)
class _Built(Generic[Token]):
    """A candidate whose library is there, and how often it has been timed."""

    candidate: Candidate[Token]
    build_s: float
    code: str | None = None
    num_tries: int = 0
    device: int | None = None
    """The device that is to time it, if that is decided."""

    @property
    def identity(self) -> Identity | None:
        """The identity that it shares with candidates that are the same program; None if nobody asked."""
        return None if self.code is None or self.candidate.family is None else (self.candidate.family, self.code)


@dataclass
class CandidatePipeline(Generic[Token]):
    """Submit candidates, iterate over what has finished.

    With a canary, what was timed comes out once the canary was read after it on the same device: corrected by the
    drift, or timed again when that was large.
    """

    pool: Pool
    canary: Canary | None = None
    _waiting: list[Candidate[Token]] = field(default_factory=list)
    _building: dict[Future[Answer], Candidate[Token]] = field(default_factory=dict)
    _built: list[_Built[Token]] = field(default_factory=list)
    _measuring: dict[Future[Answer], _Built[Token]] = field(default_factory=dict)
    _reading: dict[Future[Answer], int] = field(default_factory=dict)
    _homes: dict[str, int] = field(default_factory=dict)
    _held: list[tuple[_Built[Token], Answer]] = field(default_factory=list)
    _known: dict[Identity, tuple[Token, Outcome]] = field(default_factory=dict)
    _twins: dict[Identity, list[_Built[Token]]] = field(default_factory=dict)

    @property
    def num_in_flight(self) -> int:
        """Candidates that have not come out. Twins of one that is being timed come out with it."""
        return len(self._building) + len(self._built) + len(self._measuring) + len(self._waiting) + len(self._held)

    def know(self, family: str, token: Token, outcome: Outcome) -> None:
        """Take in the earlier outcome of a candidate, so that the same code is not timed again."""
        if outcome.code is not None:
            self._known.setdefault((family, outcome.code), (token, outcome))

    def submit(self, candidate: Candidate[Token]) -> None:
        """Queue a candidate for building."""
        self._waiting.append(candidate)
        self._advance()

    def withdraw(self, is_unwanted: Callable[[Token], bool]) -> list[Token]:
        """Withdraw the candidates of these tokens whose build has not begun: they do not come out."""
        withdrawn = [c.token for c in self._waiting if is_unwanted(c.token)]
        self._waiting = [c for c in self._waiting if not is_unwanted(c.token)]
        for future, candidate in list(self._building.items()):
            if is_unwanted(candidate.token) and future.cancel():
                withdrawn.append(self._building.pop(future).token)
        return withdrawn

    def time_again(self, candidate: Candidate[Token], device: int | None = None) -> None:
        """Queue a compiled candidate for another timing, which is not reported to its twins."""
        again = dataclasses.replace(candidate, keep_library=True, family=None)
        self._built.append(_Built(again, 0.0, device=device))

    def _advance(self) -> None:
        if self.pool.overlap or not (self._measuring or self._reading):
            for candidate in self._waiting:
                future = self.pool.build(candidate.build, candidate.timeout_s)
                self._building[future] = candidate
            self._waiting.clear()
        if self._built and (self.pool.overlap or not self._building):
            for built in self._built:
                device = self._device_for(built)
                if self.canary is not None and not self.canary.on(device).readings:
                    self._read(device)
                timeout_s = MEASURE_TIMEOUT_S + built.candidate.timeout_s
                future = self.pool.measure(built.candidate.timing, timeout_s, device)
                self._measuring[future] = dataclasses.replace(built, num_tries=built.num_tries + 1, device=device)
            self._built.clear()

    def _device_for(self, built: _Built[Token]) -> int:
        """Return the device of earlier timings, else the family's, else the one that has least to do."""
        family = built.candidate.family
        device = self._homes.get(family, built.device) if family is not None else built.device
        if device is None:
            num_waiting = Counter(b.device for b in self._measuring.values())
            device = min(range(self.pool.num_devices), key=lambda number: num_waiting[number])
        if family is not None:
            self._homes[family] = device
        return device

    def _read(self, device: int) -> None:
        """Ask for a reading of a device's canary, unless one is under way."""
        if self.canary is not None and device not in self._reading.values():
            self._reading |= dict.fromkeys(self.canary.on(device).read(self.pool), device)

    def finished(self) -> Iterator[tuple[Candidate[Token], Outcome]]:
        """Wait until at least one candidate is through, and yield those that are; nothing when none is in flight.

        Raises:
            ChanasError: a candidate failed because the disk is full.
        """
        while self.num_in_flight:
            self._advance()
            outcomes = []
            for future in wait_for_one([*self._building, *self._measuring, *self._reading]):
                answer = future.result()
                if future in self._reading:
                    device = self._reading.pop(future)
                    assert self.canary is not None
                    self.canary.on(answer.device).observe(answer)  # another one's, where this one is away
                    if device not in self._reading.values():
                        outcomes += self._release(device)
                elif future in self._building:
                    candidate = self._building.pop(future)
                    if answer.error is None:
                        code = answer.result.get("code") if isinstance(answer.result, dict) else None
                        outcomes += self._take_built(_Built(candidate, answer.wall_s, code))
                    else:
                        raise_if_full(candidate.library.parent, str(answer.error))
                        _remove(candidate.library)
                        outcomes.append((candidate, _outcome(answer, answer.wall_s, 0.0)))
                else:
                    outcomes += self._hold(self._measuring.pop(future), answer)
            self._advance()
            outcomes += self._release_idle()
            if outcomes:
                yield from outcomes
                return

    def _take_built(self, built: _Built[Token]) -> list[tuple[Candidate[Token], Outcome]]:
        """Pass a built candidate on to the timing, unless the same program was timed already or is about to be."""
        identity = built.identity
        if identity is not None and identity in self._known:
            return [self._same(built, *self._known[identity])]
        if identity is not None and identity in self._twins:
            self._twins[identity].append(built)
            return []
        if identity is not None:
            self._twins[identity] = []
        self._built.append(built)
        return []

    def _same(self, built: _Built[Token], token: Token, outcome: Outcome) -> tuple[Candidate[Token], Outcome]:
        if not built.candidate.keep_library:
            _remove(built.candidate.library)
        return built.candidate, dataclasses.replace(outcome, build_s=built.build_s, measure_s=0.0, same_as=token)

    def _hold(self, built: _Built[Token], answer: Answer) -> list[tuple[Candidate[Token], Outcome]]:
        """Keep what was timed until the canary is read: when it is due, or old when all is timed."""
        if answer.error is not None:
            raise_if_full(built.candidate.library.parent, str(answer.error))
        device = answer.device
        self._held.append((built, answer))
        if built.candidate.family is not None:
            self._homes[built.candidate.family] = device
        if self.canary is not None and device not in self._reading.values():
            canary = self.canary.on(device)
            if canary.is_due(answer.wall_s):
                self._read(device)
            elif canary.readings:
                return []  # until the next reading, or `_release_idle`
        return [] if device in self._reading.values() else self._release(device)

    def _release_idle(self) -> list[tuple[Candidate[Token], Outcome]]:
        """Release the held candidates of devices that have nothing else to time, or let them wait for one more
        reading."""
        if self._built:  # no core is free to time them yet
            return []
        busy = {*self._reading.values(), *(b.device for b in self._measuring.values())}
        outcomes = []
        for device in dict.fromkeys(answer.device for _, answer in self._held):
            if device in busy:
                continue
            if self.canary is not None and not self.canary.on(device).is_fresh:
                self._read(device)
            if device not in self._reading.values():
                outcomes += self._release(device)
        return outcomes

    def _release(self, device: int) -> list[tuple[Candidate[Token], Outcome]]:
        """Release the held candidates of a device, or queue them to be timed again."""
        held = [(built, answer) for built, answer in self._held if answer.device == device]
        self._held = [(built, answer) for built, answer in self._held if answer.device != device]
        canary = None if self.canary is None else self.canary.on(device)
        outcomes = []
        for built, answer in held:
            outcome = dataclasses.replace(
                _outcome(answer, built.build_s, answer.wall_s), code=built.code, device=device
            )
            if canary is not None and outcome.error is None:
                if canary.wants_again(built.num_tries):
                    self._built.append(dataclasses.replace(built, device=device))
                    continue
                outcome = _correct(outcome, canary)
            if not built.candidate.keep_library:
                _remove(built.candidate.library)
            outcomes.append((built.candidate, outcome))
            identity = built.identity
            if identity is not None:
                self._known[identity] = (built.candidate.token, outcome)
                outcomes += [self._same(t, built.candidate.token, outcome) for t in self._twins.pop(identity)]
        return outcomes


def _correct(outcome: Outcome, canary: Canary) -> Outcome:
    """Seconds as they would be without the drift. Those of turns stay: they are compared with each other alone."""
    drift = canary.correction
    if outcome.seconds is None or drift == 1.0:
        return outcome
    canary.num_corrected += 1
    spread_s = None if outcome.spread_s is None else outcome.spread_s / drift
    return dataclasses.replace(outcome, seconds=outcome.seconds / drift, spread_s=spread_s, drift=drift)


def time_in_rounds(
    group: Sequence[tuple[Candidate[Token], Sequence[Outcome]]],
    pool: Pool,
    num_rounds: int,
    keep: Callable[[Token, Outcome], object] = lambda _token, _outcome: None,
) -> list[tuple[Candidate[Token], Outcome]]:
    """Candidates with the median of their seconds over `num_rounds` rounds, one round after the other.

    Each comes with the outcomes of its rounds so far, at least one, and stays with the device of the last as long as
    that is there. Their libraries must still be there, each in a place of its own. A candidate that failed stays as it
    is; a round in which one fails is left out. `keep` gets each new round that worked.
    """
    found = {candidate.library: list(outcomes) for candidate, outcomes in group}
    line: CandidatePipeline[Token] = CandidatePipeline(pool)
    for i in range(num_rounds):
        for candidate, outcomes in group:
            if len(outcomes) <= i and outcomes[-1].seconds is not None:
                line.time_again(candidate, found[candidate.library][-1].device)
        while line.num_in_flight:
            for candidate, outcome in line.finished():
                if outcome.seconds is not None:
                    found[candidate.library].append(outcome)
                    keep(candidate.token, outcome)
    return [
        (candidate, outcomes[-1] if outcomes[-1].seconds is None else median_outcome(found[candidate.library]))
        for candidate, outcomes in group
    ]
