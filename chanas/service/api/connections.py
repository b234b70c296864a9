"""Connections of the service: bounded in number, ended where they stay silent, and few lines in the log for many."""

from __future__ import annotations

import asyncio
import logging
import resource
import time

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S, SILENCE_S, LOOK_S = 20.0, 60.0, 2.0
"""Seconds that a client may take to say what it wants; that it may say nothing in the middle of a body, or read nothing
of an answer; and between looks at that."""
_MAX_CONNECTIONS = 4096
_MAX_LINES, _LINES_S, _START, _MAX_KINDS = 10, 60.0, 40, 200


def max_connections() -> int:
    """Connections that are open at once: half of the files that the process may open, as jobs need files, too."""
    return max(1, min(_MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))


class Connection(H11Protocol):
    """A connection; where there are too many the one ends that has asked for nothing for longest."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waits_since_s = self._heard_s = self._read_s = self.loop.time()
        self._look = self.loop.call_later(LOOK_S, self._end_if_silent)
        if len(self.connections) > max_connections():
            left = [c for c in self.connections if isinstance(c, Connection) and not c.transport.is_closing()]
            if len(left) > max_connections():
                waiting = (c for c in left if c.waits)
                min(waiting, key=lambda c: c._waits_since_s, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard_s = self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._waits_since_s = self.loop.time()
        super().on_response_complete()

    @property
    def waits(self) -> bool:
        """It has not asked for anything, or has its answer."""
        return self.cycle is None or self.cycle.response_complete

    def _end_if_silent(self) -> None:
        now_s = self.loop.time()
        if not self.flow.write_paused:
            self._read_s = now_s
        silent = now_s - self._waits_since_s > HEAD_S if self.waits else False
        silent |= not self.waits and self.cycle.more_body and now_s - self._heard_s > SILENCE_S
        if silent or now_s - self._read_s > SILENCE_S:
            self.transport.abort()
            return
        self._look = self.loop.call_later(LOOK_S, self._end_if_silent)


class SparseLog(logging.Filter):
    """Lets ten records of a kind through in a minute, and says how many it has left out."""

    def __init__(self) -> None:
        super().__init__()
        self._nums: dict[str, tuple[float, int]] = {}
        """Beginning of the minute of each kind, and its records since."""

    def filter(self, record: logging.LogRecord) -> bool:
        now_s, kind = time.monotonic(), str(record.msg)[:_START]
        since_s, num = self._nums.get(kind, (now_s, 0))
        if now_s - since_s > _LINES_S:
            if num > _MAX_LINES:
                record.msg = f"{record.getMessage()} ({num - _MAX_LINES} more of this kind were left out)"
                record.args = ()
            since_s, num = now_s, 0
        if len(self._nums) > _MAX_KINDS:
            self._nums.clear()
        self._nums[kind] = since_s, num + 1
        return num < _MAX_LINES


def keep_logs_small() -> None:
    """Bound what the loggers of the service say, however often it happens."""
    for name in ("uvicorn.error", "asyncio", "chanas.service"):
        logging.getLogger(name).addFilter(SparseLog())
