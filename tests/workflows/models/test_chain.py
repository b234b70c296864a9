"""The chain from a finished network to a saved one: each branch of it has the seconds of its own steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from networks import NUM_CLASSES, SHAPE, save_program
from torch import Tensor, nn
from typer.testing import CliRunner

from chanas import interrupts
from chanas.bundle.tuned import DOCUMENT
from chanas.commands.main import app
from chanas.compiler.backends import backend_of
from chanas.core.effort import NetworkEffort
from chanas.core.target import tvm_version
from chanas.core.usage import Usage
from chanas.devices.host import load_target
from chanas.errors import ConfigError, MeasureError, ModelError, StageOrderError, TargetError
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest
from chanas.models.proof import proving
from chanas.models.reading import reader
from chanas.prescheduler.records.schedules import write_schedules
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning import jobs
from chanas.workflows.models.chain import BuiltModel, LoadedModel, Model, TunedModel

from ...compiler.workbench import interrupted_bar

OPENING = ["open", "read", "simplify"]
TUNING = [*OPENING, "lower", "answer", "first build", "tune"]
BUILDING = [*TUNING, "build", "prove"]


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


@pytest.fixture(scope="module")
def tuned(tuned_folder: Path) -> TunedModel:
    return Model.load(tuned_folder.parent / "net.pt2").tune(trials=1, run=tuned_folder.parent, progress=False)


@pytest.fixture(scope="module")
def built(tuned: TunedModel) -> BuiltModel:
    return tuned.build()


def test_building_adds_to_a_copy_and_saving_again_adds_nothing(
    tuned: TunedModel, built: BuiltModel, tmp_path: Path
) -> None:
    assert list(tuned.watch.seconds) == TUNING
    assert list(built.watch.seconds) == BUILDING
    for folder in (built.save(tmp_path / "net").folder, built.save(tmp_path / "again").folder):
        document = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
        assert document["run_id"] == tuned.watch.run_id
        assert document["seconds"] == pytest.approx(built.watch.seconds, abs=1e-3)


def test_a_program_is_not_proven_on_another_device_than_it_was_tuned_for(tuned: TunedModel) -> None:
    target = dataclasses.replace(tuned.target, fingerprint="0" * 12)
    elsewhere = dataclasses.replace(tuned, target=target, best=None)
    with pytest.raises(TargetError, match="000000000000"):
        elsewhere.build()


def test_an_interrupted_tuning_leaves_a_network_that_is_right(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "progress_bar", interrupted_bar(3))
    with pytest.raises(KeyboardInterrupt):
        loaded.tune(trials=4, run=tmp_path, progress=False, folder=tmp_path / "net")
    with contextlib.closing(RecordStore(RunDirectory(tmp_path).records, load_target("cpu"))) as store:
        num = sum(store.count())
    assert num > 0
    trials = "1 new trial" if num == 1 else f"{num} new trials"
    assert (interrupts.kept() or "").startswith(f"{trials} and, in {tmp_path / 'net'}, a network of ")
    inputs = loaded.opened.random_inputs(seed=7)
    [found], [expected] = Model.open(tmp_path / "net").run(*inputs), loaded.opened.answer(inputs)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_what_is_wrong_as_a_whole_is_refused_before_a_trial_is_made(loaded: LoadedModel, tmp_path: Path) -> None:
    answer = loaded.opened.answer
    other = dataclasses.replace(loaded.opened, answer=lambda inputs: [1.5 * output for output in answer(inputs)])
    with pytest.raises(MeasureError, match="wrong result"):
        dataclasses.replace(loaded, opened=other).tune(trials=1, run=tmp_path, progress=False, folder=tmp_path / "net")
    assert not (tmp_path / "net").exists()
    with contextlib.closing(RecordStore(RunDirectory(tmp_path).records, load_target("cpu"))) as store:
        assert store.count() == (0, 0)


def test_schedules_that_do_not_work_together_leave_the_network_that_was_built_before(
    tuned: TunedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MeasureError("the compiled network failed: crash")

    monkeypatch.setattr(proving, "prove", fail)
    assert tuned.best is not None
    slower = {key: dataclasses.replace(c, point=(-1,)) for key, c in tuned.best.tuned.tuned.choices.items()}
    best = dataclasses.replace(
        tuned.best, tuned=dataclasses.replace(tuned, tuned=dataclasses.replace(tuned.tuned, choices=slower))
    )
    built = dataclasses.replace(tuned, best=best).build()
    assert built.library == tuned.best.library
    assert "do not work together (the compiled network failed: crash)" in built.remark
    with pytest.raises(MeasureError, match="crash"):
        dataclasses.replace(tuned, best=None).build()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(KeyError("TensorX"), "step 'read' failed with KeyError: 'TensorX'"), (ModelError("no such operator"), "no such")],
)
def test_an_error_names_the_step_that_it_ended(
    tuned_folder: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception, expected: str
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(reader, "read_graph", fail)
    network = tuned_folder.parent / "net.pt2"
    with pytest.raises(ModelError, match=expected) as caught:
        Model.load(network)
    assert caught.value.stage == "read"
    done = CliRunner().invoke(app, ["tune", str(network), "--json"])
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["stage"] == "read"
    assert expected in told["error"]
    assert done.exit_code == 1


def test_what_is_no_tuned_network_is_not_replaced(built: BuiltModel, tuned_folder: Path) -> None:
    with pytest.raises(ConfigError, match="was not made by"):
        built.save(tuned_folder.parent)
    assert RunDirectory(tuned_folder.parent).records.is_file()


def test_two_threads_begin_with_what_one_thread_knows(loaded: LoadedModel, tuned_folder: Path, tmp_path: Path) -> None:
    effort = NetworkEffort(trials=2, warm_start=str(tuned_folder.parent))
    tuned = loaded.tune(Usage(threads=2), effort=effort, run=tmp_path, progress=False)
    assert tuned.target.name == "cpu-2t"
    assert tuned.tuned.warm_start.startswith("cpu (")
    assert f": {len(tuned.program.workloads())} operators" in tuned.tuned.warm_start


def test_schedules_of_a_file_are_taken_without_a_trial_and_are_no_records(
    loaded: LoadedModel, tuned: TunedModel, tmp_path: Path
) -> None:
    records = {c.workload.key: [TuningRecord(c.point, c.seconds)] for c in tuned.tuned.choices.values()}
    source = Source("", tuned.target, tvm_version(), backend_of(tuned.target).space_version)
    write_schedules(tmp_path / "known.json", source, records)
    effort = NetworkEffort(trials=0, warm_start=str(tmp_path / "known.json"))
    found = loaded.tune(effort=effort, run=tmp_path, progress=False).tuned
    assert found.num_new_trials == 0
    assert {key: c.point for key, c in found.choices.items()} == {k: c.point for k, c in tuned.tuned.choices.items()}
    assert all(c.taken_from == f"{c.workload.key} on known.json" for c in found.choices.values())
    assert found.warm_start.startswith("known.json (")
    with pytest.raises(ConfigError, match="have no schedule among the records"):
        loaded.tune(effort=effort, run=tmp_path, progress=False, no_tuning=True)


def test_records_that_are_not_there_are_told_before_anything_is_written(loaded: LoadedModel, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for source, error in ((str(tmp_path), StageOrderError), ("cpu-2t", StageOrderError)):
        with pytest.raises(error, match="expected a run directory, a file of records or a target"):
            loaded.tune(effort=NetworkEffort(trials=1, warm_start=source), run=run, progress=False)
    assert not run.exists()


class Untrained(nn.Module):
    """The layers of `save_exported`; the last one begins with zeros, and what it reads is an output, too."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.dense = nn.Linear(8, NUM_CLASSES)
        nn.init.zeros_(self.dense.weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x)
        return features, self.dense(features)


