"""benchmarks/cuda_all.sh: what it runs where there is a GPU, what it says where there is none; Python is planted."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "cuda_all.sh"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")

PYTHON = """#!/bin/sh
echo "$@" >> {folder}/asked
case "$*" in
    *find_gpu*) echo "No module named this" >&2; exit {no_gpu} ;;
    *"-m pip"*) exit {no_pip} ;;
    *"chanas demo"*) echo "chanas: error: something"; exit 3 ;;
    *) echo done ;;
esac
"""


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHON": str(folder / "python"), "OUT": str(folder / "out"), "TMPDIR": str(folder)}


def run(folder: Path, *arguments: str, no_gpu: int = 0, no_pip: int = 0) -> tuple[int, str]:
    """Exit code and summary of the script."""
    program = folder / "python"
    program.write_text(PYTHON.format(folder=folder, no_gpu=no_gpu, no_pip=no_pip))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments], env=environment(folder), capture_output=True, text=True, check=False
    )
    return done.returncode, (folder / "out" / "summary.txt").read_text()


def test_every_part_is_run_and_a_failed_one_is_told(tmp_path: Path) -> None:
    code, summary = run(tmp_path, str(tmp_path))
    assert code == 1
    lines = [line.partition(" in ")[0] for line in summary.splitlines()[1:]]
    assert lines[0] == "install: done"
    assert lines[1:3] == ["check: done", "tests: done"]
    assert lines[3].startswith("demo: failed (3)")
    assert lines[3].endswith("chanas: error: something")
    assert lines[4:] == ["table: done", "figures: done"]
    asked = (tmp_path / "asked").read_text()
    (tests,) = [line for line in asked.splitlines() if line.startswith("-m pytest -q -p no:cacheprovider -m cuda")]
    assert "tests/measuring/worker/test_cuda_device.py" in tests
    assert "-m chanas target check cuda" in asked
    assert asked.count("--sub-space") == 4
    assert "benchmarks/cuda_networks.py" in asked
    assert (tmp_path / "out" / "demo.log").read_text() == "chanas: error: something\n"


def test_parts_can_be_chosen(tmp_path: Path) -> None:
    code, summary = run(tmp_path, str(tmp_path), "tests", "table")
    assert code == 0
    assert [line.split(":")[0] for line in summary.splitlines()[1:]] == ["tests", "table"]


@pytest.mark.parametrize("arguments", [("wheels-that-are-not-there",), ("check", "figure")])
def test_what_is_neither_a_folder_nor_a_part_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"install check tests demo table figures, got '{arguments[-1]}'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_a_gpu_every_part_says_so_and_the_script_fails(tmp_path: Path) -> None:
    code, summary = run(tmp_path, str(tmp_path), no_gpu=3)
    assert code == 1
    assert summary.count("not run, there is no GPU here") == 5


def test_a_package_that_is_missing_is_not_a_missing_gpu(tmp_path: Path) -> None:
    code, summary = run(tmp_path, str(tmp_path), "check", "demo", no_gpu=1)
    assert code == 1
    assert summary.count("not run, whether there is a GPU can't be asked: No module named this") == 2


def test_wheels_are_unpacked_where_there_is_no_pip(tmp_path: Path) -> None:
    (tmp_path / "something.whl").touch()
    code, _ = run(tmp_path, str(tmp_path), "install", no_pip=1)
    assert code == 0
    assert f"-m zipfile -e {tmp_path}/something.whl" in (tmp_path / "asked").read_text()
