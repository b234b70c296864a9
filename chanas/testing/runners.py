"""The contract of what runs requests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chanas.measuring.messages import Answer, Compare, Crash, ErrorKind, Hang, Ping, Request

Run = Callable[[Request, float], Answer]
"""A request and its time limit in seconds to an answer: `Runner.call`."""

_ENDS: dict[str, tuple[Request, float, ErrorKind | None]] = {
    "it answers": (Ping(), 60.0, None),
    "it raises": (Compare(library=Path(__file__), case=Path(__file__)), 60.0, ErrorKind.RAISED),  # that is no program
    "it never ends": (Hang(), 0.3, ErrorKind.TIMEOUT),
    "it crashes": (Crash(), 60.0, ErrorKind.CRASH),
}


class RunnerContract:
    """Tests that every `Runner` passes whose worker is one of chanas'. Inherit it, and open the runner."""

    def opened(self) -> AbstractContextManager[Run]:
        """The `call` of a runner that is closed with the context."""
        raise NotImplementedError

    @pytest.fixture
    def run(self) -> Iterator[Run]:
        """The `call` of an open runner."""
        with self.opened() as run:
            yield run

    @pytest.mark.parametrize("end", _ENDS)
    def test_what_becomes_of_a_request_is_an_answer_and_the_next_one_is_run(self, run: Run, end: str) -> None:
        request, timeout_s, kind = _ENDS[end]
        answer = run(request, timeout_s)
        assert (None if answer.error is None else answer.error.kind) is kind
        if answer.error is not None:
            assert answer.error.signal == (signal.SIGSEGV if kind is ErrorKind.CRASH else None)
        assert run(Ping(), 60.0).result["pid"]
