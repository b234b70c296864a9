"""chanas/prescheduler/tuning/offline/exchange/importing.py and exporting.py: files in, files out."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.compiler.backends import backend_of, schedule_space
from chanas.errors import ConfigError, DataError
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.prescheduler.tuning.offline.dataset import Dataset, load, save
from chanas.prescheduler.tuning.offline.exchange import importing, reading
from chanas.prescheduler.tuning.offline.exchange.exporting import find_tuned, write_tuned
from chanas.prescheduler.tuning.offline.exchange.importing import make_dataset, read_files
from chanas.prescheduler.tuning.offline.export import collect, files_of_records
from chanas.prescheduler.tuning.offline.export import make_dataset as dataset_of_runs
from chanas.prescheduler.tuning.offline.primitives import SLOTS, flatten

from ..records import ONE, TWO, WORKLOADS, store_run
from .others import database, measure_record, problem, result, results, tuning_record, write_lines

OTHER_KEY = '["ffeeddccbbaa99887766554433221100", 3]'


def write_json(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.fixture
def ansor(tmp_path: Path) -> Path:
    records = [measure_record(seconds=[n * 1e-4], key=key) for n in (3, 1, 2) for key in (OTHER_KEY, "[1]")]
    return write_lines(tmp_path / "ansor.json", "# a comment", records[0], "", *records[1:], measure_record(error=6))


def test_records_of_all_systems_become_one_data_set(ansor: Path, tmp_path: Path) -> None:
    kernels = write_json(tmp_path / "kt.json", results(*(result({"n": n}, n) for n in (1, 2))))
    found = read_files([ansor, database(tmp_path / "db", tuning_record()), kernels])
    data = make_dataset(found)
    assert [task.op for task in data.tasks] == ["subgraph", "subgraph", "dense", "kernel"]
    assert data.counts().tolist() == [3, 3, 1, 2]
    assert (np.diff(data.task) >= 0).all()
    assert data.label.tolist() == pytest.approx([1 / 3, 1, 1 / 2, 1 / 3, 1, 1 / 2, 1, 1, 1 / 2])
    assert [device.spaces for device in data.devices] == [0, 0, 0]
    assert found.skipped == {"that failed (build timeout)": 1}
    assert found.lines[0] == "files      1 of Ansor, 1 of MetaSchedule, 1 of T4"


def test_a_primitive_that_a_sequence_has_twice_is_counted_and_summed(tmp_path: Path) -> None:
    splits = [["SP", 0, n, 64, [1 << n], 1] for n in (1, 2)]
    data = make_dataset(read_files([write_lines(tmp_path / "a.json", measure_record(splits))]))
    flat = flatten(data.primitives).reshape(len(SLOTS), -1)
    assert flat[SLOTS.index("SP other")].tolist() == [2, 0, 5 + 4, 1 + 2, 12, 0, 0, 0, 0]


def test_what_is_imported_is_read_back(ansor: Path, tmp_path: Path) -> None:
    data = make_dataset(read_files([ansor]))
    save(data, tmp_path / "records.npz")
    assert same(load(tmp_path / "records.npz"), data)


def test_files_of_one_task_are_one_task(tmp_path: Path) -> None:
    files = [write_lines(tmp_path / f"{name}.json", measure_record()) for name in "ab"]
    assert make_dataset(read_files(files)).counts().tolist() == [2]


def test_of_each_task_the_first_records_may_be_enough(ansor: Path) -> None:
    found = read_files([ansor], per_task=2)
    assert make_dataset(found).counts().tolist() == [2, 2]
    assert found.skipped["beyond the first 2 of their task"] == 2


def test_folders_are_searched_and_what_is_of_no_format_there_is_counted(ansor: Path, tmp_path: Path) -> None:
    database(tmp_path / "db", tuning_record())
    write_json(tmp_path / "metadata.json", {"metadata": {}})
    write_lines(tmp_path / "notes.json", "hello")
    (tmp_path / "link.json").symlink_to("nowhere")
    found = read_files([tmp_path])
    assert len(found.records) == 7
    assert found.lines == [
        "files      1 of Ansor, 1 of MetaSchedule, 1 of MetaSchedule's workloads, 2 of no known format"
    ]


def test_results_find_their_problem_by_its_name_or_its_parameters(tmp_path: Path) -> None:
    file = write_json(tmp_path / "kt.json", results(result({"n": 2})))
    beside = problem(n="[1, 2, 3]") | {}
    elsewhere = write_json(tmp_path / "space.json", problem(n="[0, 2]"))
    other = write_json(tmp_path / "other.json", problem(m="[1]"))
    assert read_files([file]).records[0].point == (0,)
    found = read_files([other, elsewhere, file])
    assert found.records[0].point == (1,)
    assert found.lines[-1] == "space      add: 1 parameters, 1 combinations; no results here"
    write_json(tmp_path / "kt.t1.json", beside | {"ConfigurationSpace": problem(n="[7, 2]")["ConfigurationSpace"]})
    assert read_files([file]).records[0].point == (1,)


def test_a_problem_of_the_results_name_is_theirs_even_if_it_does_not_fit(tmp_path: Path) -> None:
    file = write_json(tmp_path / "kt.json", results(result({"n": 2})))
    beside = write_json(tmp_path / "kt.t1.json", problem(m="[1]"))
    other = write_json(tmp_path / "other.json", problem(n="[2]"))
    for places in ([file], [other, beside, file]):
        assert read_files(places).skipped == {"of other parameters than their space has": 1}


def test_records_of_none_are_no_data_set(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.json", measure_record(error=1), measure_record(version="v9"))
    with pytest.raises(DataError, match=r"no records of use .*left out: 1 that failed \(instantiation\); 1 of another"):
        make_dataset(read_files([file]))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ('{"i": [[', r"a\.json:1: no whole JSON"),
        (f"{json.dumps(measure_record())}\n\n{{", r"a\.json:3: no whole JSON"),
        (f"{json.dumps(measure_record())}\n[1]", r"a\.json:2: expected an object for a measure record"),
        (json.dumps(measure_record()).replace("0.5", "NaN"), r"a\.json:1: expected a finite number"),
        (json.dumps(measure_record()).replace("0.5", "[" * 90000), r"a\.json:1: "),
        ('{"results": [}', r"a\.json:1: no whole JSON"),
        ('{\n"results": [\n3]}', r"a\.json: results\[0\]: expected an object"),
        ('{"ConfigurationSpace": {}}', r"a\.json: expected an object for KernelSpecification"),
        ("{}", "of no format that is known"),
        ('{"schema": 1}', "of no format that is known"),
        ("", "of no format that is known"),
        ("hello", "of no format that is known"),
        ("\x80\x03}q\x00.", "of no format that is known"),
    ],
)
def test_damage_is_told_with_its_place_in_one_line(tmp_path: Path, content: str, error: str) -> None:
    (tmp_path / "a.json").write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=error) as told:
        read_files([tmp_path / "a.json"])
    assert str(told.value).isprintable()


def test_of_many_reasons_the_last_are_one(tmp_path: Path) -> None:
    records = [measure_record([[f"S{n}", 1]]) for n in range(100)]
    skipped = read_files([write_lines(tmp_path / "a.json", *records)]).skipped
    assert (len(skipped), skipped["for further reasons"]) == (33, 68)


def test_texts_of_strangers_can_be_printed(tmp_path: Path) -> None:
    escape = "\x1b[2J"
    step = [["a" + escape, 1]]
    records = [
        measure_record(step),
        measure_record(key=json.dumps([escape])),
        measure_record(target=f"llvm -model={escape}"),
    ]
    kernels = write_json(tmp_path / "kt.json", results(result({"n": 2})))
    write_json(tmp_path / "kt.t1.json", {**problem(n="[2]"), "KernelSpecification": kernel(escape)})
    found = read_files([write_lines(tmp_path / "a.json", *records), kernels])
    data = make_dataset(found)
    texts = [*found.lines, *found.skipped, *(t.op for t in data.tasks), *(d.describe() for d in data.devices)]
    assert all(text.isprintable() for text in texts)
    assert len(found.records) == 3


def kernel(name: str) -> dict[str, Any]:
    return {**problem()["KernelSpecification"], "KernelName": name, "Device": {"Name": name}}


def test_files_beyond_the_limits_are_refused(ansor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_json(tmp_path / "kt.json", results(result({"n": 2})))
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(reading, "MAX_FILE_BYTES", 100)
    for file, error in ((ansor, "ansor.json:2: expected a line of at most"), (whole, "a file of at most")):
        with pytest.raises(DataError, match=error):
            read_files([file])


def test_more_rows_than_there_is_room_for_are_refused(ansor: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "MAX_ROWS", 20)
    with pytest.raises(DataError, match="--per-task"):
        read_files([ansor])


def test_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*nowhere"):
        read_files([tmp_path / "nowhere"])
    with pytest.raises(DataError, match="got folders without any"):
        read_files([tmp_path])


JUNK: list[Any] = [None, True, -1, 0, 3, 1 << 50, 1.5, 1e10, "", "x", "\x1b", [], {}, [[]], ["a", 1], {"a": 1}]


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values inside some JSON."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield (*at, key)
        yield from places(value, (*at, key))


def mutated(data: Any, rng: random.Random) -> Any:
    """JSON with junk in place of one value, or without it."""
    data = json.loads(json.dumps(data))
    *at, last = rng.choice(list(places(data)))
    inner = data
    for key in at:
        inner = inner[key]
    if rng.random() < 0.2:
        del inner[last]
    else:
        inner[last] = rng.choice(JUNK)
    return data


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("form", ["ansor", "metaschedule", "t4", "t1", "own"])
def test_whatever_is_changed_in_a_file_is_read_or_refused_in_one_line(tmp_path: Path, form: str, seed: int) -> None:
    rng = random.Random(seed)
    kernels = write_json(tmp_path / "kt.json", results(result({"n": 2}), result({"n": 3})))
    if form == "own":
        kernels = write(store_run(tmp_path / "run", TWO, WORKLOADS[:1], num=3), tmp_path / "kt.json")
    beside = tmp_path / "kt.t1.json"
    good = json.loads(beside.read_text()) if form == "own" else problem(n="[1, 2, 3]", m="[i for i in range(3)]")
    for _ in range(50):
        match form:
            case "ansor":
                place = write_lines(tmp_path / "a.json", mutated(measure_record(), rng))
            case "metaschedule":
                place = database(tmp_path / "db", mutated(tuning_record(), rng))
            case "t4":
                place = write_json(tmp_path / "b.json", mutated(results(result({"n": 2, "s": "a"}), result({})), rng))
            case _:
                write_json(beside, mutated(good, rng))
                place = kernels
        try:
            found = read_files([place])
        except DataError as error:
            assert str(error).isprintable()
        else:
            assert all(line.isprintable() for line in [*found.lines, *found.skipped])
            if found.records:
                save(make_dataset(found), tmp_path / "records.npz")
                load(tmp_path / "records.npz")


# ---- our own records, there and back --------------------------------------------------------------------------------
def by_point(data: Dataset) -> Dataset:
    """A data set in the order of its points."""
    return data.of(np.array(sorted(range(len(data)), key=lambda i: data.points[i]), dtype=np.int64))


def same(one: Dataset, other: Dataset) -> bool:
    arrays = ("task", "latency_s", "label")
    rows = np.array_equal(one.primitives.values, other.primitives.values)
    facts = (one.devices, one.tasks, one.points) == (other.devices, other.tasks, other.points)
    close = [np.allclose(getattr(one, name), getattr(other, name), rtol=1e-6, atol=0.0) for name in arrays]
    return facts and rows and all(close)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_run(tmp_path_factory.mktemp("run"), TWO, WORKLOADS[:2])


def write(run: Path, out: Path, operator: str = WORKLOADS[0].key) -> Path:
    write_tuned(find_tuned(files_of_records([run]), operator, None), out, out.with_suffix(".t1.json"))
    return out


def test_what_is_written_as_t4_comes_back_as_the_same_data_set(tmp_path: Path) -> None:
    run = store_run(tmp_path / "run", TWO, WORKLOADS[:1])
    found = read_files([write(run, tmp_path / "pw.json")])
    assert same(by_point(make_dataset(found)), by_point(dataset_of_runs(collect(files_of_records([run])))))
    assert found.skipped == {"that failed (compile)": 1}


def test_points_of_other_versions_and_spaces_are_counted(run: Path, tmp_path: Path) -> None:
    file = write(run, tmp_path / "pw.json")
    data = json.loads(file.read_text())
    data["results"][0]["configuration"]["order"] = 9
    write_json(file, data)
    assert read_files([file]).skipped["of points outside their spaces"] == 1
    beside = tmp_path / "pw.t1.json"
    old = json.loads(beside.read_text())
    old["chanas"]["spaces"] = backend_of(TWO).space_version - 1
    write_json(beside, old)
    assert read_files([file]).skipped["of devices with another version of the schedule spaces"] == 23


def test_failures_are_written_by_their_kind(run: Path, tmp_path: Path) -> None:
    written = json.loads(write(run, tmp_path / "pw.json").read_text())
    assert written["schema_version"] == "1.0.0"
    assert [r["invalidity"] for r in written["results"]].count("correct") == 23
    assert written["results"][-1]["measurements"] == []


def test_an_operator_and_a_device_are_named_where_there_are_several(run: Path, tmp_path: Path) -> None:
    other = store_run(tmp_path / "one", ONE, WORKLOADS[:1])
    files = files_of_records([run, other])
    with pytest.raises(ConfigError, match=r"expected --operator, one of pointwise.* as 2 have records"):
        find_tuned(files, None, None)
    with pytest.raises(ConfigError, match=r"expected --operator.* got 'dense'"):
        find_tuned(files, "dense", None)
    with pytest.raises(ConfigError, match="expected --target, one of cpu, cpu-2t, as 2 have records"):
        find_tuned(files, WORKLOADS[0].key, None)
    with pytest.raises(ConfigError, match=r"expected --target, one of cpu, cpu-2t, got 'cuda'"):
        find_tuned(files, WORKLOADS[0].key, "cuda")
    tuned = find_tuned(files, WORKLOADS[0].key, "cpu")
    assert tuned.source.target.num_threads == 1
    assert tuned.lines()[-1] == "results    24, of which 1 failed"


def test_records_of_other_spaces_are_not_written(tmp_path: Path) -> None:
    run = store_run(tmp_path, ONE, WORKLOADS[:1], num=3)
    with contextlib.closing(sqlite3.connect(run / "records.sqlite")) as db, db:
        db.execute("UPDATE records SET device = replace(device, 'space-', 'space-9')")
        db.execute("UPDATE devices SET device = replace(device, 'space-', 'space-9')")
    with pytest.raises(DataError, match="in today's schedule spaces"):
        find_tuned(files_of_records([run]), None, None)


def test_points_outside_a_space_are_not_written_but_counted(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records.sqlite", ONE)
    key = WORKLOADS[0].key
    store.add(key, [TuningRecord(schedule_space(WORKLOADS[0], ONE).middle, 1.0), TuningRecord((1, 2, 3), 1.0)])
    store.close()
    tuned = find_tuned(files_of_records([tmp_path]), None, None)
    assert (len(tuned.records), tuned.num_outside) == (1, 1)
