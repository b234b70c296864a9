"""chanas/workflows/searching/search.py with accuracies from a file: a bundle with schedules and without weights."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from chanas.bundle.benchmark import benchmark
from chanas.bundle.codesign import CoDesign
from chanas.commands.search_text import bundle_lines
from chanas.core.arch import SearchSpace
from chanas.core.task import Limits
from chanas.devices.host import load_target
from chanas.errors import CheckpointError, DataError, InfeasibleError, StageOrderError, TargetError
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest, read_json
from chanas.network.static import parameters_by_name
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.published.runs import keep
from chanas.workflows.searching.front import search_front
from chanas.workflows.searching.search import search
from chanas.workflows.searching.sources import AccuracyFile, AccuracySource, open_source
from chanas.workflows.stages.reporting import report

from ...compiler.workbench import HOST, random_lut
from ...tables import CLASSES, QUICK_SEARCH, save_accuracies, save_space


@pytest.fixture(scope="module")
def prepared(tiny_space: SearchSpace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run directory that has a latency table, a space file, and a table of accuracies."""
    folder = tmp_path_factory.mktemp("table")
    save_space(tiny_space, folder / "space.yaml")
    random_lut(tiny_space, tiny_space.all_blocks(CLASSES), HOST).save(RunDirectory(folder / "run").lut(HOST.name))
    save_accuracies(tiny_space, folder / "accuracies.csv", more=["r99-w1-k3e2-k3e2,51"])
    return folder


def accuracies_of(prepared: Path, run: RunDirectory, target: str = "cpu") -> AccuracySource:
    return open_source(run, AccuracyFile(prepared / "accuracies.csv", prepared / "space.yaml"), target)


def test_the_winner_is_compiled_and_measured_without_any_weights(prepared: Path, tiny_space: SearchSpace) -> None:
    run = RunDirectory(prepared / "run")
    source = accuracies_of(prepared, run)
    bundle = search(run, source=source, latency_s=1.0, config=QUICK_SEARCH, progress=False)
    accuracies = source.table
    assert accuracies is not None
    assert len(accuracies.outside) == 1
    assert not bundle.has_weights
    assert not (run.bundle / "weights.safetensors").exists()
    assert tiny_space.contains(bundle.architecture)
    assert 0 < bundle.measured["latency_s"] < 1.0
    assert bundle.document["hashes"]["accuracy_table"] == accuracies.digest
    # the largest network is the most accurate by this table, and the budget allows it
    assert bundle.document["predicted"]["top1"] > np.quantile(accuracies.top1, 0.9)
    assert read_json(run.search / "result.json", "result")["supernet"] == accuracies.digest


def test_a_published_supernet_gives_its_weights_to_what_a_table_chose(prepared: Path, tiny_space: SearchSpace) -> None:
    """Without images: its latency table is one of a space that shares its blocks."""
    run, other = RunDirectory(prepared / "published"), dataclasses.replace(tiny_space, name="other")
    supernet = Supernet(tiny_space, 1000).eval()
    keep(run, supernet, {"kind": "test"})
    random_lut(other, other.all_blocks(1000), HOST).save(run.lut(HOST.name))
    source = open_source(run, prepared / "accuracies.csv")
    bundle = search(run, source=source, latency_s=1.0, config=QUICK_SEARCH, progress=False)
    expected = parameters_by_name(supernet.extract(bundle.architecture))
    assert bundle.tensors.keys() == expected.keys()
    assert all(np.array_equal(value, expected[name]) for name, value in bundle.tensors.items())
    assert "top1_test" not in bundle.measured
    said = "\n".join(bundle_lines(bundle))
    assert "in the table" in said
    assert "BN statistics are not recalibrated" in said


def test_a_bundle_without_weights_is_timed_but_does_not_classify(prepared: Path) -> None:
    bundle = CoDesign.load(prepared / "run" / "bundle")
    with pytest.raises(CheckpointError, match="has no weights"):
        bundle.predict(np.zeros((1, 3, bundle.architecture.resolution, bundle.architecture.resolution), np.float32))
    rows = {row.name: row for row in benchmark(bundle, with_compile=False, rounds=3)}
    assert rows["chanas"].median_s is not None
    assert rows["PyTorch eager"].median_s is not None


