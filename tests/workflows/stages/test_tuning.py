"""chanas/workflows/stages/tuning.py: what a table is made for, and the plan that says so."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from tables import save_space

from chanas.core.arch import SearchSpace
from chanas.core.effort import TableEffort
from chanas.core.usage import Place, Usage
from chanas.errors import ConfigError, StageOrderError
from chanas.files.run import RunDirectory
from chanas.files.writing import write_json
from chanas.workflows.stages.tuning import plan_table, preschedule, table_task

CLASSES = 3


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def trained(run: RunDirectory, tiny_space: SearchSpace) -> RunDirectory:
    """A run with the description of a supernet of the tiny space."""
    write_json(run.supernet / "checkpoint.json", {"space": tiny_space.to_json(), "num_classes": CLASSES})
    return run


@pytest.fixture
def tiny(tmp_path: Path, tiny_space: SearchSpace) -> Path:
    return save_space(tiny_space, tmp_path / "tiny.yaml")


def test_a_run_without_a_supernet_needs_a_space(run: RunDirectory) -> None:
    with pytest.raises(StageOrderError, match=r"train-supernet --run .* --space"):
        preschedule(run, progress=False)
    with pytest.raises(StageOrderError, match="--space"):
        plan_table(run, num_classes=5)
    assert not run.root.exists()


def test_a_space_that_is_named_is_taken_where_there_is_no_supernet(run: RunDirectory, tiny: Path) -> None:
    task = table_task(run, tiny, 7)
    assert (task.space.name, task.num_classes) == ("tiny", 7)
    assert table_task(run, tiny, None).num_classes == 10


def test_the_supernet_says_what_its_table_is_of(trained: RunDirectory, tiny: Path, tiny_space: SearchSpace) -> None:
    for task in (table_task(trained, None, None), table_task(trained, tiny, CLASSES)):
        assert (task.space, task.num_classes) == (tiny_space, CLASSES)


def test_another_space_or_number_of_classes_than_the_supernets_is_refused_by_both(
    trained: RunDirectory, tmp_path: Path, tiny_space: SearchSpace
) -> None:
    with pytest.raises(ConfigError, match=r"'tiny'.*'mbv3'"):
        table_task(trained, "mbv3", None)
    with pytest.raises(ConfigError, match=r"3 classes.* 10"):
        table_task(trained, None, 10)
    other = dataclasses.replace(tiny_space, head_width=64)
    with pytest.raises(ConfigError, match=other.digest):
        table_task(trained, save_space(other, tmp_path / "other.yaml"), None)


def test_the_plan_counts_what_is_tuned_and_writes_nothing(trained: RunDirectory, tiny_space: SearchSpace) -> None:
    before = sorted(trained.root.rglob("*"))
    text = "\n".join(plan_table(trained, effort=TableEffort(trials=2, sub_spaces=(tiny_space.sub_spaces[0].key,))))
    assert f"space tiny, {CLASSES} classes, 1 of {len(tiny_space.sub_spaces)} sub-spaces" in text
    assert str(trained.lut("cpu")) in text
    assert sorted(trained.root.rglob("*")) == before


def test_the_plan_goes_by_what_the_table_does(trained: RunDirectory, tiny_space: SearchSpace, tmp_path: Path) -> None:
    file = tmp_path / "more.yaml"
    file.write_text("all: {auto_unroll: [0, 16]}")
    one = TableEffort(trials=10_000, sub_spaces=(tiny_space.sub_spaces[0].key,))

    def most(effort: TableEffort) -> int:
        found = re.search(r"at most (\d+) trials", "\n".join(plan_table(trained, effort=effort)))
        assert found is not None
        return int(found[1])

    assert most(dataclasses.replace(one, knobs=str(file))) > most(one)
    with pytest.raises(StageOrderError, match="no records to start from"):
        plan_table(trained, effort=dataclasses.replace(one, warm_start="none"))
    with pytest.raises(ConfigError, match="expected --rpc HOST:PORT and --key KEY together"):
        plan_table(trained, Usage(place=Place(key="pi4")), effort=one)
