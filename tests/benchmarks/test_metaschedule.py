"""TVM's MetaSchedule beside chanas: rounds, what is kept, what is told when it fails, and a tuned network."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from chanas.devices.host import load_target

from ..networks import save_onnx

CORES = ([0], [0])


@pytest.fixture
def metaschedule(load: Any) -> ModuleType:
    module: ModuleType = load("metaschedule")
    return module


@pytest.fixture
def worker(load: Any) -> ModuleType:
    module: ModuleType = importlib.import_module("metaschedule_worker")
    sys.modules.pop("metaschedule_worker")
    return module


@pytest.mark.parametrize(
    ("seconds", "num_tasks", "trials"), [(600, 60, 4), (600, 30, 10), (600, 5, 64), (36000, 60, 64)]
)
def test_every_task_gets_a_round_in_half_the_time(
    worker: ModuleType, seconds: float, num_tasks: int, trials: int
) -> None:
    assert worker.trials_per_round(seconds, num_tasks) == trials


def test_a_request_that_fails_is_answered_with_its_error(metaschedule: ModuleType) -> None:
    assert metaschedule.ask_worker("nonsense", CORES, 60.0) == {"error": "KeyError: 'nonsense'"}
    assert metaschedule.ask_worker("nonsense", CORES, 0.0) == {"error": "more than 0 s"}


def tune(metaschedule: ModuleType, folder: Path, seconds: float, answer: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """What tuning a network gives with a worker that answers at once, and how often the worker was asked."""
    asked = []

    def ask(kind: str, *arguments: Any, **request: Any) -> dict[str, Any]:
        asked.append(kind)
        return answer

    return metaschedule.tune_network(folder / "net.onnx", load_target("cpu"), seconds, 0, folder, ask), len(asked)


def test_a_network_is_not_tuned_twice_for_the_same_time(metaschedule: ModuleType, tmp_path: Path) -> None:
    first, asked = tune(metaschedule, tmp_path, 5.0, {"trials": 3})
    assert (first["trials"], first["seconds"], asked) == (3, 5.0, 1)
    assert tune(metaschedule, tmp_path, 5.0, {"trials": 4}) == (first, 0)
    assert metaschedule.kept_answer(tmp_path) == first
    again, asked = tune(metaschedule, tmp_path, 6.0, {"trials": 4})
    assert (again["trials"], asked) == (4, 1)


def test_nothing_is_kept_of_tuning_that_failed(metaschedule: ModuleType, tmp_path: Path) -> None:
    tune(metaschedule, tmp_path, 5.0, {"trials": 3})
    failed, _ = tune(metaschedule, tmp_path, 6.0, {"error": "no such operator"})
    assert failed["error"] == "no such operator"
    assert metaschedule.kept_answer(tmp_path) is None


def test_operators_that_there_was_no_time_for_are_told(metaschedule: ModuleType) -> None:
    answer = {"trials": 40, "failed_trials": 2, "tuning_s": 61.2, "untuned_tasks": 3, "tasks": 27}
    told = "MetaSchedule: 40 trials (2 failed) in 61 s, 3 of 27 tasks without a schedule"
    assert metaschedule.describe(answer) == told


@pytest.mark.slow
def test_a_network_that_was_tuned_computes_the_same(metaschedule: ModuleType, tmp_path: Path, load: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the benchmarks' extra: pip install 'chanas[bench]'")

    onnx = save_onnx(tmp_path / "net.onnx")
    tuned = metaschedule.tune_network(onnx, load_target("cpu"), 60.0, 0, tmp_path / "tuned")
    assert tuned.get("error") is None
    assert tuned["trials"] - tuned["failed_trials"] > 0
    assert tuned["untuned_tasks"] < tuned["tasks"]
    session = onnxruntime.InferenceSession(str(onnx))
    (taken,) = session.get_inputs()
    image = np.random.default_rng(0).standard_normal(taken.shape, dtype=np.float32)
    np.savez(tmp_path / "inputs.npz", image)
    expected = session.run(None, {taken.name: image})[0].ravel()
    arguments = {"library": tuned["library"], "inputs": str(tmp_path / "inputs.npz")}
    with load("contenders").Contender("MetaSchedule", 1, **arguments) as contender:
        assert np.allclose(contender.output(0), expected, atol=1e-4 * abs(expected).max())
