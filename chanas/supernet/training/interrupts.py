"""Ctrl-C and SIGTERM held back until a training step is over, so that what is checkpointed is never half an update."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from chanas import interrupts


class Ended(BaseException):
    """A signal came in between; whoever catches it has to put back what the block had changed."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.number = number


class DeferredSignals:
    """Inside `with`, the first SIGINT, SIGTERM or SIGHUP is only noted in `received`; a second one acts at once.

    With `once`, later ones do nothing, as a launcher passes on what its processes got already, and none cuts in: what
    several processes compute together they end together.

    Signals can only be handled in the main thread; elsewhere this does nothing.
    """

    def __init__(self, once: bool = False) -> None:
        self._once = once
        self._within_s: float | None = None
        self.received: signal.Signals | None = None
        self._old: dict[signal.Signals, Any] = {}
        self._old_alarm: Any = None

    def __enter__(self) -> DeferredSignals:
        if threading.current_thread() is threading.main_thread():
            for number in interrupts.SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._old[number] = signal.signal(number, self._note)
            self._old_alarm = signal.signal(signal.SIGALRM, self._cut_in)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()
        if self._old_alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._old_alarm)

    @contextlib.contextmanager
    def cut_in(self, within_s: float = 0.0) -> Iterator[None]:
        """Inside, a signal doesn't wait for the end of the block for more than `within_s`.

        Raises:
            Ended: it came here, or before.
        """
        if self._once:
            yield
            return
        self._within_s = within_s
        try:
            if self.received is not None and not within_s:
                raise Ended(self.received)
            yield
        finally:
            self._within_s = None

    def raise_received(self) -> None:
        """Raise `Interrupted` where a signal was noted."""
        if self.received is not None:
            raise interrupts.Interrupted(self.received)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        if self._within_s == 0:
            self._cut_in(number, frame)
        if self._within_s is not None:
            signal.setitimer(signal.ITIMER_REAL, self._within_s)
        if not self._once and not interrupts.listens():  # which then ends the process
            self._restore()

    def _cut_in(self, _number: int, _frame: FrameType | None) -> None:
        if self._within_s is not None and self.received is not None:
            raise Ended(self.received)

    def _restore(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old.clear()
