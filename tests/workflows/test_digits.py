"""The demo's end: how long it took, and how far its table is off. Its stages are planted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tables import random_table
from typer.testing import CliRunner

from chanas.commands.main import app
from chanas.core.arch import SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.files.run import RunDirectory
from chanas.workflows import digits

ROOT = Path(__file__).resolve().parents[2]
MEASURED = {"latency_s": 1e-3, "spread_s": 1e-6, "top1_test": 0.9, "top1_holdout": 0.9, "num_test_images": 5}


@pytest.fixture
def table(tiny_space: SearchSpace, tmp_path: Path) -> LatencyLUT:
    lut = random_table(tiny_space)
    lut.save(RunDirectory(tmp_path).lut(lut.header.target.name))
    return lut


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_space: SearchSpace, table: LatencyLUT) -> None:
    """Stages that take 121, 83.6, 3,700 and (the report) 2 seconds of a made-up clock."""
    bundle = SimpleNamespace(
        document={"num_macs": 1, "num_params": 1, "targets": []},
        part={},
        constraints={"latency_s": 1e-3},
        predicted={"latency_s": 1e-3, "top1": 0.9},
        measured=MEASURED,
        architecture=tiny_space.largest,
        target=table.header.target,
        path=tmp_path / "bundle",
        has_weights=True,
    )
    clock = SimpleNamespace(now_s=50.0)

    def taking(seconds: float, result: Any) -> Callable[..., Any]:
        def stage(*_: Any, **__: Any) -> Any:
            clock.now_s += seconds
            return result

        return stage

    monkeypatch.setattr(digits, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    monkeypatch.setattr(digits, "train_supernet", taking(121.0, None))
    monkeypatch.setattr(digits, "preschedule", taking(83.6, SimpleNamespace(lut=table)))
    monkeypatch.setattr(digits, "supernet_task", taking(0.0, (tiny_space, 10)))
    monkeypatch.setattr(digits, "search", taking(3700.0, bundle))
    monkeypatch.setattr(digits, "load_supernet", taking(0.0, SimpleNamespace(data=None)))
    monkeypatch.setattr("chanas.supernet.data.images.export_images", taking(0.0, iter([tmp_path / "3.png"])))
    monkeypatch.setattr("chanas.report.page.build_report", taking(2.0, tmp_path / "report.html"))


@pytest.mark.usefixtures("planted")
def test_the_demo_says_how_long_it_took_and_how_far_its_table_is_off(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "--latency", "1ms", "--run", str(tmp_path)])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert "took                1:05:07: training 2:01, tuning 1:24, search 1:01:40" in lines
    (about_table,) = [line for line in lines if "calibrated" in line]
    assert about_table.startswith("table               not calibrated: the plain sum of blocks")
    assert lines.index(about_table) == lines.index(f"report              {tmp_path / 'report.html'}") + 2


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("code", [0, 3])
def test_make_demo_says_last_what_it_took_with_the_installation(tmp_path: Path, code: int) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    program = tmp_path / ".venv" / "bin" / "chanas"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho said\nexit {code}\n")
    program.chmod(0o755)
    (tmp_path / ".venv" / ".installed").touch()
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(
        ["make", "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    said, *last = done.stdout.splitlines()
    assert said == "said"
    if code:
        assert (done.returncode, last) == (2, [])
    else:
        assert done.returncode == 0
        assert last[-1].startswith("make demo took 0:0")
        assert last[-1].endswith(", installation included")
