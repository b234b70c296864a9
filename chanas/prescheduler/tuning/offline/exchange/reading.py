"""Files of strangers: JSON alone, read a line at a time or within a limit, with checks that name what was expected.

A file that is damaged ends the reading with its place. A record that is whole and of no use here is counted.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from chanas.errors import DataError, one_line, printable
from chanas.files.writing import parse_json

Made = TypeVar("Made")

MAX_LINE_BYTES = 64 << 20
"""Longest line: MetaSchedule's workloads have their constants in them."""
MAX_FILE_BYTES = 128 << 20
"""Largest file that is read as a whole, which T1 and T4 are."""
MAX_STEPS = 4096
"""Most steps of a schedule; the longest of TenSet has some 70."""
MAX_REASONS = 32
"""Most reasons that are told apart: a file may have a step of a new name in each record."""
_MAX_NUMBER = 1 << 40
_MAX_SHOWN = 60


class UnusableError(Exception):
    """A record that is whole, and of no use here; the text is what a count says of it: `that failed (run timeout)`."""


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line that has some, without comments (`#`).

    Raises:
        DataError: a line is too long, or no text.
    """
    with open(path, "rb") as file:
        for number in itertools.count(1):
            line = file.readline(MAX_LINE_BYTES + 1)
            if not line:
                return
            if len(line) > MAX_LINE_BYTES:
                raise DataError(f"{path}:{number}: expected a line of at most {MAX_LINE_BYTES >> 20} MiB")
            try:
                text = line.decode().strip()
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{number}: expected text in UTF-8 ({one_line(error)})") from error
            if text and not text.startswith("#"):
                yield number, text


def rows(path: Path, read: Callable[[Any], Made], skipped: Counter[str]) -> Iterator[Made]:
    """Make something of each line of JSON with `read`; what it leaves out is counted.

    Raises:
        DataError: a line is no JSON, or `read` finds (ValueError) that it is something else than it should be.
    """
    for number, text in lines(path):
        try:
            made = read(parse_json(text))
        except UnusableError as reason:
            count(skipped, reason)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{number}: no whole JSON ({error.msg} at character {error.pos + 1})") from error
        except ValueError as error:
            raise DataError(f"{path}:{number}: {printable(one_line(error, 200))}") from error
        else:
            yield made


def count(skipped: Counter[str], reason: object) -> None:
    """Count a record that is left out; where files have more reasons than people read, the others are one."""
    told = printable(reason)
    skipped[told if told in skipped or len(skipped) < MAX_REASONS else "for further reasons"] += 1


def document(path: Path) -> Any:
    """The JSON of a whole file.

    Raises:
        DataError: it is too large, or no JSON.
    """
    if path.stat().st_size > MAX_FILE_BYTES:
        raise DataError(f"{path}: expected a file of at most {MAX_FILE_BYTES >> 20} MiB")
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: no whole JSON ({error.msg})") from error
    except ValueError as error:
        raise DataError(f"{path}: {printable(one_line(error, 200))}") from error


# ---- checks: all raise ValueError -----------------------------------------------------------------------------------
def listed(value: Any, what: str, num: int | None = None) -> list[Any]:
    """A list, of `num` values where it is given."""
    if not isinstance(value, list) or (num is not None and len(value) != num):
        raise _other(f"a list of {num} for {what}" if num is not None else f"a list for {what}", value)
    return value


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise _other(f"an object for {what}", value)
    return value


def string(value: Any, what: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise _other(f"a text for {what}", value)
    return value


def whole(value: Any, what: str, least: int = 0) -> int:
    """A whole number from `least` on."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_NUMBER:
        raise _other(f"a whole number from {least} on for {what}", value)
    return value


def number(value: Any, what: str) -> float:
    """A number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _other(f"a number for {what}", value)
    return float(value)


def numbers(value: Any, what: str) -> list[float]:
    """A list of numbers."""
    return [number(v, what) for v in listed(value, what)]


def wholes(value: Any, what: str, least: int = 0) -> list[int]:
    """A list of whole numbers from `least` on."""
    return [whole(v, what, least) for v in listed(value, what)]


def _other(expected: str, value: Any) -> ValueError:
    return ValueError(f"expected {expected}, got {one_line(json.dumps(value, default=str), _MAX_SHOWN)}")
