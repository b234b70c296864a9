"""Server-sent events: changes of a job as they happen."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from chanas.errors import ServiceError
from chanas.service.api.connections import max_connections
from chanas.service.store.jobs import ENDED, JobStore

HEARTBEAT_S = 15.0
MAX_WATCHERS = 200
"""Streams of a tenant at once."""


class Hub:
    """Wakes the streams of jobs that have changed. But for `tell`, the event loop's thread alone calls it."""

    def __init__(self, store: JobStore, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._store, self._heartbeat_s = store, heartbeat_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._num_of_tenant: Counter[str] = Counter()
        self._is_ending = False
        store.listen(self.tell)

    def start(self) -> None:
        """Serve this thread's event loop."""
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Tell nobody any more."""
        self._loop = None

    def tell(self, jobs: frozenset[str]) -> None:
        """Wake those who watch these jobs, from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, jobs)

    def end(self) -> None:
        """End all streams, from any thread: a service that stops would wait for them. Whoever watches comes again."""
        self._is_ending = True
        self.tell(frozenset(self._waiting))

    def _wake(self, jobs: frozenset[str]) -> None:
        for job in jobs & self._waiting.keys():
            for event in self._waiting[job]:
                event.set()

    @contextlib.contextmanager
    def counted(self, tenant: str) -> Iterator[None]:
        """Count a stream of a tenant.

        Raises:
            ServiceError: the tenant, or all of them, watch too many jobs (429).
        """
        if self._num_of_tenant[tenant] >= MAX_WATCHERS:
            raise ServiceError(f"you watch {MAX_WATCHERS} jobs already; end some of these streams", 429)
        if self._num_of_tenant.total() >= max_connections() // 2:
            raise ServiceError("too many jobs are watched now; ask for the job's state instead", 429)
        self._num_of_tenant[tenant] += 1
        try:
            yield
        finally:
            self._num_of_tenant[tenant] -= 1
            self._num_of_tenant += Counter()  # drops those at zero

    async def stream(self, tenant: str, job: str, after: int) -> AsyncIterator[str]:
        """Events of a job after the one of a number, to its end; a comment where nothing happens for long."""
        changed = asyncio.Event()
        self._waiting[job].add(changed)
        told = None
        try:
            while True:
                changed.clear()
                row = self._store.get(tenant, job)
                for event in self._store.events(job, after):
                    after = event["seq"]
                    data = json.dumps({"state": event["what"], "at": event["at"]})
                    yield f"id: {after}\nevent: state\ndata: {data}\n\n"
                if row["progress"] not in (None, told):
                    told = row["progress"]
                    yield f"event: progress\ndata: {told}\n\n"
                if row["state"] in ENDED or self._is_ending:
                    return
                try:
                    await asyncio.wait_for(changed.wait(), self._heartbeat_s)
                except TimeoutError:
                    yield ": still there\n\n"
        finally:
            self._waiting[job].discard(changed)
            if not self._waiting[job]:
                del self._waiting[job]


class Stream(StreamingResponse):
    """The events of a job as an answer, which is counted as long as it is sent."""

    def __init__(self, hub: Hub, tenant: str, job: str, after: int) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(hub.stream(tenant, job, after), media_type="text/event-stream", headers=headers)
        self._hub, self._tenant = hub, tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.counted(self._tenant):
            await super().__call__(scope, receive, send)
