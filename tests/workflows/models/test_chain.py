"""The chain from a finished network to a saved one: each branch of it has the seconds of its own steps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from chanas.bundle.tuned import DOCUMENT
from chanas.core.usage import Usage
from chanas.errors import ConfigError, StageOrderError, TargetError
from chanas.files.run import RunDirectory
from chanas.workflows.models.chain import Effort, LoadedModel, Model

OPENING = ["open", "simplify"]
TUNING = [*OPENING, "lower", "tune"]
BUILDING = [*TUNING, "build", "answer", "prove"]


@pytest.fixture
def loaded(tuned_folder: Path) -> LoadedModel:
    return Model.load(tuned_folder.parent / "net.pt2")


def test_a_network_that_is_tuned_twice_has_the_seconds_of_each_alone(loaded: LoadedModel, tuned_folder: Path) -> None:
    run, opening = tuned_folder.parent, dict(loaded.watch.seconds)
    first = loaded.tune(trials=1, run=run, progress=False)
    seconds = dict(first.watch.seconds)
    second = loaded.tune(trials=1, run=run, progress=False)
    assert loaded.watch.seconds == opening
    assert first.watch.seconds == seconds
    assert list(second.watch.seconds) == TUNING
    assert second.watch.seconds["tune"] != seconds["tune"]
    assert {name: second.watch.seconds[name] for name in OPENING} == opening


def test_building_adds_to_a_copy_and_saving_again_adds_nothing(
    loaded: LoadedModel, tuned_folder: Path, tmp_path: Path
) -> None:
    tuned = loaded.tune(trials=1, run=tuned_folder.parent, progress=False)
    built = tuned.build()
    assert list(tuned.watch.seconds) == TUNING
    assert list(built.watch.seconds) == BUILDING
    for folder in (built.save(tmp_path / "net").folder, built.save(tmp_path / "again").folder):
        document = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
        assert document["run_id"] == loaded.watch.run_id
        assert document["seconds"] == pytest.approx(built.watch.seconds, abs=1e-3)


def test_a_program_is_not_proven_on_another_device_than_it_was_tuned_for(
    loaded: LoadedModel, tuned_folder: Path
) -> None:
    tuned = loaded.tune(trials=1, run=tuned_folder.parent, progress=False)
    elsewhere = dataclasses.replace(tuned, target=dataclasses.replace(tuned.target, fingerprint="0" * 12))
    with pytest.raises(TargetError, match="000000000000"):
        elsewhere.build()


def test_what_is_no_tuned_network_is_not_replaced(loaded: LoadedModel, tuned_folder: Path) -> None:
    built = loaded.tune(trials=1, run=tuned_folder.parent, progress=False).build()
    with pytest.raises(ConfigError, match="was not made by"):
        built.save(tuned_folder.parent)
    assert RunDirectory(tuned_folder.parent).records.is_file()


def test_two_threads_begin_with_what_one_thread_knows(loaded: LoadedModel, tuned_folder: Path, tmp_path: Path) -> None:
    effort = Effort(trials=2, warm_start=str(tuned_folder.parent))
    tuned = loaded.tune(Usage(threads=2), effort=effort, run=tmp_path, progress=False)
    assert tuned.target.name == "cpu-2t"
    assert tuned.tuned.warm_start.startswith("cpu (")
    assert f": {len(tuned.program.workloads())} operators" in tuned.tuned.warm_start


def test_records_that_are_not_there_are_told_before_anything_is_written(loaded: LoadedModel, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for source, error in ((str(tmp_path), StageOrderError), ("cpu-2t", StageOrderError)):
        with pytest.raises(error, match="expected a run directory, a file of records or a target"):
            loaded.tune(effort=Effort(trials=1, warm_start=source), run=run, progress=False)
    assert not run.exists()
