"""chanas/files/documents.py: what is wrong with a file, in one line, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chanas.errors import ChanasError, CheckpointError, ConfigError, LUTError
from chanas.files.documents import Document, first_fault, parse_row


@dataclass(frozen=True)
class Row:
    median_s: float
    point: tuple[int, ...] = ()


@dataclass(frozen=True)
class File:
    schema: int
    name: str
    rows: dict[str, Row] = field(default_factory=dict)


DOCUMENT = Document("latency table", File, "measure it again", version=3, error=LUTError)


def stored(folder: Path, text: str | bytes) -> Path:
    path = folder / "cpu.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_document_comes_as_it_stands_in_the_file(tmp_path: Path) -> None:
    path = stored(tmp_path, '{"schema": 3, "name": "a", "rows": {"b": {"median_s": 1, "point": [2, 3]}}, "more": null}')
    data = DOCUMENT.read(path)
    assert data == {"schema": 3, "name": "a", "rows": {"b": {"median_s": 1, "point": [2, 3]}}, "more": None}
    assert type(data["rows"]["b"]["median_s"]) is int
    assert DOCUMENT.read_with(path, lambda content: content["name"]) == "a"


FAULTS = {
    "no object": ("[]", "expected an object, got []"),
    "a key is missing": ('{"schema": 3}', "name is missing"),
    "another type": ('{"schema": 3, "name": 7}', "name: expected a valid string, got 7"),
    "deep inside": (
        '{"schema": 3, "name": "a", "rows": {"b": {"median_s": "fast"}}}',
        'rows.b.median_s: expected a valid number, got "fast"',
    ),
    "a place in a list": (
        '{"schema": 3, "name": "a", "rows": {"b": {"median_s": 1, "point": [1, 2.5]}}}',
        "rows.b.point.1: expected a valid integer, got 2.5",
    ),
    "truth is no number": (
        '{"schema": 3, "name": "a", "rows": {"b": {"median_s": true}}}',
        "rows.b.median_s: expected a valid number, got true",
    ),
    "a long value": ('{"schema": 3, "name": ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]}', "aaa…"),
}


@pytest.mark.parametrize(("text", "expected"), FAULTS.values(), ids=FAULTS.keys())
def test_the_line_names_the_place_what_was_expected_and_what_came(tmp_path: Path, text: str, expected: str) -> None:
    path = stored(tmp_path, text)
    with pytest.raises(LUTError) as caught:
        DOCUMENT.read(path)
    assert str(caught.value).startswith(f"latency table {path} is not written as expected: ")
    assert str(caught.value).endswith(f"{expected}; measure it again")


def test_another_schema_is_told_before_anything_else(tmp_path: Path) -> None:
    path = stored(tmp_path, '{"schema": 4}')
    with pytest.raises(LUTError, match=r"3 .*cpu\.json, got 4"):
        DOCUMENT.read(path)


DAMAGES = {
    "cut short": b'{"schema": 3, "na',
    "no UTF-8": b'{"schema": 3, "name": "\xff"}',
    "not a number": b'{"schema": 3, "name": "a", "rows": {"b": {"median_s": NaN}}}',
    "infinite": b'{"schema": 3, "name": "a", "rows": {"b": {"median_s": 1e999}}}',
    "thousands of digits": b'{"schema": 3, "name": "a", "more": ' + b"9" * 5000 + b"}",
    "too deep": b'{"schema": 3, "name": "a", "more": ' + b"[" * 100_000,
    "half a character": b'{"schema": 3, "name": "\\ud800"}',
}


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES.keys())
def test_what_is_no_json_of_ours_is_cut_short_or_damaged(tmp_path: Path, content: bytes) -> None:
    path = stored(tmp_path, content)
    with pytest.raises(CheckpointError, match=r"cpu\.json .*damaged") as caught:
        DOCUMENT.read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyError("seed"), "KeyError: 'seed'"),
        (OverflowError("too large"), "OverflowError: too large"),
        (ConfigError("expected two\nstages"), "expected two stages"),
    ],
    ids=["a key", "a number", "one of ours"],
)
def test_what_cannot_be_made_of_it_is_one_line(tmp_path: Path, error: Exception, reason: str) -> None:
    def make(data: object) -> None:
        raise error

    path = stored(tmp_path, '{"schema": 3, "name": "a"}')
    with pytest.raises(LUTError) as caught:
        DOCUMENT.read_with(path, make)
    assert str(caught.value) == f"latency table {path} is not written as expected: {reason}; measure it again"


def test_an_error_that_says_all_by_itself_stays(tmp_path: Path) -> None:
    def make(data: object) -> None:
        raise CheckpointError("the weights are another's")

    with pytest.raises(ChanasError, match=r"^the weights are another's$"):
        DOCUMENT.read_with(stored(tmp_path, '{"schema": 3, "name": "a"}'), make)


@pytest.mark.parametrize("line", [b"", b"{", b"7", b"[]", b"{}", b'{"median_s": "x"}', b'{"median_s": 1, "a": "\xff"}'])
def test_a_line_that_is_no_row_is_none(line: bytes) -> None:
    assert parse_row(line, Row) is None


def test_a_line_may_say_more_than_its_schema() -> None:
    assert parse_row(b'{"median_s": 0.5, "kind": "training"}\r', Row) == {"median_s": 0.5, "kind": "training"}
    assert first_fault('{"median_s": 0.5}', Row) is None
