"""The other end of `Client`: a tuning's process, which computes in its turns."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any

from chanas.core.codec import from_json, to_json
from chanas.devices.cores import move_to
from chanas.errors import ChanasError, describe, shortage
from chanas.measuring.shared.pool import Exchange
from chanas.measuring.shared.turns import Rest, Turn

Tuning = Callable[[dict[str, Any], Exchange], dict[str, Any]]
"""Tunes as a plan says, on a pool that ends its turns (`SharedPool`); returns facts about what it made."""

_NUM_CHARACTERS = 300


class Turns:
    """Turns over a pipe.

    Args:
        lines: turns come from here.
        rests: their ends go here.
        move: takes this process to a core.
    """

    def __init__(self, lines: IO[str], rests: IO[str], move: Callable[[set[int]], None] = move_to) -> None:
        self._lines, self._rests, self._move = lines, rests, move

    def plan(self) -> dict[str, Any]:
        """The work that is to be done: it comes before the first turn."""
        plan: dict[str, Any] = json.loads(self._line())
        return plan

    def begin(self) -> Turn:
        """Wait for a turn.

        Raises:
            KeyboardInterrupt: there will be none, as with Ctrl-C: what was measured is kept.
        """
        turn: Turn = from_json(Turn, json.loads(self._line()))
        self._move({turn.core})
        return turn

    def exchange(self, rest: Rest) -> Turn:
        """End a turn and wait for the next one."""
        self.end(rest)
        return self.begin()

    def end(self, rest: Rest) -> None:
        """End a turn, maybe the last one."""
        self._rests.write(json.dumps(to_json(rest)) + "\n")
        self._rests.flush()

    def _line(self) -> str:
        line = self._lines.readline()
        if not line:
            raise KeyboardInterrupt
        return line


def serve_turns(turns: Turns, tune: Tuning) -> None:
    """Tune; how it ends is the last thing that is told."""
    plan = turns.plan()
    turns.begin()
    try:
        rest = Rest(ended=True, result=tune(plan, turns.exchange))
    except ChanasError as error:
        rest = Rest(ended=True, error=str(error), lacking=shortage(error))
    except Exception as error:
        with contextlib.suppress(OSError):  # the log may have no room either
            traceback.print_exc()
        rest = Rest(ended=True, error=describe(error, _NUM_CHARACTERS), lacking=shortage(error))
    turns.end(rest)


def main(tune: Tuning) -> None:
    """Serve the turns of standard input; whatever is printed goes to standard error."""
    rests = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        serve_turns(Turns(sys.stdin, rests), tune)
    except KeyboardInterrupt:
        sys.exit(130)
