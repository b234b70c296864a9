"""Limits that nothing can meet are told from the latency table alone, before the supernet and PyTorch are loaded."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from chanas.core.arch import SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.core.task import Limits
from chanas.devices.host import load_target
from chanas.errors import CheckpointError, ConfigError, InfeasibleError
from chanas.files.run import RunDirectory
from chanas.files.writing import write_json
from chanas.supernet.training.evaluate import SupernetEvaluator
from chanas.workflows.searching.ablation import ablate
from chanas.workflows.searching.front import search_front
from chanas.workflows.searching.per_target import search_per_target
from chanas.workflows.searching.search import search
from chanas.workflows.searching.sources import AccuracyFile, open_source

from ...tables import CLASSES, random_table, save_accuracies, save_space

LATENCY = r"no architecture of space 'tiny' meets latency of at most 0\.001 us: the smallest reachable is .* \(r12-.*\)"
MACS = r"no architecture of space 'tiny' meets multiply-accumulates of at most 1 MACs: the smallest reachable is"
needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a target of two threads needs two cores")


@pytest.fixture
def run(tiny_space: SearchSpace, tmp_path: Path) -> RunDirectory:
    """A run directory with a latency table, and a supernet that cannot be loaded."""
    run, lut = RunDirectory(tmp_path / "run"), random_table(tiny_space)
    lut.save(run.lut("cpu"))
    if len(os.sched_getaffinity(0)) > 1:
        two = dataclasses.replace(lut.header, target=load_target("cpu", 2))
        LatencyLUT(two, lut.rows).save(run.lut(two.target.name))
    write_json(run.supernet / "checkpoint.json", {"space": tiny_space.to_json(), "num_classes": CLASSES})
    (run.supernet / "checkpoint.safetensors").write_bytes(b"")
    return run


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda run: search(run, latency_s=1e-9), LATENCY),
        (lambda run: search(run, latency_s=1.0, limits=Limits(macs=1)), MACS),
        (lambda run: search_front(run, limits=Limits(macs=1)), MACS),
        (lambda run: ablate(run, latency_s=1e-9), LATENCY),
        pytest.param(
            lambda run: search(run, latency_s={"cpu": 1.0, "cpu-2t": 1e-9}),
            LATENCY.replace("latency", "latency on cpu-2t"),
            marks=needs_two_cores,
        ),
        pytest.param(
            lambda run: search_per_target(run, latency_s={"cpu": 1e-9, "cpu-2t": 1e-9}),
            rf"2 of 2 targets failed: cpu: {LATENCY}.*; cpu-2t: {LATENCY}",
            marks=needs_two_cores,
        ),
    ],
    ids=["latency", "macs", "front", "ablation", "several targets", "a search for each target"],
)
def test_limits_out_of_reach_are_told_without_the_supernet(
    call: Callable[[RunDirectory], object], says: str, run: RunDirectory
) -> None:
    with pytest.raises(InfeasibleError, match=says):
        call(run)
    assert not run.search.exists()


@pytest.mark.parametrize(
    "call", [lambda run: search(run, latency_s=1.0), search_front, ablate], ids=["search", "front", "ablation"]
)
def test_limits_in_reach_go_on_to_the_supernet(call: Callable[[RunDirectory], object], run: RunDirectory) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors is cut short or damaged"):
        call(run)


def test_a_supernet_of_another_task_than_its_json_is_refused(
    run: RunDirectory, tiny_space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SimpleNamespace(space=tiny_space, num_classes=CLASSES + 1)
    monkeypatch.setattr(SupernetEvaluator, "load", lambda _run: other)
    with pytest.raises(CheckpointError, match=r"checkpoint\.json is not that of the checkpoint beside it"):
        search(run, latency_s=1.0)


@pytest.mark.parametrize("damaged", [{"num_classes": CLASSES}, {"space": {}, "num_classes": CLASSES}, {"space": 1}])
def test_a_supernets_json_that_says_nothing_is_one_line(damaged: dict[str, object], run: RunDirectory) -> None:
    write_json(run.supernet / "checkpoint.json", damaged)
    with pytest.raises(CheckpointError, match=r"checkpoint\.json is not written as expected: .*train again with"):
        search(run, latency_s=1.0)


def test_a_front_of_one_point_is_told_without_the_supernet(run: RunDirectory) -> None:
    with pytest.raises(ConfigError, match="expected at least 2 points of the front, got 1"):
        search_front(run, num_points=1)


def test_the_message_is_that_of_a_search_with_an_accuracy_table(run: RunDirectory, tiny_space: SearchSpace) -> None:
    folder = run.root.parent
    accuracies = AccuracyFile(save_accuracies(tiny_space, folder / "a.csv"), save_space(tiny_space, folder / "t.yaml"))
    with pytest.raises(InfeasibleError) as by_supernet:
        search(run, latency_s=1e-9)
    with pytest.raises(InfeasibleError) as by_table:
        search(run, source=open_source(run, accuracies), latency_s=1e-9)
    assert str(by_table.value) == str(by_supernet.value)


def test_the_command_answers_before_pytorch_is_imported(run: RunDirectory) -> None:
    program = (
        "import sys\nfrom chanas.commands.main import app\n"
        "try:\n    app(['search', '--latency', '1ns', '--run', sys.argv[1]], standalone_mode=False)\n"
        "except Exception as error:\n    print(type(error).__name__)\n"
        "print(sorted({'torch', 'tvm', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(run.root)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["InfeasibleError", "[]"]
