"""A service on mock work, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from chanas.service.folder import DataFolder
from chanas.service.store.database import Database
from chanas.service.store.jobs import JobStore


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
