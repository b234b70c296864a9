"""chanas/workflows/stages/adaptation.py: with the prescheduler behind it, from files to a run's table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tables import save_space

from chanas.core.arch import BlockConfig
from chanas.core.effort import AdaptEffort, TableEffort
from chanas.core.latency import LatencyLUT
from chanas.errors import ConfigError
from chanas.files.run import RunDirectory
from chanas.prescheduler.tables.transfer.adapt import AdaptedTable
from chanas.workflows.stages import adaptation, tables

from ....compiler.workbench import (
    HOST,
    NANO,
    NUM_CLASSES,
    SyntheticPool,
    block_of,
    device,
    random_lut,
    synthetic_seconds,
)

SPACE = dataclasses.replace(NANO, expand_ratios=(2, 3))
BLOCKS = SPACE.all_blocks(NUM_CLASSES)


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    return save_space(SPACE, tmp_path / "nano.yaml")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    random_lut(SPACE, BLOCKS, HOST).save(tmp_path / "known.json")
    return tmp_path / "known.json"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


def adapt(run: RunDirectory, source: Path, yaml_file: Path, **options: Any) -> AdaptedTable:
    effort = AdaptEffort(measure=6, calibrate=0)
    return adaptation.adapt(run, [source], space=yaml_file, effort=effort, progress=False, **options)


def built(pool: SyntheticPool) -> list[BlockConfig]:
    return [block for block in map(block_of, pool.built) if block is not None]


def test_a_table_becomes_that_of_a_run(
    run: RunDirectory, source: Path, yaml_file: Path, synthetic_pool: SyntheticPool
) -> None:
    made = adapt(run, source, yaml_file)
    assert made.path == run.lut("cpu")
    assert tables.open_table(None, run, space=yaml_file).lut == made.lut
    assert len(set(built(synthetic_pool))) == 6  # one that comes out slower than others say is built once more
    assert len(made.lut.predicted(BLOCKS)) == len(BLOCKS) - 6


def test_a_classifier_of_other_classes_is_tuned(
    run: RunDirectory, source: Path, yaml_file: Path, synthetic_pool: SyntheticPool
) -> None:
    made = adapt(run, source, yaml_file, num_classes=NUM_CLASSES + 2)
    wanted = SPACE.all_blocks(NUM_CLASSES + 2)
    new = [b for b in wanted if b not in BLOCKS]
    assert new
    assert LatencyLUT.load(run.lut("cpu")).missing(wanted) == []
    assert all(made.lut.rows[b.key].num_trials > 0 for b in new)
    assert made.lut.predicted(new) == []
    assert made.lut.header.adapted_from


def test_fill_measures_what_was_predicted_and_the_source_is_forgotten_no_sooner(
    run: RunDirectory, source: Path, yaml_file: Path, synthetic_pool: SyntheticPool
) -> None:
    adapt(run, source, yaml_file)
    effort = TableEffort(trials=1, cost_model="random", calibrate=0)
    filled = tables.fill(run, space=yaml_file, effort=effort, progress=False)
    assert filled.num_predicted == len(BLOCKS) - 6
    assert filled.lut.predicted(BLOCKS) == []
    assert {b.key for b in built(synthetic_pool)} == {b.key for b in BLOCKS}


def test_a_table_for_other_vectors_is_filled_although_somebody_ends_it_in_between(
    run: RunDirectory, tmp_path: Path, yaml_file: Path, synthetic_pool: SyntheticPool
) -> None:
    other = device(lanes=8 if HOST.vector_lanes == 16 else 16)
    random_lut(SPACE, BLOCKS, other).save(tmp_path / "other.json")
    made = adapt(run, tmp_path / "other.json", yaml_file)
    assert made.num_tuned > 0
    num_predicted = len(made.lut.predicted(BLOCKS))
    effort = TableEffort(trials=8, cost_model="random", calibrate=0)

    def ended(asked: Any) -> float | str:
        if block_of(asked) is not None:
            raise KeyboardInterrupt
        return synthetic_seconds(asked)

    synthetic_pool.seconds = ended
    with pytest.raises(KeyboardInterrupt):
        tables.fill(run, space=yaml_file, effort=effort, progress=False)
    assert len(LatencyLUT.load(run.lut("cpu")).predicted(BLOCKS)) == num_predicted
    synthetic_pool.seconds = synthetic_seconds
    filled = tables.fill(run, space=yaml_file, effort=effort, progress=False)
    assert filled.num_predicted == num_predicted
    assert filled.num_new_trials == 0  # they were all made before it was ended
    assert filled.lut.predicted(BLOCKS) == filled.lut.missing(BLOCKS) == []
    assert {k: r for k, r in made.lut.rows.items() if r.predicted_error is None}.items() <= filled.lut.rows.items()


def test_a_number_of_classes_below_one_is_refused(
    run: RunDirectory, source: Path, yaml_file: Path, synthetic_pool: SyntheticPool
) -> None:
    with pytest.raises(ConfigError, match="at least 1 class, got 0"):
        adapt(run, source, yaml_file, num_classes=0)
    assert not synthetic_pool.built
