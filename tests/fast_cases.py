"""Cases that take the same way through the code: a few of them run with the fast tests, all of them with the slow."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def fast(cases: Iterable[Any], which: Container[int]) -> list[Any]:
    """Parameters of a test: the cases of these places as they are, and the others marked as slow."""
    return [case if i in which else pytest.param(case, marks=pytest.mark.slow) for i, case in enumerate(cases)]
