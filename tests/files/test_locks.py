"""chanas/files/locks.py: one process writes to a place, and its lock goes with it, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chanas.errors import ChanasError, RunBusyError
from chanas.files.locks import one_writer

ROOT = Path(__file__).resolve().parents[2]

WRITER = """
import sys, time
from pathlib import Path
from chanas.files.locks import one_writer
with one_writer(Path(sys.argv[1])):
    print("writes", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "new" / "place"


@pytest.fixture
def writer(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes."""
    command = [sys.executable, "-c", WRITER, str(place), "a word"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writes\n"
        yield process
        process.kill()


def test_a_second_writer_is_told_who_the_first_is(place: Path, writer: subprocess.Popen[str]) -> None:
    with pytest.raises(RunBusyError) as caught, one_writer(place, other="name another --out"):
        pass
    assert f"(pid {writer.pid}, since 20" in str(caught.value)
    assert shlex.join([str(place), "a word"]) in str(caught.value)
    assert str(caught.value).endswith(f"writes to {place}; wait until it ends, or name another --out")
    with one_writer(place.with_name("another")):
        pass


def test_the_same_process_is_no_second_writer_either(place: Path) -> None:
    with one_writer(place), pytest.raises(RunBusyError, match=f"pid {os.getpid()}"), one_writer(place):
        pass


def test_a_writer_that_was_killed_holds_nothing(place: Path, writer: subprocess.Popen[str]) -> None:
    writer.kill()
    writer.wait()
    with one_writer(place):
        pass


def test_what_a_killed_writer_has_started_is_told_from_it(place: Path) -> None:
    with one_writer(place) as lock:
        lock_file = place.with_name(".place.lock")
        child = subprocess.Popen(["sleep", "600"], pass_fds=[lock])
        lock_file.write_text(lock_file.read_text().replace(str(os.getpid()), str(2**22)))
        kept = os.dup(lock)
        with pytest.raises(RunBusyError, match="a process started by"), one_writer(place):
            pass
    os.close(kept)
    child.kill()
    child.wait()


def test_nothing_is_left_of_a_lock(place: Path, tmp_path: Path) -> None:
    with one_writer(place):
        assert place.with_name(".place.lock").is_file()
    assert list(tmp_path.iterdir()) == []
    with one_writer(place):
        place.touch()
    assert list(tmp_path.rglob("*")) == [place.parent, place]


def test_without_locks_a_line_says_so(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(_handle: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with one_writer(place):
        assert "has no locks (No locks available)" in capsys.readouterr().err


def test_a_file_where_the_folder_should_be_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(ChanasError, match="cannot be written: File exists; "), one_writer(tmp_path / "run" / "place"):
        pass
