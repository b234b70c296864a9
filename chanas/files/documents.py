"""Stored JSON, checked as it is read: every reader of files says the same of one that is damaged, in one line.

A document's schema is a dataclass (of dataclasses): its fields are the keys that have to be there, their types what the
values have to be; keys that it does not name are left alone.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from chanas.errors import ChanasError, CheckpointError, one_line
from chanas.files.writing import parse_json, read_text

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import ErrorDetails

Made = TypeVar("Made")
_MAX_SHOWN = 40


@dataclass(frozen=True)
class Document:
    """One kind of stored JSON.

    what     what messages call it, such as `latency table`
    schema   the dataclass that it has to fit
    remedy   what to do about one that is damaged
    version  its `schema` number; None: it has none, or any
    older    further numbers that are read as well
    error    what is raised when it is JSON, but not such a document
    """

    what: str
    schema: type[Any]
    remedy: str = "make it again"
    version: int | None = None
    error: type[ChanasError] = CheckpointError
    older: tuple[int, ...] = ()

    def read(self, path: Path) -> dict[str, Any]:
        """The content of a file, as it stands there.

        Raises:
            CheckpointError: the file is missing, cannot be read, or is not whole JSON.
            ChanasError: (`error`) it is of another `schema` number, or a value is missing or of another type: the
                message names file, place, what was expected and what came.
        """
        text, where = read_text(path, self.what), f"{self.what} {path}"
        try:
            data = parse_json(text)
        except ValueError as error:
            raise CheckpointError(f"{where} is cut short or damaged ({error}); {self.remedy}") from error
        found = data.get("schema") if isinstance(data, dict) else None
        if self.version is not None and found is not None and found not in (self.version, *self.older):
            raise self.error(f"expected schema {self.version} of {where}, got {_shown(found)}; {self.remedy}")
        if (fault := first_fault(text, self.schema)) is not None:
            raise self.error(f"{where} is not written as expected: {fault}; {self.remedy}")
        return dict(data)

    def read_with(self, path: Path, make: Callable[[dict[str, Any]], Made]) -> Made:
        """Read a file and make something of its content with `make`.

        Raises:
            CheckpointError: as `read`.
            ChanasError: (`error`) as `read`, and where `make` finds a value that it can't use.
        """
        data = self.read(path)
        try:
            return make(data)
        except (AttributeError, KeyError, IndexError, OverflowError, TypeError, ValueError) as error:
            reason = one_line(error)
            if not isinstance(error, ChanasError):
                reason = f"{type(error).__name__}: {reason}"
            raise self.error(f"{self.what} {path} is not written as expected: {reason}; {self.remedy}") from error


def first_fault(text: str, schema: type[Any]) -> str | None:
    """The first place at which JSON does not fit a dataclass, what was expected there and what came; None: it fits."""
    from pydantic import ValidationError

    try:
        _adapter(cast(Any, schema)).validate_json(text, strict=True)
    except ValidationError as error:
        return _described(error)
    return None


def parse_row(line: bytes, schema: type[Any]) -> dict[str, Any] | None:
    """Parse one line of a file of JSON lines; None where it is no JSON, or does not fit the dataclass."""
    try:
        text = line.decode()
        row = parse_json(text)
    except ValueError:
        return None
    return dict(row) if first_fault(text, schema) is None else None


@functools.cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # a tenth of a second that most commands need not take

    return TypeAdapter(schema)


def _described(error: ValidationError) -> str:
    fault: ErrorDetails = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    if fault["type"] in ("missing", "missing_argument"):
        return f"{place} is missing"
    expected = fault["msg"].removeprefix("Input should be ")
    if fault["type"].startswith("dataclass"):
        expected = "an object"
    return f"{place + ': ' if place else ''}expected {expected}, got {_shown(fault['input'])}"


def _shown(value: Any) -> str:
    """A value as JSON, cut to what a line has room for."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
