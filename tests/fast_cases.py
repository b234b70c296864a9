"""Cases that take the same way through the code: a few of them run with the fast tests, all of them with the slow."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def fast(cases: Iterable[Any], which: Container[int]) -> list[Any]:
    """Parameters of a test: the cases of these places as they are, and the others marked as slow. A tuple is a case of
    several parameters."""
    return [case if i in which else slow(case) for i, case in enumerate(cases)]


def slow(case: Any) -> Any:
    """A case that runs with the slow tests alone."""
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
