"""chanas/workflows/searching/hand_over.py with a supernet: weights, and a tested module for every target."""

from __future__ import annotations

import copy
import functools
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from chanas.bundle.codesign import CoDesign
from chanas.commands.process import main
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.task import Limits
from chanas.devices.host import load_target
from chanas.errors import MeasureError
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest, write_json
from chanas.measuring.candidates import CandidatePipeline
from chanas.network.preprocess import Preprocess
from chanas.network.static import StaticNetwork, random_static_network
from chanas.operators.steps import device_workloads
from chanas.search.cosearch import SearchOutcome
from chanas.search.proof import Finalist, Proposal
from chanas.search.target import SearchTarget
from chanas.supernet.training.evaluate import SupernetEvaluator
from chanas.workflows.searching import agreement, modules
from chanas.workflows.searching.hand_over import hand_over
from chanas.workflows.searching.schedules import bundle_rows, schedule_lines
from chanas.workflows.searching.sources import Prover, SupernetSource

from ...compiler.workbench import HOST, random_lut

CLASSES = ("ant", "bee", "cat", "dog", "eel")
SEED = 3

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a target of two threads needs two cores")


class Supernet:
    """Random weights for every architecture, and a few random images that its own network labels."""

    class_names, num_classes, digest = CLASSES, len(CLASSES), "0123456789abcdef"
    data = SimpleNamespace(splits=SimpleNamespace(digest="fedcba9876543210"), indices=lambda split: range(16))

    def __init__(self, space: SearchSpace) -> None:
        self.space = space

    def extract(self, architecture: Architecture) -> StaticNetwork:
        return random_static_network(architecture.blocks(self.space, self.num_classes), SEED)

    def top1(self, architecture: Architecture, split: str) -> float:
        return 0.75

    def images(
        self, split: str, resolution: int, max_images: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        rng = np.random.default_rng(len(split))
        images = rng.standard_normal((16, 3, resolution, resolution), dtype=np.float32)
        return images[:max_images], rng.integers(5, size=16)[:max_images]

    def preprocess(self, resolution: int) -> Preprocess:
        return Preprocess(resolution, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


class OfRandomWeights(SupernetSource):
    """The source that has such a supernet."""

    @functools.cached_property
    def supernet(self) -> SupernetEvaluator:
        return cast(SupernetEvaluator, Supernet(self.task.space))


def write_task(run: RunDirectory, space: SearchSpace) -> None:
    """What a run says of a supernet of these classes, without its weights."""
    write_json(run.supernet / "checkpoint.json", {"space": space.to_json(), "num_classes": len(CLASSES), "seed": 11})
    (run.supernet / "checkpoint.safetensors").write_bytes(b"")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return RunDirectory(tmp_path_factory.mktemp("hand-over") / "run")


@pytest.fixture(scope="module")
def prover(tiny_space: SearchSpace, run: RunDirectory) -> Prover:
    """For this machine on one thread and on two."""
    two = load_target("cpu", 2)
    write_task(run, tiny_space)
    blocks = tiny_space.all_blocks(len(CLASSES))
    luts = [random_lut(tiny_space, blocks, target, seed=i) for i, target in enumerate((HOST, two))]
    for lut in luts:
        lut.save(run.lut(lut.header.target.name))
    targets = [SearchTarget(HOST, 1.0, luts[0]), SearchTarget(two, 2.0, luts[1])]
    scratch = run.root.parent / "scratch"
    scratch.mkdir()
    return OfRandomWeights(run).prover(targets, scratch, progress=False)


@pytest.fixture(scope="module")
def outcome(prover: Prover) -> SearchOutcome:
    """The smallest network as a search hands it over, its proof measured."""
    architecture = prover.source.task.space.smallest
    (proof,) = prover([architecture])
    assert proof.error is None
    winner = Finalist(Proposal(architecture, (0.5, 1.5), 0.7, 0.01), proof, 1)
    unused: Any = None
    return SearchOutcome(winner, (winner,), tuple(prover.targets), unused, 9, Path())


def test_the_bundle_has_weights_and_a_tested_module_for_every_target(
    run: RunDirectory, prover: Prover, outcome: SearchOutcome
) -> None:
    bundle = hand_over(run, outcome, prover, Limits(macs=1e9).to_json(), seed=5)
    path = run.bundles / "cpu-1s+cpu-2t-2s-macs-1G"
    assert bundle.path == path
    assert run.bundle.readlink() == Path("bundles") / path.name
    assert {p.name for p in path.iterdir()} == {
        "codesign.json",
        "module.so",
        "module-cpu-2t.so",
        "weights.safetensors",
    }
    document = bundle.document
    assert document["seeds"] == {"search": 5, "supernet": 11}
    assert bundle.constraints == {"latency_s": 1.0, "macs": 1e9}
    assert bundle.predicted == {"latency_s": 0.5, "top1": 0.7}
    assert bundle.measured["top1_holdout"] == 0.75
    two = CoDesign.load(path, "cpu-2t")
    assert two.constraints == {"latency_s": 2.0, "macs": 1e9}
    for on_target in (bundle, two):
        assert on_target.measured["num_test_images"] == 16
        assert on_target.measured["num_disagreements"] == 0
        assert on_target.measured["latency_s"] > 0
        assert on_target.measured["pytorch_eager_latency_s"] > 0
        assert on_target.part["hashes"]["lut"] == file_digest(run.lut(on_target.target.name))
        check_blocks(on_target)
    images, _ = OfRandomWeights(run).supernet.images("test", outcome.architecture.resolution)
    assert two.predict(images) == pytest.approx(bundle.predict(images), rel=1e-3, abs=1e-4)


def check_blocks(bundle: CoDesign) -> None:
    """Every block has a schedule in words, its speed, and the time that it takes with schedules that are not tuned. A
    bundle that has none of it is shown with what its schedules say."""
    rows = bundle_rows(bundle)
    assert [row["name"] for row in rows] == list(bundle.architecture.block_names())
    for row, block in zip(rows, bundle.blocks, strict=True):
        assert row["key"] == block.key
        assert row["gflops"] == pytest.approx(2e-9 * block.num_macs / row["latency_s"])
        assert 0.0 < row["share_of_peak"] <= 1.0
        assert row["default_latency_s"] > 0.0
        assert all(": tiles of " in line for line in row["schedule"])
        assert len(row["schedule"]) == len(device_workloads(block, bundle.target))
    lines = list(schedule_lines(rows))
    assert len(lines) == 1 + sum(1 + len(row["schedule"]) for row in rows)
    assert lines[1].startswith("stem")
    assert lines[1].endswith("x")
    older = copy.deepcopy(bundle.document)
    for part in older["targets"]:
        part["blocks"] = [{name: b[name] for name in ("key", "latency_s")} for b in part["blocks"]]
    of_older = bundle_rows(CoDesign(bundle.path, older, bundle.target.name))
    assert [(r["schedule"], r["gflops"]) for r in of_older] == [(r["schedule"], r["gflops"]) for r in rows]
    assert not any(row["default_latency_s"] or row["share_of_peak"] for row in of_older)
    assert list(schedule_lines(of_older))[1].split()[-2:] == ["-", "-"]


def test_a_bundle_is_shown(
    run: RunDirectory, prover: Prover, outcome: SearchOutcome, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(hand_over(run, outcome, prover, name="shown", is_newest=False).path)
    for arguments, start in (([], "block "), (["--target", "cpu-2t", "--json"], "{")):
        with pytest.raises(SystemExit) as end:
            main(["bundle", "show", path, *arguments])
        assert not end.value.code
        assert capfd.readouterr().out.startswith(start)


def test_nothing_is_handed_over_when_one_targets_module_disagrees_with_pytorch(
    run: RunDirectory, prover: Prover, outcome: SearchOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = CoDesign.predict

    def turned(self: CoDesign, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        sign = -1 if self.target.name == "cpu-2t" else 1
        return np.float32(sign) * predict(self, images)

    monkeypatch.setattr(CoDesign, "predict", turned)
    shutil.rmtree(run.bundles, ignore_errors=True)  # what was tested before is not tested again
    with pytest.raises(MeasureError, match="compiled for cpu-2t classifies 16 of 16 test images otherwise"):
        hand_over(run, outcome, prover, name="turned")
    assert not (run.bundles / "turned").exists()


def test_a_module_for_another_device_is_handed_over_although_it_cannot_run_here(
    run: RunDirectory, prover: Prover, outcome: SearchOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CoDesign, "runs_here", property(lambda self: self.target.name == "cpu"))
    document = hand_over(run, outcome, prover, name="two").document
    here, elsewhere = (part["measured"] for part in document["targets"])
    assert here["num_disagreements"] == 0
    # the accuracy is PyTorch's
    assert set(elsewhere) == {"latency_s", "spread_s", "top1_test", "num_test_images"}
    assert elsewhere["top1_test"] == 0.75


def refuse(*_: object) -> None:
    raise AssertionError("this was done before")


def test_what_the_run_knows_of_a_network_is_not_compiled_evaluated_or_tested_again(
    run: RunDirectory, prover: Prover, outcome: SearchOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = hand_over(run, outcome, prover, name="first")
    monkeypatch.setattr(CandidatePipeline, "submit", refuse)
    monkeypatch.setattr(Supernet, "top1", refuse)
    monkeypatch.setattr(agreement, "_agreement", refuse)
    again = OfRandomWeights(run).prover(prover.targets, tmp_path, progress=False)
    (proof,) = again([outcome.architecture])
    assert proof.error is None
    assert len(proof.timings) == 2
    second = hand_over(run, outcome, again, name="second")
    assert {name: second.measured[name] for name in agreement.TESTED} == {
        name: first.measured[name] for name in agreement.TESTED
    }
    assert file_digest(second.path / "module.so") == file_digest(first.path / "module.so")


def test_a_damaged_module_of_the_run_is_compiled_again(
    run: RunDirectory, prover: Prover, outcome: SearchOutcome, tmp_path: Path
) -> None:
    stored = list(run.modules.iterdir())
    for module in stored:
        module.write_bytes(b"no code")
    one = OfRandomWeights(run).prover(prover.targets[:1], tmp_path, progress=False)
    (proof,) = one([outcome.architecture])
    assert proof.error is None
    assert [module.read_bytes() == b"no code" for module in stored].count(True) == len(stored) - 1


def test_the_modules_used_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "MOST_MODULES", 2)
    run, library = RunDirectory(tmp_path / "run"), tmp_path / "module.so"
    library.write_bytes(b"code")
    for name in ("a", "b"):
        modules.keep_module(run, name, library)
        os.utime(run.modules / f"{name}.so", (1000, 1000))
    assert modules.take_module(run, "a", tmp_path / "taken.so")
    modules.keep_module(run, "c", library)
    assert {path.stem for path in run.modules.iterdir()} == {"a", "c"}
    assert not modules.take_module(run, "b", tmp_path / "none.so")
