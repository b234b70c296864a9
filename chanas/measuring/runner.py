"""Runners of requests, processes of this machine or devices elsewhere, and what becomes of those that are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from chanas.errors import ChanasError, MeasureError
from chanas.measuring.messages import Answer, Request, WorkerError

POLL_S = 1.0
"""Seconds between two looks for a runner that is away."""
RETURN_WITHIN_S = 120.0
"""Seconds to wait for a runner that was lost or is busy."""


class RunnerLostError(Exception):
    """Raised where a runner went away over a request: that says nothing about what was asked."""


class Runner(Protocol):
    """One thing at a time runs on it."""

    @property
    def is_there(self) -> bool:
        """True as far as is known."""

    def call(self, request: Request, timeout_s: float) -> Answer:
        """Run one request; what a candidate does to the process that it runs in is an answer with an error.

        Raises:
            RunnerLostError: the runner is lost.
            MeasureError: it can't run anything.
        """

    def restore(self) -> WorkerError | None:
        """Try once to have it, or another one in its place: the reason why there is none, or None.

        Raises:
            ChanasError: what is there is of another kind.
        """

    def stop(self) -> None:
        """Give up the call that another thread waits for."""

    def close(self) -> None:
        """End it for good."""


def look_for(runner: Runner, goes_on: Callable[[WorkerError], bool]) -> bool:
    """Look for a runner until it is there (True), or until `goes_on`, which waits between two looks, says no to the
    reason that it isn't (False)."""
    while not runner.is_there:
        try:
            reason = runner.restore()
        except (ChanasError, OSError) as error:  # of another kind, say: the right one may come yet
            reason = WorkerError.of(error)
        if reason is not None and not goes_on(reason):
            return False
    return True


def stays_away(what: str, within_s: float, reason: WorkerError) -> MeasureError:
    """The error for a runner that was waited for in vain: `no device of key 'pi4' came back`."""
    return MeasureError(
        f"{what} within {within_s:g} s ({reason.message}); what was measured is kept, and the same command goes on "
        "when one is there"
    )
