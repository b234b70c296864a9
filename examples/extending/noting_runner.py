"""A runner from outside the package: a worker process, and a log of what it was asked and how long that took."""

from __future__ import annotations

import time
from collections.abc import Sequence

from chanas.measuring.messages import Answer, Request, WorkerError
from chanas.measuring.worker.process import WorkerProcess


class NotingRunner:
    """Hands requests on to a worker process of this machine and notes each with its seconds."""

    def __init__(self, cores: Sequence[int], log: list[tuple[str, float]]) -> None:
        self._worker, self._log = WorkerProcess(1, cores), log

    @property
    def is_there(self) -> bool:
        """True as far as is known."""
        return self._worker.is_there

    def call(self, request: Request, timeout_s: float) -> Answer:
        """Run one request, and note it."""
        start = time.monotonic()
        answer = self._worker.call(request, timeout_s)
        self._log.append((request.call, time.monotonic() - start))
        return answer

    def restore(self) -> WorkerError | None:
        """Have the process again."""
        return self._worker.restore()

    def stop(self) -> None:
        """Give up the call of another thread."""
        self._worker.stop()

    def close(self) -> None:
        """End the process."""
        self._worker.close()
