"""chanas/files/scratch.py: a folder that goes with its process, however that ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from chanas.errors import ChanasError
from chanas.files.scratch import raise_if_full, scratch_folder

ROOT = Path(__file__).resolve().parents[2]

USER = """
import time
from chanas.files.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "inner").mkdir()
    (folder / "inner" / "library.so").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this process and of those that it starts."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def start() -> tuple[subprocess.Popen[str], Path]:
    """Another process that uses a folder, and the folder."""
    process = subprocess.Popen([sys.executable, "-c", USER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_there_and_then_it_is_not(temporary: Path) -> None:
    with scratch_folder() as folder:
        (folder / "file").touch()
        assert folder.parent == temporary
    assert not folder.exists()


def test_a_folder_goes_with_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), scratch_folder() as folder:
        raise KeyboardInterrupt
    assert not folder.exists()


def test_the_next_process_removes_what_a_killed_one_left_and_nothing_else(temporary: Path) -> None:
    (running, in_use), (killed, abandoned) = start(), start()
    with running:
        with killed:
            killed.send_signal(signal.SIGKILL)
        somebody_elses = temporary / "chanas-notes"
        somebody_elses.mkdir()
        assert abandoned.is_dir()
        with scratch_folder() as mine, scratch_folder() as another:
            assert not abandoned.exists()
            assert all(folder.is_dir() for folder in (in_use, mine, another, somebody_elses))
        running.kill()
    with scratch_folder():
        assert not in_use.exists()


def test_a_link_is_not_followed(temporary: Path) -> None:
    precious = temporary / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (temporary / f"chanas-{os.getuid()}-link").symlink_to(precious)
    with scratch_folder():
        assert (precious / "file").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_error_that_says_what_to_do(code: int) -> None:
    message = rf"no space left for temporary files in .* \({os.strerror(code)}\); free some, or set TMPDIR"
    with pytest.raises(ChanasError, match=message), scratch_folder() as folder:
        raise OSError(code, os.strerror(code))
    assert not folder.exists()


def test_other_errors_come_through() -> None:
    with pytest.raises(FileNotFoundError), scratch_folder() as folder:
        (folder / "nothing").read_text()


def test_nowhere_to_write_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with (
        pytest.raises(ChanasError, match="TMPDIR"),
        scratch_folder(),
    ):
        pass


def test_a_failure_for_lack_of_space_is_told_from_others(tmp_path: Path) -> None:
    raise_if_full(tmp_path, "crash: the worker ended with signal 11 (SIGSEGV)")
    with pytest.raises(ChanasError, match="ld: cannot write"):
        raise_if_full(tmp_path, "RuntimeError: ld: cannot write: No space left on device")
