"""chanas/workflows/stages/offline.py: from the records of runs to a cost model, and to that of another device."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from chanas.compiler.backends import schedule_space
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, DataError
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.workflows.stages.offline import (
    Lesson,
    describe_records,
    export_records,
    export_t4,
    import_records,
    teach,
)

from ...compiler.workbench import device

ONE = device()
TWO = dataclasses.replace(device(num_threads=2), name="cpu-2t")


def store_run(folder: Path, target: HardwareTarget) -> Path:
    """Records of operators, the faster the larger their tiles."""
    store = RecordStore(folder / "records.sqlite", target)
    for channels in (32, 64, 96, 128):
        space = schedule_space(Workload("pointwise", 14, channels, 64), target)
        seconds = [1e-6 * channels / space.groups(p)["split_m"][-1] for p in space.points[:40]]
        store.add(space.workload.key, [TuningRecord(p, s) for p, s in zip(space.points[:40], seconds, strict=True)])
    store.close()
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Data sets of one thread and of two."""
    folder = tmp_path_factory.mktemp("records")
    for target in (ONE, TWO):
        exported = export_records([store_run(folder / target.name, target)], folder / f"{target.name}.npz")
        assert exported.lines[0].startswith("records    160, 4 tasks, 1 device(s)")
        assert exported.skipped == {}
    return folder / "cpu.npz", folder / "cpu-2t.npz"


def test_a_run_is_described_as_its_data_set_is(files: tuple[Path, Path]) -> None:
    assert describe_records(files[0].parent / "cpu") == describe_records(files[0])


def test_a_model_is_taught_and_goes_on_with_another_device(files: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = files
    first = teach(one, tmp_path / "one.safetensors", Lesson(model="mlp", split="by_task"), progress=False)
    assert first.metrics.pairwise_accuracy > 0.8
    assert first.lines[0] == "model      mlp, rmse"
    assert first.before is None
    again = Lesson(init=tmp_path / "one.safetensors", num_records=40)
    second = teach(two, tmp_path / "two.safetensors", again, progress=False)
    assert second.model.kind == first.model.kind
    assert second.metrics.num_records == 120
    assert any("before)" in line for line in second.lines)


def test_a_sample_of_the_tasks_is_enough_to_learn_from(files: tuple[Path, Path], tmp_path: Path) -> None:
    lesson = Lesson(model="mlp", split="within_task", sample=True)
    taught = teach(files[0], tmp_path / "model.safetensors", lesson, progress=False)
    assert taught.model.facts["num_tasks"] == 2


@pytest.mark.parametrize("num_records", [1, 160])
def test_too_few_or_too_many_records_of_a_new_device_are_refused(
    files: tuple[Path, Path], tmp_path: Path, num_records: int
) -> None:
    teach(files[0], tmp_path / "one.safetensors", Lesson(model="mlp"), progress=False)
    with pytest.raises(ConfigError, match="expected --records from 2 to 159"):
        teach(files[1], tmp_path / "x.safetensors", Lesson(init=tmp_path / "one.safetensors", num_records=num_records))


def test_files_end_in_what_they_are(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a file that ends in \.npz, got .*records\.parquet"):
        export_records([files[0].parent / "cpu"], tmp_path / "records.parquet")
    with pytest.raises(ConfigError, match=r"expected a file that ends in \.safetensors, got .*model\.pt"):
        teach(files[0], tmp_path / "model.pt", Lesson(model="mlp"))
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(ConfigError, match=r"got the folder .*folder"):
        teach(files[0], tmp_path / "folder.safetensors", Lesson(model="mlp"))
    assert [p.name for p in tmp_path.iterdir()] == ["folder.safetensors"]


def test_records_of_another_system_teach_a_model(tmp_path: Path) -> None:
    lines = [
        {
            "i": [
                [f'["dense", {task}]', "llvm -mcpu=znver4", [4, 64, 64, 0, 0, 0, 0, 0], "", 1, []],
                [[], [["SP", 0, 0, 1 << 12, [1 << inner], 1], ["AN", 0, 1, 2]]],
            ],
            "r": [[1e-3 / (1 + inner)], 0, 0.1, 1],
            "v": "v0.6",
        }
        for task in range(6)
        for inner in range(12)
    ]
    (tmp_path / "ansor.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    imported = import_records([tmp_path / "ansor.json"], tmp_path / "records.npz", per_task=10)
    assert imported.skipped == {"beyond the first 10 of their task": 12}
    assert "flops      not known of 6 tasks" in imported.lines
    assert list(imported.lines) == [imported.lines[0], *describe_records(tmp_path / "records.npz")]
    taught = teach(tmp_path / "records.npz", tmp_path / "model.safetensors", Lesson(model="mlp"), progress=False)
    assert taught.metrics.pairwise_accuracy > 0.9


def test_an_operator_s_records_go_out_and_come_back(files: tuple[Path, Path], tmp_path: Path) -> None:
    key = Workload("pointwise", 14, 32, 64).key
    written = export_t4([files[0].parent], tmp_path / "pw.json", key, "cpu-2t")
    assert written.lines[-1] == f"space in   {tmp_path / 'pw.t1.json'}"
    back = import_records([tmp_path / "pw.json"], tmp_path / "pw.npz")
    assert describe_records(tmp_path / "pw.json") == list(back.lines)
    assert "records    40, 1 tasks, 1 device(s)" in back.lines


def test_a_table_has_no_trials(tmp_path: Path) -> None:
    table = tmp_path / "cpu.json"
    table.write_text("{}")
    with pytest.raises(DataError, match="a table has no trials; name its run directory"):
        export_records([table], tmp_path / "records.npz")


def test_what_learns_further_keeps_its_model(files: tuple[Path, Path], tmp_path: Path) -> None:
    lesson = Lesson(model="mlp", loss="rmse", init=tmp_path / "one.safetensors", num_records=40)
    with pytest.raises(ConfigError, match=r"^--model, --loss cannot be changed .* leave out with --init$"):
        teach(files[1], tmp_path / "two.safetensors", lesson)
