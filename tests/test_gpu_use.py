"""chanas/gpu_use.py: a GPU that somebody else uses is not timed on unawares; nvidia-smi is planted."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chanas.cli import app
from chanas.errors import TargetError
from chanas.gpu_use import MIN_FREE_MIB, GPUProcess, free_mib, other_processes, require_free

Plant = Callable[[str, str], None]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Put an nvidia-smi on the path that prints these processes and so much free memory."""

    def put(processes: str, free: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(
            "#!/bin/sh\n"
            f'case "$1" in\n--query-compute-apps=*) printf "{processes}";;\n--query-gpu=*) echo "{free}";;\nesac\n'
            f'echo "$@" >> {tmp_path}/asked\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return put


def test_a_free_gpu_is_no_matter(plant: Plant) -> None:
    plant("", "80000")
    assert other_processes() == []
    assert free_mib() == 80000
    assert require_free(["cuda"], shared=False) is None


def test_another_process_is_named_and_refused(plant: Plant) -> None:
    plant("1234, /usr/bin/python3, 2048\\n", "70000")
    assert other_processes() == [GPUProcess(1234, "/usr/bin/python3", "2048")]
    with pytest.raises(
        TargetError,
        match=r"^the GPU is busy with another process \(pid 1234, /usr/bin/python3, 2048 MiB\), .* with --shared$",
    ):
        require_free(["cpu", "cuda"], shared=False)


def test_what_is_shared_is_timed_with_a_warning(plant: Plant) -> None:
    plant("1234, a, 1\\n", "70000")
    warning = require_free(["cuda"], shared=True)
    assert warning is not None
    assert "pid 1234" in warning


def test_this_process_is_not_another_one(plant: Plant) -> None:
    plant(f"{os.getpid()}, python, 1\\n", "70000")
    assert other_processes() == []


def test_a_gpu_without_memory_is_one_line_even_when_shared(plant: Plant) -> None:
    plant("7, hog, 79000\\n", "12")
    with pytest.raises(
        TargetError,
        match=rf"^the GPU is out of memory: expected {MIN_FREE_MIB} MiB free, got 12; end what holds .*pid 7, hog",
    ):
        require_free(["cuda"], shared=True)


def test_processors_are_not_asked_about(plant: Plant, tmp_path: Path) -> None:
    plant("7, hog, 79000\\n", "12")
    assert require_free(["cpu", "cpu-2t"], shared=False) is None
    assert not (tmp_path / "asked").exists()


def test_the_gpu_that_cuda_shows_is_asked_about(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    plant("", "80000")
    free_mib()
    assert (tmp_path / "asked").read_text().endswith("-i 3\n")


def test_without_nvidia_smi_nobody_is_accused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert other_processes() == []
    assert free_mib() is None
    assert require_free(["cuda"], shared=False) is None


@pytest.mark.parametrize("command", [["prescheduler", "--target", "cuda"], ["search", "--latency", "cuda:1ms"]])
def test_commands_refuse_a_busy_gpu(plant: Plant, tmp_path: Path, command: list[str]) -> None:
    plant("1234, a, 1\\n", "70000")
    with pytest.raises(TargetError, match=r"^the GPU is busy"):
        CliRunner().invoke(app, [*command, "--run", str(tmp_path / "run")], catch_exceptions=False)
