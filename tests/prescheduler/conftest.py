"""Worker processes start once for all tests of the prescheduler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from chanas.prescheduler.measuring.local import pool as local
from chanas.prescheduler.measuring.local.pool import WorkerPool
from chanas.prescheduler.tables import networks

from .cases import HOST, SyntheticPool, Workbench


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    """One timing worker and the compiling ones of this machine, one thread each."""
    with WorkerPool(HOST) as workers:
        yield workers


@pytest.fixture(scope="session")
def workbench(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    return Workbench(pool, tmp_path_factory.mktemp("workbench"))


@pytest.fixture
def shared_pool(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> WorkerPool:
    """Whoever would start workers of their own gets those that are there."""
    monkeypatch.setattr(local, "WorkerPool", lambda _target: contextlib.nullcontext(pool))
    return pool


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks are timed in one process instead of three to five, each of which starts anew."""
    monkeypatch.setattr(networks, "_MOST_PROCESSES", 1)


@pytest.fixture
def synthetic_pool(monkeypatch: pytest.MonkeyPatch) -> SyntheticPool:
    """Whoever would start workers gets invented seconds, at once."""
    invented = SyntheticPool()
    monkeypatch.setattr(local, "WorkerPool", lambda _target: invented)
    return invented
