"""chanas/prescheduler/records/store.py: what was measured stays, whatever happens to the process."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.compiler.backends import BACKENDS, backend_of
from chanas.core import target as core_target
from chanas.core.target import HardwareTarget
from chanas.errors import CheckpointError
from chanas.measuring.messages import Reading
from chanas.prescheduler.records import schema
from chanas.prescheduler.records import store as module
from chanas.prescheduler.records.schema import SCHEMA
from chanas.prescheduler.records.store import (
    UNVERSIONED_SPACES,
    BlockRecord,
    RecordStore,
    TuningRecord,
    WarmStartNote,
    Work,
)
from chanas.prescheduler.records.tables import TABLES

from ...compiler.cuda_cases import GPU
from ...compiler.workbench import HOST, device

Opener = Callable[..., RecordStore]
ROOT = Path(__file__).resolve().parents[3]

points = st.lists(st.integers(0, 300), max_size=8).map(tuple)
seconds = st.floats(1e-9, 10.0)
numbers = itertools.count()
tuning_records = st.one_of(
    st.builds(TuningRecord, points, seconds, seconds),
    st.builds(TuningRecord, points, st.none(), st.none(), st.text()),
)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Opener]:
    """Opens `records.sqlite`, again whenever it is called."""
    stores = []

    def open_(target: HardwareTarget = HOST, path: Path = tmp_path / "records.sqlite") -> RecordStore:
        stores.append(RecordStore(path, target))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordStore]:
    store = RecordStore(tmp_path_factory.mktemp("records") / "records.sqlite", HOST)
    yield store
    store.close()


@given(st.lists(tuning_records, max_size=6, unique_by=lambda r: r.point))
def test_records_come_back_as_they_went(lasting: RecordStore, records: list[TuningRecord]) -> None:
    workload = f"workload {next(numbers)}"
    lasting.add(workload, records)
    assert lasting.load(workload) == records


def test_tables_have_the_keys_and_columns_that_they_are_said_to_have(open_store: Opener) -> None:
    db = open_store()._db
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == {table.name for table in TABLES}
    for table in TABLES:
        columns = {name: place for _, name, *_, place in db.execute(f"PRAGMA table_info({table.name})")}
        assert set(table.fields) | {"device"} <= set(columns)
        if table.name not in ("remeasured", "devices"):  # of which every row is kept
            assert {name for name, place in columns.items() if place} == set(table.key)


SCHEDULES = (("pool-7px", (1, 2)), ("pointwise-7px", (3, 4, 5)))
SAME = TuningRecord((2, 1), 1e-6, code="ab", same_as=(1, 2), drift=1.2)
AGAIN = TuningRecord((2, 1), None, again_s=2e-6, again_spread_s=1e-9)
BLOCK = BlockRecord(SCHEDULES, 1e-5, 1e-7, created=1.7e9, drift=0.9)
FAILED = BlockRecord(SCHEDULES, None, None, "timeout: build_block took more than 60 s", created=1.7e9)
READING, NOTE = Reading(5e-6, 1e-8, 1.1, 1.7e9), WarmStartNote("dev/1t", "d1", 6, 0.5, True)
WORK = Work(20.0, 4.0, 16.0)
SUM = ({"source": "dev/1t", "digest": "d1", "num_operators": 1, "num_dropped": 1},)
Write, Read = Callable[[RecordStore], object], Callable[[RecordStore], object]
KEPT: dict[str, tuple[Write, Read, object]] = {
    "record": (lambda s: s.add("w", [SAME]), lambda s: s.load("w"), [SAME]),
    "newer record": (
        lambda s: (s.add("w", [SAME, TuningRecord((3,), 5e-6)]), s.add("w", [TuningRecord((3,), 1e-6)])),
        lambda s: [r.seconds for r in s.load("w")],
        [1e-6, 1e-6],
    ),
    "turns": (
        lambda s: (s.add("w", [SAME]), s.add_remeasured("w", [AGAIN])),
        lambda s: [(r.again_s, r.again_spread_s) for r in s.load("w")],
        [(2e-6, 1e-9)],
    ),
    "newer turns": (
        lambda s: (
            s.add("w", [TuningRecord((i,), 1e-6) for i in range(3)]),
            s.add_remeasured("w", [TuningRecord((i,), None, again_s=2e-6) for i in (0, 1)]),
            s.add_remeasured("w", [TuningRecord((i,), None, again_s=4e-6) for i in (1, 2)]),
        ),
        lambda s: [r.again_s for r in s.load("w")],
        [None, 4e-6, 4e-6],
    ),
    "block": (lambda s: s.add_block("b", BLOCK), lambda s: s.load_block("b", SCHEDULES), BLOCK),
    "failed block": (lambda s: s.add_block("b", FAILED), lambda s: s.load_block("b", SCHEDULES), FAILED),
    "block that failed before": (
        lambda s: (s.add_block("b", FAILED), s.add_block("b", BLOCK)),
        lambda s: s.load_block("b", SCHEDULES),
        BLOCK,
    ),
    "rounds": (
        lambda s: (s.add_round("b", BLOCK), s.add_round("b", BLOCK)),
        lambda s: (s.load_rounds("b", SCHEDULES), s.load_block("b", SCHEDULES)),
        ([BLOCK, BLOCK], None),
    ),
    "reading": (lambda s: s.add_canary(READING), lambda s: s.load_canary(), [READING]),
    "end of trials": (
        lambda s: (s.stop("w", 12, 0.01, 0.02), s.stop("w", 20, 0.01, 0.02)),
        lambda s: s.num_trials_at_stop("w"),
        20,
    ),
    "work of two runs, of which one says it again": (
        lambda s: [s.note_work(*work) for work in ((1.7e9, Work(9.0)), (1.7e9, WORK), (1.8e9, Work(1.0, 0.5, 0.25)))],
        lambda s: s.total_work(),
        Work(21.0, 4.5, 16.25),
    ),
    "warm start": (lambda s: s.note_warm_starts({"w": NOTE}), lambda s: s.warm_starts({"w"}), SUM),
    "error": (
        lambda s: (
            s.add("w", [TuningRecord((i,), None, None, error) for i, error in enumerate(("crash", "timeout"))]),
            s.add_block("b", BlockRecord(SCHEDULES, None, None, "timeout")),
        ),
        lambda s: s.most_frequent_error(),
        "timeout",
    ),
    "count": (lambda s: s.add("w", [SAME, TuningRecord((3,), None)]), lambda s: s.count(), (1, 1)),
}
BFLOAT16 = dataclasses.replace(HOST, name="cpu-bf16", dtype="bfloat16")
OTHERS: dict[str, dict[str, Any]] = {
    "threads": {"num_threads": 2},
    "machine": {"fingerprint": "0123456789ab"},
    "place": {"name": "cpu@rack"},
}


@pytest.mark.parametrize("target", [HOST, GPU], ids=["processor", "GPU"])
@pytest.mark.parametrize("kind", KEPT)
def test_what_is_stored_is_there_in_the_next_store_and_for_this_device_alone(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch, kind: str, target: HardwareTarget
) -> None:
    write, read, expected = KEPT[kind]
    nothing = read(open_store(target))
    write(open_store(target))
    assert read(open_store(target)) == expected != nothing
    others = {change: dataclasses.replace(target, **changed) for change, changed in OTHERS.items()}
    assert {name: read(open_store(other)) for name, other in others.items()} == dict.fromkeys(OTHERS, nothing)
    with monkeypatch.context() as patch:
        raise_version(patch, target)
        assert read(open_store(target)) == nothing
    monkeypatch.setattr(module, "tvm_version", lambda: "0.99")
    assert read(open_store(target)) == nothing


def test_another_dtype_shares_records_and_not_the_work(open_store: Opener) -> None:
    store, other = open_store(), open_store(BFLOAT16)
    store.add("w", [SAME])
    store.note_work(1.7e9, Work(3.0, 2.0, 1.0))
    assert (other.load("w"), other.total_work()) == ([SAME], Work())
    assert (store.num_added, other.num_added) == (1, 0)
    space = BACKENDS["llvm"].space_version
    assert store.device == other.device == f"{HOST.fingerprint}/1t/tvm-{core_target.tvm_version()}/space-{space}"


def test_what_is_asked_for_is_found_and_nothing_else(open_store: Opener) -> None:
    store = open_store()
    for write, _, _ in KEPT.values():
        write(store)
    assert (store.load("v"), store.num_trials_at_stop("v"), store.warm_starts({"v"})) == ([], None, ())
    for block, schedules in (("b", SCHEDULES[:1]), ("c", SCHEDULES)):
        assert (store.load_block(block, schedules), store.load_rounds(block, schedules)) == (None, [])


def test_a_batch_is_stored_whole_or_not_at_all(open_store: Opener) -> None:
    def batch() -> Iterator[TuningRecord]:
        yield TuningRecord((1,), 1e-6)
        raise KeyboardInterrupt

    store = open_store()
    with pytest.raises(KeyboardInterrupt):
        store.add("w", batch())
    assert store.load("w") == []


def raise_version(monkeypatch: pytest.MonkeyPatch, target: HardwareTarget) -> None:
    """As if points came to mean something else."""
    backend = backend_of(target)
    changed = dataclasses.replace(backend, space_version=backend.space_version + 1)
    monkeypatch.setitem(BACKENDS, target.kind, changed)


@pytest.mark.parametrize(
    "target", [HOST, device(num_threads=2), BFLOAT16, GPU], ids=["processor", "two threads", "bfloat16", "GPU"]
)
def test_records_whose_key_lacks_the_version_stay(
    open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: HardwareTarget
) -> None:
    for write, _, _ in KEPT.values():
        write(open_store(target))
    kept = {kind: read(open_store(target)) for kind, (_, read, _) in KEPT.items()}
    forget_version(tmp_path / "records.sqlite")
    again = open_store(target)
    assert {kind: read(again) for kind, (_, read, _) in KEPT.items()} == kept
    assert again._db.execute("SELECT device, spaces FROM devices").fetchall() == [
        (again.device, UNVERSIONED_SPACES[target.kind])
    ]
    forget_version(tmp_path / "records.sqlite")
    raise_version(monkeypatch, target)
    assert open_store(target).load("w") == []  # they are of the version of then, not of a later one


def forget_version(file: Path) -> None:
    """Make the file as one of schema 9: keys without the version, that of the processor's spaces noted beside them."""
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        for table in [table.name for table in TABLES]:
            for version in {backend.space_version for backend in BACKENDS.values()}:
                database.execute(f"UPDATE {table} SET device = replace(device, ?, '')", (f"/space-{version}",))
        database.execute("UPDATE devices SET spaces = 1")
        database.execute("PRAGMA user_version=9")


