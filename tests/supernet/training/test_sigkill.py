"""SIGKILL at random moments, again and again: the run ends in the bits of an uninterrupted one."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from chanas.core.arch import SearchSpace
from chanas.files.run import RunDirectory
from chanas.supernet.training.checkpoint import read_checkpoint, read_header
from chanas.supernet.training.metrics import read_metrics
from chanas.supernet.training.phases import TrainConfig


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_killed_at_random_moments_ends_in_the_same_bits(
    tmp_path: Path, tiny_space: SearchSpace, make_config: Callable[..., TrainConfig]
) -> None:
    config = make_config(num_threads=1, checkpoint_every=2, evaluate_every=7).to_json()
    config["phases"][0]["steps"] = 120
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(tiny_space.to_json()))
    command = [sys.executable, "-m", "chanas", "train-supernet", "--config", "config.yaml", "--space", "space.yaml"]

    def start(name: str) -> subprocess.Popen[bytes]:
        begun = (tmp_path / name / "supernet" / "checkpoint.safetensors").exists()
        arguments = [*command, "--run", name, *(["--resume"] if begun else [])]
        with open(tmp_path / "stderr", "wb") as file:
            return subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=file)

    def wait_for_training(process: subprocess.Popen[bytes], name: str) -> None:
        """Until the process wrote a line of metrics, or ended."""
        path = tmp_path / name / "supernet" / "metrics.jsonl"
        size = path.stat().st_size if path.exists() else 0
        while process.poll() is None and (not path.exists() or path.stat().st_size <= size):
            time.sleep(0.01)

    assert start("whole").wait() == 0
    rng, kills = random.Random(0), 0
    for attempt in range(16):
        process = start("killed")
        if attempt % 4:
            wait_for_training(process, "killed")
        try:
            code = process.wait(timeout=rng.uniform(0.0, 1.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            continue
        assert code == 0, (tmp_path / "stderr").read_text()
        break
    else:  # where little is done in a second, it was killed every time
        assert start("killed").wait() == 0, (tmp_path / "stderr").read_text()
    assert kills >= 2
    whole, killed = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "killed")
    header = read_header(killed)
    assert header is not None
    assert header["done"]
    ours, theirs = read_checkpoint(killed).tensors, read_checkpoint(whole).tensors
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    volatile = {"images_per_s", "wall_s"}
    rows = [[{k: v for k, v in row.items() if k not in volatile} for row in read_metrics(r)] for r in (whole, killed)]
    assert rows[0] == rows[1]
