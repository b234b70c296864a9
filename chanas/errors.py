"""Every error that a user can meet: one line that says what was expected, what came, and what to do."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterable


class ChanasError(Exception):
    """Base of all errors that chanas raises on purpose; the CLI prints its message as one line and exits with 1.

    `stage` is the step of `chanas tune` that it ended, such as `read`; empty elsewhere.
    """

    stage = ""


class UnitError(ChanasError, ValueError):
    """A quantity without a unit, with an unknown unit, or out of range."""


class ConfigError(ChanasError, ValueError):
    """A YAML file or an option that does not say what its schema asks for."""


class ArchitectureError(ChanasError, ValueError):
    """An architecture, a genome or a key that is not in its search space."""


class DataError(ChanasError):
    """A data set, a folder or an image that cannot be used."""


class CheckpointError(ChanasError):
    """A checkpoint or a bundle that is missing, cut short, or of another space."""


class StageOrderError(ChanasError):
    """A stage was started before the stage whose files it reads."""


class TargetError(ChanasError):
    """A hardware target that is unknown or not there."""


class LUTError(ChanasError):
    """A latency table that does not fit what it is used for."""


class ScheduleError(ChanasError, ValueError):
    """A schedule point that is not in its space."""


class MeasureError(ChanasError):
    """The device could not measure; retrying the same thing will not help."""


class ModelError(ChanasError):
    """A finished network that cannot be used: damaged, unsafe to open, or with something in it that is not there."""


class SchedulerError(ChanasError):
    """Jobs that cannot go on: of an unknown name, on resources that are not there, or all of them paused."""


class ServiceError(ChanasError):
    """A request that the service refuses; `status` is HTTP's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class RunBusyError(ChanasError):
    """Another process is at work in the same run directory."""


class ShortageError(ChanasError):
    """The machine lacks disk space, open files or processes, as `lacking` says: the same works once it has them."""

    def __init__(self, message: str, lacking: str) -> None:
        super().__init__(message)
        self.lacking = lacking


class InfeasibleError(ChanasError):
    """A budget that no architecture can meet; the message names the smallest reachable value."""


_MAX_NAME = 80
_REMEDIES = {
    errno.ENAMETOOLONG: "; use a shorter one",
    errno.ENOSPC: "; free some space and run the same command again",
    errno.EDQUOT: "; free some space and run the same command again",
    errno.EMFILE: "; raise the limit of open files (`ulimit -n`)",
}
_SHORT_OF = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
_SHORT_IN_SQLITE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_IOERR,  # a write-ahead log that finds no room says this
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,  # as it says where too many files are open
}


def shortage(error: BaseException | None) -> str | None:
    """The passing shortage behind an error, or behind what it was raised from; None where there is none. Files are not
    named, so that it may be told to strangers."""
    while error is not None:
        if isinstance(error, ShortageError):
            return error.lacking
        if isinstance(error, OSError) and error.errno in _SHORT_OF:
            return os.strerror(error.errno).lower()
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _SHORT_IN_SQLITE:
            return one_line(error)
        error = error.__cause__ or error.__context__
    return None


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """The one line for a name that is not known: `unknown target 'foo'; known: cpu, cuda`."""
    return f"unknown {what} '{name}'; known: {', '.join(sorted(known))}"


def one_line(text: object, limit: int | None = None) -> str:
    """A text, or that of an error of another project, in one line of at most `limit` characters."""
    return " ".join(str(text).split())[:limit]


def printable(text: object) -> str:
    """A text as one line for a terminal: what is not printable, as a name's line breaks, is written as its escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def describe_file_error(error: OSError) -> str:
    """An error of the system about a file, and what to do: `'aaa…': file name too long; use a shorter one`."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
    shown = name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…"
    return f"'{shown}': {(error.strerror or str(error)).lower()}{_REMEDIES.get(error.errno or 0, '')}"


def describe(error: BaseException, limit: int = 160) -> str:
    """Class and text of an error of another project: `RuntimeError: no such thing`."""
    return f"{type(error).__name__}: {one_line(error, limit)}".rstrip(": ")
