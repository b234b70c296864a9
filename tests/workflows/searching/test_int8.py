"""chanas/workflows/searching/sources.py in int8: finalists are calibrated, judged as they compute, and handed over with
what their numbers stand for."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from chanas.bundle.codesign import CoDesign
from chanas.commands.search_text import bundle_lines
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.arrays import Float32Array
from chanas.errors import DataError
from chanas.files.run import RunDirectory
from chanas.network.folding import GRIDS
from chanas.search.cosearch import SearchOutcome
from chanas.search.proof import Finalist, Proposal
from chanas.search.target import SearchTarget
from chanas.supernet.training.evaluate import SupernetEvaluator
from chanas.workflows.searching.hand_over import hand_over
from chanas.workflows.searching.sources import Prover, SupernetSource

from ...compiler.workbench import HOST, INT8, needs_int8, random_lut
from .test_hand_over import CLASSES, Supernet, write_task

pytestmark = needs_int8


class WithTrainImages(Supernet):
    """One whose train images can be had."""

    data = SimpleNamespace(
        splits=SimpleNamespace(digest="fedcba9876543210"),
        indices=lambda split: np.arange(16),
        images=lambda indices, size: np.random.default_rng(0).standard_normal(
            (len(indices), 3, size, size), np.float32
        ),
    )


class InInt8(SupernetSource):
    """The source that has such a supernet."""

    @functools.cached_property
    def supernet(self) -> SupernetEvaluator:
        return cast(SupernetEvaluator, WithTrainImages(self.task.space))


@pytest.fixture(scope="module")
def run(tiny_space: SearchSpace, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    made = RunDirectory(tmp_path_factory.mktemp("int8") / "run")
    write_task(made, tiny_space)
    return made


@pytest.fixture(scope="module")
def prover(tiny_space: SearchSpace, run: RunDirectory) -> Prover:
    """For this machine in int8 and in float32."""
    targets = []
    for target in (INT8, HOST):
        lut = random_lut(tiny_space, tiny_space.all_blocks(len(CLASSES)), target)
        lut.save(run.lut(target.name))
        targets.append(SearchTarget(target, 1.0, lut))
    scratch = run.root.parent / "scratch"
    scratch.mkdir()
    return InInt8(run).prover(targets, scratch, progress=False)


@pytest.fixture(scope="module")
def architecture(tiny_space: SearchSpace) -> Architecture:
    return tiny_space.smallest


@pytest.fixture(scope="module")
def bundle(run: RunDirectory, prover: Prover, architecture: Architecture) -> CoDesign:
    (proof,) = prover([architecture])
    assert proof.error is None
    winner = Finalist(Proposal(architecture, (0.5, 0.5), 0.7, 0.01), proof, 1)
    unused: Any = None
    return hand_over(run, SearchOutcome(winner, (winner,), tuple(prover.targets), unused, 9, Path()), prover)


def test_a_bundle_in_int8_computes_about_what_it_does_in_float32(bundle: CoDesign) -> None:
    images, _ = WithTrainImages(bundle.space).images("test", bundle.architecture.resolution)
    whole, plain = (CoDesign.load(bundle.path, name).predict(images) for name in ("cpu-int8", "cpu"))
    assert 0 < np.abs(whole - plain).max() < 0.2 * np.abs(plain).max()
    np.testing.assert_allclose(plain, bundle.torch_logits(images), rtol=1e-3, atol=1e-3)


def test_every_block_says_what_its_numbers_stand_for(bundle: CoDesign) -> None:
    names = {name for name in bundle.tensors if name.endswith(GRIDS)}
    assert names == {f"blocks.{i}.{GRIDS}" for i in range(len(bundle.blocks))}


def test_the_accuracy_is_that_of_the_compiled_network(prover: Prover, bundle: CoDesign) -> None:
    images, labels = prover.source.holdout(bundle.architecture)
    computed = CoDesign.load(bundle.path, "cpu-int8").predict(images).argmax(1)
    assert bundle.measured["top1_holdout"] == pytest.approx(np.mean(computed == labels))
    assert bundle.measured["top1_holdout_float32"] == 0.75  # which the supernet says
    (line,) = (line for line in bundle_lines(bundle) if line.startswith("accuracy on holdout"))
    assert line.endswith(f"{bundle.measured['top1_holdout']:.2%} in int8, 75.00% in float32 (predicted 70.00%)")


def test_a_device_elsewhere_is_judged_by_the_emulation(
    prover: Prover, architecture: Architecture, bundle: CoDesign
) -> None:
    def nothing(_target: object) -> Any:
        raise AssertionError

    (job,) = prover.jobs([architecture]).values()
    elsewhere = dataclasses.replace(prover, targets=[dataclasses.replace(prover.targets[0], open_pool=nothing)])
    here, there = (one._top1_as_compiled(architecture, job, 0.0) for one in (prover, elsewhere))
    assert here == there == bundle.measured["top1_holdout"]


def test_a_supernet_without_train_images_cannot_be_calibrated(run: RunDirectory, architecture: Architecture) -> None:
    source = InInt8(run)
    empty: Float32Array = np.zeros(0, np.int64)  # type: ignore[assignment]
    source.supernet.data = SimpleNamespace(indices=lambda _split: empty)  # type: ignore[misc, assignment]
    with pytest.raises(
        DataError, match="calibrated with train images, and the supernet has none; import it with --images"
    ):
        source.calibration_images(architecture)
