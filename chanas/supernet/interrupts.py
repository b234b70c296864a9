"""Ctrl-C and SIGTERM held back until a training step is over, so that what is checkpointed is never half an update."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class DeferredSignals:
    """Inside `with`, the first SIGINT or SIGTERM is only noted in `received`; a second one acts at once.

    Signals can only be handled in the main thread; elsewhere this does nothing.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
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
        """What the noted signal stands for: KeyboardInterrupt for SIGINT, a clean exit for SIGTERM (preemption)."""
        if self.received is signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is signal.SIGTERM:
            raise SystemExit(0)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._old.clear()
