"""Seconds of calls in turns: the calls, the clock, and the answer that a worker gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Call = tuple[Callable[..., Any], Sequence[Any]]
Clock = Callable[[Iterator[Call], int], float]
"""Seconds per call of the next so many calls."""


def answer_of_turns(
    checked: Sequence[tuple[list[Call], float, bool]], time_in_turns: Callable[[list[list[Call]]], list[dict[str, Any]]]
) -> dict[str, Any]:
    """Answer for contenders with their errors: the times of the correct ones, in turns, or the error."""
    timed = iter(time_in_turns([calls for calls, _, is_right in checked if is_right]))
    return {
        "members": [
            {**next(timed), "max_error": error} if is_right else {"wrong": error} for _, error, is_right in checked
        ]
    }
