"""chanas/measuring/shared/turns.py: what is told arrives as it was told, through a line of JSON."""

from __future__ import annotations

import json
from pathlib import Path

from chanas.core.codec import from_json, to_json
from chanas.measuring.messages import Answer, Build, ErrorKind, OperatorAt, WorkerError
from chanas.measuring.shared.turns import Answered, Ask, Rest, Turn

from ...compiler.workbench import HOST, WORKLOAD


def test_a_turn() -> None:
    failed = Answer(None, WorkerError(ErrorKind.CRASH, "the worker ended", last_words="oh"), 1.5)
    turn = Turn(core=3, answers=(Answered(number=7, answer=failed), Answered(number=8, answer=Answer({"a": 1}, None))))
    assert from_json(Turn, json.loads(json.dumps(to_json(turn)))) == turn


def test_the_end_of_a_turn() -> None:
    request = Build(target=HOST, what=OperatorAt(WORKLOAD, (1, 2)), path=Path("a.so"))
    ask = Ask(number=4, times=False, timeout_s=20.0, request=request)
    rest = Rest(asks=(ask,), withdrawn=(1, 2), renew=True, ended=True, error="no", result={"path": "x"})
    arrived = from_json(Rest, json.loads(json.dumps(to_json(rest))))
    assert arrived == rest
