"""The runner: jobs from the store to the scheduler, a bounded number at once, and their ends back to the store.

Three kinds of threads: the scheduler's own, which must not wait; a clerk, who claims jobs and ends those that are not
wanted; and a few that wait for processes to end and write bundles.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from chanas.errors import ChanasError, describe
from chanas.scheduler.board import Entry, Status
from chanas.scheduler.engine import Scheduler, Terms
from chanas.scheduler.policies import policy
from chanas.scheduler.pools import PoolExecutor
from chanas.scheduler.trace import Span
from chanas.service.store.database import Database
from chanas.service.store.jobs import Claimed, JobStore
from chanas.service.store.use import Use, add_span, note_use
from chanas.service.work import Opened, Work

DEFAULT_NUM_JOBS = 4
_CLERK_S, _PROGRESS_S, _USE_S = 1.0, 2.0, 10.0
_NUM_CHARACTERS = 300
RETURN_WITHIN_S = 120.0
"""Jobs whose devices are all lost wait so long for one of them."""
_BROKEN_OFF = (Status.KILLED, Status.CANCELLED)


@dataclass(frozen=True)
class _Joined:
    claimed: Claimed
    opened: Opened

    @property
    def name(self) -> str:
        """Unlike any other in the scheduler: a job may join again before its last attempt has left."""
        return f"{self.claimed.id}.{self.claimed.attempt}"


class Runner:
    """Runs the store's jobs from `start` to `stop`.

    Args:
        max_jobs: that are in the scheduler at once; each may be a process. The others wait in the store.
        failed: called when the scheduler cannot go on; nothing runs from then on.
    """

    def __init__(
        self,
        database: Database,
        store: JobStore,
        work: Work,
        max_jobs: int = DEFAULT_NUM_JOBS,
        failed: Callable[[str], None] = lambda _error: None,
    ) -> None:
        self.work = work
        self.fault: str | None = None
        self._database, self._store, self._max_jobs, self._failed = database, store, max_jobs, failed
        self._executor = PoolExecutor(work.pools())
        self._scheduler = Scheduler(
            work.resources(), policy("slack"), self._executor, ended=self._end, observe=self._observe
        )
        self._scheduler.return_within_s = RETURN_WITHIN_S
        self._joined: dict[str, _Joined] = {}
        self._changed = threading.Event()
        self._lock = threading.Lock()  # of what follows
        self._touched: set[str] = set()
        self._use: Use = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._fresh: set[str] = set()  # jobs whose counts nobody was told
        self._lost: set[tuple[str, int]] = set()
        self._stopping = False
        self._last_use_s = self._last_progress_s = 0.0
        self._finishers = ThreadPoolExecutor(max_jobs, "finisher")
        self._threads = [threading.Thread(target=self._serve, name="scheduler", daemon=True)]
        self._threads.append(threading.Thread(target=self._clerk, name="clerk", daemon=True))
        store.listen(self._touch)
        work.watch(self._lose, self._restore)

    def start(self) -> None:
        """Begin: what ran when an earlier service ended is queued again."""
        self._store.recover().result()
        self._touch(frozenset(self.work.left()))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all processes; jobs that run go back into the queue, with what they have measured."""
        self._stopping = True
        self._changed.set()
        self._threads[1].join()
        for joined in list(self._joined.values()):
            self._kill(joined.name)
        self.work.close()
        self._scheduler.stop()
        self._threads[0].join()
        self._finishers.shutdown()
        self._executor.close()
        self._flush()

    # Called by other threads

    def _touch(self, jobs: frozenset[str]) -> None:
        with self._lock:
            self._touched |= jobs
        self._changed.set()

    @property
    def lost(self) -> list[tuple[str, int]]:
        """Resource and number of the units that are out of service."""
        with self._lock:
            return sorted(self._lost)

    def _lose(self, resource: str, unit: int) -> None:
        with self._lock:
            self._lost.add((resource, unit))
        self._scheduler.lose(resource, unit)

    def _restore(self, resource: str, unit: int) -> None:
        with self._lock:
            self._lost.discard((resource, unit))
        self._scheduler.restore(resource, unit)

    def _observe(self, span: Span) -> None:
        offset_s = time.time() - time.monotonic()
        job = span.job.partition(".")[0]
        with self._lock:
            add_span(self._use, span.resource, span.unit, span.start_s + offset_s, span.end_s + offset_s)
            counts = self._counts.get(job)
            if counts is not None and span.ended == "done":
                counts[span.kind] = counts.get(span.kind, 0) + 1
                self._fresh.add(job)

    def _end(self, entry: Entry) -> None:
        joined = self._joined[entry.name.partition(".")[0]]
        self._finishers.submit(self._finish, joined, entry.status, entry.error)

    # The scheduler's thread

    def _serve(self) -> None:
        try:
            self._scheduler.serve()
        except Exception as error:  # nothing can run without it: the service ends, and whatever restarts it goes on
            self.fault = f"the scheduler cannot go on: {describe(error, _NUM_CHARACTERS)}"
            self._failed(self.fault)

    # The clerk

    def _clerk(self) -> None:
        while not self._stopping:
            self._changed.wait(_CLERK_S)
            self._changed.clear()
            try:
                self._look()
            except ChanasError as error:  # the disk is full, say: the next look may find room
                self.fault = str(error)
            else:
                self.fault = None if self._threads[0].is_alive() else self.fault

    def _look(self) -> None:
        """Do all that there is to do now."""
        for job, _ in self._store.interrupted().items():
            joined = self._joined.get(job)
            if joined is not None:
                self._kill(joined.name)
        while len(self._joined) < self._max_jobs and not self._stopping:
            claimed = self._store.claim().result()
            if claimed is None:
                break
            self._join(claimed)
        self._clear_ended()
        self._flush_now_and_then()

    def _kill(self, name: str) -> None:
        try:
            self._scheduler.kill(name)
        except ChanasError:  # it has ended by itself meanwhile
            return

    def _join(self, claimed: Claimed) -> None:
        try:
            opened = self.work.open(claimed)
        except Exception as error:  # a job of any kind: its fault ends it alone
            self._store.fail(claimed.id, claimed.attempt, _told(error)).result()
            return
        joined = _Joined(claimed, opened)
        self._joined[claimed.id] = joined
        with self._lock:
            self._counts[claimed.id] = {}
        due_s = None
        if claimed.deadline is not None:
            due_s = self._executor.now_s + claimed.deadline - time.time()
        terms = Terms(user=claimed.tenant, priority=claimed.priority, deadline_s=due_s)
        self._scheduler.join(joined.name, opened.job, terms)

    def _clear_ended(self) -> None:
        """Remove the folders of jobs that have ended."""
        with self._lock:
            touched = {job for job in self._touched if job not in self._joined}
            self._touched -= touched
        for job in self._store.ended_among(sorted(touched)):
            self._finishers.submit(self._clear, job)

    def _clear(self, job: str) -> None:
        try:
            self.work.clear(job)
        except (ChanasError, OSError) as error:
            self.fault = _told(error)

    # Finishers

    def _finish(self, joined: _Joined, status: Status, error: str | None) -> None:
        claimed = joined.claimed
        try:
            joined.opened.close()
            if status is Status.COMPLETE:
                made = self.work.finish(claimed, joined.opened.facts)
                self._store.complete(claimed.id, claimed.attempt, made).result()
            else:
                self.work.keep(claimed.id)
                if status in _BROKEN_OFF:
                    self._store.release(claimed.id, claimed.attempt).result()
                else:
                    self._store.fail(claimed.id, claimed.attempt, error or "it failed").result()
        except Exception as fault:  # its bundle cannot be written, say
            self._store.fail(claimed.id, claimed.attempt, _told(fault)).exception()
        finally:
            with self._lock:
                self._counts.pop(claimed.id, None)
            self._joined.pop(claimed.id, None)
            self._touch(frozenset())

    # Figures

    def _flush_now_and_then(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_progress_s >= _PROGRESS_S:
            self._last_progress_s = now_s
            with self._lock:
                progress = {job: dict(self._counts[job]) for job in self._fresh if job in self._counts}
                self._fresh.clear()
            if progress:
                self._store.progress(progress)
        if now_s - self._last_use_s >= _USE_S:
            self._last_use_s = now_s
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            use, self._use = self._use, {}
        if use:
            note_use(self._database, use, time.time())


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, ChanasError) else describe(error, _NUM_CHARACTERS)
