"""The pool of a tuning that shares its machine: stands where a `WorkerPool` stands, and sends on what it is asked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from chanas.errors import MeasureError
from chanas.measuring.local.pool import Awaited, Compute
from chanas.measuring.messages import Answer, Learn, Request
from chanas.measuring.shared.turns import Ask, Rest, Turn

LEARN_TIMEOUT_S = 600.0
"""Many times what a fit to some hundred records takes."""

Exchange = Callable[[Rest], Turn]
"""Ends a turn, and waits for the next one."""


class SharedPool:
    """Builds and timings that others carry out. Whoever waits for an answer ends the turn.

    Args:
        exchange: ends a turn.
        num_builders: slots of the host.
        overlap: builds and timings may go on at the same time.
        num_devices: that time.
        learns: what cost models ask is computed elsewhere, too.
    """

    def __init__(
        self, exchange: Exchange, num_builders: int, overlap: bool, num_devices: int = 1, *, learns: bool = False
    ) -> None:
        self.num_builders, self.overlap, self.num_devices = num_builders, overlap, num_devices
        self.timing_s = self.building_s = 0.0
        self.compute: Compute | None = self._compute if learns else None
        self._exchange = exchange
        self._numbers = itertools.count()
        self._open: dict[int, tuple[Ask, Future[Answer]]] = {}
        self._asks: list[Ask] = []
        self._renew = False
        self._num_left = 0

    def expect(self, num_builds: int) -> None:
        """Tell, at the end of the turn, that so many builds will come."""
        self._num_left = num_builds

    def build(self, request: Request, timeout_s: float) -> Future[Answer]:
        """Compile on a slot of the host."""
        self._num_left = max(0, self._num_left - 1)
        return self._ask(request, timeout_s, times=False)

    def measure(self, request: Request, timeout_s: float, device: int | None = None) -> Future[Answer]:
        """Time on the device of this number, or on any."""
        return self._ask(request, timeout_s, times=True, device=device)

    def renew_timers(self) -> None:
        """Time in a new process from now on."""
        self._renew = True

    def _compute(self, question: dict[str, Any]) -> dict[str, Any]:
        answer = self._ask(Learn(question=question), LEARN_TIMEOUT_S, times=False).result()
        if answer.error is not None:
            raise MeasureError(f"what was learned elsewhere was lost: {answer.error}; run the same command again")
        found: dict[str, Any] = answer.result
        return found

    def _ask(self, request: Request, timeout_s: float, *, times: bool, device: int | None = None) -> Future[Answer]:
        number = next(self._numbers)
        ask = Ask(number=number, times=times, timeout_s=timeout_s, request=request, device=device)
        future = Awaited(self._settle)
        self._open[ask.number] = ask, future
        self._asks.append(ask)
        return future

    def _settle(self, futures: Sequence[Future[Any]]) -> None:
        """End turns until one of the futures is done."""
        while not any(future.done() for future in futures):
            turn = self._exchange(self._rest())
            for answered in turn.answers:
                ask, future = self._open.pop(answered.number)
                answer = answered.answer
                if ask.times:
                    self.timing_s += answer.wall_s
                else:
                    self.building_s += answer.wall_s
                if future.set_running_or_notify_cancel():
                    future.set_result(answer)

    def _rest(self) -> Rest:
        asked = {ask.number for ask in self._asks}
        cancelled = {number for number, (_, future) in self._open.items() if future.cancelled()}
        for number in cancelled & asked:  # nobody has heard of these
            del self._open[number]
        asks, self._asks = tuple(ask for ask in self._asks if ask.number not in cancelled), []
        renew, self._renew = self._renew, False
        return Rest(asks=asks, withdrawn=tuple(sorted(cancelled - asked)), renew=renew, num_left=self._num_left)
