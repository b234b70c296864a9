"""One writer at a time: `flock`s, which the kernel frees however their holder ends."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from chanas.errors import ChanasError, RunBusyError

# What file systems without locks say.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_MAX_COMMAND = 120


@contextlib.contextmanager
def one_writer(place: Path, *, other: str = "use another --run") -> Iterator[int]:
    """Be the one process that writes to a file or folder, by a lock beside it (`.NAME.lock`), which is gone afterwards.
    Where the file system has no locks, a line on standard error says so.

    Args:
        place: what is written; it need not exist.
        other: what to do instead of waiting, for the message.

    Yields:
        The lock's descriptor: processes that get it hold the lock, too.

    Raises:
        RunBusyError: another process writes to it; the message names that.
        ChanasError: the folder around it cannot be written.
    """
    path = lock_of(place)
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        handle = _lock(path)
    except BlockingIOError:
        raise RunBusyError(f"{_holder(path)} writes to {place}; wait until it ends, or {other}") from None
    except OSError as error:
        raise ChanasError(
            f"{place} cannot be written: {error.strerror or error}; make room or set the permissions of {path.parent}, "
            f"or {other}"
        ) from error
    try:
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(_own()).encode())
        yield handle
    finally:
        with contextlib.suppress(OSError):  # a folder that cannot be written, or in which something was
            path.unlink()
            for parent in made:
                parent.rmdir()
        os.close(handle)


def lock_of(place: Path) -> Path:
    """The file that is locked while a process writes to a place."""
    return place.with_name(f".{place.name}.lock")


@contextlib.contextmanager
def opened_lock(path: Path) -> Iterator[int]:
    """The descriptor of a lock in a folder that all users share. Nothing is written to the file, so that one that
    somebody else has made will do, and no link is followed.

    Raises:
        ChanasError: it cannot be opened.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise ChanasError(
            f"lock {path} cannot be opened: {error.strerror or error}; remove it, or have its owner make it readable"
        ) from error
    try:
        yield handle
    finally:
        os.close(handle)


def _lock(path: Path) -> int:
    """A descriptor that holds the lock of a file, which is the one that has its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise
            print(
                f"chanas: {path.parent} has no locks ({error.strerror}): a second writer goes unnoticed",
                file=sys.stderr,
            )
            return handle
        with contextlib.suppress(FileNotFoundError):  # its holder has removed it since
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)


def _own() -> dict[str, str | int]:
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    since = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "command": shlex.join(command)}


def _holder(path: Path) -> str:
    """The process that holds a lock, in words."""
    import psutil

    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        where = "" if told["host"] == socket.gethostname() else f" on {told['host']}"
        command = " ".join(told["command"].split())
        command = command if len(command) <= _MAX_COMMAND else f"{command[:_MAX_COMMAND]}…"
        started = "" if where or psutil.pid_exists(told["pid"]) else "a process started by "
        return f"{started}`{command}` (pid {told['pid']}{where}, since {told['since']})"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "another process"
