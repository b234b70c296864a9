"""The command line: one line for an error, the right exit code, and nothing heavy before it is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tables import random_table
from typer.testing import CliRunner

from chanas import workflows
from chanas.commands import search_text
from chanas.commands.main import app
from chanas.commands.process import main
from chanas.core.arch import SearchSpace
from chanas.core.latency import Calibration
from chanas.errors import ChanasError
from chanas.files.run import DEFAULT_RUN, RunDirectory
from chanas.search.front import FrontPoint
from chanas.search.proof import Proof, Timing
from chanas.supernet.judge import Judged, Spread
from chanas.workflows.searching import front


def _chanas(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "chanas", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_an_error_ends_the_process_with_one_line(tmp_path: Path) -> None:
    done = _chanas("search", "--latency", "2ms", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "run `chanas train-supernet" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "--run", "l" * 300],
        ["report", "--run", "/".join(["d" * 200] * 25)],
        ["sweep", "show", "l" * 300],
        ["sweep", "show", "a\nb"],
        ["sweep", "show", os.fsdecode(b"\xff\xfe")],
        ["jobs", "status", "--out", "l" * 300],
        ["serve", "token", "list", "--data", "l" * 300],
        ["device", "list", "--tracker", "a..b:9190"],
        ["device", "list", "--tracker", f"{'l' * 300}:1"],
        ["serve", "--host", "a..b"],
        ["service", "list", "--url", f"http://{'l' * 64}.b:1"],
    ],
    ids=lambda arguments: " ".join(word[:12] for word in arguments),
)
def test_a_name_of_any_length_is_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capsys.readouterr()
    assert (ended.value.code, told.out, told.err.count("\n")) == (1, "", 1)
    assert told.err.strip().isprintable()


@pytest.mark.parametrize("arguments", [("--debug", "report", "--run", "none"), ("report", "--run", "none", "--debug")])
def test_debug_shows_the_traceback_before_and_behind_a_command(arguments: tuple[str, ...]) -> None:
    with pytest.raises(ChanasError, match="none does not exist"):
        main(arguments)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch, tiny_space: SearchSpace) -> dict[str, Any]:
    """What `pipeline.evaluate` was asked by `chanas eval`; it answers with one architecture and one drawn one."""
    asked: dict[str, Any] = {}

    def evaluate(run: RunDirectory, architectures: Sequence[str], **options: Any) -> Iterator[Judged | Spread]:
        asked.update(run=run, architectures=tuple(architectures), **options)
        counts = {"step": 600, "num_macs": 1_230_000, "num_params": 45_600, "split": "holdout"}
        first = Judged(tiny_space.largest, "largest", **counts, num_images=263, num_correct=81)
        second = Judged(tiny_space.smallest, "random:1", **counts, num_images=263, num_correct=0)
        yield from (first, second, Spread.of([second]))

    monkeypatch.setattr(workflows, "evaluate", evaluate)
    return asked


def test_eval_prints_a_row_for_each_architecture(evaluated: dict[str, Any], tiny_space: SearchSpace) -> None:
    done = CliRunner().invoke(app, ["eval", "here", "--architecture", "largest", "--architecture", "random:1"])
    assert done.output.splitlines() == [
        "263 images of holdout, supernet after 600 steps",
        "accuracy      95 % interval    MACs params  architecture",
        f"  30.80%   25.53% –  36.62%   1.23M  45.6k  {tiny_space.largest.key} (largest)",
        f"   0.00%    0.00% –   1.44%   1.23M  45.6k  {tiny_space.smallest.key}",
        "   0.00%  mean of random:1, sd -, min 0.00%, max 0.00%",
    ]
    assert evaluated["run"] == RunDirectory(Path("here"))
    assert evaluated["architectures"] == ("largest", "random:1")
    assert (evaluated["split"], evaluated["seed"], evaluated["device"]) == ("holdout", 0, "cpu")


def test_eval_prints_lines_of_json(evaluated: dict[str, Any], tiny_space: SearchSpace) -> None:
    done = CliRunner().invoke(app, ["eval", "--json", "--split", "test"])
    first, _, spread = (json.loads(line) for line in done.output.splitlines())
    assert (first["architecture"], first["num_correct"]) == (tiny_space.largest.key, 81)
    assert spread["request"] == "random:1"
    assert evaluated["run"] == RunDirectory(DEFAULT_RUN)
    assert evaluated["architectures"] == ("largest", "smallest")
    assert (evaluated["split"], evaluated["progress"]) == ("test", False)


@pytest.mark.parametrize(
    "calibration", [Calibration(0.0, 1.0, 0.0, 12, 0.021, 0.05, 0.99, 0.156), None], ids=["calibrated", "plain"]
)
def test_search_says_how_far_the_table_is_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_space: SearchSpace, calibration: Calibration | None
) -> None:
    lut = random_table(tiny_space)
    lut.calibration = calibration
    lut.save(RunDirectory(tmp_path).lut("cpu"))
    monkeypatch.setattr(search_text, "saturation", lambda _path: "")
    measured = {"latency_s": 1e-3, "spread_s": 1e-6, "pytorch_eager_latency_s": 2e-3, "top1_test": 0.9}
    bundle = SimpleNamespace(
        document={"num_macs": 1, "num_params": 1, "targets": []},
        part={},
        constraints={"latency_s": 1e-3},
        predicted={"latency_s": 1e-3, "top1": 0.9},
        measured={**measured, "top1_holdout": 0.9, "num_test_images": 5},
        architecture=tiny_space.largest,
        target=lut.header.target,
        path=tmp_path / "bundle",
        has_weights=True,
        blocks=(),
    )
    monkeypatch.setattr(workflows, "search", lambda run, **_: bundle)
    done = CliRunner().invoke(app, ["search", "--latency", "1ms", "--run", str(tmp_path)])
    assert done.exit_code == 0
    _, _, following = done.output.partition("by the table\n")
    line = following.splitlines()[0].strip()
    if calibration is None:
        assert line.startswith("not calibrated: the plain sum of blocks")
    else:
        assert line.startswith("error 2.1% on average, 5.0% at worst")


def test_the_front_is_a_table_with_failed_and_dominated_points(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_space: SearchSpace
) -> None:
    small, large = tiny_space.smallest, tiny_space.largest
    points = (
        FrontPoint(small, 1e-3, 0.8, Proof(small, (Timing("cpu", 1.1e-3, 1e-6),), 0.81)),
        FrontPoint(large, 2e-3, 0.9, Proof(large, (Timing("cpu", 2.1e-3, 1e-6),), 0.80), dominated=True),
        FrontPoint(large, 2e-3, 0.9, Proof(large, error="crash")),
    )
    asked = {}
    monkeypatch.setattr(front, "search_front", lambda run, **options: asked.update(options) or points)
    done = CliRunner().invoke(app, ["search", "--pareto", "--points", "3", "--run", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert asked["num_points"] == 3
    first, second, third, last = done.output.splitlines()[1:]
    assert "1.1 ms" in first
    assert "81.00%" in first
    assert "another is faster and as accurate" in second
    assert third.split()[0] == "failed"
    assert third.endswith("crash")
    assert last.endswith("pareto.json")


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX here")
def test_an_interrupt_ends_with_130_and_the_line_that_begins_again(tmp_path: Path) -> None:
    code = (
        "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from chanas import workflows; from chanas.commands import process as cli\n"
        "workflows.report = lambda run: os.kill(os.getpid(), signal.SIGINT)\n"
        "import sys\nsys.argv = ['chanas', 'report']\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == "chanas: interrupted, nothing is kept; begin again with: chanas report\n"
