"""Searches whose blocks may be in several dtypes, on synthetic tables and accuracies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import encode, sample
from chanas.core.latency import LatencyLUT, LUTRow
from chanas.core.target import in_dtype
from chanas.core.task import Limits, Task
from chanas.errors import ConfigError
from chanas.files.run import RunDirectory
from chanas.search.config import SearchConfig
from chanas.search.cosearch import SearchOutcome, in_dtypes, new_job, search
from chanas.search.evolution.constraints import further_constraints
from chanas.search.front import new_front, search_front
from chanas.search.learning import Source
from chanas.search.proof import Proof, Timing
from chanas.search.target import SearchTarget

from .settings import FAST

BOTH = FAST.model_copy(update={"dtypes": ("f32", "int8"), "loss_evaluations": 32})
BUDGET_S = 3e-5
CONVERSION_S = 2e-7


def in_both(lut: LatencyLUT, space: SearchSpace) -> LatencyLUT:
    """A table with one in int8 beside it: blocks with squeeze-excite take half as long again, others half as long."""
    rows = {
        block.key: LUTRow(lut.block_s(block) * (1.5 if block.use_se else 0.5), 1e-7, 16, ())
        for block in space.all_blocks(10)
    }
    rows |= {block.key: LUTRow(CONVERSION_S, 1e-9, 0, ()) for block in space.all_conversions("int8")}
    target = dataclasses.replace(in_dtype(lut.header.target, "int8"), name="cpu-int8")
    header = dataclasses.replace(lut.header, target=target, dtype="int8")
    return dataclasses.replace(lut, others={"int8": LatencyLUT(header, rows)})


class Lab:
    """Tables, accuracies, and what each block in int8 costs of them."""

    def __init__(self, space: SearchSpace, lut: LatencyLUT, truth: Any, root: Path) -> None:
        self.space, self.lut, self.truth, self.run = space, in_both(lut, space), truth, RunDirectory(root)
        self.rounded: list[str] = []

    def top1(self, architecture: Architecture) -> float:
        """A tenth of a point for each block in int8, two for the stem."""
        first = architecture.dtypes[:1] == ("int8",)
        return float(self.truth(architecture.plain)) - 1e-3 * architecture.dtypes.count("int8") - 2e-2 * first

    def evaluate_rounded(self, architecture: Architecture) -> float:
        self.rounded.append(architecture.key)
        return self.top1(architecture)

    @property
    def source(self) -> Source:
        return Source(self.run, "abc", self.truth, evaluate_rounded=self.evaluate_rounded)

    def latency_s(self, architecture: Architecture) -> float:
        return sum(self.lut.block_s(block) for block in architecture.blocks(self.space, 10))

    def prove(self, architectures: Any) -> list[Proof]:
        return [Proof(a, (Timing("cpu", self.latency_s(a), 1e-8),), self.top1(a), 1e-6) for a in architectures]

    def search(self, config: SearchConfig = BOTH, budget_s: float = BUDGET_S) -> SearchOutcome:
        job = new_job(Task(self.space, 10), [SearchTarget(self.lut.header.target, budget_s, self.lut)], config=config)
        return search(job, self.source, self.prove, progress=False)


@pytest.fixture
def lab(
    tmp_path: Path, demo_space: SearchSpace, make_lut: Callable[..., LatencyLUT], make_accuracy: Callable[..., Any]
) -> Lab:
    return Lab(demo_space, make_lut(demo_space), make_accuracy(demo_space), tmp_path)


def test_a_network_of_both_is_more_accurate_than_one_of_float32(lab: Lab) -> None:
    mixed, plain = lab.search(), lab.search(FAST)
    assert plain.architecture.dtypes == ()
    assert set(mixed.architecture.dtypes) == {"float32", "int8"}
    assert lab.top1(mixed.architecture) > lab.top1(plain.architecture)
    assert lab.latency_s(mixed.architecture) <= BUDGET_S


def test_blocks_are_in_the_dtype_that_suits_them(lab: Lab) -> None:
    chosen = lab.search().architecture
    blocks = [b for b in chosen.blocks(lab.space, 10) if not b.converts]
    with_excitation = [b.dtype for b in blocks if b.use_se]
    assert with_excitation.count("float32") >= len(with_excitation) - 1
    assert blocks[0].dtype == "float32"  # the stem, whose rounding costs two points


def test_what_dtypes_cost_is_written_down(lab: Lab) -> None:
    lab.search()
    losses = json.loads((lab.run.search / "result.json").read_text())["losses"]
    assert losses["num_evaluations"] == 32
    assert losses["costs_points"]["int8"][-4] == max(losses["costs_points"]["int8"]) == pytest.approx(2.1, rel=0.3)
    assert losses["error_points"] < 0.5
    lines = (lab.run.search / "rounded.jsonl").read_text().splitlines()
    assert [json.loads(line)["architecture"] for line in lines] == lab.rounded


def test_nothing_is_evaluated_again(lab: Lab) -> None:
    first = lab.search()
    asked, rounded = list(lab.truth.asked), list(lab.rounded)
    second = lab.search()
    assert second.architecture == first.architecture
    assert lab.rounded == rounded
    assert set(lab.truth.asked) == set(asked)


def test_accuracies_that_are_evaluated_are_of_float32(lab: Lab) -> None:
    lab.search()
    lines = (lab.run.search / "evaluations.jsonl").read_text().splitlines()
    assert all(Architecture.from_key(json.loads(line)["architecture"]).dtypes == () for line in lines)


def test_a_front_has_points_of_both(lab: Lab) -> None:
    job = new_front(Task(lab.space, 10), lab.lut, num_points=5, config=BOTH)
    points = search_front(job, lab.source, lab.prove, progress=False)
    assert len(points) == 5
    assert any(point.architecture.dtypes for point in points)


def test_the_smallest_latency_is_that_of_the_best_dtypes(lab: Lab) -> None:
    space = in_dtypes(Task(lab.space, 10), BOTH).space
    table = lab.lut.table(space, 10)
    rows = sample(space, 4000, np.random.default_rng(0))
    assert table.smallest()[0].min() <= table.of(rows).min()
    in_float32 = lab.lut.table(lab.space, 10)
    assert table.smallest()[0].min() < in_float32.smallest()[0].min()
    smallest = encode(space, [lab.space.smallest])
    assert table.of(smallest) == pytest.approx(in_float32.of(encode(lab.space, [lab.space.smallest])))


def test_dtypes_need_weights_to_evaluate(lab: Lab) -> None:
    job = new_job(Task(lab.space, 10), [SearchTarget(lab.lut.header.target, BUDGET_S, lab.lut)], config=BOTH)
    without = dataclasses.replace(lab.source, evaluate_rounded=None)
    with pytest.raises(ConfigError, match="--dtypes needs a supernet with images, and no file of accuracies"):
        search(job, without, lab.prove, progress=False)


def test_memory_is_not_limited_in_several_dtypes(lab: Lab) -> None:
    space = in_dtypes(Task(lab.space, 10), BOTH).space
    with pytest.raises(ConfigError, match="--peak-memory goes with one dtype, not with --dtypes"):
        further_constraints(space, 10, Limits(peak_memory=1e6), [lab.lut.header.target])
