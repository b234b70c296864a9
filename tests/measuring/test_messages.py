"""chanas/measuring/messages.py: what is asked and answered arrives as it was told, through a line of JSON, and every
error has a kind, on the wire and in what is stored."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

from chanas.core.codec import to_json
from chanas.devices.timing import TimingSettings
from chanas.errors import MeasureError, ScheduleError
from chanas.measuring.messages import (
    TIMINGS,
    Answer,
    BlockAt,
    Build,
    Compare,
    CompilePoint,
    Crash,
    ErrorKind,
    Hang,
    Learn,
    Measure,
    ModuleFile,
    NetworkAt,
    OperatorAt,
    OperatorsAt,
    Ping,
    Request,
    RequestError,
    Timing,
    TimingRequest,
    UntunedBlock,
    WorkerError,
    read_request,
)
from chanas.measuring.worker.cpu import CALLS
from chanas.measuring.worker.cuda import calls

from ..compiler.cuda_cases import GPU
from ..compiler.workbench import HOST, NANO, NUM_CLASSES, WORKLOAD
from .stand_in import StandIn, save_program

BLOCKS = NANO.smallest.blocks(NANO, NUM_CLASSES)
POINTS = ((1, 2), (3, 4, 5))
LIBRARY, CASE = Path("kernel.so"), Path("case.npz")
REQUESTS: tuple[Request, ...] = (
    Build(target=HOST, what=OperatorAt(WORKLOAD, (1, 2)), path=LIBRARY),
    Build(target=HOST, what=OperatorsAt(WORKLOAD, POINTS, (None, LIBRARY)), path=LIBRARY),
    Build(target=GPU, what=BlockAt(BLOCKS[1], POINTS), path=LIBRARY),
    Build(target=HOST, what=NetworkAt(BLOCKS, (POINTS, ())), path=LIBRARY),
    Build(target=HOST, what=UntunedBlock(BLOCKS[0]), path=LIBRARY),
    Build(target=HOST, what=ModuleFile(Path("module.json"), 2), path=Path("objects"), form="kernels", name="net"),
    CompilePoint(target=GPU, workload=WORKLOAD, point=(1, 2)),
    Measure(library=LIBRARY, case=CASE, settings=TimingSettings(3, 0.1, 0.2, 4, 5), hopeless_s=1e-3),
    Measure(library=LIBRARY, case=CASE, num=2),
    Measure(library=LIBRARY, case=CASE, form="module"),
    Compare(library=LIBRARY, case=CASE),
    Learn(question={"lengths": [1.0, 2.0]}),
    Ping(),
    Hang(),
    Crash(),
)
KINDS = list(dict.fromkeys(type(request) for request in REQUESTS))


# ---- requests -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: r.call)
def test_a_request_arrives_as_it_was_sent(request_: Request) -> None:
    line = json.dumps(request_.to_json())
    assert "\n" not in line
    assert read_request(json.loads(line), KINDS) == Request.from_json(json.loads(line)) == request_


def test_a_list_of_points_is_as_good_as_a_tuple() -> None:
    sent = Build(target=HOST, what=BlockAt(BLOCKS[0], [list(p) for p in POINTS]), path=LIBRARY)  # type: ignore[misc]
    assert read_request(sent.to_json(), KINDS) == dataclasses.replace(sent, what=BlockAt(BLOCKS[0], POINTS))


def test_calls_are_named_after_their_classes() -> None:
    assert CompilePoint.call == "compile_point"
    assert Ping().to_json() == {"call": "ping", "arguments": {}}
    assert len({kind.call for kind in KINDS}) == len(KINDS)


def test_workers_answer_the_same_requests_but_what_only_one_of_them_does() -> None:
    of_cpu, of_gpu = set(CALLS), set(calls(save_program, StandIn))
    assert of_cpu | of_gpu == {*KINDS} - {Learn}
    assert of_cpu - of_gpu == {Compare}
    assert of_gpu - of_cpu == {CompilePoint}
    assert set(TIMINGS) == {k for k in KINDS if issubclass(k, TimingRequest)} | {Ping, Hang, Crash}


@pytest.mark.parametrize("worker", [CALLS, calls(save_program, StandIn)], ids=["cpu", "gpu"])
@pytest.mark.parametrize("form", ["object", "kernels"])
def test_no_worker_makes_something_else_than_it_was_asked_for(worker: dict[type[Request], object], form: str) -> None:
    request = Build(target=HOST, what=OperatorAt(WORKLOAD, (1, 2)), path=LIBRARY, form=form)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"{form} .* OperatorAt"):
        worker[Build](request)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"call": "juggle", "arguments": {}}, "KeyError: 'juggle'"),
        ({"call": "ping", "arguments": {"loudly": True}}, "TypeError: .*unexpected keyword argument 'loudly'"),
        ({"call": "measure", "arguments": {}}, "TypeError: .*missing 2 required .* 'library' and 'case'"),
        ({"call": "build", "arguments": {"what": {"Juggling": {}}}}, "KeyError: 'Juggling'"),
    ],
)
def test_what_is_no_request_is_an_error(data: dict[str, object], error: str) -> None:
    with pytest.raises((KeyError, TypeError)) as caught:
        read_request(data, KINDS)
    assert re.match(error, f"{caught.type.__name__}: {caught.value}")


# ---- answers --------------------------------------------------------------------------------------------------------
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
    assert Answer.from_json(json.loads(json.dumps(to_json(answer)))) == answer


def test_answers_about_several_programs_are_one_answer() -> None:
    answer = Answer.of([Answer.of(RIGHT), Answer.of(WorkerError.wrong(0.5))])
    right, wrong = Answer.from_json(json.loads(json.dumps(to_json(answer)))).members
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
