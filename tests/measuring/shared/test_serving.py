"""chanas/measuring/shared/serving.py: a tuning computes in its turns, and tells how it ends."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chanas.core.codec import from_json, to_json
from chanas.errors import CheckpointError, ConfigError
from chanas.measuring.shared.pool import Exchange
from chanas.measuring.shared.serving import Turns, serve_turns
from chanas.measuring.shared.turns import Rest, Turn

PLAN = {"job": "a"}


class Pipe:
    """Turns on given cores, and what was told in them."""

    def __init__(self, *cores: int) -> None:
        lines = [PLAN, *(to_json(Turn(core=core)) for core in cores)]
        self._rests = io.StringIO()
        self.moved: list[set[int]] = []
        self.turns = Turns(io.StringIO("".join(json.dumps(x) + "\n" for x in lines)), self._rests, self.moved.append)

    @property
    def rests(self) -> Sequence[Rest]:
        return [from_json(Rest, json.loads(line)) for line in self._rests.getvalue().splitlines()]


def test_each_turn_is_on_the_core_that_it_is_given() -> None:
    pipe = Pipe(2, 5)

    def tune(plan: dict[str, Any], exchange: Exchange) -> dict[str, Any]:
        assert plan == PLAN
        assert pipe.moved == [{2}]
        assert exchange(Rest(renew=True)) == Turn(core=5)
        return {"made": 1}

    serve_turns(pipe.turns, tune)
    assert pipe.moved == [{2}, {5}]
    assert pipe.rests == [Rest(renew=True), Rest(ended=True, result={"made": 1})]


@pytest.mark.parametrize(
    ("error", "told"), [(ConfigError("no such space"), "no such space"), (KeyError("x"), "KeyError: 'x'")]
)
def test_an_error_is_told_in_one_line(error: Exception, told: str) -> None:
    def tune(_plan: dict[str, Any], _exchange: Exchange) -> dict[str, Any]:
        raise error

    pipe = Pipe(0)
    serve_turns(pipe.turns, tune)
    assert pipe.rests == [Rest(ended=True, error=told)]


def test_a_shortage_is_told_as_one(tmp_path: Path) -> None:
    def tune(_plan: dict[str, Any], _exchange: Exchange) -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(tmp_path / "full.sqlite")) as db:
            db.execute("PRAGMA max_page_count=2")
            try:
                db.execute("CREATE TABLE a (b)")
                db.execute("INSERT INTO a VALUES (?)", ("x" * 100_000,))
            except sqlite3.Error as error:
                raise CheckpointError("records cannot be written") from error
        return {}

    pipe = Pipe(0)
    serve_turns(pipe.turns, tune)
    assert pipe.rests == [Rest(ended=True, error="records cannot be written", lacking="database or disk is full")]


def test_without_another_turn_a_tuning_ends_as_with_ctrl_c() -> None:
    kept = []

    def tune(_plan: dict[str, Any], exchange: Exchange) -> dict[str, Any]:
        try:
            exchange(Rest())
        finally:
            kept.append("records")
        return {}

    pipe = Pipe(0)
    with pytest.raises(KeyboardInterrupt):
        serve_turns(pipe.turns, tune)
    assert kept == ["records"]
    assert pipe.rests == [Rest()]
