"""chanas/workflows/stages/tables.py and adaptation.py with the prescheduler behind them: holes are filled and nothing
else; calibration alone; a table of another device becomes that of a run."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tables import save_space

from chanas.compiler.backends import BACKENDS
from chanas.core.effort import AdaptEffort, TableEffort
from chanas.core.latency import LatencyLUT
from chanas.errors import ConfigError, LUTError, MeasureError, RunBusyError, StageOrderError
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.measuring.messages import BlockAt, NetworkAt
from chanas.prescheduler.tables.transfer.adapt import AdaptedTable
from chanas.workflows.stages import adaptation, tables
from chanas.workflows.stages.tables import FillSummary, open_table

from ...compiler.workbench import (
    HOST,
    NANO,
    NUM_CLASSES,
    SyntheticPool,
    block_of,
    device,
    fill_table,
    random_lut,
    synthetic_seconds,
)

SPACE = dataclasses.replace(NANO, expand_ratios=(2, 3))
ALL = SPACE.all_blocks(NUM_CLASSES)
NARROW, WIDE = (SPACE.all_blocks(NUM_CLASSES, (s,)) for s in SPACE.sub_spaces)


@pytest.fixture
def run(tmp_path: Path, synthetic_pool: SyntheticPool) -> RunDirectory:
    """A run whose table has the first of two sub-spaces."""
    run = RunDirectory(tmp_path / "run")
    options: dict[str, Any] = {"sub_spaces": SPACE.sub_spaces[:1], "tuner": "random"}
    fill_table(run, SPACE, HOST, NUM_CLASSES, trials=2, **options)
    synthetic_pool.built.clear()
    return run


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    return save_space(SPACE, tmp_path / "nano.yaml")


def fill(run: RunDirectory, yaml_file: Path, **options: Any) -> FillSummary:
    options = {"calibrate": 0, "trials": 2, "tuner": "random", **options}
    return tables.fill(run, space=yaml_file, effort=TableEffort(**options), progress=False)


def table(run: RunDirectory) -> LatencyLUT:
    return LatencyLUT.load(run.lut("cpu"))


def built_blocks(pool: SyntheticPool) -> set[str]:
    return {asked.what.block.key for asked in pool.built if isinstance(asked.what, BlockAt)}


# ---- other versions -------------------------------------------------------------------------------------------------
def of_another_version(run: RunDirectory) -> LatencyLUT:
    """The run's table as a chanas has left it whose points meant something else."""
    old = table(run)
    assert old.header.space_version == BACKENDS["llvm"].space_version
    old.header = dataclasses.replace(old.header, space_version=99)
    old.save(run.lut("cpu"))
    return old


def test_a_table_of_another_version_of_the_spaces_is_not_filled(run: RunDirectory, yaml_file: Path) -> None:
    old = of_another_version(run)
    with pytest.raises(LUTError, match="version 99 of the schedule spaces"):
        fill(run, yaml_file)
    assert table(run) == old


def test_the_prescheduler_replaces_a_table_of_another_version(run: RunDirectory) -> None:
    of_another_version(run)
    options: dict[str, Any] = {"sub_spaces": SPACE.sub_spaces[1:], "tuner": "random"}
    made = fill_table(run, SPACE, HOST, NUM_CLASSES, trials=2, **options).lut
    assert made.rows.keys() == {b.key for b in SPACE.all_blocks(NUM_CLASSES, SPACE.sub_spaces[1:])}


# ---- holes ----------------------------------------------------------------------------------------------------------
def test_holes_are_filled_and_no_other_row_changes(
    run: RunDirectory, yaml_file: Path, synthetic_pool: SyntheticPool
) -> None:
    """Not even where another schedule is now known to be faster."""
    before = table(run)
    synthetic_pool.seconds = lambda asked: 1e-9
    summary = fill(run, yaml_file, trials=4)
    holes = {b.key for b in ALL} - before.rows.keys()
    assert (summary.num_holes, summary.num_blocks) == (len(holes), len(ALL))
    assert built_blocks(synthetic_pool) == holes
    assert table(run) == summary.lut
    assert table(run).rows.keys() == {b.key for b in ALL}
    assert before.rows.items() <= table(run).rows.items()


