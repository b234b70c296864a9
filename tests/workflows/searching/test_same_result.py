"""The demo's search on a stored table and stored accuracies comes to the same result, down to the code, as when they
were stored: a change that should change nothing is seen to change nothing.

The folder `stored_demo` holds the latency table and the 76 accuracies of a demo's run on a Zen 4, and what the search
made of them then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chanas.compiler.cpu.blocks import schedule_block
from chanas.compiler.cpu.lowering import pipeline
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import encode
from chanas.core.latency import LatencyLUT
from chanas.core.task import Task
from chanas.files.run import RunDirectory
from chanas.search.accuracy.table import load_accuracy_table
from chanas.search.config import SearchConfig
from chanas.search.cosearch import SearchOutcome, new_job, search
from chanas.search.learning import Source
from chanas.search.proof import Proof, Timing
from chanas.search.target import SearchTarget
from chanas.workflows.stages.tables import median_latency_s

STORED = Path(__file__).parent / "stored_demo"
CLASSES = 10


@pytest.fixture(scope="module")
def then() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STORED / "result.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return SearchSpace.load("mbv3-32")


@pytest.fixture(scope="module")
def lut() -> LatencyLUT:
    return LatencyLUT.load(STORED / "table.json")


@pytest.fixture(scope="module")
def outcome(space: SearchSpace, lut: LatencyLUT, tmp_path_factory: pytest.TempPathFactory) -> SearchOutcome:
    """The search; finalists measure what the table says."""
    accuracies = load_accuracy_table(STORED / "accuracies.csv", space)

    def prove(architectures: Sequence[Architecture]) -> list[Proof]:
        seconds = lut.latency_s(space, CLASSES, encode(space, architectures)).tolist()
        return [Proof(a, (Timing("cpu", s, 0.0),), 0.99) for a, s in zip(architectures, seconds, strict=True)]

    targets = [SearchTarget(lut.header.target, median_latency_s(lut, space, CLASSES), lut)]
    job = new_job(Task(space, CLASSES), targets, config=SearchConfig(predictor="ridge"))  # which the default was then
    run = RunDirectory(tmp_path_factory.mktemp("run"))
    return search(job, Source(run, accuracies.digest, table=accuracies), prove, progress=False)


def test_the_architecture_is_the_same(outcome: SearchOutcome, then: dict[str, Any]) -> None:
    assert outcome.architecture.key == then["architecture"]
    assert outcome.winner.predicted_s == pytest.approx((then["predicted_latency_s"],), rel=1e-12)
    assert [f.architecture.key for f in outcome.finalists] == then["finalists"]


def test_the_schedules_are_the_same(
    outcome: SearchOutcome, space: SearchSpace, lut: LatencyLUT, then: dict[str, Any]
) -> None:
    blocks = outcome.architecture.blocks(space, CLASSES)
    schedules = {b.key: [[k, list(p)] for k, p in lut.rows[b.key].schedules] for b in blocks}
    assert schedules == then["schedules"]


def test_the_code_of_every_block_is_the_same(space: SearchSpace, lut: LatencyLUT, then: dict[str, Any]) -> None:
    """As lowered programs, which no processor has a part in."""
    blocks = {b.key: b for b in space.all_blocks(CLASSES)}
    assert {key: lowered_digest(blocks[key], lut) for key in then["lowered_sha256"]} == then["lowered_sha256"]


def lowered_digest(block: Any, lut: LatencyLUT) -> str:
    """SHA-256 of a block's program as the code generator gets it, with the schedules of the table."""
    import tvm

    points = [point for _, point in lut.rows[block.key].schedules]
    function = schedule_block(block, points, lut.header.target).with_attr("global_symbol", "block")
    processor = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu"})
    bind = tvm.tirx.transform.BindTarget(processor.with_host(processor))
    passes, _, _ = tvm.tirx.compilation_pipeline.get_tir_pipeline(pipeline())
    return hashlib.sha256(passes(bind(tvm.IRModule({"block": function}))).script().encode()).hexdigest()
