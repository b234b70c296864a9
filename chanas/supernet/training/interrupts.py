"""Ctrl-C and SIGTERM held back until a training step is over, so that what is checkpointed is never half an update."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class DeferredSignals:
    """Inside `with`, the first SIGINT or SIGTERM is only noted in `received`; a second one acts at once.

    With `once`, later ones do nothing: a launcher passes on what its processes got already.

    Signals can only be handled in the main thread; elsewhere this does nothing.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, once: bool = False) -> None:
        self._once = once
        self.received: signal.Signals | None = None
        self._old: dict[signal.Signals, object] = {}

    def __enter__(self) -> DeferredSignals:
        if threading.current_thread() is threading.main_thread():
            for number in self._SIGNALS:
                self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def raise_received(self) -> None:
        """Raise the exception of the noted signal, if there is one."""
        if self.received is not None:
            self.raise_signal(self.received)

    @staticmethod
    def raise_signal(received: signal.Signals) -> None:
        """KeyboardInterrupt for SIGINT, a clean exit for SIGTERM (preemption)."""
        if received is signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(0)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        if not self._once:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._old.clear()