def test_a_locked_file_is_one_error_that_says_what_to_do(open_store: Opener, tmp_path: Path) -> None:
    store = open_store()
    store._db.execute("PRAGMA busy_timeout=1")
    store._db.execute("PRAGMA journal_mode=DELETE")  # in which a writer keeps readers out
    with contextlib.closing(sqlite3.connect(tmp_path / "records.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for read in (store.total_work, store.count, store.load_canary):
            with pytest.raises(CheckpointError, match=r"cannot be read: database is locked; end the process that uses"):
                read()


# ---- measured again -------------------------------------------------------------------------------------------------
def test_second_figures_stand_beside_the_first(open_store: Opener) -> None:
    store = open_store()
    store.add("w", [TuningRecord((1,), 1e-6, 1e-8), TuningRecord((2,), 2e-6, 1e-8), TuningRecord((3,), 3e-6)])
    measured = [
        TuningRecord((1,), None, again_s=5e-6, again_spread_s=1e-9),
        TuningRecord((2,), None, again_error="crash"),
    ]
    store.add_remeasured("w", measured)
    assert open_store().load("w") == [
        TuningRecord((1,), 1e-6, 1e-8, None, 5e-6, 1e-9),
        TuningRecord((2,), 2e-6, 1e-8, None, None, None, "crash"),
        TuningRecord((3,), 3e-6),
    ]


def test_turns_of_the_same_point_of_two_workloads_at_one_time_are_told_apart(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.time, "time", lambda: 1.7e9)
    store = open_store()
    for workload, again_s in (("v", 2e-6), ("w", 3e-6)):
        store.add(workload, [TuningRecord((0,), 1e-6)])
        store.add_remeasured(workload, [TuningRecord((0,), None, again_s=again_s)])
    assert [[r.again_s for r in store.load(workload)] for workload in "vw"] == [[2e-6], [3e-6]]


# ---- blocks ---------------------------------------------------------------------------------------------------------
def test_a_block_of_another_version_is_kept_but_not_used(open_store: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    store.add_block("b", BLOCK)
    store.add_round("b", BLOCK)
    with monkeypatch.context() as patch:
        patch.setattr(module, "BLOCK_VERSION", module.BLOCK_VERSION + 1)
        assert (store.load_block("b", SCHEDULES), store.load_rounds("b", SCHEDULES)) == (None, [])
        store.add_block("b", BlockRecord(SCHEDULES, 2e-5))
    assert store.load_block("b", SCHEDULES) == BLOCK


# ---- what is not a store --------------------------------------------------------------------------------------------
def no_database(file: Path) -> None:
    file.write_text("seconds,point\n" * 100)


def of_a_newer_schema(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute(f"PRAGMA user_version={SCHEMA + 1}")


def folder(file: Path) -> None:
    file.mkdir()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (no_database, r"records\.sqlite is not a database of tuning records .*; move it away"),
        (of_a_newer_schema, rf"of schema {SCHEMA} or older, got {SCHEMA + 1} in .*; use the chanas"),
        (folder, r"tuning records .*records\.sqlite cannot be opened"),
    ],
)
def test_what_is_no_store_is_refused_and_left_alone(
    open_store: Opener, tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    file = tmp_path / "records.sqlite"
    make(file)
    before = file.read_bytes() if file.is_file() else b""
    with pytest.raises(CheckpointError, match=message):
        open_store()
    assert before == (file.read_bytes() if file.is_file() else b"")


def test_a_file_in_the_way_of_the_folder_is_one_error(open_store: Opener, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(CheckpointError, match=r"tuning records .* cannot be opened"):
        open_store(path=tmp_path / "run" / "records.sqlite")


def test_a_store_that_cannot_be_written_is_one_error(open_store: Opener) -> None:
    store = open_store()
    store.add("w", [TuningRecord((1,), 1e-6)])
    store._db.execute("PRAGMA query_only=1")
    with pytest.raises(CheckpointError, match=r"cannot be written: .*; what was written before is whole"):
        store.add("w", [TuningRecord((2,), 1e-6)])
    assert len(store.load("w")) == 1


def test_a_full_disk_is_one_error_that_says_what_to_do(open_store: Opener) -> None:
    store = open_store()
    store.add("w", [TuningRecord((1,), 1e-6)])
    store._db.execute("PRAGMA max_page_count=1")  # SQLite makes it the number of pages that there are
    with pytest.raises(
        CheckpointError, match=r"cannot be written: database or disk is full; .* whole; free some space"
    ):
        store.add("w", [TuningRecord((2, i), 1e-6) for i in range(5000)])
    assert store.load("w") == [TuningRecord((1,), 1e-6)]


# ---- older files ----------------------------------------------------------------------------------------------------
def make_older(file: Path, version: int) -> None:
    """A file as the chanas of that schema left it, with one operator and one block."""
    database = sqlite3.connect(file)
    for step in schema._STEPS[:version]:
        for statement in step:
            database.execute(statement)
    device = f"{HOST.fingerprint}/{HOST.num_threads}t/tvm-{core_target.tvm_version()}"
    columns = "seconds, spread, created, device"
    database.execute(
        f"INSERT INTO records (workload, point, {columns}) VALUES ('w', '[1]', 1e-6, 0, 1.7e9, ?)", [device]
    )
    schedules = json.dumps(SCHEDULES)
    versioned = version >= 6  # drift has no default there
    columns += ", drift, version" * versioned
    values = (
        f"INSERT INTO blocks (block, schedules, {columns}) VALUES ('b', ?, 1e-5, 0, 1.7e9, ?{', 1, 1' * versioned})"
    )
    database.execute(values, [schedules, device])
    database.execute(f"PRAGMA user_version={version}")
    database.commit()
    database.close()


@pytest.mark.parametrize("version", range(1, SCHEMA))
def test_a_file_of_an_older_schema_is_brought_up_to_date_in_place(
    open_store: Opener, tmp_path: Path, version: int
) -> None:
    make_older(tmp_path / "records.sqlite", version)
    store = open_store()
    assert store.load("w") == [TuningRecord((1,), 1e-6, 0.0)]
    assert schema.version_of(store._db) == SCHEMA
    assert store._db.execute("SELECT block, seconds, drift FROM blocks").fetchall() == [("b", 1e-5, 1.0)]
    # Whether a block of an old file was timed with one array of parameters is not known: none of them is used.
    assert store.load_block("b", SCHEDULES) is None
    assert store.load_rounds("b", SCHEDULES) == []
    assert list(store._db.execute("PRAGMA foreign_key_check")) == []
    store.add("w", [TuningRecord((2,), 1e-6)])
    assert open_store().count() == (2, 0)


def test_an_update_that_is_cut_off_leaves_the_old_file(
    open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_older(tmp_path / "records.sqlite", 1)
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="cannot be used: near"):
        patch.setattr(schema, "_STEPS", (*schema._STEPS, ("CREATE TABLE half (n)", "no statement")))
        open_store()
    database = sqlite3.connect(tmp_path / "records.sqlite")
    assert database.execute("PRAGMA user_version").fetchone() == (1,)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    database.close()
    assert tables == {"records", "blocks"}
    assert len(open_store().load("w")) == 1


# ---- a process that dies --------------------------------------------------------------------------------------------
WRITER = """
import sys
from pathlib import Path
from chanas.prescheduler.records.store import RecordStore, TuningRecord
from chanas.devices.host import load_target

store = RecordStore(Path(sys.argv[1]), load_target("cpu"))
for batch in range(100_000):
    store.add("w", [TuningRecord((batch, i), 1e-6) for i in range(4)])
    print(batch, flush=True)
"""


def test_what_was_stored_before_the_process_was_killed_is_there(open_store: Opener, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "records.sqlite")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        confirmed = [int(writer.stdout.readline()) for _ in range(20)]
        writer.send_signal(signal.SIGKILL)
        confirmed += [int(line) for line in writer.stdout if line.endswith("\n")]
    found = {r.point for r in open_store().load("w")}
    assert {(batch, i) for batch in confirmed for i in range(4)} <= found
    assert len(found) % 4 == 0
    open_store().add("w", [TuningRecord((-1, 0), 1e-6)])


def test_two_processes_that_write_at_once_lose_nothing(open_store: Opener, tmp_path: Path) -> None:
    names, path = ("one", "another"), str(tmp_path / "records.sqlite")
    programs = [WRITER.replace('"w"', f'"{name}"') for name in names]
    commands = [[sys.executable, "-c", program, path] for program in programs]
    writers = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for command in commands]
    for writer in writers:
        assert writer.stdout is not None
        assert [int(writer.stdout.readline()) for _ in range(20)] == list(range(20))
    for writer in writers:
        with writer:
            writer.kill()
    store = open_store()
    for name in names:
        assert {(batch, i) for batch in range(20) for i in range(4)} <= {r.point for r in store.load(name)}
    assert store._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


BAD = ("9e999", "-9e999", "0.0", "-1.0", "1e30", "'fast'", "x'00'")
"""What nothing can have taken, as SQL says it; NaN cannot be stored."""


def spoil(path: Path, table: str, seconds: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE {table} SET seconds = {seconds} WHERE rowid = (SELECT MIN(rowid) FROM {table})")


@pytest.mark.parametrize("bad", BAD)
def test_seconds_that_nothing_can_have_taken_are_left_out_aloud(
    open_store: Opener, caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    store = open_store()
    store.add("w", [TuningRecord((1,), 1e-3), TuningRecord((2,), 2e-3), TuningRecord((3,), None, error="crash")])
    again = TuningRecord((2,), 2e-3, again_s=3e-3, again_spread_s=1e-6)
    store.add_remeasured("w", [again])
    block = BlockRecord((("w", (1,)),), 1e-3)
    store.add_block("b", block)
    store.add_round("b", block)
    store.add_canary(Reading(1e-3, 1e-6, 1.0, 0.0))
    for table in ("records", "remeasured", "blocks", "rounds", "canary"):
        spoil(store.path, table, bad)
    opened = open_store()
    assert [(r.point, r.seconds, r.again_s) for r in opened.load("w")] == [((2,), 2e-3, None), ((3,), None, None)]
    assert opened.load_block("b", block.schedules) is None
    assert opened.load_rounds("b", block.schedules) == []
    assert opened.load_canary() == []
    assert [record.getMessage().count("left out") for record in caplog.records] == [1]