def test_the_front_of_such_a_run_is_measured(prepared: Path, tiny_space: SearchSpace) -> None:
    run = RunDirectory(prepared / "run")
    points = search_front(
        run,
        source=accuracies_of(prepared, run),
        num_points=2,
        config=QUICK_SEARCH.model_copy(update={"pareto_generations": 5}),
        progress=False,
    )
    assert len(points) == 2
    assert all(tiny_space.contains(p.architecture) and p.measured_latency_s > 0 for p in points)
    document = read_json(run.search / "pareto.json", "front")
    assert {p["key"] for p in document["points"]} == {p.architecture.key for p in points}


def test_the_report_of_such_a_run_is_written(prepared: Path) -> None:
    page = report(RunDirectory(prepared / "run")).read_text(encoding="utf-8")
    assert CoDesign.load(prepared / "run" / "bundle").architecture.key in page


def test_what_is_missing_or_out_of_reach_is_one_line(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(StageOrderError, match="no latency table of target 'cpu'"):
        accuracies_of(prepared, RunDirectory(tmp_path))
    run = RunDirectory(prepared / "run")
    with pytest.raises(InfeasibleError, match="the smallest reachable is"):
        search(run, source=accuracies_of(prepared, run), latency_s=1e-9, config=QUICK_SEARCH, progress=False)
    with pytest.raises(DataError, match="cannot read the accuracy table"):
        open_source(run, AccuracyFile(tmp_path / "none.csv", space=prepared / "space.yaml"))


needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a target of two threads needs two cores")


@pytest.fixture
def with_two_threads(prepared: Path, tiny_space: SearchSpace) -> RunDirectory:
    """The run directory with a table for two threads besides."""
    run, target = RunDirectory(prepared / "run"), load_target("cpu", 2)
    random_lut(tiny_space, tiny_space.all_blocks(CLASSES), target, seed=1).save(run.lut(target.name))
    return run


@needs_two_cores
def test_the_winner_is_compiled_and_measured_on_every_target(
    prepared: Path, with_two_threads: RunDirectory, tmp_path: Path
) -> None:
    run = with_two_threads
    bundle = search(
        run,
        source=accuracies_of(prepared, run, "cpu-2t"),
        latency_s={"cpu-2t": 1.0, "cpu": 0.9},
        limits=Limits(macs=3e5, peak_memory=60e3),
        config=QUICK_SEARCH,
        progress=False,
    )
    assert bundle.targets == ("cpu-2t", "cpu")
    assert bundle.target.num_threads == 2
    assert bundle.constraints == {"latency_s": 1.0, "macs": 3e5, "peak_memory_bytes": 60e3}
    assert bundle.document["num_macs"] <= 3e5
    for part, name, budget_s in zip(bundle.document["targets"], bundle.targets, (1.0, 0.9), strict=True):
        assert part["peak_memory_bytes"] <= 60e3
        assert part["constraints"] == {"latency_s": budget_s}
        assert 0 < part["measured"]["latency_s"] < budget_s
        assert part["hashes"]["lut"] == file_digest(run.lut(name))
    assert {p.name for p in run.bundle.iterdir()} == {"codesign.json", "module.so", "module-cpu.so"}
    # a library that this process has loaded is not loaded again from the same path
    bundle = CoDesign.load(shutil.copytree(run.bundle, tmp_path / "bundle"))
    single = CoDesign.load(bundle.path, "cpu")
    assert single.target.num_threads == 1
    resolution = single.architecture.resolution
    image = np.random.default_rng(0).standard_normal((3, resolution, resolution)).astype(np.float32)
    assert single._run(image) == pytest.approx(bundle._run(image), rel=1e-3, abs=1e-4)
    with pytest.raises(TargetError, match="has no module for target 'moon'; it has one for cpu-2t, cpu"):
        CoDesign.load(bundle.path, "moon")
    (bundle.path / "module-cpu.so").unlink()
    with pytest.raises(CheckpointError, match=r"lacks module-cpu\.so; make it again with `chanas search`"):
        CoDesign.load(bundle.path)


@needs_two_cores
def test_a_target_without_a_table_names_those_there_are_and_the_command(prepared: Path) -> None:
    run = RunDirectory(prepared / "run")
    run.lut("cpu-2t").unlink(missing_ok=True)
    with pytest.raises(StageOrderError, match=r"of target 'cpu-2t' in .*; there are tables of: cpu; run .*--threads 2"):
        search(run, source=accuracies_of(prepared, run), latency_s={"cpu": 1.0, "cpu-2t": 1.0})
