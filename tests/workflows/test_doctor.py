"""chanas/workflows/doctor.py and `chanas doctor`: what is told of a machine, and that what is wrong says what to do."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from chanas.commands.main import app
from chanas.core.target import HardwareTarget
from chanas.devices import driver
from chanas.devices.driver import FoundGPU
from chanas.devices.host import load_target
from chanas.devices.machine_state import Activity, Busy
from chanas.errors import TargetError
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import Answer, Ping
from chanas.workflows import doctor as module
from chanas.workflows.doctor import (
    Diagnosis,
    Section,
    activity,
    diagnose,
    dtypes,
    machine,
    resources,
    software,
    spread,
    timing,
)

from ..compiler.cuda_cases import GPU
from ..compiler.workbench import HOST, SyntheticPool, answered
from ..devices.test_machine_state import write

HALF = dataclasses.replace(HOST, name="cpu-bf16", dtype="bfloat16", vector_lanes=16, num_vector_registers=32)
BYTES = dataclasses.replace(HOST, name="cpu-int8", dtype="int8")
FREE = Activity((), 0.0)


class Greeting(SyntheticPool):
    """One that answers greetings too."""

    def build(self, request: Any, timeout_s: float) -> Future[Answer]:
        return answered(Answer({}, None, 0.0)) if isinstance(request, Ping) else super().build(request, timeout_s)

    def measure(self, request: Any, timeout_s: float, device: int | None = None) -> Future[Answer]:
        return (
            answered(Answer({}, None, 0.0))
            if isinstance(request, Ping)
            else super().measure(request, timeout_s, device)
        )


@pytest.fixture
def every_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with float32, bfloat16 and int8, whatever this machine's is."""
    devices = {"f32": HOST, "bf16": HALF, "int8": BYTES}
    monkeypatch.setattr(module, "load_target", lambda name, threads=1, dtype="f32": devices[dtype])


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Errors of families by dtype and name; no other family fails."""
    errors: dict[str, str] = {}

    def check(workloads: Any, target: HardwareTarget, *_: object) -> dict[str, str | None]:
        return {w.op: errors.get(f"{target.dtype_name} {w.op}") for w in workloads}

    monkeypatch.setattr(module, "check_families", check)
    return errors


# ---- what is here ---------------------------------------------------------------------------------------------------
def test_the_machine_is_this_one(tmp_path: Path) -> None:
    section, target = machine(tmp_path), load_target("cpu")
    assert section.facts["device"] == target.device
    assert section.facts["fingerprint"] == target.fingerprint
    assert section.facts["l2_bytes"] == target.l2_bytes
    assert section.facts["compiled_for"]
    assert section.problems == ()
    assert ("clock rate", "not told by this machine") in section.lines


def test_clock_rates_that_stay_low_are_a_problem(tmp_path: Path) -> None:
    cpu = "devices/system/cpu"
    files = {f"{cpu}/cpu0/cpufreq/scaling_governor": "powersave", f"{cpu}/cpufreq/boost": "0"}
    section = machine(write(tmp_path, files))
    assert ("clock rate", "governor powersave, boost off") in section.lines
    assert section.problems == (
        "the governor powersave keeps clock rates low; set another, such as performance, to time",
    )


def test_a_container_with_a_part_of_its_cores_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: [0, 1, 2, 3])
    section = machine(write(tmp_path, {"fs/cgroup/cpu.max": "150000 100000"}))
    assert section.facts["cpu_quota"] == 1.5
    assert section.problems[0].startswith("this container may use 1.5 cores' worth of time on 4 cores")


def test_versions_are_those_that_are_installed() -> None:
    section = software()
    assert section.facts["versions"].keys() == {"chanas", "tvm", "tvm-ffi", "torch", "numpy"}
    assert section.facts["versions"]["tvm"] == "0.27.0.post1"
    assert section.facts["llvm"] >= 20
    assert section.problems == ()


def test_a_package_that_crashes_or_is_missing_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"apache-tvm-ffi": "0.1.15.post2", "torch": None}
    monkeypatch.setattr(module, "_version", lambda package: versions.get(package, "1.0"))
    missing, crashes = software().problems
    assert missing == "torch is not installed; `pip install chanas` brings it"
    assert crashes.startswith("expected apache-tvm-ffi 0.1.14.*, got 0.1.15.post2, which crashes with this TVM; `pip ")


def test_a_gpu_is_named_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = FoundGPU("NVIDIA X", GPU.required_gpu, 1 << 20)
    monkeypatch.setattr(module, "find_gpu", lambda: found)
    monkeypatch.setattr(module, "why_no_nvrtc", lambda arch: f"no compiler for {arch}; install one")
    section = module.gpu()
    arch = found.features.arch
    assert section.facts == {"found": True, "device": "NVIDIA X", "arch": arch, "compiles": False}
    assert section.problems == (f"no compiler for {arch}; install one",)


def test_no_gpu_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_gpu", lambda: None)
    assert module.gpu() == Section("gpu", {"found": False}, (("GPU", "no NVIDIA GPU was found"),))


def test_resources_have_disk_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.psutil, "virtual_memory", lambda: SimpleNamespace(total=8e9, available=4.1e9))
    section = resources(tmp_path)
    assert section.facts["memory_bytes"] == 8e9
    assert section.facts["worker_limit_bytes"] > 0
    assert section.facts["working_folder_free_bytes"] >= 0
    assert any(
        label == "memory" and value.startswith("4.1 GB free of 8 GB; a worker") for label, value in section.lines
    )


def test_little_space_says_where_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 10_000_000})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _folder: usage)
    working, temporary, memory = resources(write(tmp_path, {"fs/cgroup/memory.max": "1000000000"})).problems
    assert working == f"little space is left in {Path.cwd()}; free some"
    assert temporary.endswith("; free some, or set TMPDIR")
    assert memory == "little memory is left; 2 GB are enough for tuning, end what else runs"


# ---- what else runs -------------------------------------------------------------------------------------------------
def test_processes_that_disturb_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Activity((Busy(9, "trainer", 1.5), Busy(8, "shell", 0.01)), 0.1)
    monkeypatch.setattr(os, "getloadavg", lambda: (2.5, 1.0, 1.0))
    section = activity(lambda _seconds: seen)
    assert section.lines == (("load", "2.5 over the last minute"), ("other processes", "trainer (9) 150%"))
    assert section.facts["busy"] == [{"pid": 9, "name": "trainer", "share": 1.5}]
    assert [problem.partition(",")[0] for problem in section.problems] == [
        "other processes compute",
        "the host of this virtual machine gives 10% of its cores' time to others; time on another",
    ]


def test_a_machine_at_rest_has_no_problem() -> None:
    section = activity(lambda _seconds: FREE)
    assert section.problems == ()
    assert ("other processes", "none that would disturb timings") in section.lines


# ---- what works -----------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("every_dtype")
def test_dtypes_have_their_families(failing: dict[str, str], tmp_path: Path) -> None:
    section = dtypes(HOST, SyntheticPool(), tmp_path)
    assert section.problems == ()
    assert section.lines == (
        ("f32", "works: conv, blockconv, groupconv, winograd, winograd2, pointwise, depthwise, pool, upconv"),
        ("bf16", "works: conv, blockconv, pointwise, depthwise, pool"),
        ("int8", "works: conv, blockconv, pointwise, depthwise, pool"),
    )
    assert section.facts["f32"] == {
        "works": True,
        "reason": None,
        "families": dict.fromkeys(
            ("conv", "blockconv", "groupconv", "winograd", "winograd2", "pointwise", "depthwise", "pool", "upconv")
        ),
    }


@pytest.mark.usefixtures("every_dtype")
def test_a_family_that_fails_is_a_problem(failing: dict[str, str], tmp_path: Path) -> None:
    failing["bf16 pointwise"] = "crash: the worker ended with signal 6 (SIGABRT) in build"
    section = dtypes(HOST, SyntheticPool(), tmp_path)
    assert section.lines[1] == ("bf16", "works: conv, blockconv, depthwise, pool; FAILS: pointwise")
    assert section.problems == (
        "operators in bf16 do not work: pointwise (the compiler ended with signal 6 (SIGABRT) in build); "
        "use --dtype f32",
    )
    assert (section.facts["f32"]["works"], section.facts["bf16"]["works"]) == (True, False)


def test_a_dtype_that_a_processor_lacks_is_no_problem(
    failing: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, threads: int = 1, dtype: str = "f32") -> HardwareTarget:
        if dtype == "bf16":
            raise TargetError("dtype bf16 needs another processor; use --dtype f32")
        return HOST

    monkeypatch.setattr(module, "load_target", load)
    section = dtypes(HOST, SyntheticPool(), tmp_path)
    assert section.lines[1] == ("bf16", "not here: dtype bf16 needs another processor")
    assert section.problems == ()


@pytest.mark.parametrize(("readings", "verdict"), [([1e-5], "quiet"), ([1e-5, 1e-5, 2e-5], "noisy")])
def test_readings_that_differ_are_noisy(tmp_path: Path, readings: list[float], verdict: str) -> None:
    turns = itertools.cycle(readings)
    section = timing(HOST, SyntheticPool(lambda _: next(turns)), tmp_path, seconds=0.0)
    assert section.facts["verdict"] == verdict
    assert section.facts["num_readings"] == 3
    assert section.facts["median_s"] == 1e-5
    assert bool(section.problems) == (verdict == "noisy")


def test_an_operator_that_cannot_be_timed_is_a_problem(tmp_path: Path) -> None:
    section = timing(HOST, SyntheticPool(lambda _: "crash: planted"), tmp_path, seconds=0.0)
    assert section.lines == (("timing", "not found out"),)
    assert len(section.problems) == 1


@pytest.mark.parametrize(
    ("readings", "expected"),
    [([2.0], 0.0), ([1.0] * 9 + [5.0], 0.0), ([1.0] * 8 + [1.5] * 2, 0.5), ([0.9, 1.0, 1.1], 0.1)],
)
def test_nine_of_ten_readings_count(readings: list[float], expected: float) -> None:
    assert spread(readings) == pytest.approx(expected)


def test_a_section_is_aligned_and_its_problems_are_marked() -> None:
    lines = list(Section("x", {}, (("label", "value"),), ("do this",)).text())
    assert lines == ["label               value", "PROBLEM             do this"]


# ---- all of it ------------------------------------------------------------------------------------------------------
@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, failing: dict[str, str]) -> dict[str, str]:
    """Nothing is compiled or timed, nobody else computes, and there is no GPU. Errors of families, to fill."""
    real = activity
    monkeypatch.setattr(module, "WorkerPool", lambda _target: Greeting(lambda _: 1e-5))
    monkeypatch.setattr(module, "activity", lambda: real(watch=lambda *_: FREE))
    monkeypatch.setattr(module, "kept_off", lambda _cores: contextlib.nullcontext())
    monkeypatch.setattr(module, "find_gpu", lambda: None)
    monkeypatch.setattr(driver, "find_gpu", lambda: None)
    monkeypatch.setattr(module, "diagnose", lambda diagnosis: diagnose(diagnosis, 0.0))
    return failing


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *arguments], catch_exceptions=False)
    return result.exit_code, result.output


def test_the_command_prints_every_section(quick: dict[str, str]) -> None:
    code, output = invoke()
    assert code == 0
    labels = [line[:19].strip() for line in output.splitlines()]
    expected = [
        "device",
        "compiled for",
        "clock rate",
        "tvm",
        "LLVM",
        "GPU",
        "memory",
        "other processes",
        "f32",
        "timing",
    ]
    assert [label for label in labels if label in expected] == expected
    assert f"fingerprint         {load_target('cpu').fingerprint}" in output


NUMBER, TEXT = (int, float), str
SCHEMA: dict[str, dict[str, Any]] = {
    "machine": {
        **dict.fromkeys(("device", "fingerprint", "compiled_for"), TEXT),
        **dict.fromkeys(("l1_bytes", "l2_bytes", "l3_bytes", "usable_cores", "cores"), int),
        **dict.fromkeys(("governor", "driver"), (str, type(None))),
        "cpu_quota": (int, float, type(None)),
        "boost": (bool, type(None)),
    },
    "software": {
        **dict.fromkeys(("python", "system", "distribution"), TEXT),
        "versions": dict,
        "llvm": (int, type(None)),
    },
    "gpu": {"found": bool},
    "resources": {
        **dict.fromkeys(("working_folder_free_bytes", "temporary_folder_free_bytes", "worker_limit_bytes"), int),
        **dict.fromkeys(("memory_bytes", "available_bytes", "container_limit_bytes"), (int, type(None))),
    },
    "activity": {"load": (float, type(None)), "stolen": (float, type(None)), "busy": list},
    "dtypes": {"f32": dict, "bf16": dict, "int8": dict},
    "timing": {"median_s": NUMBER, "spread": NUMBER, "num_readings": int, "verdict": TEXT},
}


def test_json_is_one_line_of_its_schema(quick: dict[str, str]) -> None:
    code, output = invoke("--json")
    assert code == 0
    (line,) = output.splitlines()
    document = json.loads(line)
    assert document.keys() == {"schema", "works", "problems", *SCHEMA}
    assert (document["schema"], document["works"]) == (1, True)
    for name, facts in SCHEMA.items():
        assert document[name].keys() == facts.keys()
        for key, kind in facts.items():
            assert isinstance(document[name][key], kind), (name, key)


def test_float32_that_does_not_work_is_exit_code_1(quick: dict[str, str]) -> None:
    quick["f32 depthwise"] = "wrong result: relative error 1 against PyTorch"
    code, output = invoke()
    assert code == 1
    assert "FAILS: depthwise" in output
    problem = "operators in f32 do not work: depthwise (wrong result: relative error 1 against PyTorch); report this"
    assert f"PROBLEM             {problem} with all that is above" in output


def test_workers_that_do_not_start_leave_the_other_sections(
    quick: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_target: HardwareTarget) -> WorkerPool:
        raise OSError("no more processes")

    monkeypatch.setattr(module, "WorkerPool", refuse)
    code, output = invoke("--json")
    document = json.loads(output)
    assert (code, document["works"]) == (1, False)
    assert document["dtypes"] == {"error": "OSError: no more processes"}
    assert document["problems"][-1] == "OSError: no more processes; report it"
    assert document["machine"].keys() == SCHEMA["machine"].keys()


def test_a_section_that_fails_leaves_the_others(quick: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Section:
        raise RuntimeError("no\nsuch thing")

    monkeypatch.setattr(module, "software", broken)
    diagnosis = Diagnosis()
    sections = {section.name: section for section in diagnose(diagnosis, 0.0)}
    assert sections["software"].problems == ("RuntimeError: no such thing; report it",)
    assert diagnosis.works


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(HOST) as workers:
        yield workers


@pytest.mark.parametrize("find", [dtypes, lambda *given: timing(*given, seconds=0.1)])
def test_this_machine_is_found_out(pool: WorkerPool, tmp_path: Path, find: Callable[..., Section]) -> None:
    section = find(load_target("cpu"), pool, tmp_path)
    assert "error" not in section.facts
    assert section.facts.get("f32", {"works": True})["works"] is True
