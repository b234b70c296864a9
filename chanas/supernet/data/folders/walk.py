"""The images in a folder and below it; what is none of them is counted, and nothing but a plain file is ever opened."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, ImageFile

from chanas.errors import DataError

HIDDEN = "hidden or generated"
_GENERATED = frozenset(
    {
        "__macosx",  # archives made on a Mac
        "icon\r",
        "@eadir",  # Synology, QNAP
        "@recycle",
        "@tmp",
        "#recycle",
        "#snapshot",
        "thumbs.db",  # Windows
        "ehthumbs.db",
        "desktop.ini",
        "$recycle.bin",
        "system volume information",
        "lost+found",  # Linux
        "__pycache__",
    }
)
_NEED_PROGRAMS = frozenset({"EPS", "MPEG"})  # Pillow knows them, and leaves their decoding to others


@dataclass
class FolderContent:
    """A folder: names of its `folders`, in order; its `images`, in order, by their paths below it, and what tells each
    from a later one of the same name; and the number of other files by reason."""

    folders: list[str] = field(default_factory=list)
    images: list[tuple[str, os.stat_result]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


@functools.cache
def image_endings() -> frozenset[str]:
    """Endings of files that Pillow decodes, in lower case."""
    Image.init()
    return frozenset(
        ending
        for ending, name in Image.registered_extensions().items()
        if name in Image.OPEN and name not in _NEED_PROGRAMS and not _is_stub(Image.OPEN[name][0])
    )


def _is_stub(opener: object) -> bool:
    """True for formats that Pillow recognises without being able to decode them."""
    return isinstance(opener, type) and issubclass(opener, ImageFile.StubImageFile)


def is_generated(name: str) -> bool:
    """True for the hidden, and for what desktops, archives and storage systems leave among a user's files."""
    return name.startswith(".") or name.lower() in _GENERATED


def ending_of(name: str) -> str:
    """The ending of a file name in lower case, `no ending` where there is none."""
    return os.path.splitext(name)[1].lower() or "no ending"


def look_into(path: Path) -> FolderContent:
    """The content of a folder, not of those below it.

    Raises:
        DataError: it cannot be read.
    """
    content = FolderContent()
    try:
        for entry in _entries(path, content):
            if entry.is_dir():
                content.folders.append(entry.name)
            else:
                content.images.append((entry.name, entry.stat()))
    except OSError as error:
        raise _unreadable(error, path) from error
    return content


def walk(path: Path) -> FolderContent:
    """The content of a folder and of all below it; a folder that links lead to again is met once.

    Raises:
        DataError: a folder cannot be read.
    """
    content = FolderContent()
    try:
        _collect(path, "", content, set())
    except OSError as error:
        raise _unreadable(error, path) from error
    return content


def _collect(path: Path | str, prefix: str, content: FolderContent, met: set[tuple[int, int]]) -> None:
    status = os.stat(path)
    if (status.st_dev, status.st_ino) in met:
        return
    met.add((status.st_dev, status.st_ino))
    for entry in _entries(path, content):
        if entry.is_dir():
            if not prefix:
                content.folders.append(entry.name)
            _collect(entry.path, f"{prefix}{entry.name}/", content, met)
        else:
            content.images.append((prefix + entry.name, entry.stat()))


def _entries(path: Path | str, content: FolderContent) -> Iterator[os.DirEntry[str]]:
    """Yield folders and images, in order; all others are counted."""
    with os.scandir(path) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if is_generated(entry.name):
            content.left_out[HIDDEN] += 1
        elif entry.is_dir() or (entry.is_file() and ending_of(entry.name) in image_endings()):
            yield entry
        elif entry.is_file():
            content.left_out[ending_of(entry.name)] += 1
        else:
            content.left_out["no plain file" if os.path.exists(entry.path) else "broken link"] += 1


def _unreadable(error: OSError, folder: Path) -> DataError:
    return DataError(f"{error.filename or folder} cannot be read ({error.strerror or error}); repair or remove it")
