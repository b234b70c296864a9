"""The whole way with a GPU as its target: prescheduler, table, calibration, search, bundle. This machine stands in for
the GPU (`tests/measuring/stand_in.py`): everything is the package's own but the code that would run on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chanas import workflows
from chanas.bundle.benchmark import benchmark
from chanas.bundle.codesign import CoDesign
from chanas.core.arch import SearchSpace, StageSpec
from chanas.core.effort import TableEffort
from chanas.core.latency import LatencyLUT
from chanas.core.usage import Usage
from chanas.devices import cuda_runtime, host
from chanas.devices.driver import find_gpu
from chanas.files.run import RunDirectory
from chanas.measuring import canary
from chanas.operators.workload import Workload
from chanas.workflows.searching.search import search
from chanas.workflows.searching.sources import AccuracyFile, open_source

from ..compiler.workbench import plant_worker
from ..measuring.stand_in import WORKER, StandIn, found
from ..tables import CLASSES, QUICK_SEARCH, save_accuracies, save_space

SPACE = SearchSpace(
    name="pico",
    resolutions=(8,),
    width_multipliers=(1.0,),
    kernel_sizes=(3, 5),
    expand_ratios=(1, 2),
    depths=(1, 2),
    in_channels=3,
    stem_width=8,
    stem_stride=2,
    first_width=8,
    stages=(StageSpec(width=8, stride=1, activation="hswish", use_se=True),),
    head_width=8,
    feature_width=8,
)
QUICK = QUICK_SEARCH.model_copy(update={"num_samples": 20, "num_finalists": 2, "num_cloud": 10})


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU that is its processor."""
    monkeypatch.setattr(host, "find_gpu", lambda: found())
    plant_worker(monkeypatch, "cuda", WORKER)
    monkeypatch.setattr(cuda_runtime, "CUDADevice", StandIn)
    monkeypatch.setattr(canary, "WORKLOAD", Workload("pointwise", 2, 8, 8))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("batch", [1, 3])
def test_a_gpu_is_tuned_searched_for_and_used(tmp_path: Path, batch: int) -> None:
    header = walk(tmp_path, batch).header
    assert (header.target.gpu, header.batch) == (found().features, batch)


@pytest.mark.cuda
@pytest.mark.skipif(find_gpu() is None, reason="there is no NVIDIA GPU")
def test_the_gpu_of_this_machine_is_tuned_searched_for_and_used(tmp_path: Path) -> None:
    walk(tmp_path)
    rows = {row.name: row for row in benchmark(CoDesign.load(tmp_path / "run" / "bundle"), rounds=3)}
    assert (rows["chanas"].median_s or 0.0) > 0.0
    assert (rows["PyTorch eager"].median_s or 0.0) > 0.0


def walk(tmp_path: Path, batch: int = 1) -> LatencyLUT:
    run, space, name = (
        RunDirectory(tmp_path / "run"),
        tmp_path / "pico.yaml",
        "cuda" if batch == 1 else f"cuda-b{batch}",
    )
    save_space(SPACE, space)
    how: dict[str, Any] = {"effort": TableEffort(trials=1, calibrate=6), "progress": False}
    summary = workflows.preschedule(run, usage=Usage("cuda", batch=batch), space=space, num_classes=CLASSES, **how)
    lut = LatencyLUT.load(run.lut(name))
    assert summary.num_failed_trials == 0
    assert not lut.missing(SPACE.all_blocks(CLASSES))
    assert "L2 cold" in lut.header.timing
    assert lut.calibration is not None
    assert lut.calibration.num_networks == 6

    accuracies = AccuracyFile(save_accuracies(SPACE, tmp_path / "accuracies.csv"), space=space, num_classes=CLASSES)
    source = open_source(run, accuracies, name)
    bundle = search(run, source=source, latency_s={name: 10.0}, config=QUICK, progress=False)
    assert bundle.targets == (name,)
    assert bundle.measured["latency_s"] > 0.0

    loaded = CoDesign.load(run.bundle)
    assert loaded.runs_here
    images = np.random.default_rng(1).standard_normal((batch, 3, 8, 8), dtype=np.float32)
    given = images if batch > 1 else images[0]
    logits = loaded._run(given)
    with torch.inference_mode():
        expected = loaded.torch_module()(torch.from_numpy(images)).numpy()
    assert np.abs(logits - expected).max() < 1e-4 * max(1.0, np.abs(expected).max())
    assert np.array_equal(loaded._run(given), logits)
    return lut
