"""Folders and records of one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chanas.files.run import RunDirectory
from chanas.prescheduler.records.store import RecordStore

from ..compiler.workbench import HOST


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    """Records of this machine, used with one thread."""
    opened = RecordStore(tmp_path / "records.sqlite", HOST)
    yield opened
    opened.close()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder
