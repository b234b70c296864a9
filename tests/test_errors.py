"""chanas/errors.py: one base, and messages that name the known."""

from __future__ import annotations

import errno
import inspect

import pytest

from chanas import errors

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)]


@pytest.mark.parametrize("error", CLASSES, ids=lambda c: c.__name__)
def test_every_error_has_the_one_base_and_says_what_it_is_for(error: type[Exception]) -> None:
    assert issubclass(error, errors.ChanasError)
    assert error.__doc__


def test_an_unknown_name_comes_with_the_known_ones_in_order() -> None:
    assert errors.unknown_name("target", "foo", ["cuda", "cpu"]) == "unknown target 'foo'; known: cpu, cuda"


def test_an_error_of_others_is_one_short_line_whatever_its_text() -> None:
    error = RuntimeError("no\n  such\tthing")
    assert errors.one_line(error) == "no such thing"
    assert errors.describe(error, 7) == "RuntimeError: no such"
    assert errors.describe(AssertionError(), 7) == "AssertionError"


def test_an_error_of_a_file_is_one_line_that_can_be_read() -> None:
    long = errors.describe_file_error(OSError(errno.ENAMETOOLONG, "File name too long", "l" * 300))
    assert long == f"'{'l' * 80}…': file name too long; use a shorter one"
    assert "free some space" in errors.describe_file_error(OSError(errno.ENOSPC, "No space left on device", b"a"))
    assert errors.printable("a\nb\x1b\udcff") == "a\\nb\\x1b\\udcff"
