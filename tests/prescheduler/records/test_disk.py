"""What `chanas prescheduler` says of a disk that is full or read-only and of strange databases: one line, no loss."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fast_cases import fast
from tables import save_space

from chanas.commands import process as cli
from chanas.core.latency import LatencyLUT
from chanas.files.run import RunDirectory
from chanas.prescheduler.records.store import RecordStore, TuningRecord

from ...compiler.workbench import HOST, NANO, NUM_CLASSES, SyntheticPool

Command = Callable[[Path], tuple[int, str]]
NOBODY = 65534


@pytest.fixture(scope="module")
def space_file() -> Iterator[Path]:
    """A small space, in a file that nobody is kept from reading."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield save_space(NANO, folder / "nano.yaml")
    shutil.rmtree(folder)


@pytest.fixture
def prescheduler(space_file: Path, synthetic_pool: SyntheticPool, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command on a small space with invented seconds: its exit code, and how it ended on standard error."""
    options = ["--space", str(space_file), "--num-classes", str(NUM_CLASSES), "--trials", "6", "--calibrate", "0"]

    def command(run: Path) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["prescheduler", "--run", str(run), *options])
        said = capsys.readouterr().err
        return int(ended.value.code or 0), said[said.find("chanas: error: ") :]  # what comes before is progress

    return command


def is_one_line(said: str) -> bool:
    return said.startswith("chanas: error: ") and "\n" not in said.strip()


# ---- measuring ------------------------------------------------------------------------------------------------------
def test_a_command_whose_every_measurement_fails_fails(
    prescheduler: Command, synthetic_pool: SyntheticPool, tmp_path: Path
) -> None:
    synthetic_pool.seconds = lambda _: "crash: the worker ended with signal 4 (SIGILL) in measure"
    code, said = prescheduler(tmp_path / "run")
    assert code == 1
    assert is_one_line(said)
    assert f"no schedule of any operator works on {HOST.device}; given up after the first failures: " in said
    assert "(crash: the worker ended with signal 4 (SIGILL) in measure); run `chanas doctor` and report" in said


# ---- databases ------------------------------------------------------------------------------------------------------
def test_a_damaged_database_is_named(prescheduler: Command, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    store = RecordStore(run.records, HOST)
    store.add("w", [TuningRecord((i,), 1e-6) for i in range(2000)])
    store.close()
    content = bytearray(run.records.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    run.records.write_bytes(content)
    code, said = prescheduler(run.root)
    assert (code, is_one_line(said)) == (1, True)
    assert str(run.records) in said
    assert "move " in said


# ---- read-only ------------------------------------------------------------------------------------------------------
@pytest.fixture
def read_only() -> Iterator[Path]:
    """A run directory that this process may read and not write, whoever runs the tests."""
    parent = Path(tempfile.mkdtemp())
    run = parent / "run"
    RecordStore(RunDirectory(run).records, HOST).close()
    for path in (parent, run):
        path.chmod(0o555)
    RunDirectory(run).records.chmod(0o444)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    yield run
    if is_root:
        os.seteuid(0)
    for path in (parent, run):
        path.chmod(0o755)
    shutil.rmtree(parent)


def test_a_read_only_run_directory_is_one_line(
    prescheduler: Command, synthetic_pool: SyntheticPool, read_only: Path
) -> None:
    code, said = prescheduler(read_only)
    assert (code, is_one_line(said)) == (1, True)
    assert f"{read_only / 'records.sqlite'} cannot be used: attempt to write a readonly database; set its perm" in said
    assert synthetic_pool.built == []


def test_a_run_directory_that_cannot_be_made_is_one_line(prescheduler: Command, read_only: Path) -> None:
    code, said = prescheduler(read_only / "another")
    assert (code, is_one_line(said)) == (1, True)
    assert f"{read_only / 'another' / 'records.sqlite'} cannot be written: Permission denied" in said


def test_a_read_only_database_is_one_line_before_anything_is_measured(
    prescheduler: Command, synthetic_pool: SyntheticPool, read_only: Path
) -> None:
    if os.getuid() == 0:
        os.seteuid(0)
    (read_only / ".records.sqlite.lock").touch()
    (read_only / ".records.sqlite.lock").chmod(0o666)
    if os.getuid() == 0:
        os.seteuid(NOBODY)
    code, said = prescheduler(read_only)
    assert (code, is_one_line(said)) == (1, True)
    assert "records.sqlite cannot be used: " in said
    assert "set its permissions and those of its folder, or use another --run" in said
    assert synthetic_pool.built == []


# ---- full -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system of a given size, or the same one at another size."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size: str) -> Path:
        options = f"size={size}" + (",remount" if os.path.ismount(folder) else "")
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True)
        if done.returncode:
            pytest.skip("needs the right to mount")
        return folder

    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("size", fast(["4k", "56k", "88k", "120k"], [0, 2]))
def test_a_full_disk_is_one_line_and_what_was_written_is_whole(
    prescheduler: Command, small_disk: Callable[[str], Path], size: str
) -> None:
    run = RunDirectory(small_disk(size) / "run")
    code, said = prescheduler(run.root)
    assert (code, is_one_line(said)) == (1, True)
    assert "full" in said or "No space left on device" in said
    assert "make room" in said or "free some space and run the same command again" in said
    small_disk("4m")
    assert prescheduler(run.root)[0] == 0
    database = sqlite3.connect(run.records)
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()
    assert LatencyLUT.load(run.lut("cpu")).missing(NANO.all_blocks(NUM_CLASSES)) == []
    assert list(run.luts.glob(".*")) == []


def test_no_space_for_temporary_files_is_one_line_and_no_record(
    prescheduler: Command, small_disk: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk("8k")
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    code, said = prescheduler(tmp_path / "run")
    assert (code, is_one_line(said)) == (1, True)
    assert f"no space left for temporary files in {disk} (No space left on device); free some, or set TMPDIR" in said
    small_disk("16m")
    assert prescheduler(tmp_path / "run")[0] == 0
    assert [p.name for p in disk.iterdir()] == [f"chanas-{os.getuid()}-scratch.lock"]


def test_candidates_that_fail_for_lack_of_space_are_no_records(
    prescheduler: Command, synthetic_pool: SyntheticPool, tmp_path: Path
) -> None:
    synthetic_pool.seconds = lambda _: "RuntimeError: final link failed: No space left on device"
    code, said = prescheduler(tmp_path / "run")
    assert (code, is_one_line(said)) == (1, True)
    assert "no space left for temporary files" in said
    store = RecordStore(RunDirectory(tmp_path / "run").records, HOST)
    assert store.count() == (0, 0)
    store.close()
