"""chanas/service/store/uploads.py: a file is there as long as somebody has uploaded it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chanas.service.store.database import Database
from chanas.service.store.uploads import Uploads


@pytest.fixture
def uploads(tmp_path: Path, database: Database) -> Uploads:
    return Uploads(database, tmp_path / "uploads", 100)


def sent(uploads: Uploads, tenant: str) -> str:
    async def content() -> AsyncIterator[bytes]:
        yield b"content"

    return asyncio.run(uploads.receive(tenant, content()))[0]


def test_a_file_that_another_tenant_deletes_as_it_comes_in(
    uploads: Uploads, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256, write = sent(uploads, "a"), database.write

    def late(change: Any) -> Any:
        """Before the second upload is noted the first one is deleted."""
        monkeypatch.undo()
        uploads.delete("a", sha256)
        return write(change)

    monkeypatch.setattr(database, "write", late)
    assert sent(uploads, "b") == sha256
    uploads.check("b", sha256)
    assert uploads.path(sha256).read_bytes() == b"content"


def test_a_file_whose_removal_is_not_written_stays(
    uploads: Uploads, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256, write = sent(uploads, "a"), database.write

    def undone(change: Any) -> Any:
        def fail(db: sqlite3.Connection) -> None:
            change(db)
            raise OSError

        return write(fail)

    monkeypatch.setattr(database, "write", undone)
    with pytest.raises(OSError):
        uploads.delete("a", sha256)
    uploads.check("a", sha256)
    assert uploads.path(sha256).exists()
