"""The scripts in examples/: what they name is there, and the longest of them runs to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from python_names import faults

from chanas.core.arch import SearchSpace
from chanas.files.run import RunDirectory
from chanas.supernet.training.phases import TrainConfig
from chanas.workflows.jobs.plan import read_jobs

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEED_DATA = {"imagenet_headline"}  # accuracies that are published elsewhere


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_what_an_example_names_is_there(example: Path) -> None:
    assert faults(example.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_notebook_with_prose_before_its_code(example: Path) -> None:
    cells = [line for line in example.read_text(encoding="utf-8").splitlines() if line.startswith("# %%")]
    assert cells[0] == "# %% [markdown]"
    assert len(cells) >= 4


def test_the_settings_of_the_examples_are_settings() -> None:
    space = SearchSpace.load(ROOT / "examples" / "small_space.yaml")
    assert len(space.sub_spaces) > 1
    for phase in TrainConfig.load(ROOT / "examples" / "short_training.yaml").phases:
        phase.restrict(space)


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "jobs").iterdir()), ids=lambda path: path.stem)
def test_files_of_jobs_name_a_device_for_each(path: Path) -> None:
    plans = read_jobs(path)
    assert {plans.key_of(job) for job in plans.jobs} == {device.key or "" for device in plans.devices}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.stem not in NEED_DATA], ids=lambda path: path.stem)
def test_an_example_runs_to_its_end(example: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1100
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (tmp_path / "runs").iterdir()
    assert (RunDirectory(folder).bundle / "codesign.json").is_file()
