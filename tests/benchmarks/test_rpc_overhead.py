"""benchmarks/rpc_overhead.py: how its figures are made, and a quick run against a real tracker and server."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("rpc_overhead")
    for name in ("common", "rpc_overhead"):
        sys.modules.pop(name, None)


def kernel(script: ModuleType, local_s: list[float], remote_s: list[float], overhead_s: float) -> Any:
    made = script.Kernel("pointwise", Path("k.so"), Path("k.npz"), local_s, remote_s)
    made.local_overhead_s, made.remote_overhead_s = [1e-3], [overhead_s, 0.0]
    return made


def test_figures_are_medians_over_kernels(script: ModuleType) -> None:
    kernels = [
        kernel(script, [1.0, 2.0, 3.0], [2.2, 2.0, 9.0], 0.01),
        kernel(script, [1.0], [1.02], 0.02),
        kernel(script, [1.0], [0.9], 0.5),
        kernel(script, [], [], 0.0),
    ]
    figures = script.figures_of(kernels, 1, 0)
    values = {name: figure.value for name, figure in figures.items()}
    assert values["rpc_ratio_percent"] == pytest.approx(2.0)
    assert values["rpc_worst_ratio_percent"] == pytest.approx(10.0)
    assert values["rpc_overhead_ms"] == pytest.approx(20.0)
    assert values["local_overhead_ms"] == pytest.approx(1.0)
    assert all(figure.met for figure in figures.values() if figure.goal is not None)


def test_a_timing_too_many_that_was_lost_misses_the_goal(script: ModuleType) -> None:
    figures = script.figures_of([], 2, 1)
    assert [figures["lost_timings"].met, figures["lost_with_session"].met] == [False, False]
    assert figures["rpc_ratio_percent"].value is None


@pytest.mark.rpc
def test_a_quick_run_with_two_devices_says_how_cores_are_shared(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tornado", reason="TVM's tracker needs it: pip install 'chanas[rpc]'")
    script.main(["--quick", "--num", "3", "--rounds", "1", "--devices"])
    *_, said, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)
    assert said.startswith("two servers on ")
    assert all(figures[f"{what}_per_s_{num}"]["value"] > 0.0 for what in ("timings", "candidates") for num in (1, 2))


@pytest.mark.rpc
def test_a_quick_run_prints_its_figures_last(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tornado", reason="TVM's tracker needs it: pip install 'chanas[rpc]'")
    script.main(["--quick", "--num", "2"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["lost_timings"]["met"]
    assert figures["lost_with_session"]["met"]
    assert figures["rpc_overhead_ms"]["value"] > 0.0
