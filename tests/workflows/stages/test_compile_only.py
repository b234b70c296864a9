"""chanas/workflows/stages/compile_only.py and `chanas prescheduler --compile-only`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chanas.commands.main import app
from chanas.core.arch import SearchSpace
from chanas.core.usage import Usage
from chanas.devices import host
from chanas.devices.target_files import arch_target, describe_target
from chanas.files.run import RunDirectory
from chanas.measuring.checks import compile_points as cuda_compile
from chanas.measuring.checks.compile_points import CompileSummary, KindSummary
from chanas.operators.steps import tuned_workloads
from chanas.workflows.stages.compile_only import DEFAULT_POINTS, Points, compile_only, compile_target


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Nothing is compiled; what would have been is kept."""
    kept: dict[str, Any] = {}

    def compile_points(workloads: Any, target: Any, num_points: int, seed: int, progress: bool) -> Any:
        kept.update(workloads=workloads, target=target, num_points=num_points, seed=seed)
        kind = KindSummary("1x1", 8, 8, 1, 0.05, (20, 60), 2048)
        return CompileSummary(target, "NVRTC 1", len(workloads), 8, (kind,))

    monkeypatch.setattr(cuda_compile, "compile_points", compile_points)
    monkeypatch.setattr(host, "find_gpu", lambda: None)
    return kept


def test_an_architecture_needs_no_gpu() -> None:
    assert compile_target("cuda", "sm_90") == arch_target("sm_90")
    assert compile_target("h100", None) == describe_target("h100")


def test_limit_takes_the_first_operators(tmp_path: Path, asked: dict[str, Any]) -> None:
    run = RunDirectory(tmp_path)
    compile_only(run, usage=Usage("cuda"), arch="sm_80", space="mbv3-32")
    every, points = asked["workloads"], asked["num_points"]
    compile_only(run, usage=Usage("cuda"), points=Points(num=3, limit=5), arch="sm_80", space="mbv3-32")
    assert asked["workloads"] == every[:5]
    assert (points, asked["num_points"]) == (DEFAULT_POINTS, 3)
    assert asked["target"].gpu.arch == "sm_80"


def test_operators_are_those_that_a_gpu_tunes(tmp_path: Path, asked: dict[str, Any]) -> None:
    compile_only(RunDirectory(tmp_path), usage=Usage("cuda"), arch="sm_80", space="mbv3-32", num_classes=10)
    blocks = SearchSpace.load("mbv3-32").all_blocks(10)
    assert asked["workloads"] == tuned_workloads(blocks, arch_target("sm_80"))
    assert {w.op for w in asked["workloads"]} == {"conv", "pointwise", "depthwise", "squeeze", "pool"}


def test_operators_are_those_of_the_batch(tmp_path: Path, asked: dict[str, Any]) -> None:
    compile_only(RunDirectory(tmp_path), usage=Usage("cuda", dtype="f16", batch=32), arch="sm_90", space="mbv3-32")
    assert {w.batch for w in asked["workloads"]} == {32}
    assert asked["target"].name == "cuda-sm_90-f16-b32"


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["prescheduler", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_command_says_what_compiles_and_that_nothing_was_run(tmp_path: Path, asked: dict[str, Any]) -> None:
    output = invoke("--run", str(tmp_path), "--target", "cuda", "--arch", "sm_90", "--compile-only", "--limit", "2")
    assert "cuda-sm_90: any GPU of sm_90, NVRTC 1" in output
    assert "8 of    8 compile (100%),   50 ms each, 20–60 registers, 1 spill, shared memory up to 2.0 KiB" in output
    assert output.endswith("No schedule was run: there are no seconds.\n")
    assert len(asked["workloads"]) == 2


def test_operators_are_those_of_the_dtype(tmp_path: Path, asked: dict[str, Any]) -> None:
    compile_only(RunDirectory(tmp_path), usage=Usage("h100", dtype="f16"), points=Points(limit=5), space="mbv3-32")
    assert {w.dtype for w in asked["workloads"]} == {"float16"}
    assert (asked["target"].name, asked["target"].dtype_name) == ("h100-f16", "f16")
