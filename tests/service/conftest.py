"""A service on mock work, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from chanas.service.api.service import Service
from chanas.service.folder import DataFolder
from chanas.service.mock import MockWork
from chanas.service.runner import Runner
from chanas.service.store.database import Database
from chanas.service.store.jobs import JobStore
from chanas.service.store.uploads import Uploads

MAX_BYTES = 1000
"""Of an upload."""


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path / "data")


@pytest.fixture
def database(folder: DataFolder) -> Iterator[Database]:
    with contextlib.closing(Database(folder.database)) as opened:
        yield opened


@pytest.fixture
def store(database: Database) -> JobStore:
    return JobStore(database)


@pytest.fixture
def service(folder: DataFolder, database: Database, store: JobStore) -> Iterator[Service]:
    runner = Runner(database, store, MockWork(folder))
    runner.start()
    yield Service(database, store, Uploads(database, folder.uploads, MAX_BYTES), runner)
    runner.stop()


@pytest.fixture
def idle(folder: DataFolder, database: Database, store: JobStore) -> Service:
    """A service that runs nothing."""
    return Service(
        database, store, Uploads(database, folder.uploads, MAX_BYTES), Runner(database, store, MockWork(folder))
    )