def test_an_output_that_is_alike_for_other_inputs_is_told(tuned_folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_program(Untrained(), [torch.zeros(SHAPE)], tmp_path / "net.pt2")
    options = ["--trials", "1", "--run", str(tuned_folder.parent), "--out", str(tmp_path / "net")]
    done = CliRunner().invoke(app, ["tune", str(tmp_path / "net.pt2"), *options])
    assert done.exit_code == 0, done.output
    (line,) = (line for line in done.output.splitlines() if line.startswith("warning "))
    assert "says nothing about output1: other inputs change it by no more" in line
    assert json.loads((tmp_path / "net" / DOCUMENT).read_text(encoding="utf-8"))["unproven"] == ["output1"]


def test_a_network_whose_outputs_differ_has_nothing_to_tell(tuned_folder: Path) -> None:
    assert json.loads((tuned_folder / DOCUMENT).read_text(encoding="utf-8"))["unproven"] == []


def test_a_tuning_with_knobs_keeps_them_in_its_run_and_the_network_names_them(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    knobs, run = tmp_path / "mine.yaml", RunDirectory(tmp_path / "run")
    knobs.write_text("all: {auto_unroll: [0, 16]}")
    effort = NetworkEffort(trials=1, knobs=str(knobs))
    folder = loaded.tune(effort=effort, run=run, progress=False).build().save(tmp_path / "net").folder
    document = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
    assert document["knobs"] == {"name": "mine.yaml", "hash": file_digest(knobs)}
    assert (run.knobs / f"mine-{file_digest(knobs)}.yaml").read_bytes() == knobs.read_bytes()
    assert (folder / document["run"]).resolve() == run.root.resolve()


def test_a_wrong_file_of_knobs_is_refused_before_anything_is_written(loaded: LoadedModel, tmp_path: Path) -> None:
    effort = NetworkEffort(trials=1, knobs=str(tmp_path / "gone.yaml"))
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        loaded.tune(effort=effort, run=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_knobs_that_leave_an_operator_no_schedule_are_refused_before_anything_is_written(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    file, run = tmp_path / "large.yaml", tmp_path / "run"
    file.write_text("conv: {split_h: [16], split_w: [16]}")  # tiles of 256 sums
    effort = NetworkEffort(trials=1, knobs=str(file))
    for ask in (loaded.plan, functools.partial(loaded.tune, progress=False)):
        with pytest.raises(ConfigError, match="some combination is legal for "):
            ask(effort=effort, run=run)
    assert not run.exists()


def test_a_plan_counts_the_points_of_the_changed_spaces(loaded: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "more.yaml"
    file.write_text("all: {auto_unroll: [0, 16, 64, 512]}")
    effort = NetworkEffort(trials=10_000)

    def most(effort: NetworkEffort) -> int:
        found = re.search(r"at most (\d+) trials", loaded.plan(effort=effort, run=tmp_path / "run")[0])
        assert found is not None
        return int(found[1])

    assert most(dataclasses.replace(effort, knobs=str(file))) == 4 * most(effort)


def test_a_plan_names_operators_trials_and_the_folder(loaded: LoadedModel, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    lines = loaded.plan(effort=NetworkEffort(trials=1), run=run, folder=tmp_path / "out")
    assert "operators, at most" in lines[0]
    assert lines[-1].endswith(f"into {tmp_path / 'out'}")
    assert not run.root.exists()
