"""chanas/measuring/requests.py: what is asked arrives as it was asked, through a line of JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from chanas.devices.timing import TimingSettings
from chanas.measuring.local.cuda_worker import calls
from chanas.measuring.local.worker import CALLS
from chanas.measuring.requests import (
    TIMINGS,
    BuildBlock,
    BuildCalls,
    BuildModule,
    BuildNetwork,
    BuildObject,
    BuildOperator,
    BuildOperators,
    BuildUntunedBlock,
    CompareModule,
    CompilePoint,
    Crash,
    Hang,
    Measure,
    MeasureInTurns,
    MeasureModule,
    MeasureNetwork,
    Ping,
    Request,
    TimingRequest,
    read_request,
)

from ..compiler.cuda_cases import GPU
from ..compiler.workbench import HOST, NANO, NUM_CLASSES, WORKLOAD
from .stand_in import StandIn, save_program

BLOCKS = NANO.smallest.blocks(NANO, NUM_CLASSES)
POINTS = ((1, 2), (3, 4, 5))
LIBRARY, CASE = Path("kernel.so"), Path("case.npz")
REQUESTS: tuple[Request, ...] = (
    BuildOperator(target=HOST, library=LIBRARY, workload=WORKLOAD, point=(1, 2)),
    BuildOperators(target=HOST, library=LIBRARY, workload=WORKLOAD, points=POINTS, compiled=(None, LIBRARY)),
    BuildBlock(target=GPU, library=LIBRARY, block=BLOCKS[1], points=POINTS),
    BuildNetwork(target=HOST, library=LIBRARY, blocks=BLOCKS, points=(POINTS, ())),
    BuildModule(target=HOST, library=LIBRARY, module=Path("module.json")),
    BuildUntunedBlock(target=HOST, library=LIBRARY, block=BLOCKS[0]),
    BuildObject(target=HOST, block=BLOCKS[1], points=POINTS, name="block", path=LIBRARY),
    BuildCalls(target=HOST, network="net", module=Path("module.json"), num_inputs=2, folder=Path("objects")),
    CompilePoint(target=GPU, workload=WORKLOAD, point=(1, 2)),
    Measure(library=LIBRARY, case=CASE, settings=TimingSettings(3, 0.1, 0.2, 4, 5), hopeless_s=1e-3),
    MeasureInTurns(library=LIBRARY, case=CASE, num=2),
    MeasureNetwork(library=LIBRARY, case=CASE),
    CompareModule(library=LIBRARY, case=CASE),
    MeasureModule(library=LIBRARY, case=CASE),
    Ping(),
    Hang(),
    Crash(),
)
KINDS = [type(request) for request in REQUESTS]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: r.call)
def test_a_request_arrives_as_it_was_sent(request_: Request) -> None:
    line = json.dumps(request_.to_json())
    assert "\n" not in line
    assert read_request(json.loads(line), KINDS) == request_


def test_a_list_of_points_is_as_good_as_a_tuple() -> None:
    sent = BuildBlock(target=HOST, library=LIBRARY, block=BLOCKS[0], points=[list(p) for p in POINTS])  # type: ignore[misc]
    assert read_request(sent.to_json(), KINDS) == dataclasses.replace(sent, points=POINTS)


def test_calls_are_named_after_their_classes() -> None:
    assert MeasureInTurns.call == "measure_in_turns"
    assert Ping().to_json() == {"call": "ping", "arguments": {}}
    assert len({kind.call for kind in KINDS}) == len(KINDS)


def test_workers_answer_the_same_requests_but_what_only_one_of_them_compiles() -> None:
    of_cpu, of_gpu = set(CALLS), set(calls(save_program, StandIn))
    assert of_cpu | of_gpu == set(KINDS)
    of_modules = {BuildModule, CompareModule, MeasureModule}
    assert of_cpu - of_gpu == {*of_modules, BuildObject, BuildCalls, BuildUntunedBlock}
    assert of_gpu - of_cpu == {CompilePoint}
    assert set(TIMINGS) == {k for k in KINDS if issubclass(k, TimingRequest)} | {Ping, Hang, Crash}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"call": "juggle", "arguments": {}}, "KeyError: 'juggle'"),
        ({"call": "ping", "arguments": {"loudly": True}}, "TypeError: .*unexpected keyword argument 'loudly'"),
        ({"call": "measure", "arguments": {}}, "TypeError: .*missing 2 required .* 'library' and 'case'"),
    ],
)
def test_what_is_no_request_is_an_error(data: dict[str, object], error: str) -> None:
    with pytest.raises((KeyError, TypeError)) as caught:
        read_request(data, KINDS)
    assert re.match(error, f"{caught.type.__name__}: {caught.value}")
