"""The command line: one line for an error, the right exit code, and nothing heavy before it is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def _chanas(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "chanas", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("search", "--latency", "20"), "expected a positive latency with a unit"),
        (("search", "--latency", "20xs"), "unknown unit 'xs'"),
        (("search", "--latency=-3ms"), "expected a positive latency"),
        (("search", "--latency", "0ms"), "above zero"),
        (("search", "--latency", "2ms"), "run `chanas train-supernet"),
        (("prescheduler", "--target", "moon"), "unknown target 'moon'; known: cpu, cuda"),
        (("prescheduler", "--target", "cuda"), "target 'cuda' is not there yet"),
        (("prescheduler", "--space", "moon"), "unknown search space 'moon'"),
        (("predict", "bundle", "image.png"), "bundle bundle does not exist"),
        (("report", "--run", "nowhere"), "run directory nowhere does not exist"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = _chanas(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_option_is_a_usage_error(tmp_path: Path) -> None:
    done = _chanas("search", "--latncy", "2ms", cwd=tmp_path)
    assert done.returncode == 2
    assert "--latncy" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX here")
def test_an_interrupt_ends_with_130_and_says_what_is_kept(tmp_path: Path) -> None:
    code = (
        "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from chanas import cli, pipeline\n"
        "pipeline.report = lambda run: os.kill(os.getpid(), signal.SIGINT)\n"
        "import sys\nsys.argv = ['chanas', 'report']\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + signal.SIGINT
    assert "what was measured or saved is kept" in done.stderr
