"""Facts about pictures from earlier readings, in one SQLite file of the user's cache folder.

A picture is known by its file's inode, size, and times of change, so that a file that was renamed or moved with its
folder is known again and one that was written anew is not. Where the file cannot be used, pictures are read again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import PIL

from chanas.core.arrays import IntArray
from chanas.errors import one_line
from chanas.files.writing import file_digest
from chanas.network import pictures

_READER = f"Pillow {PIL.__version__}, {file_digest(Path(pictures.__file__))}"
"""Versions of the reader: another one may take what this one refuses."""
_STAMP = ("inode", "size", "mtime_ns", "ctime_ns", "place")
_TABLES = f"""
CREATE TABLE IF NOT EXISTS pictures ({" INTEGER, ".join(_STAMP)} INTEGER, reader TEXT, digest INTEGER, width INTEGER,
 height INTEGER, is_grey INTEGER, moments BLOB, remark TEXT, fault TEXT, PRIMARY KEY ({", ".join(_STAMP)}))
 WITHOUT ROWID;
CREATE TEMP TABLE wanted (number INTEGER PRIMARY KEY, {" INTEGER, ".join(_STAMP)} INTEGER);
"""
_FIND = f"""SELECT number, digest, width, height, is_grey, moments, remark, fault FROM wanted CROSS JOIN pictures
 USING ({", ".join(_STAMP)}) WHERE reader = ?"""


class PictureFacts(NamedTuple):
    """Facts about a picture, as training sees it."""

    digest: int
    """First 64 bits, signed, of the SHA-256 of its encoded bytes."""
    width: int = 0
    height: int = 0
    is_grey: int = 0
    moments: bytes = b""
    """float32[6]: the mean of each channel in [0, 1], and of its square."""
    remark: str | None = None
    """The reader's changes beyond decoding."""
    fault: str | None = None
    """The reason that it cannot be used."""


class PictureCache:
    """The file, open; `open_cache` makes it."""

    def __init__(self, database: sqlite3.Connection | None) -> None:
        self._database = database

    def known(self, stamps: IntArray) -> dict[int, PictureFacts]:
        """The known facts about the pictures of `stamps` int64[N, 5], by their place in it."""
        if self._database is None:
            return {}
        rows = ((number, *stamp) for number, stamp in enumerate(stamps.tolist()) if stamp[0])
        try:
            with self._database as database:
                database.execute("DELETE FROM wanted")
                database.executemany("INSERT INTO wanted VALUES (?, ?, ?, ?, ?, ?)", rows)
                found = database.execute(_FIND, (_READER,)).fetchall()
        except sqlite3.Error:  # the file is damaged, say
            self._database = None
            return {}
        return {number: PictureFacts._make(facts) for number, *facts in found}

    def keep(self, stamps: IntArray, facts: Iterable[PictureFacts]) -> None:
        """Remember facts of the pictures of `stamps` int64[N, 5]."""
        if self._database is None:
            return
        rows = ((*stamp, _READER, *of) for stamp, of in zip(stamps.tolist(), facts, strict=True))
        try:
            with self._database as database:
                database.executemany(f"REPLACE INTO pictures VALUES ({', '.join('?' * 13)})", rows)
        except sqlite3.Error:  # the disk is full, say
            self._database = None


@contextlib.contextmanager
def open_cache() -> Iterator[PictureCache]:
    """The cache of this user; one that remembers nothing where its file cannot be used."""
    database = None
    with contextlib.suppress(sqlite3.Error, OSError, RuntimeError):
        database = _opened(_path())
    try:
        yield PictureCache(database)
    finally:
        if database is not None:
            database.close()


def _path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "chanas" / "pictures.sqlite"


def _opened(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path, timeout=60)
    try:
        database.executescript(_TABLES)
    except sqlite3.DatabaseError as error:
        database.close()
        if "not a database" not in one_line(error) and "malformed" not in one_line(error):
            raise
        path.unlink()
        database = sqlite3.connect(path, timeout=60)
        database.executescript(_TABLES)
    return database