def test_predicted_rows_are_measured_a_few_at_a_time(
    run: RunDirectory, yaml_file: Path, synthetic_pool: SyntheticPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that whoever ends it keeps those before."""
    monkeypatch.setattr(tables, "_FILLED_AT_ONCE", 1)
    before = table(run)
    guessed = {b.key: error for b, error in zip(NARROW[:3], (0.01, 0.5, 0.1), strict=True)}
    for key, error in guessed.items():
        before.rows[key] = dataclasses.replace(before.rows[key], median_s=1e-3, predicted_error=error)
    before.save(run.lut("cpu"))

    left: list[int] = []
    save = LatencyLUT.save

    def noted(lut: LatencyLUT, path: Path) -> None:
        left.append(len(lut.predicted(NARROW)))
        save(lut, path)

    monkeypatch.setattr(LatencyLUT, "save", noted)
    summary = fill(run, yaml_file, sub_spaces=("r8-w1",))
    assert (summary.num_holes, summary.num_predicted) == (0, 3)
    assert sorted(set(left), reverse=True) == [2, 1, 0]
    assert all(table(run).rows[key].predicted_error is None for key in guessed)
    assert all(table(run).rows[key].median_s < 1e-3 for key in guessed)


def test_a_row_that_is_lost_comes_back(run: RunDirectory, yaml_file: Path, synthetic_pool: SyntheticPool) -> None:
    """From the records: nothing is measured."""
    whole = table(run)
    lost = NARROW[2].key
    table_without = LatencyLUT(whole.header, {k: r for k, r in whole.rows.items() if k != lost})
    table_without.save(run.lut("cpu"))
    summary = fill(run, yaml_file, sub_spaces=("r8-w1",))
    assert (summary.num_holes, summary.num_new_trials) == (1, 0)
    assert table(run).rows == whole.rows
    assert synthetic_pool.built == []


def test_a_table_without_holes_is_left_as_it_is(
    run: RunDirectory, yaml_file: Path, synthetic_pool: SyntheticPool
) -> None:
    before = run.lut("cpu").read_bytes()
    summary = fill(run, yaml_file, sub_spaces=("r8-w1",), trials=16)
    assert (summary.num_holes, summary.num_blocks, summary.num_new_trials) == (0, len(NARROW), 0)
    assert run.lut("cpu").read_bytes() == before
    assert synthetic_pool.built == []


def test_a_block_that_fails_stays_a_hole_and_the_others_are_kept(
    run: RunDirectory, yaml_file: Path, synthetic_pool: SyntheticPool
) -> None:
    bad = WIDE[0]
    synthetic_pool.seconds = lambda asked: "crash" if block_of(asked) == bad else synthetic_seconds(asked)
    with pytest.raises(MeasureError, match=rf"blocks could not be measured \(the first: {bad.key}\)"):
        fill(run, yaml_file)
    assert table(run).missing(ALL) == [bad]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sub_spaces": ("r9-w1",)}, ConfigError, "unknown sub-space 'r9-w1'; known: r8-w1, r8-w2"),
        ({"trials": 0}, ConfigError, "at least 1 trial"),
    ],
)
def test_bad_options_measure_nothing(
    run: RunDirectory,
    yaml_file: Path,
    synthetic_pool: SyntheticPool,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        fill(run, yaml_file, **options)
    assert synthetic_pool.built == []


def test_there_must_be_a_table(tmp_path: Path, yaml_file: Path) -> None:
    with pytest.raises(StageOrderError, match="there is no latency table of target 'cpu'"):
        fill(RunDirectory(tmp_path / "other"), yaml_file)


# ---- calibration ----------------------------------------------------------------------------------------------------
@pytest.fixture
def deep(tmp_path: Path, synthetic_pool: SyntheticPool) -> tuple[RunDirectory, Path]:
    """A run whose table has one of two sub-spaces, with architectures enough to calibrate; and its space's file."""
    space = dataclasses.replace(SPACE, name="deep", depths=(1, 2))
    run = RunDirectory(tmp_path / "deep")
    options: dict[str, Any] = {"sub_spaces": space.sub_spaces[:1], "tuner": "random"}
    fill_table(run, space, HOST, NUM_CLASSES, trials=1, **options)
    synthetic_pool.built.clear()
    return run, save_space(space, tmp_path / "deep.yaml")


def networks(pool: SyntheticPool) -> list[Any]:
    return [asked.what.blocks for asked in pool.built if isinstance(asked.what, NetworkAt)]


def test_calibrating_stores_the_correction_and_changes_no_row(
    deep: tuple[RunDirectory, Path], synthetic_pool: SyntheticPool
) -> None:
    run, file = deep
    before = table(run)
    calibration = tables.calibrate(open_table(run=run, space=file), num_networks=7, progress=False)
    after = table(run)
    assert (after.calibration, after.calibration.num_networks if after.calibration else 0) == (calibration, 7)
    assert (before.calibration, before.rows, before.header) == (None, after.rows, after.header)
    assert len(networks(synthetic_pool)) == 7


def test_a_file_anywhere_can_be_calibrated(deep: tuple[RunDirectory, Path], tmp_path: Path) -> None:
    run, file = deep
    shutil.copyfile(run.lut("cpu"), tmp_path / "copy.json")
    opened = open_table(tmp_path / "copy.json", space=file)
    calibration = tables.calibrate(opened, num_networks=6, progress=False)
    assert LatencyLUT.load(tmp_path / "copy.json").calibration == calibration
    assert table(run).calibration is None


def test_too_few_networks_that_work_leave_the_table_alone(
    deep: tuple[RunDirectory, Path], synthetic_pool: SyntheticPool
) -> None:
    run, file = deep
    before = run.lut("cpu").read_bytes()
    synthetic_pool.seconds = lambda asked: "timeout"
    with pytest.raises(MeasureError):
        tables.calibrate(open_table(run=run, space=file), num_networks=6, progress=False)
    assert run.lut("cpu").read_bytes() == before


def test_a_run_in_use_is_not_calibrated(deep: tuple[RunDirectory, Path], synthetic_pool: SyntheticPool) -> None:
    run, file = deep
    before = run.lut("cpu").read_bytes()
    with one_writer(run.records), pytest.raises(RunBusyError, match=rf"\(pid {os.getpid()}, "):
        tables.calibrate(open_table(run=run, space=file), num_networks=6, progress=False)
    assert (networks(synthetic_pool), run.lut("cpu").read_bytes()) == ([], before)
    tables.calibrate(open_table(run=run, space=file), num_networks=6, progress=False)


def test_a_run_is_locked_while_it_is_calibrated(deep: tuple[RunDirectory, Path], synthetic_pool: SyntheticPool) -> None:
    run, file = deep
    refused = []

    def asked_meanwhile(asked: Any) -> float | str:
        try:
            with one_writer(run.records):
                pass
        except RunBusyError:
            refused.append(asked)
        return synthetic_seconds(asked)

    synthetic_pool.seconds = asked_meanwhile
    tables.calibrate(open_table(run=run, space=file), num_networks=6, progress=False)
    assert len(refused) >= 6


def test_rows_that_came_in_meanwhile_are_not_overwritten(deep: tuple[RunDirectory, Path]) -> None:
    run, file = deep
    opened = open_table(run=run, space=file)
    fill(run, file, trials=1)
    grown = table(run)
    calibration = tables.calibrate(opened, num_networks=6, progress=False)
    assert (table(run).rows, table(run).calibration) == (grown.rows, calibration)
    assert opened.lut == table(run)


def test_filling_calibrates_with_networks_of_all_that_is_covered(
    deep: tuple[RunDirectory, Path], synthetic_pool: SyntheticPool
) -> None:
    run, file = deep
    first = fill(run, file, sub_spaces=("r8-w2",), trials=1, calibrate=8).lut.calibration
    assert first is not None
    stems = {blocks[0].out_channels for blocks in networks(synthetic_pool)}
    assert stems == {8, 16}
    synthetic_pool.built.clear()
    assert fill(run, file, trials=1, calibrate=8).lut.calibration == first
    assert synthetic_pool.built == []


def test_a_whole_table_without_calibration_gets_one(
    deep: tuple[RunDirectory, Path], synthetic_pool: SyntheticPool
) -> None:
    run, file = deep
    summary = fill(run, file, sub_spaces=("r8-w1",), trials=1, calibrate=6)
    assert summary.num_holes == 0
    assert summary.lut.calibration is not None
    assert table(run).calibration == summary.lut.calibration


# ---- tables of other devices -----------------------------------------------------------------------------------------
@pytest.fixture
def new(tmp_path: Path) -> RunDirectory:
    """A run without a table."""
    return RunDirectory(tmp_path / "new")


@pytest.fixture
def known(tmp_path: Path) -> Path:
    random_lut(SPACE, ALL, HOST).save(tmp_path / "known.json")
    return tmp_path / "known.json"


def adapt(new: RunDirectory, known: Path, yaml_file: Path, **options: Any) -> AdaptedTable:
    effort = AdaptEffort(measure=6, calibrate=0)
    return adaptation.adapt(new, [known], space=yaml_file, effort=effort, progress=False, **options)


def test_a_table_becomes_that_of_a_run(
    new: RunDirectory, known: Path, yaml_file: Path, synthetic_pool: SyntheticPool
) -> None:
    made = adapt(new, known, yaml_file)
    assert made.path == new.lut("cpu")
    assert tables.open_table(None, new, space=yaml_file).lut == made.lut
    assert len(built_blocks(synthetic_pool)) == 6
    assert len(made.lut.predicted(ALL)) == len(ALL) - 6


def test_a_classifier_of_other_classes_is_tuned(
    new: RunDirectory, known: Path, yaml_file: Path, synthetic_pool: SyntheticPool
) -> None:
    made = adapt(new, known, yaml_file, num_classes=NUM_CLASSES + 2)
    wanted = SPACE.all_blocks(NUM_CLASSES + 2)
    unknown = [b for b in wanted if b not in ALL]
    assert unknown
    assert table(new).missing(wanted) == []
    assert all(made.lut.rows[b.key].num_trials > 0 for b in unknown)
    assert made.lut.predicted(unknown) == []
    assert made.lut.header.adapted_from


def test_fill_measures_what_was_predicted_and_the_source_is_forgotten_no_sooner(
    new: RunDirectory, known: Path, yaml_file: Path, synthetic_pool: SyntheticPool
) -> None:
    adapt(new, known, yaml_file)
    filled = fill(new, yaml_file, trials=1)
    assert filled.num_predicted == len(ALL) - 6
    assert filled.lut.predicted(ALL) == []
    assert built_blocks(synthetic_pool) == {b.key for b in ALL}


def test_a_table_for_other_vectors_is_filled_although_somebody_ends_it_in_between(
    new: RunDirectory, tmp_path: Path, yaml_file: Path, synthetic_pool: SyntheticPool
) -> None:
    other = device(lanes=8 if HOST.vector_lanes == 16 else 16)
    random_lut(SPACE, ALL, other).save(tmp_path / "other.json")
    made = adapt(new, tmp_path / "other.json", yaml_file)
    assert made.num_tuned > 0
    num_predicted = len(made.lut.predicted(ALL))

    def ended(asked: Any) -> float | str:
        if block_of(asked) is not None:
            raise KeyboardInterrupt
        return synthetic_seconds(asked)

    synthetic_pool.seconds = ended
    with pytest.raises(KeyboardInterrupt):
        fill(new, yaml_file, trials=8)
    assert len(table(new).predicted(ALL)) == num_predicted
    synthetic_pool.seconds = synthetic_seconds
    filled = fill(new, yaml_file, trials=8)
    assert filled.num_predicted == num_predicted
    assert filled.num_new_trials == 0  # they were all made before it was ended
    assert filled.lut.predicted(ALL) == filled.lut.missing(ALL) == []
    assert {k: r for k, r in made.lut.rows.items() if r.predicted_error is None}.items() <= filled.lut.rows.items()
