"""chanas/workflows/stages/tables.py: a table is found, and what it is of; what it does not hold for is refused by
name."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tables import CLASSES, random_table, save_space

from chanas.core.arch import SearchSpace
from chanas.core.effort import TableEffort
from chanas.core.latency import Calibration, LatencyLUT
from chanas.core.usage import Place, Usage
from chanas.devices.host import load_target
from chanas.errors import CheckpointError, ConfigError, LUTError, MeasureError, StageOrderError, TargetError
from chanas.files.run import RunDirectory
from chanas.files.writing import write_json
from chanas.measuring import devices
from chanas.prescheduler.tables import calibrate, lut_check
from chanas.prescheduler.tables import lut as prescheduler_lut
from chanas.prescheduler.tuning import warm_start
from chanas.workflows.stages import tables
from chanas.workflows.stages.shipped import shipped_tables
from chanas.workflows.stages.tables import open_table, table_error, this_device
from chanas.workflows.stages.tuning import preschedule

CALIBRATION = Calibration(1e-5, 1.25, 1e-6, 8, 0.012, 0.034, 0.98, 0.1)


@pytest.fixture
def run(tmp_path: Path, tiny_space: SearchSpace) -> RunDirectory:
    """A run directory with a table of the tiny space, and no supernet."""
    run = RunDirectory(tmp_path / "run")
    random_table(tiny_space).save(run.lut("cpu"))
    return run


@pytest.fixture
def yaml_file(tmp_path: Path, tiny_space: SearchSpace) -> Path:
    return save_space(tiny_space, tmp_path / "tiny.yaml")


def store_supernet(run: RunDirectory, space: SearchSpace, num_classes: int) -> None:
    write_json(run.supernet / "checkpoint.json", {"space": space.to_json(), "num_classes": num_classes})


def elsewhere(lut: LatencyLUT, **changes: Any) -> LatencyLUT:
    """The table as another device would have made it."""
    target = dataclasses.replace(lut.header.target, fingerprint="0123456789ab", **changes)
    return LatencyLUT(dataclasses.replace(lut.header, target=target), lut.rows)


# ---- which table, and what it is of ---------------------------------------------------------------------------------
def test_a_run_and_its_file_are_the_same_table(run: RunDirectory, tiny_space: SearchSpace) -> None:
    store_supernet(run, tiny_space, CLASSES)
    by_run, by_file = open_table(run=run), open_table(run.lut("cpu"))
    assert by_run == by_file
    assert (by_run.path, by_run.space, by_run.num_classes) == (run.lut("cpu"), tiny_space, CLASSES)


def test_a_preset_is_found_by_the_digest_of_the_table(tmp_path: Path) -> None:
    space = SearchSpace.load("mbv3-32")
    random_table(space, num_classes=7).save(tmp_path / "cpu.json")
    table = open_table(tmp_path / "cpu.json")
    assert (table.space, table.num_classes) == (space, 7)


@pytest.mark.parametrize("name", ["tiny", "mbv3-32"])
def test_a_space_that_is_nowhere_is_not_made_up(tmp_path: Path, tiny_space: SearchSpace, name: str) -> None:
    """A preset of the same name and another content does not count."""
    random_table(dataclasses.replace(tiny_space, name=name)).save(tmp_path / "cpu.json")
    table = open_table(tmp_path / "cpu.json")
    assert table.space is None
    with pytest.raises(LUTError, match=f"'{name}'"):
        table.required_space()


def test_a_named_space_counts_where_it_is_the_tables(run: RunDirectory, yaml_file: Path, tiny_space: Any) -> None:
    assert open_table(run=run, space=yaml_file).space == tiny_space
    with pytest.raises(LUTError, match="expected a LUT of space 'mbv3'"):
        open_table(run=run, space="mbv3")


def test_a_supernet_of_another_space_is_not_asked(run: RunDirectory, tiny_space: SearchSpace) -> None:
    store_supernet(run, dataclasses.replace(tiny_space, head_width=64), 99)
    table = open_table(run=run)
    assert (table.space, table.num_classes) == (None, CLASSES)


def test_a_supernet_that_shares_its_blocks_is_asked(run: RunDirectory, tiny_space: SearchSpace) -> None:
    other = dataclasses.replace(tiny_space, name="other", resolutions=(16, 20))
    store_supernet(run, other, 99)
    table = open_table(run=run)
    assert (table.space, table.num_classes) == (other, 99)


def test_classes_are_named_where_the_table_has_several(run: RunDirectory, tiny_space: SearchSpace) -> None:
    lut = random_table(tiny_space)
    lut.rows |= random_table(tiny_space, num_classes=100).rows
    lut.save(run.lut("cpu"))
    with pytest.raises(ConfigError, match="10, 100"):
        open_table(run=run)
    assert open_table(run=run, num_classes=100).num_classes == 100
    store_supernet(run, tiny_space, CLASSES)
    assert open_table(run=run).num_classes == CLASSES


@pytest.mark.parametrize("num_classes", [0, -5])
def test_a_number_of_classes_below_one_is_refused(run: RunDirectory, tiny_space: SearchSpace, num_classes: int) -> None:
    random_table(tiny_space).save(run.lut("cpu"))
    with pytest.raises(ConfigError, match=f"at least 1 class, got {num_classes}"):
        open_table(run=run, num_classes=num_classes)
    with pytest.raises(ConfigError, match=f"at least 1 class, got {num_classes}"):
        preschedule(run, num_classes=num_classes)


# ---- devices --------------------------------------------------------------------------------------------------------
def test_a_table_of_this_device_is_taken(tiny_space: SearchSpace) -> None:
    assert this_device(random_table(tiny_space)) == load_target("cpu")


def test_another_device_is_refused_by_what_differs(tiny_space: SearchSpace) -> None:
    lut = random_table(tiny_space)
    with pytest.raises(LUTError, match=r"0123456789ab .device 6502 there, .* here; l2_bytes 1 "):
        this_device(elsewhere(lut, device="6502", l2_bytes=1, num_threads=4096))
    with pytest.raises(LUTError, match="stepping"):
        this_device(elsewhere(lut))


def test_more_threads_than_cores_are_refused(tiny_space: SearchSpace) -> None:
    lut = random_table(tiny_space)
    many = dataclasses.replace(lut.header, target=dataclasses.replace(lut.header.target, num_threads=4096))
    with pytest.raises(TargetError, match="got 4096"):
        this_device(LatencyLUT(many, lut.rows))


def test_what_was_made_elsewhere_names_the_device_that_it_is_of(tiny_space: SearchSpace) -> None:
    with pytest.raises(LUTError, match="--key KEY"):
        this_device(elsewhere(random_table(tiny_space)))
    with pytest.raises(LUTError, match="--key pi4"):
        this_device(elsewhere(random_table(tiny_space), name="cpu@pi4"))


# ---- devices elsewhere ----------------------------------------------------------------------------------------------
@pytest.fixture
def pi4(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A key whose devices can be had, and what was asked of them."""
    asked: list[Any] = []
    target = dataclasses.replace(load_target("cpu"), name="cpu@pi4", fingerprint="0123456789ab", device="6502")

    @contextlib.contextmanager
    def held(usage: Usage) -> Iterator[Any]:
        asked.append(usage)
        yield target, "their pool"

    monkeypatch.setattr(devices, "timing_device", held)
    return asked


