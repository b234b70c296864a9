"""Weights of ONNX files in other files: read from plain files in the folder of the ONNX file, and from nowhere else.

A location is a text of a stranger. It is taken apart, and each part is opened in the folder before it without
following a link, so that neither `..` nor a link leads out, whatever changes meanwhile. Sizes are checked before
anything is read.
onnx's own reader has had five holes here; its fixes looked at texts, then at the last part alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chanas.errors import ModelError, printable

_MAX_TEXT = 160
_IN_MEMORY = "_ORT_MEM_ADDR_"
"""The location that ONNX Runtime takes for an address in its own memory instead of a file."""


@dataclass(frozen=True)
class Stored:
    """A part of a file.

    tensor   whose numbers it has, as people call it
    begin    in bytes
    """

    tensor: str
    location: str
    begin: int
    num_bytes: int


def stored_part(tensor: Any, name: str, num_bytes: int) -> Stored:
    """The part of a file that a tensor says its numbers lie in.

    Args:
        num_bytes: that the tensor takes by its shape.

    Raises:
        ModelError: it says no place, a wrong one, or another size than its shape.
    """
    entries: Mapping[str, str] = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    where = f"{name}, which lies in {printable(location)[:_MAX_TEXT]!r},"
    parts = location.split("/")
    if not location or "\0" in location or _IN_MEMORY in parts or any(part in ("", ".", "..") for part in parts):
        raise ModelError(f"{where} is no file in the folder of the network; put it there and export the network again")
    begin, length = (_number(entries.get(key)) for key in ("offset", "length"))
    if begin is None or length is None:
        raise ModelError(f"{where} has an offset or a length that is no number; export the network again")
    if length not in (0, num_bytes):
        raise ModelError(f"{where} has {length} bytes, and {num_bytes} by its shape; export the network again")
    return Stored(name, location, begin, num_bytes)


def _number(text: str | None) -> int | None:
    """A number of bytes, 0 where there is none; None of another text."""
    if not text:
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def check_stored(folder: Path, stored: Stored) -> None:
    """
    Raises:
        ModelError: the part is not there, or lies beyond the folder.
    """
    with _opened(folder, stored):
        pass


def read_stored(folder: Path, stored: Stored) -> bytes:
    """The bytes of a part of a file.

    Raises:
        ModelError: it is not there, or lies beyond the folder.
    """
    with _opened(folder, stored) as handle, open(handle, "rb", closefd=False) as file:
        file.seek(stored.begin)
        found = file.read(stored.num_bytes)
    if len(found) != stored.num_bytes:
        raise _cut(stored, len(found))
    return found


@contextlib.contextmanager
def _opened(folder: Path, stored: Stored) -> Iterator[int]:
    """A descriptor of a plain file that has the part."""
    *parents, last = stored.location.split("/")
    with contextlib.ExitStack() as opened:

        def step(name: str | Path, flags: int, inside: int | None) -> int:
            handle = os.open(name, flags | os.O_CLOEXEC, dir_fd=inside)
            opened.callback(os.close, handle)
            return handle

        try:
            place = step(folder, os.O_RDONLY | os.O_DIRECTORY, None)
            for parent in parents:
                place = step(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, place)
            handle = step(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, place)
        except OSError as error:
            raise ModelError(
                f"{stored.tensor} lies in {printable(stored.location)[:_MAX_TEXT]}, which is missing, or is or lies "
                f"behind a symbolic link ({(error.strerror or '').lower()}); keep the file itself in the folder of the "
                "network"
            ) from error
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise ModelError(
                f"{stored.tensor} lies in {printable(stored.location)[:_MAX_TEXT]}, which is a hard link or no plain "
                "file; put a copy of it in its place"
            )
        if stored.begin + stored.num_bytes > found.st_size:
            raise _cut(stored, found.st_size - stored.begin)
        yield handle


def _cut(stored: Stored, num_bytes: int) -> ModelError:
    return ModelError(
        f"{stored.tensor} takes {stored.num_bytes} bytes from {stored.begin} on of "
        f"{printable(stored.location)[:_MAX_TEXT]}, which has {max(num_bytes, 0)} there: it is cut short; copy it again"
    )
