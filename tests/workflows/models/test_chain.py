"""The chain from a finished network to a saved one: each branch of it has the seconds of its own steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chanas.bundle.tuned import DOCUMENT
from chanas.workflows.models.chain import LoadedModel, Model

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