@pytest.fixture
def made_there(run: RunDirectory, tiny_space: SearchSpace) -> RunDirectory:
    """A run with a table of that device."""
    elsewhere(random_table(tiny_space), name="cpu@pi4", device="6502").save(run.lut("cpu@pi4"))
    return run


PLACE = Place("127.0.0.1:9190", "pi4", 2)


def test_a_table_made_there_is_found_by_its_key(made_there: RunDirectory) -> None:
    assert open_table(run=made_there, usage=Usage(place=Place(key="pi4"))).path == made_there.lut("cpu@pi4")
    with pytest.raises(StageOrderError, match=r"cpu, cpu@pi4 .* --key pi4 --threads 2 --dtype bf16"):
        open_table(run=made_there, usage=Usage(threads=2, dtype="bf16", place=Place(key="pi4")))
    with pytest.raises(StageOrderError, match=r"--target cuda .* --key h200 --dtype f16 "):
        open_table(run=made_there, usage=Usage("cuda", dtype="f16", place=Place(key="h200")))


@pytest.mark.parametrize(("target", "dtype"), [("cpu", "f16"), ("cuda", "bf16")])
def test_each_kind_of_device_has_its_own_dtypes(made_there: RunDirectory, target: str, dtype: str) -> None:
    with pytest.raises(TargetError, match=rf"^unknown dtype '{dtype}'; known: "):
        open_table(run=made_there, usage=Usage(target, dtype=dtype, place=Place(key="pi4")))


