"""chanas/measuring/answers.py: every error has a kind, on the wire and in what is stored."""

from __future__ import annotations

import json
import math

import pytest

from chanas.errors import MeasureError, ScheduleError
from chanas.measuring.answers import Answer, ErrorKind, RequestError, Timing, WorkerError

RIGHT = Timing(1e-3, 1e-5, 7, 1e-7)
STORED = {
    "wrong result: relative error 0.01 against PyTorch": ErrorKind.WRONG,
    "timeout: measure took more than 20 s": ErrorKind.TIMEOUT,
    "crash: the worker ended with signal 6 (SIGABRT) in measure; it said: LLVM ERROR: no": ErrorKind.CRASH,
    "out of memory: a worker may allocate 4.0 GiB": ErrorKind.OUT_OF_MEMORY,
    "GPU fault: CUDA: unspecified launch failure": ErrorKind.GPU_FAULT,
    "stopped: measure was given up": ErrorKind.STOPPED,
    "ScheduleError: expected 3 points: got 2": ErrorKind.RAISED,
    "what nobody writes: so far": ErrorKind.RAISED,
    "": ErrorKind.RAISED,
}


@pytest.mark.parametrize(("stored", "kind"), STORED.items())
def test_a_stored_error_has_its_kind_and_is_stored_again_as_it_was(stored: str, kind: ErrorKind) -> None:
    error = WorkerError.read(stored)
    assert error.kind is kind
    assert str(error) == stored


def test_the_last_words_of_a_worker_are_no_part_of_what_happened() -> None:
    error = WorkerError.read("crash: the worker ended in measure; it said: LLVM ERROR: no")
    assert (error.text, error.last_words) == ("the worker ended in measure", "LLVM ERROR: no")


def test_only_errors_of_chanas_have_a_class_here() -> None:
    assert WorkerError.of(ScheduleError("no")).exception_class is ScheduleError
    assert WorkerError.of(KeyError("no")).exception_class is None
    assert WorkerError(ErrorKind.TIMEOUT, "no", "").exception_class is None
    assert WorkerError(ErrorKind.RAISED, "no", "annotations").exception_class is None


def test_a_message_leaves_out_the_class_alone() -> None:
    assert WorkerError.of(MeasureError("no tracker answers")).message == "no tracker answers"
    assert WorkerError(ErrorKind.BUSY, "all 2 of them are in use").message == "busy: all 2 of them are in use"


def test_an_exception_is_one_short_line() -> None:
    error = WorkerError.of(RuntimeError("first\n  second" + 1000 * "x"))
    assert str(error).startswith("RuntimeError: first second")
    assert len(str(error)) < 400


def test_an_error_that_is_raised_on_keeps_its_kind() -> None:
    error = WorkerError(ErrorKind.BUSY, "all of them are in use")
    assert WorkerError.of(RequestError(error)) is error


@pytest.mark.parametrize("found", [RIGHT, None, {"code": "0"}, WorkerError.wrong(0.5), WorkerError.wrong(math.inf)])
def test_an_answer_arrives_as_it_was_sent(found: object) -> None:
    answer = Answer.of(found)
    assert Answer.from_json(json.loads(json.dumps(answer.to_json()))) == answer


def test_answers_about_several_programs_are_one_answer() -> None:
    answer = Answer.of([Answer.of(RIGHT), Answer.of(WorkerError.wrong(0.5))])
    right, wrong = Answer.from_json(json.loads(json.dumps(answer.to_json()))).members
    assert right.timing == RIGHT
    assert wrong.error == WorkerError(ErrorKind.WRONG, "relative error 0.5 against PyTorch", max_error=0.5)
    assert Answer.of(RIGHT).members == ()


def test_a_device_of_an_earlier_version_sends_the_text_alone() -> None:
    answer = Answer.from_json({"result": None, "error": "timeout: measure took more than 3 s", "wall_s": 3.0})
    assert answer.error == WorkerError(ErrorKind.TIMEOUT, "measure took more than 3 s")


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0, 1e30, "fast", None, True])
def test_a_timing_that_nothing_can_have_taken_is_an_error(seconds: object) -> None:
    told = {"result": {"seconds": seconds, "spread_s": 0.0, "repeats": 3, "max_error": 0.0}, "error": None}
    answer = Answer.from_json(told)
    assert answer.result is None
    assert answer.error is not None
    assert "expected seconds" in answer.error.message
