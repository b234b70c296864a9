"""chanas/measuring/shared/turns.py: what is told arrives as it was told, through a line of JSON."""

from __future__ import annotations

import json
from pathlib import Path

from chanas.measuring.answers import Answer, ErrorKind, WorkerError
from chanas.measuring.requests import BuildOperator
from chanas.measuring.shared.turns import Answered, Ask, Rest, Turn

from ...compiler.workbench import HOST, WORKLOAD


def test_a_turn() -> None:
    failed = Answer(None, WorkerError(ErrorKind.CRASH, "the worker ended", last_words="oh"), 1.5)
    turn = Turn(core=3, answers=(Answered(number=7, answer=failed), Answered(number=8, answer=Answer({"a": 1}, None))))
    assert Turn.from_json(json.loads(json.dumps(turn.to_json()))) == turn


def test_the_end_of_a_turn() -> None:
    request = BuildOperator(target=HOST, library=Path("a.so"), workload=WORKLOAD, point=(1, 2))
    ask = Ask(number=4, times=False, timeout_s=20.0, request=request.to_json())
    rest = Rest(asks=(ask,), withdrawn=(1, 2), renew=True, ended=True, error="no", result={"path": "x"})
    arrived = Rest.from_json(json.loads(json.dumps(rest.to_json())))
    assert arrived == rest
    assert arrived.asks[0].read() == request