@pytest.mark.parametrize("command", ["check", "calibrate", "fill"])
def test_a_table_made_there_is_measured_there(
    made_there: RunDirectory, yaml_file: Path, pi4: list[Any], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    pools: list[Any] = []

    def note(_lut: Any, _task: Any, hardware: Any, *_: Any, open_pool: Any, **__: Any) -> Any:
        pools.append((hardware.name, hardware.fingerprint, open_pool))
        return CALIBRATION

    monkeypatch.setattr(lut_check, "check_table", note)
    monkeypatch.setattr(calibrate, "calibrate", note)
    if command == "fill":
        tables.fill(made_there, Usage(place=PLACE), space=yaml_file, progress=False)
    else:
        table = open_table(run=made_there, usage=Usage(place=Place(key="pi4")), space=yaml_file)
        getattr(tables, command)(table, progress=False, place=PLACE)
    assert pools == [("cpu@pi4", "0123456789ab", "their pool")]
    assert pi4 == [Usage(place=PLACE)]


def test_holes_are_filled_there(
    made_there: RunDirectory, yaml_file: Path, pi4: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lut = LatencyLUT.load(made_there.lut("cpu@pi4"))
    del lut.rows[next(iter(lut.rows))]
    lut.save(made_there.lut("cpu@pi4"))

    def note(_run: Any, _task: Any, hardware: Any, *_: Any, open_pool: Any, **__: Any) -> Any:
        raise MeasureError(f"{hardware.name} by {open_pool}")

    monkeypatch.setattr(prescheduler_lut, "preschedule", note)
    with pytest.raises(MeasureError, match=r"^cpu@pi4 by their pool$"):
        tables.fill(made_there, Usage(place=PLACE), space=yaml_file, progress=False)


def test_holes_are_filled_beginning_with_another_devices_records(
    run: RunDirectory, yaml_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lut = LatencyLUT.load(run.lut("cpu"))
    del lut.rows[next(iter(lut.rows))]
    lut.save(run.lut("cpu"))

    def note(_run: Any, _task: Any, _hardware: Any, _effort: Any, *, warm_start: Any, **__: Any) -> Any:
        raise MeasureError(f"beginning with {warm_start}")

    monkeypatch.setattr(prescheduler_lut, "preschedule", note)
    monkeypatch.setattr(warm_start, "open_warm_start", lambda source, _run, target: f"{source} for {target.name}")
    with pytest.raises(MeasureError, match=r"^beginning with runs/other for cpu$"):
        tables.fill(run, space=yaml_file, effort=TableEffort(warm_start="runs/other"), progress=False)


def test_holes_are_filled_with_the_effort_that_is_asked_for_and_calibrated_once_all_are(
    run: RunDirectory, yaml_file: Path, tiny_space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lut = LatencyLUT.load(run.lut("cpu"))
    del lut.rows[next(iter(lut.rows))]
    lut.save(run.lut("cpu"))

    def note(_run: Any, _task: Any, _hardware: Any, effort: Any, **__: Any) -> Any:
        raise MeasureError(str(effort == dataclasses.replace(asked, sub_spaces=(), calibrate=0)))

    first = tiny_space.sub_spaces[0].key
    asked = TableEffort(trials=3, tune_share=0.5, tuner="random", seed=4, sub_spaces=(first,), calibrate=7)
    monkeypatch.setattr(prescheduler_lut, "preschedule", note)
    with pytest.raises(MeasureError, match=r"^True$"):
        tables.fill(run, space=yaml_file, effort=asked, progress=False)


def test_a_table_that_comes_with_chanas_is_never_written() -> None:
    path = shipped_tables()["mbv3-amd-zen4-cpu"]
    before = path.stat()
    table = open_table(path, num_classes=1000)
    with pytest.raises(LUTError, match="lut adapt --from mbv3-amd-zen4-cpu"):
        tables.calibrate(table, progress=False)
    assert path.stat() == before
    assert not (path.parent.parent / "records.sqlite").exists()


def test_records_to_begin_with_that_are_not_there_are_told_before_anything_is_filled(
    run: RunDirectory, yaml_file: Path
) -> None:
    with pytest.raises(StageOrderError, match="nowhere"):
        tables.fill(run, space=yaml_file, effort=TableEffort(warm_start="nowhere"), progress=False)


@pytest.mark.parametrize("command", ["check", "calibrate"])
def test_a_table_of_another_device_is_refused_there_too(
    run: RunDirectory, yaml_file: Path, pi4: list[Any], command: str
) -> None:
    with pytest.raises(LUTError, match=r"0123456789ab, .* 6502"):
        getattr(tables, command)(open_table(run=run, space=yaml_file), progress=False, place=PLACE)


@pytest.mark.parametrize("command", ["check", "calibrate", "fill"])
def test_nothing_is_measured_for_a_table_of_another_device(
    run: RunDirectory, yaml_file: Path, tiny_space: SearchSpace, command: str
) -> None:
    elsewhere(random_table(tiny_space), device="6502").save(run.lut("cpu"))
    before = run.lut("cpu").read_bytes()
    with pytest.raises(LUTError, match="device 6502 there"):
        if command == "fill":
            tables.fill(run, space=yaml_file, progress=False)
        else:
            getattr(tables, command)(open_table(run=run, space=yaml_file), progress=False)
    assert run.lut("cpu").read_bytes() == before
    assert not run.records.exists()


# ---- what is said about a table -------------------------------------------------------------------------------------
def test_two_files_are_compared(run: RunDirectory, tmp_path: Path, yaml_file: Path, tiny_space: SearchSpace) -> None:
    other = tmp_path / "other.json"
    elsewhere(random_table(tiny_space, seed=1)).save(other)
    found = tables.compare(run.lut("cpu"), other, space=yaml_file)
    assert set(found.differences) == {"target.fingerprint"}
    assert found.architectures is not None
    assert tables.compare(run.lut("cpu"), other).architectures is None
    with pytest.raises(CheckpointError, match="does not exist"):
        tables.compare(run.lut("cpu"), tmp_path / "none.json")


def test_the_error_of_a_runs_table_is_one_line(run: RunDirectory, tiny_space: SearchSpace) -> None:
    assert table_error(run, "cpu").startswith("not calibrated")
    lut = random_table(tiny_space)
    lut.calibration = CALIBRATION
    lut.save(run.lut("cpu"))
    assert table_error(run, "cpu") == CALIBRATION.describe()


def test_a_table_that_covers_no_sub_space_cannot_be_calibrated(
    run: RunDirectory, yaml_file: Path, tiny_space: SearchSpace
) -> None:
    lut = random_table(tiny_space)
    lut.rows = {key: row for key, row in lut.rows.items() if not key.startswith("stem")}
    lut.save(run.lut("cpu"))
    with pytest.raises(LUTError, match="sub-space"):
        tables.calibrate(open_table(run=run, space=yaml_file), progress=False)
