"""Answers of workers: a result, or an error with its kind."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, Self

from chanas import errors
from chanas.core.units import is_seconds
from chanas.errors import ChanasError, one_line
from chanas.measuring.wire import fields_from_json, fields_to_json, to_json

_MAX_TEXT = 300
_LAST_WORDS = "; it said: "


class ErrorKind(enum.StrEnum):
    """Kind of an error. Its value is what a stored error of the kind begins with."""

    WRONG = "wrong result"
    TIMEOUT = "timeout"
    CRASH = "crash"
    """The worker ended, or devices were lost over the request again and again."""
    OUT_OF_MEMORY = "out of memory"
    GPU_FAULT = "GPU fault"
    """The GPU does nothing more for the process."""
    STOPPED = "stopped"
    BUSY = "busy"
    RAISED = "raised"
    """An exception; a stored error begins with the name of its class instead."""


@dataclass(frozen=True)
class WorkerError:
    """The reason that there is no result, in one line.

    exception   name of the exception's class, of the kind `RAISED`
    last_words  the line that tells most of what a worker that ended left on standard error
    max_error   error relative to the largest expected magnitude, of the kind `WRONG`
    """

    kind: ErrorKind
    text: str
    exception: str = ""
    last_words: str = ""
    max_error: float | None = None

    def __str__(self) -> str:
        """The error as it is stored and told."""
        head = self.exception if self.kind is ErrorKind.RAISED else self.kind.value
        last_words = f"{_LAST_WORDS}{self.last_words}" if self.last_words else ""
        return ": ".join(filter(None, (head, self.text))) + last_words

    @classmethod
    def read(cls, stored: str) -> WorkerError:
        """Read a stored error, the inverse of `str`; a text that begins like none is of the kind `RAISED`."""
        rest, _, last_words = stored.partition(_LAST_WORDS)
        head, _, text = rest.partition(": ")
        if head in list(ErrorKind):
            return cls(ErrorKind(head), text, last_words=last_words)
        if head.isidentifier() and text:
            return cls(ErrorKind.RAISED, text, head, last_words)
        return cls(ErrorKind.RAISED, rest, last_words=last_words)

    @classmethod
    def of(cls, error: Exception) -> WorkerError:
        """The error of a request over which an exception was raised; the texts of chanas' own are whole."""
        if isinstance(error, RequestError):
            return error.error
        text = str(error) if isinstance(error, ChanasError) else one_line(error, _MAX_TEXT)
        return cls(ErrorKind.RAISED, text, type(error).__name__)

    @classmethod
    def wrong(cls, max_error: float) -> WorkerError:
        """The error of a program that computes something else than PyTorch."""
        return cls(ErrorKind.WRONG, f"relative error {max_error:.3g} against PyTorch", max_error=max_error)

    @property
    def exception_class(self) -> type[ChanasError] | None:
        """The class of an exception that is one of chanas' own."""
        found = getattr(errors, self.exception, None)
        return found if isinstance(found, type) and issubclass(found, ChanasError) else None

    @property
    def message(self) -> str:
        """The error without the class of an exception."""
        return self.text if self.kind is ErrorKind.RAISED else str(self)

    @classmethod
    def from_json(cls, data: dict[str, Any] | str) -> WorkerError:
        """Inverse of `wire.to_json`; a device of an earlier version sends the text alone."""
        if isinstance(data, str):
            return cls.read(data)
        error: WorkerError = fields_from_json(cls, data)
        return error


class RequestError(Exception):
    """Raised where a request fails over an error that has its kind already."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Timing:
    """Seconds of a program that computes the right thing: their median and spread over `repeats`, and its error."""

    seconds: float
    spread_s: float
    repeats: int
    max_error: float


@dataclass(frozen=True)
class Answer:
    """A worker's answer: a result as JSON, or the reason that there is none."""

    result: Any
    error: WorkerError | None
    wall_s: float = 0.0
    device: int = 0
    """Index of the pool's device that timed it."""

    @classmethod
    def of(cls, found: Any) -> Answer:
        """The answer that a request found something, or an error."""
        return cls(None, found) if isinstance(found, WorkerError) else cls(to_json(found), None)

    @property
    def timing(self) -> Timing:
        """The result of a timing."""
        timing: Timing = fields_from_json(Timing, self.result)
        return timing

    @property
    def members(self) -> tuple[Answer, ...]:
        """The answers about several programs that were timed in turns; about one there are none."""
        return tuple(map(Answer.from_json, self.result)) if isinstance(self.result, list) else ()

    def to_json(self) -> dict[str, Any]:
        return fields_to_json(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`; a timing that nothing can have taken is an error."""
        answer: Self = fields_from_json(cls, data)
        seconds = answer.result.get("seconds", 1.0) if isinstance(answer.result, dict) else 1.0
        if not is_seconds(seconds):
            error = WorkerError(ErrorKind.RAISED, f"expected seconds above 0, got {seconds!r:.40}")
            return replace(answer, result=None, error=error)
        return answer
