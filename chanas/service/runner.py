"""The runner: jobs from the store to the scheduler, a bounded number at once, and their ends back to the store.

Three kinds of threads: the scheduler's own, which must not wait; a clerk, who claims jobs and ends those that are not
wanted; and a few that wait for processes to end and write bundles.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from chanas.errors import ChanasError, describe, shortage
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
SHORTAGE_S, _MAX_SHORTAGE_S = 2.0, 4.0
"""Seconds after a shortage of disk space or files until the next try, twice as long after each that fails."""
_NUM_CHARACTERS = 300
RETURN_WITHIN_S = 120.0
"""Jobs whose devices are all lost wait so long for one of them."""
_BROKEN_OFF = (Status.KILLED, Status.CANCELLED)

_LOG = logging.getLogger("chanas.service")


@dataclass(frozen=True)
class _End:
    """The end of an attempt.

    opened   what the scheduler ran; None where it could not be opened
    lacking  what the machine was short of, where the attempt failed because of that
    """

    claimed: Claimed
    opened: Opened | None
    status: Status
    error: str | None = None
    lacking: str | None = None


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
        self._faults: dict[str, str] = {}
        self._database, self._store, self._max_jobs, self._failed = database, store, max_jobs, failed
        self._executor = PoolExecutor(work.pools())
        self._scheduler = Scheduler(
            work.resources(), policy("slack"), self._executor, ended=self._end, observe=self._observe
        )
        self._scheduler.return_within_s = RETURN_WITHIN_S
        self._changed = threading.Event()
        self._lock = threading.Lock()  # of what follows
        self._joined: dict[str, tuple[Claimed, Opened]] = {}  # by the attempt's name, as counts are
        self._unwritten: list[_End] = []  # for want of room
        self._next_try_s, self._shortage_s = 0.0, SHORTAGE_S
        self._touched: set[str] = set()
        self._use: Use = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._fresh: set[str] = set()  # attempts whose counts are not in the store yet
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
        for name in self._at_work():
            self._kill(name)
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

    def _at_work(self) -> list[str]:
        with self._lock:
            return list(self._joined)

    @property
    def fault(self) -> str | None:
        """The reason that jobs cannot run now, without names of files; None while they can."""
        with self._lock:
            return "; ".join(self._faults.values()) or None

    def _note(self, what: str, fault: str | None) -> None:
        """Note what is wrong with a part of this, or that nothing is."""
        with self._lock:
            if fault is None:
                self._faults.pop(what, None)
            else:
                self._faults[what] = fault

    def _wait_out(self, lacking: str) -> None:
        """Begin no job until the machine may have again what it lacks."""
        self._note("shortage", f"jobs wait, as the machine is short: {lacking}")
        with self._lock:
            now_s = time.monotonic()
            if now_s > self._next_try_s:  # several jobs at once are one shortage
                self._next_try_s = now_s + self._shortage_s
                self._shortage_s = min(2.0 * self._shortage_s, _MAX_SHORTAGE_S)

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
        with self._lock:
            add_span(self._use, span.resource, span.unit, span.start_s + offset_s, span.end_s + offset_s)
            counts = self._counts.get(span.job)
            if counts is not None and span.ended == "done":
                counts[span.kind] = counts.get(span.kind, 0) + 1
                self._fresh.add(span.job)

    def _end(self, entry: Entry) -> None:
        with self._lock:
            joined = self._joined[entry.name]
        self._finishers.submit(self._finish, _End(*joined, entry.status, entry.error, shortage(entry.cause)))

    # The scheduler's thread

    def _serve(self) -> None:
        try:
            self._scheduler.serve()
        except Exception as error:  # nothing can run without it: the service ends, and whatever restarts it continues
            fault = f"the scheduler failed: {describe(error, _NUM_CHARACTERS)}"
            self._note("scheduler", fault)
            self._failed(fault)

    # The clerk

    def _clerk(self) -> None:
        while not self._stopping:
            self._changed.wait(_CLERK_S)
            self._changed.clear()
            try:
                self._look()
            except Exception as error:  # the disk is full, say: the next look may find room
                _LOG.warning("jobs cannot be read or written: %s", _told(error))
                self._note("clerk", f"jobs cannot be read or written: {shortage(error) or type(error).__name__}")
            else:
                self._note("clerk", None)

    def _look(self) -> None:
        """Do all that there is to do now."""
        for name in self._store.interrupted():
            if name in self._at_work():
                self._kill(name)
        if time.monotonic() >= self._next_try_s:
            self._write_ends()
            self._begin_jobs()
        self._clear_ended()
        self._flush_now_and_then()

    def _write_ends(self) -> None:
        """Try once more to write what there was no room for."""
        with self._lock:
            unwritten, self._unwritten = self._unwritten, []
        for end in unwritten:
            self._finishers.submit(self._finish, end)

    def _begin_jobs(self) -> None:
        while len(self._joined) < self._max_jobs and not self._stopping:
            claimed = self._store.claim().result()
            if claimed is None:
                break
            if not self._join(claimed):
                return
        self._note("shortage", None)

    def _kill(self, name: str) -> None:
        try:
            self._scheduler.kill(name)
        except ChanasError:  # it has ended by itself meanwhile
            return

    def _join(self, claimed: Claimed) -> bool:
        """Hand a job to the scheduler; False where the machine is short of what that takes."""
        try:
            opened = self.work.open(claimed)
        except Exception as error:  # a job of any kind: its fault ends it alone
            self._finish(end := _End(claimed, None, Status.FAILED, _told(error), shortage(error)))
            return end.lacking is None
        with self._lock:
            self._joined[claimed.name], self._counts[claimed.name] = (claimed, opened), {}
        due_s = None
        if claimed.deadline is not None:
            due_s = self._executor.now_s + claimed.deadline - time.time()
        terms = Terms(user=claimed.tenant, priority=claimed.priority, deadline_s=due_s)
        self._scheduler.join(claimed.name, opened.job, terms)
        return True

    def _clear_ended(self) -> None:
        """Remove the folders of jobs that have ended."""
        with self._lock:
            touched = self._touched - {claimed.id for claimed, _ in self._joined.values()}
            self._touched -= touched
        for job in self._store.ended_among(sorted(touched)):
            self._finishers.submit(self._clear, job)

    def _clear(self, job: str) -> None:
        try:
            self.work.clear(job)
        except Exception as error:  # the folder stays until there is room, or the service starts anew
            _LOG.warning("the folder of job %s cannot be removed: %s", job, _told(error))
            if shortage(error) is not None:
                with self._lock:
                    self._touched.add(job)

    # Finishers

    def _finish(self, end: _End) -> None:
        """Write how an attempt ended; where there is no room for that, it is kept for later."""
        claimed = end.claimed
        if end.lacking is not None:
            self._wait_out(end.lacking)
        try:
            try:
                self._write_end(end)
            except Exception as fault:  # its bundle cannot be written, say
                if shortage(fault) is not None:
                    raise
                self._store.fail(claimed.id, claimed.attempt, _told(fault)).result()
        except Exception as fault:
            _LOG.warning("the end of job %s cannot be written yet: %s", claimed.id, _told(fault))
            self._wait_out(shortage(fault) or type(fault).__name__)
            with self._lock:
                self._unwritten.append(end)
            return
        with self._lock:
            self._counts.pop(claimed.name, None)
            self._joined.pop(claimed.name, None)
            if end.status is Status.COMPLETE:
                self._shortage_s = SHORTAGE_S
        self._touch(frozenset())

    def _write_end(self, end: _End) -> None:
        claimed = end.claimed
        if end.opened is not None:
            end.opened.close()
        if end.status is Status.COMPLETE and end.opened is not None:
            made = self.work.finish(claimed, end.opened.facts)
            self._store.complete(claimed.id, claimed.attempt, made).result()
            return
        self.work.keep(claimed.id)
        if end.status in _BROKEN_OFF or end.lacking is not None:
            self._store.release(claimed.id, claimed.attempt).result()
        else:
            self._store.fail(claimed.id, claimed.attempt, end.error or "it failed").result()

    # Figures

    def _flush_now_and_then(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_progress_s >= _PROGRESS_S:
            self._last_progress_s = now_s
            with self._lock:
                fresh = self._fresh & self._counts.keys()
                progress = {name.partition(".")[0]: dict(self._counts[name]) for name in fresh}
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
