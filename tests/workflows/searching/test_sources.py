"""chanas/workflows/searching/sources.py: where accuracies come from, and finalists proven on every target."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chanas.core.arch import SearchSpace
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.errors import MeasureError, StageOrderError
from chanas.files.run import RunDirectory
from chanas.measuring.messages import Outcome
from chanas.search.target import SearchTarget
from chanas.workflows.searching.sources import AccuracyFile, SupernetSource, make_proof, open_source

from ...tables import CLASSES, random_table, save_accuracies, save_space

HOST = load_target("cpu")


def test_a_run_without_a_file_has_its_supernet(tmp_path: Path) -> None:
    source = open_source(RunDirectory(tmp_path))
    assert isinstance(source, SupernetSource)
    assert source.table is None
    with pytest.raises(StageOrderError, match="train-supernet"):
        _ = source.task


def test_a_file_is_of_the_space_of_the_latency_table(tmp_path: Path, tiny_space: SearchSpace) -> None:
    run = RunDirectory(tmp_path)
    random_table(tiny_space).save(run.lut("cpu"))
    file = save_accuracies(tiny_space, tmp_path / "accuracies.csv")
    source = open_source(run, AccuracyFile(file, save_space(tiny_space, tmp_path / "space.yaml")))
    assert (source.task.space, source.task.num_classes) == (tiny_space, CLASSES)
    assert source.table is not None
    known = source.table.architectures[0]
    assert source.top1(known) == source.table.top1[0]
    assert source.task.left_out == source.table.unknown
    unknown = next(a for a in (tiny_space.smallest, tiny_space.largest) if a not in source.table.architectures)
    assert source.top1(unknown) != source.top1(unknown)


def test_a_target_elsewhere_is_timed_through_its_own_pool(tmp_path: Path, tiny_space: SearchSpace) -> None:
    @contextlib.contextmanager
    def pool(target: HardwareTarget) -> Iterator[Any]:
        raise MeasureError(f"a pool of {target.name}")
        yield

    there = SearchTarget(dataclasses.replace(HOST, name="cpu@pi4"), 1.0, random_table(tiny_space), open_pool=pool)
    prover = SupernetSource(RunDirectory(tmp_path)).prover([there], tmp_path)
    with pytest.raises(MeasureError, match="a pool of cpu@pi4"):
        prover.measure(there, {})


def test_a_proof_has_the_timings_of_all_targets_in_order(tiny_space: SearchSpace) -> None:
    outcomes = {"cpu": Outcome(1e-3, 1e-6, None, 1e-5), "cpu@pi4": Outcome(2e-3, None, None, 2e-5)}
    proof = make_proof(tiny_space.smallest, outcomes, 0.9)
    assert [(t.target, t.latency_s, t.spread_s) for t in proof.timings] == [("cpu", 1e-3, 1e-6), ("cpu@pi4", 2e-3, 0.0)]
    assert (proof.top1_holdout, proof.max_error, proof.error) == (0.9, 2e-5, None)


def test_a_proof_that_failed_on_a_target_names_it(tiny_space: SearchSpace) -> None:
    failed = Outcome(None, None, "the device is gone")
    assert make_proof(tiny_space.smallest, {"cpu": failed}, 0.9).error == "the device is gone"
    both = make_proof(tiny_space.smallest, {"cpu": Outcome(1e-3, 1e-6, None), "cpu@pi4": failed}, 0.9)
    assert (both.error, both.timings) == ("on cpu@pi4: the device is gone", ())
