"""chanas/devices/gpu_use.py: a GPU that somebody else uses is not timed on unawares; nvidia-smi is planted."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tables import random_table, save_space
from typer.testing import CliRunner

from chanas import workflows
from chanas.bundle import benchmark as bundle_benchmark
from chanas.bundle import codesign
from chanas.bundle.benchmark import benchmark
from chanas.commands.main import app
from chanas.core.arch import SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.core.usage import Place, Usage
from chanas.devices import host
from chanas.devices.driver import FoundGPU
from chanas.devices.gpu_use import MIN_FREE_MIB, GPUProcess, check_free, free_mib, other_processes, require_free
from chanas.devices.host import load_target
from chanas.devices.target_files import describe_target
from chanas.errors import StageOrderError, TargetError
from chanas.files.run import RunDirectory
from chanas.measuring import locks
from chanas.measuring.checks import gpu_check as cuda_check
from chanas.measuring.checks.target_check import Step
from chanas.workflows.models import bench
from chanas.workflows.searching import agreement

Plant = Callable[[str, str], None]
GPU = describe_target("h100")


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
    assert require_free(shared=False) is None


def test_another_process_is_named_and_refused(plant: Plant) -> None:
    plant("1234, /usr/bin/python3, 2048\\n", "70000")
    assert other_processes() == [GPUProcess(1234, "/usr/bin/python3", "2048")]
    with pytest.raises(TargetError, match=r"1234, /usr/bin/python3, 2048 MiB\), .* --shared$"):
        check_free([load_target("cpu"), GPU], shared=False)


def test_what_is_shared_is_timed_with_a_warning(plant: Plant, caplog: pytest.LogCaptureFixture) -> None:
    plant("1234, a, 1\\n", "70000")
    check_free([GPU], shared=True)
    assert caplog.messages == ["the GPU is busy with another process (pid 1234, a, 1 MiB): times are of both"]


def test_this_process_is_not_another_one(plant: Plant) -> None:
    plant(f"{os.getpid()}, python, 1\\n", "70000")
    assert other_processes() == []


def test_a_gpu_without_memory_is_one_line_even_when_shared(plant: Plant) -> None:
    plant("7, hog, 79000\\n", "12")
    with pytest.raises(TargetError, match=f"{MIN_FREE_MIB} MiB free, got 12; .*pid 7, hog"):
        require_free(shared=True)


def test_processors_are_not_asked_about(plant: Plant, tmp_path: Path) -> None:
    plant("7, hog, 79000\\n", "12")
    check_free([load_target("cpu")], shared=False)
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
    assert require_free(shared=False) is None


# ---- whoever times looks first --------------------------------------------------------------------------------------
@pytest.fixture
def busy(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU that somebody else uses."""
    plant("1234, a, 1\\n", "70000")
    found = FoundGPU("H100", GPU.required_gpu, GPU.l2_bytes)
    for module in (host, cuda_check):
        monkeypatch.setattr(module, "find_gpu", lambda: found)


@pytest.fixture
def run(tmp_path: Path, tiny_space: SearchSpace) -> RunDirectory:
    """A run with a table of the GPU."""
    directory = RunDirectory(tmp_path / "run")
    lut = random_table(tiny_space)
    LatencyLUT(dataclasses.replace(lut.header, target=load_target("cuda")), lut.rows).save(directory.lut("cuda"))
    return directory


COMMANDS = (
    ["prescheduler", "--target", "cuda"],
    ["search", "--latency", "cuda:1ms"],
    ["search", "--latency", "1ms", "--target", "cuda"],
    ["search", "--per-target", "--latency", "cuda:1ms"],
    ["search", "--pareto", "--target", "cuda"],
    ["lut", "check", "--target", "cuda"],
    ["lut", "fill", "--target", "cuda"],
    ["lut", "calibrate", "--target", "cuda"],
)


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_is_timed_on_a_busy_gpu(
    command: list[str], run: RunDirectory, tiny_space: SearchSpace, tmp_path: Path
) -> None:
    space = ["--space", str(save_space(tiny_space, tmp_path / "tiny.yaml"))] if command[0] != "search" else []
    with pytest.raises(TargetError, match=r"^the GPU is busy"):
        CliRunner().invoke(app, [*command, "--run", str(run.root), *space], catch_exceptions=False)


@pytest.mark.usefixtures("busy")
def test_a_search_is_refused_by_the_api_too_and_may_share(run: RunDirectory) -> None:
    with pytest.raises(TargetError, match=r"^the GPU is busy"):
        workflows.search(run, latency_s={"cuda": 1e-3}, progress=False)
    with pytest.raises(StageOrderError, match="there is no supernet"):  # what comes next
        workflows.search(run, latency_s={"cuda": 1e-3}, usage=Usage(place=Place(shared=True)), progress=False)


@pytest.mark.usefixtures("busy")
def test_a_bundle_is_not_timed_on_a_busy_gpu() -> None:
    with pytest.raises(TargetError, match=r"^the GPU is busy"):
        benchmark(SimpleNamespace(target=load_target("cuda")))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cpu", "h100"])
@pytest.mark.parametrize("how", ["handed over", "bench"])
def test_a_bundle_is_timed_with_the_lock_of_its_own_device(
    how: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever else times there waits until it is over."""
    bundle = SimpleNamespace(
        target=describe_target(name), runs_here=True, architecture=SimpleNamespace(key="r8"), measured={}
    )
    locked: list[str | None] = []

    @contextlib.contextmanager
    def device_lock(*, gpu: str | None) -> Iterator[None]:
        locked.append(gpu)
        yield
        locked.remove(gpu)

    def timed(*_: object, **__: object) -> list[bundle_benchmark.BenchmarkRow]:
        assert locked == ["3" if name == "h100" else None]
        return [bundle_benchmark.BenchmarkRow("PyTorch eager", 1e-3, 1.0)]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(locks, "device_lock", device_lock)
    monkeypatch.setattr(bundle_benchmark, "benchmark", timed)
    monkeypatch.setattr(bench, "benchmark_bundle", timed)
    monkeypatch.setattr(codesign.CoDesign, "load", lambda *_: bundle)
    monkeypatch.setattr(agreement, "_agreement", lambda *_: {})
    if how == "bench":
        assert CliRunner().invoke(app, ["bench", "bundle"], catch_exceptions=False).exit_code == 0
    else:
        assert agreement.check_module(bundle, None) == {"pytorch_eager_latency_s": 1e-3}  # type: ignore[arg-type]
    assert not locked


@pytest.mark.usefixtures("busy")
def test_a_check_says_that_the_gpu_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_check, "library_for", lambda _arch: (_ for _ in ()).throw(TargetError("no compiler")))
    monkeypatch.setattr(cuda_check, "sequential_error", lambda *_: 0.0)
    monkeypatch.setattr(cuda_check, "check_here", lambda *_: iter([Step("run", True, "on this machine")]))
    gpu = load_target("cuda")
    steps = {step.what: step for step in cuda_check.check_gpu(gpu)}
    assert steps["run"].works is None
    assert steps["run"].detail.startswith("the GPU is busy")
    assert {s.what: s.works for s in cuda_check.check_gpu(gpu, shared=True)}["run"] is True
