"""Uploaded files: stored under their hashes, never under a name that somebody gave, and never opened here."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from chanas.errors import ServiceError
from chanas.service.store.database import Database

MIB = 1 << 20
_SHARES = 16
"""Uploads of the largest size that a tenant may have here."""
_START = 4
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_hash(text: str) -> bool:
    """True of a SHA-256 in hexadecimal digits, which is no path."""
    return _SHA256.fullmatch(text) is not None


class Uploads:
    """Files in a folder, and whose they are.

    Args:
        max_bytes: of one file; a tenant may have 16 times as much here.
    """

    def __init__(self, database: Database, folder: Path, max_bytes: int) -> None:
        self._database, self._folder, self.max_bytes = database, folder, max_bytes
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*.part"):  # of a service that was killed
            left.unlink(missing_ok=True)

    async def receive(self, tenant: str, chunks: AsyncIterator[bytes]) -> tuple[str, int]:
        """Store what comes in; its SHA-256 and size.

        Raises:
            ServiceError: it is too large (413), empty (400), or a pickle or an archive, which may hold one (415).
        """
        query = "SELECT COALESCE(SUM(num_bytes), 0) FROM uploads WHERE tenant=?"
        room = _SHARES * self.max_bytes - self._database.read().execute(query, (tenant,)).fetchone()[0]
        digest, size, start = hashlib.sha256(), 0, b""
        handle, name = tempfile.mkstemp(suffix=".part", dir=self._folder)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self.max_bytes:
                        raise ServiceError(f"expected at most {self.max_bytes / MIB:g} MiB; this is more", 413)
                    if size > room:
                        raise ServiceError("your uploads take all the room that you have; delete some", 413)
                    start += chunk[: _START - len(start)]
                    digest.update(chunk)
                    file.write(chunk)
                _check_start(start)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            sha256 = digest.hexdigest()
            row = (sha256, tenant, size, time.time())

            def change(db: sqlite3.Connection) -> None:
                db.execute("INSERT OR IGNORE INTO uploads VALUES (?, ?, ?, ?)", row)
                os.replace(part, self._folder / sha256)  # by the thread that also removes files

            await asyncio.wrap_future(self._database.write(change))
        finally:
            part.unlink(missing_ok=True)
        return sha256, size

    def path(self, sha256: str) -> Path:
        """The place of an upload."""
        if not is_hash(sha256):
            raise ServiceError("expected the SHA-256 of an upload")
        return self._folder / sha256

    def check(self, tenant: str, sha256: str) -> None:
        """
        Raises:
            ServiceError: the tenant has uploaded no such file (404).
        """
        query = "SELECT 1 FROM uploads WHERE tenant=? AND sha256=?"
        if self._database.read().execute(query, (tenant, sha256)).fetchone() is None:
            raise ServiceError(f"you have no upload {sha256[:12]}…; POST it to /v1/uploads first", 404)

    def delete(self, tenant: str, sha256: str) -> None:
        """Remove a tenant's upload; jobs that have not begun with it fail.

        Raises:
            ServiceError: there is no such upload (404).
        """
        self.check(tenant, sha256)

        def change(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM uploads WHERE tenant=? AND sha256=?", (tenant, sha256))

        def remove(db: sqlite3.Connection) -> None:
            if db.execute("SELECT 1 FROM uploads WHERE sha256=?", (sha256,)).fetchone() is None:
                self.path(sha256).unlink(missing_ok=True)

        self._database.write(change).result()  # on the disk before the file goes
        self._database.write(remove).result()


def _check_start(start: bytes) -> None:
    if not start:
        raise ServiceError("expected a file, got nothing")
    if start[:2] == b"PK" or (start[:1] == b"\x80" and start[1:2] <= b"\x05"):
        raise ServiceError(
            "pickles and archives (.pt, .pt2, .pth) are refused: opening one may run code that is in it; export the "
            "network as ONNX",
            415,
        )
