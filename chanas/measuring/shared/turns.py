"""Messages between a tuning's process and the scheduler's: a JSON line for the beginning of a turn, one for its end.

A tuning's process computes in its turns alone. A turn begins with the answers that have come since the last one, and
ends when the tuning has nothing to do but to wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chanas.measuring.messages import Answer, Request


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request to a worker, by the number that its answer will have; one that `times` is for the `device` of this
    number as long as that is there, or for any."""

    number: int
    times: bool
    timeout_s: float
    request: Request
    device: int | None = None


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The answer to the request of this number."""

    number: int
    answer: Answer


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The beginning of a turn, on one core."""

    core: int
    answers: tuple[Answered, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rest:
    """The end of a turn.

    asks       requests, in the order in which they were made
    withdrawn  numbers of earlier ones that are not wanted any more
    renew      the device is to time in a new process from now on
    num_left   builds that will be asked for later, as far as is known
    ended      the tuning is over: nothing follows
    error      why, where it failed
    lacking    what the machine was short of, where it failed because of that
    result     facts about what it made, by name
    """

    asks: tuple[Ask, ...] = ()
    withdrawn: tuple[int, ...] = ()
    renew: bool = False
    num_left: int = 0
    ended: bool = False
    error: str | None = None
    lacking: str | None = None
    result: dict[str, Any] | None = None
