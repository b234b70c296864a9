"""A tracker and servers of a GPU on loopback; a processor stands in for the GPU (`stand_in`), on both sides."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chanas import workflows
from chanas.compiler.backends import case_of, schedule_space
from chanas.compiler.cuda.nvrtc import why_no_nvrtc
from chanas.core.effort import TableEffort
from chanas.core.latency import LatencyLUT
from chanas.core.usage import Place, Usage
from chanas.devices.timing import TimingSettings
from chanas.errors import MeasureError
from chanas.files.run import RunDirectory
from chanas.measuring import canary
from chanas.measuring.messages import Build, Measure, OperatorAt
from chanas.measuring.remote.device import what_it_is
from chanas.measuring.remote.held import held_devices
from chanas.measuring.remote.tracker import Address
from chanas.operators.workload import Workload
from chanas.workflows.searching.search import search
from chanas.workflows.searching.sources import AccuracyFile, open_source
from chanas.workflows.stages.tables import check, open_table

from ...compiler.cuda_cases import WORKLOADS
from ...compiler.workbench import plant_worker
from ...tables import CLASSES, save_accuracies, save_space
from ...workflows.test_cuda_path import QUICK
from ...workflows.test_cuda_path import SPACE as PICO
from ..stand_in import WORKER, found
from .test_rpc import num_free, serving, tracker, until

REASON = why_no_nvrtc()
pytestmark = [pytest.mark.rpc, pytest.mark.skipif(REASON is not None, reason=str(REASON))]
KEY = "h100"
__all__ = ["tracker"]


@pytest.fixture(scope="module")
def servers(tracker: Address) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two GPUs of one key."""
    script = str(Path(__file__).parents[1] / "stand_in_server.py")
    command = [sys.executable, script, "--tracker", str(tracker), "--key", KEY]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert until(lambda: num_free(tracker, KEY) == 2)
    yield processes
    for process in processes:
        process.terminate()
        process.wait()


def gpus(tracker: Address, num: int | None = None) -> Usage:
    return Usage("cuda", place=Place(str(tracker), KEY, num))


@pytest.fixture(autouse=True)
def _builders(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_worker(monkeypatch, "cuda", WORKER)


@pytest.mark.usefixtures("servers")
def test_two_gpus_time_what_is_built_here(tracker: Address, tmp_path: Path) -> None:
    workload, case, library = WORKLOADS[1], tmp_path / "case.npz", tmp_path / "kernel.so"
    with held_devices(gpus(tracker)) as held:
        assert (len(held.devices), held.target.name) == (2, f"cuda@{KEY}")
        assert held.target.gpu == found().features
        case_of(workload, held.target).save(case)
        point = schedule_space(workload, held.target).sample(1, np.random.default_rng(0))[0]
        build = Build(target=held.target, what=OperatorAt(workload, point), path=library)
        timing = Measure(library=library, case=case, settings=TimingSettings(cold_bytes=1))
        with held.pool(held.target) as pool:
            assert pool.build(build, 60.0).result().error is None
            answers = [pool.measure(timing, 60.0, device).result() for device in (0, 1)]
    assert [(a.device, a.error) for a in answers] == [(0, None), (1, None)]
    assert all(a.timing.seconds > 0.0 and a.timing.max_error < 1e-4 for a in answers)


@pytest.mark.usefixtures("servers")
def test_a_tracker_can_tell_what_a_device_is(tracker: Address) -> None:
    assert what_it_is(tracker, KEY) == "GPU stand-in [sm_90]"


@pytest.mark.usefixtures("servers")
def test_a_client_that_asks_for_a_processor_is_told(tracker: Address) -> None:
    with (
        pytest.raises(
            MeasureError, match=rf"^a device of key '{KEY}' can't be used: it serves its GPU .* --target cuda"
        ),
        held_devices(Usage(place=Place(str(tracker), KEY))),
    ):
        pass


@pytest.mark.usefixtures("servers")
def test_a_processor_under_the_key_of_gpus_is_left_out_by_name(
    tracker: Address, caplog: pytest.LogCaptureFixture
) -> None:
    with held_devices(gpus(tracker, 1)):  # the processor comes behind the GPUs
        processor = serving(tracker, KEY)
        try:
            assert until(lambda: num_free(tracker, KEY) == 2)
            with caplog.at_level(logging.WARNING), held_devices(gpus(tracker)) as held:
                assert len(held.devices) == 1
        finally:
            processor.terminate()
            processor.wait()
    assert "can't be used: it serves its processor" in caplog.text


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("servers")
def test_a_table_of_gpus_elsewhere_is_made_and_checked(
    tracker: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "WORKLOAD", Workload("pointwise", 2, 8, 8))
    run, space, place = RunDirectory(tmp_path / "run"), tmp_path / "pico.yaml", Place(str(tracker), KEY)
    save_space(PICO, space)
    summary = workflows.preschedule(
        run,
        usage=Usage("cuda", place=place),
        effort=TableEffort(trials=1, calibrate=6),
        space=space,
        num_classes=CLASSES,
        progress=False,
    )
    assert (summary.num_failed_trials, summary.path) == (0, run.lut(f"cuda@{KEY}"))
    lut = LatencyLUT.load(summary.path)
    assert lut.header.target.gpu == found().features
    assert lut.calibration is not None
    table = open_table(run=run, usage=Usage("cuda", place=Place(key=KEY)), space=space)
    assert check(table, num_rows=2, num_networks=1, place=place, progress=False).holds
    accuracies = AccuracyFile(save_accuracies(PICO, tmp_path / "accuracies.csv"), space=space)
    bundle = search(
        run,
        source=open_source(run, accuracies, f"cuda@{KEY}"),
        latency_s=10.0,
        usage=Usage("cuda", place=place),
        config=QUICK,
        progress=False,
    )
    assert bundle.targets == (f"cuda@{KEY}",)
    assert bundle.measured["latency_s"] > 0.0
    assert not bundle.runs_here
