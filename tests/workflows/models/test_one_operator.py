"""workflows/models/one_operator.py: one operator tuned alone on this machine, and its tuning simulated."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.space import Point
from chanas.core.effort import NetworkEffort
from chanas.core.target import HardwareTarget
from chanas.core.usage import Usage
from chanas.devices.host import load_target
from chanas.errors import ConfigError, ScheduleError, StageOrderError
from chanas.files.run import RunDirectory
from chanas.operators.keys import workload_of_key
from chanas.prescheduler.records.store import RecordStore
from chanas.testing.spaces import smooth
from chanas.workflows.models.one_operator import (
    OperatorTuning,
    known_operator,
    parse_schedule,
    simulate_operator,
    tune_operator,
)

KEY = "pool-4px-32x32-k1s1-none-float32"
POINTWISE = "pointwise-12px-96x192-k1s1-relu-float32"
EFFORT = NetworkEffort(trials=4, tuner="random", early_stopping="no", warm_start="no")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, OperatorTuning]:
    run = RunDirectory(tmp_path_factory.mktemp("run"))
    return run, tune_operator(KEY, effort=EFFORT, run=run, progress=False)


def test_an_operator_is_tuned_alone(tuned: tuple[RunDirectory, OperatorTuning]) -> None:
    _, found = tuned
    assert len(found.records) == 4
    assert all(record.is_valid for record in found.records)
    seconds = [record.seconds or 0.0 for record in found.records]
    assert found.curve[-1][1] == pytest.approx(found.workload.num_flops / min(seconds) / 1e9)
    assert [number for number, _ in found.curve] == sorted({number for number, _ in found.curve})
    assert found.mean_gflops == pytest.approx(sum(found.workload.num_flops / s / 1e9 for s in seconds) / 4)
    assert f"mean {found.mean_gflops:.1f} GFLOP/s" in "\n".join(found.lines())


def test_its_best_schedule_can_be_timed_again(tuned: tuple[RunDirectory, OperatorTuning], tmp_path: Path) -> None:
    _, found = tuned
    (shown,) = (line for line in found.lines() if line.startswith("schedule"))
    text = shown.partition("--schedule ")[2].strip("'")
    again = tune_operator(KEY, effort=EFFORT, run=RunDirectory(tmp_path), schedule=parse_schedule(text), progress=False)
    assert [record.point for record in again.records] == [found.best.point]


def test_it_begins_with_another_runs_records(tuned: tuple[RunDirectory, OperatorTuning], tmp_path: Path) -> None:
    run, found = tuned
    effort = dataclasses.replace(EFFORT, trials=1, warm_start=str(run.root))
    two = tune_operator(KEY, Usage(threads=2), effort=effort, run=RunDirectory(tmp_path), progress=False)
    (record,) = two.records
    space, whence = (schedule_space(workload_of_key(KEY), load_target("cpu", n)) for n in (2, 1))
    assert whence.groups(found.best.point).items() <= space.groups(record.point).items()


def test_a_schedule_that_is_in_no_space_can_be_timed(tmp_path: Path) -> None:
    key = "pointwise-4px-16x64-k1s1-relu-float32"
    target = load_target("cpu")
    space = schedule_space(workload_of_key(key), target)
    lonely = (16, 1, 64 // target.vector_lanes, 1, 16, 1, 0)  # one sum at a time
    assert not space.contains(lonely)
    tuned = tune_operator(key, effort=EFFORT, run=RunDirectory(tmp_path), schedule=lonely, progress=False)
    assert [(record.point, record.is_valid) for record in tuned.records] == [(lonely, True)]


def test_a_schedule_that_is_known_is_not_tried_again(tuned: tuple[RunDirectory, OperatorTuning]) -> None:
    run, found = tuned
    again = tune_operator(KEY, effort=EFFORT, run=run, schedule=found.best.point, progress=False)
    assert [record.seconds for record in again.records] == [found.best.seconds]


def test_a_simulation_needs_no_device_and_writes_nothing(tuned: tuple[RunDirectory, OperatorTuning]) -> None:
    run, found = tuned
    before = run.records.read_bytes()
    simulated = simulate_operator(KEY, effort=dataclasses.replace(EFFORT, tuner="exhaustive"), run=run)
    assert simulated.is_simulated
    assert sorted(r.point for r in simulated.records) == sorted(r.point for r in found.records)
    assert simulated.to_json()["simulated"] is True
    assert run.records.read_bytes() == before


def another_processor() -> HardwareTarget:
    return dataclasses.replace(load_target("cpu"), fingerprint="0123456789ab", device="Another processor")


def stored(root: Path, target: HardwareTarget, key: str, points: Sequence[Point]) -> RunDirectory:
    """A run with made-up records of an operator."""
    run = RunDirectory(root)
    with contextlib.closing(RecordStore(run.records, target)) as store:
        store.add(key, [smooth(point) for point in points])
    return run


@pytest.mark.parametrize("tuner", ["gp", "forest", "ga", "random"])
def test_a_simulation_begins_with_what_was_best_on_another_device(tmp_path: Path, tuner: str) -> None:
    space = schedule_space(workload_of_key(POINTWISE), load_target("cpu"))
    points = space.sample(40, np.random.default_rng(0))
    run = stored(tmp_path / "run", load_target("cpu"), POINTWISE, points[10:])
    theirs = stored(tmp_path / "theirs", another_processor(), POINTWISE, points)
    effort = dataclasses.replace(EFFORT, tuner=tuner, warm_start=str(theirs.root))
    found = simulate_operator(POINTWISE, effort=effort, run=run)
    best = min((smooth(point) for point in points[10:]), key=lambda record: record.seconds or 0.0)
    assert best.point in [record.point for record in found.records]
    assert "Another processor" in found.warm_start
    assert found.warm_start.endswith(": 40 records")
    assert f"warm start {found.warm_start}" in list(found.lines())
    assert found.to_json()["warm_start"] == found.warm_start


def test_a_tuning_begins_with_what_was_best_on_another_device(tmp_path: Path) -> None:
    points = schedule_space(workload_of_key(KEY), load_target("cpu")).points
    theirs = stored(tmp_path / "theirs", another_processor(), KEY, points)
    best = min((smooth(point) for point in points), key=lambda record: record.seconds or 0.0)
    effort = dataclasses.replace(EFFORT, trials=1, warm_start=str(theirs.root))
    found = tune_operator(KEY, effort=effort, run=RunDirectory(tmp_path / "run"), progress=False)
    assert [record.point for record in found.records] == [best.point]
    assert "Another processor" in found.warm_start


def test_a_device_that_has_nothing_of_the_operator_is_refused(
    tuned: tuple[RunDirectory, OperatorTuning], tmp_path: Path
) -> None:
    run, found = tuned
    points = schedule_space(workload_of_key(POINTWISE), load_target("cpu")).points[:3]
    theirs = stored(tmp_path, another_processor(), POINTWISE, points)
    effort = dataclasses.replace(EFFORT, warm_start=str(theirs.root))
    for simulate_or_tune in (simulate_operator, tune_operator):
        with pytest.raises(StageOrderError, match=f"^expected records of {KEY} in .* got none by .*Another processor"):
            simulate_or_tune(KEY, effort=effort, run=run)
    assert len(found.records) == 4


def test_a_simulation_has_the_knobs_of_the_file(tmp_path: Path) -> None:
    points = schedule_space(workload_of_key(POINTWISE), load_target("cpu")).points[:6]
    run = stored(tmp_path / "run", load_target("cpu"), POINTWISE, [*points, *((*point, 64) for point in points)])
    knobs = tmp_path / "knobs.yaml"
    knobs.write_text("all: {auto_unroll: [0, 64]}\n")
    effort = dataclasses.replace(EFFORT, trials=99)
    assert len(simulate_operator(POINTWISE, effort=effort, run=run).records) == 6
    whole = simulate_operator(POINTWISE, effort=dataclasses.replace(effort, knobs=str(knobs)), run=run)
    assert sorted(record.point[-1] for record in whole.records) == [0] * 6 + [64] * 6


def test_records_of_further_knobs_alone_are_named_as_such(tmp_path: Path) -> None:
    run, knobs = RunDirectory(tmp_path), tmp_path / "knobs.yaml"
    knobs.write_text("pool: {auto_unroll: [64]}\n")
    effort = dataclasses.replace(EFFORT, knobs=str(knobs))
    tune_operator(KEY, effort=effort, run=run, progress=False)
    assert len(known_operator(KEY, effort=effort, run=run).records) == 4
    with pytest.raises(ConfigError, match=r"^none of the 4 records of .* in its space; give the file of --knobs"):
        simulate_operator(KEY, effort=EFFORT, run=run)


def test_what_is_known_is_told_without_a_trial(tuned: tuple[RunDirectory, OperatorTuning]) -> None:
    run, found = tuned
    told = known_operator(KEY, effort=EFFORT, run=run)
    assert [record.point for record in told.records] == [record.point for record in found.records]
    assert told.best == found.best


def test_minutes_end_the_tuning_of_an_operator(tmp_path: Path) -> None:
    effort = NetworkEffort(minutes=0.2, tuner="random", early_stopping="no", warm_start="no")
    begun_s = time.monotonic()
    found = tune_operator(
        "blockconv-28px-80x112-k3s1-relu-float32", effort=effort, run=RunDirectory(tmp_path), progress=False
    )
    assert 1 <= len(found.records) < 650
    assert time.monotonic() - begun_s < 60.0


def test_what_cannot_be_is_refused(tuned: tuple[RunDirectory, OperatorTuning], tmp_path: Path) -> None:
    run, _ = tuned
    with pytest.raises(ScheduleError, match="expected the key of a workload, got 'pool'"):
        tune_operator("pool", effort=EFFORT, run=run)
    with pytest.raises(ScheduleError, match="expected a point of 4 integers"):
        tune_operator(KEY, effort=EFFORT, run=run, schedule=[1, 2], progress=False)
    for ask in (simulate_operator, known_operator):
        with pytest.raises(ConfigError, match=f"^there are no records of {KEY} in {tmp_path}; tune it there first"):
            ask(KEY, effort=EFFORT, run=RunDirectory(tmp_path))
        with pytest.raises(ConfigError, match=r"^there are no records of .*; tune it there first"):
            ask(KEY, Usage(threads=2), effort=EFFORT, run=run)


@pytest.mark.parametrize("text", ["", "4", "[1.5]", "[true]", "x", '{"a": 1}'])
def test_a_schedule_is_a_list_of_whole_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^expected --schedule as whole numbers"):
        parse_schedule(text)
