"""Files and folders that are written whole or not at all, JSON, and digests of files."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import itertools
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chanas.errors import ChanasError, CheckpointError

# Seeds may have 128 bits; what is longer is no number of anything, and has no float.
_MAX_DIGITS = 40


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the body ends without an exception.

    Raises:
        ChanasError: the file cannot be written (no space, no permission); what stood at `path` is left whole.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise ChanasError(
            f"cannot write {path}: {error.strerror or error}; what stood there before is whole"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path: Path, kept: Path | None = None) -> Iterator[Path]:
    """Like `replacing`, for a folder: the new one takes the old one's place only when it is complete.

    What processes that were killed left beside `path` is removed, or put back where it was the old one.

    Args:
        kept: the old one is moved there, instead of being removed.

    Raises:
        ChanasError: the folder cannot be written; what stood at `path` is left whole.
    """
    temporary: Path | None = None
    old: Path | None = None
    lock: int | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(path)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
        lock = _lock_folder(temporary)
        old = kept or temporary.with_suffix(".old")
        yield temporary
        os.chmod(temporary, 0o755)
        for file in temporary.rglob("*"):  # safetensors writes files that nobody else can read
            file.chmod(file.stat().st_mode | (0o555 if file.is_dir() else 0o444))
        if os.path.lexists(path):
            os.rename(path, old)
        os.rename(temporary, path)
    except OSError as error:
        raise ChanasError(
            f"cannot write {path}: {error.strerror or error}; what stood there before is whole"
        ) from error
    finally:
        if old is not None:
            if os.path.lexists(old) and not os.path.lexists(path):
                os.rename(old, path)
            if old != kept:
                _remove(old)
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def free_name(path: Path) -> Path:
    """The first of `NAME.1`, `NAME.2`, … that is free: where an earlier file or folder of this name is kept."""
    names = (path.with_name(f"{path.name}.{n}") for n in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def _lock_folder(folder: Path) -> int | None:
    """Lock a folder until the descriptor is closed or its process ends; None where another process has it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _clear_leftovers(path: Path) -> None:
    """Remove temporary folders of `path` that no process has locked; the old one among them is put back if `path` is
    gone."""
    for kept in path.parent.glob(f".{glob.escape(path.name)}.????????.*"):  # as `mkdtemp` calls them
        temporary = kept.with_suffix(".tmp")
        with contextlib.suppress(FileNotFoundError):  # another process was through with it
            lock = _lock_folder(temporary) if temporary.is_dir() else -1
            if lock is None:
                continue
            if lock >= 0:
                os.close(lock)
            if kept.suffix == ".old" and not os.path.lexists(path):
                os.rename(kept, path)
            elif kept.suffix in (".old", ".tmp"):
                _remove(kept)


def _remove(path: Path) -> None:
    """Removes a folder, a file or a link, or nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """JSON with sorted keys (stable under git diff), written whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")


def read_text(path: Path, what: str) -> str:
    """The content of a text file.

    Raises:
        CheckpointError: the file is missing, cannot be read, or is not UTF-8; `what` names it in the message.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{what} {path} does not exist") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{what} {path} is cut short or damaged ({error}); make it again") from error
    except OSError as error:
        raise CheckpointError(f"{what} {path} cannot be read: {error.strerror or error}") from error


def read_json(path: Path, what: str) -> Any:
    """The content of a JSON file, whatever it says (`chanas.files.documents` checks that, too).

    Raises:
        CheckpointError: the file is missing, cannot be read, or is not whole JSON; `what` names it in the message.
    """
    text = read_text(path, what)
    try:
        return parse_json(text)
    except ValueError as error:
        raise CheckpointError(f"{what} {path} is cut short or damaged ({error}); make it again") from error


def parse_json(text: str) -> Any:
    """JSON as it is written here: numbers are finite, whole ones not endless, and texts can be printed.

    Raises:
        ValueError: it is something else.
    """
    try:
        data = json.loads(text, parse_float=_finite, parse_int=_whole, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError("lists or objects too deep inside each other") from error
    if "\\u" in text:  # half of a character that takes two
        json.dumps(data, ensure_ascii=False).encode()
    return data


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {text}")
    return value


def _whole(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"expected a whole number of at most {_MAX_DIGITS} digits, got {text[:_MAX_DIGITS]}…")
    return int(text)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_digest(path: Path) -> str:
    """First 16 hex digits of the SHA-256 of a file, by which results name what they came from."""
    return sha256_of(path)[:16]


def check_digests(document: Path, digests: Mapping[str, str | None], what: str, command: str) -> None:
    """Check the files beside a document, by name, against the digests that it has of them.

    Raises:
        CheckpointError: a file is missing, or not what it was; `command` makes `what` again.
    """
    for name, digest in digests.items():
        path = document.parent / name
        if not path.is_file():
            raise CheckpointError(f"{what} {path.parent} lacks {name}; make it again with `{command}`")
        if file_digest(path) != digest:
            raise CheckpointError(
                f"{path} is cut short or was changed or is of another network (its hash differs from the one in "
                f"{document.name}); make the {what} again with `{command}`"
            )
