"""SIGKILL at random moments, again and again: the run ends in the bits of an uninterrupted one."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from chanas.arch import SearchSpace
from chanas.run import RunDirectory
from chanas.supernet.checkpoint import read_checkpoint, read_header
from chanas.supernet.metrics import read_metrics
from chanas.supernet.phases import TrainConfig


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_killed_at_random_moments_ends_in_the_same_bits(
    tmp_path: Path, tiny_space: SearchSpace, make_config: Callable[..., TrainConfig]
) -> None:
    config = make_config(num_threads=1, checkpoint_every=2, evaluate_every=7).to_json()
    config["phases"][0]["steps"] = 60
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(tiny_space.to_json()))
    command = [sys.executable, "-m", "chanas", "train-supernet", "--config", "config.yaml", "--space", "space.yaml"]

    def start(name: str) -> subprocess.Popen[bytes]:
        begun = (tmp_path / name / "supernet" / "checkpoint.safetensors").exists()
        arguments = [*command, "--run", name, *(["--resume"] if begun else [])]
        return subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    assert start("whole").wait() == 0
    rng, kills = random.Random(0), 0
    for _ in range(100):
        process = start("killed")
        try:
            code = process.wait(timeout=rng.uniform(2.0, 9.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            continue
        assert process.stderr is not None
        assert code == 0, process.stderr.read().decode()
        break
    assert kills >= 2
    whole, killed = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "killed")
    header = read_header(killed)
    assert header is not None
    assert header["done"]
    ours, theirs = read_checkpoint(killed).tensors, read_checkpoint(whole).tensors
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    rows = [[{k: v for k, v in row.items() if k != "images_per_s"} for row in read_metrics(r)] for r in (whole, killed)]
    assert rows[0] == rows[1]
