"""chanas/prescheduler/tables/untried.py: schedules of predicted rows are replaced where they do not work."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from chanas.compiler.backends import schedule_space
from chanas.core.arch import SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.core.task import Task
from chanas.measuring.fleet import WorkerPool
from chanas.operators.steps import device_workloads
from chanas.prescheduler.tables import networks
from chanas.prescheduler.tables.calibrate import calibrate
from chanas.prescheduler.tables.networks import compile_networks

from ...compiler.workbench import CHOICES, HOST, NUM_CLASSES, network_job, random_lut

BLOCKS = CHOICES.all_blocks(NUM_CLASSES)


def broken(space: SearchSpace, *, predicted: bool = True) -> LatencyLUT:
    """A table whose stem, which all networks have, has a schedule that does not exist."""
    lut = random_lut(space, space.all_blocks(NUM_CLASSES), HOST)
    stem = next(b for b in BLOCKS if b.kind == "stem").key
    ((key, point),) = lut.rows[stem].schedules
    schedules = ((key, (*point[:-1], 99)),)
    error = 0.05 if predicted else None
    row = dataclasses.replace(lut.rows[stem], schedules=schedules, predicted_error=error)
    return LatencyLUT(lut.header, {**lut.rows, stem: row})


def test_a_network_is_compiled_with_what_works_instead(
    shared_pool: WorkerPool, in_one_process: None, tmp_path: Path
) -> None:
    lut = broken(CHOICES)
    before = {key: row.schedules for key, row in lut.rows.items()}
    blocks = CHOICES.smallest.blocks(CHOICES, NUM_CLASSES)
    (outcome,) = compile_networks(lut, HOST, [network_job(blocks, tmp_path / "network.so")], progress=False)
    assert outcome.error is None
    assert outcome.seconds is not None
    stem, *others = blocks
    ((key, point),) = lut.rows[stem.key].schedules
    (workload,) = device_workloads(stem, HOST)
    assert key == workload.key
    assert schedule_space(workload, HOST).contains(point)
    assert all(lut.rows[b.key].schedules == before[b.key] for b in others)
    assert lut.rows[stem.key].predicted_error == 0.05


def test_a_row_that_was_measured_keeps_its_schedule_and_the_error_is_told(
    shared_pool: WorkerPool, in_one_process: None, tmp_path: Path
) -> None:
    lut = broken(CHOICES, predicted=False)
    job = network_job(CHOICES.smallest.blocks(CHOICES, NUM_CLASSES), tmp_path / "network.so")
    (outcome,) = compile_networks(lut, HOST, [job], progress=False)
    assert outcome.seconds is None
    assert "ScheduleError" in str(outcome.error)


@pytest.mark.slow
def test_a_table_is_calibrated_although_a_predicted_schedule_does_not_work(
    shared_pool: WorkerPool, in_one_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert networks._MOST_PROCESSES == 1
    lut = broken(CHOICES)
    found = calibrate(lut, Task(CHOICES, NUM_CLASSES), HOST, num_networks=6, progress=False)
    assert found.num_networks == 6
