"""Two processes that train together compute what one computes. One launch of `torchrun` serves all tests here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from chanas.core.arch import SearchSpace
from chanas.files.run import RunDirectory
from chanas.supernet.elastic.distributed import World, joined
from chanas.supernet.training.checkpoint import kept_checkpoints, read_checkpoint
from chanas.supernet.training.metrics import read_metrics
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.train import train_supernet

pytestmark = pytest.mark.slow  # four processes that each import PyTorch
SCRIPT = Path(__file__).parents[1] / "two_ranks.py"


@pytest.fixture(scope="module")
def config(make_config: Callable[..., TrainConfig]) -> TrainConfig:
    common = {"steps": 3, "base_lr": 0.05}
    phases = [
        {"name": "largest", **common},
        {"name": "expand", "kernel_sizes": "all", "expand_ratios": "all", "depths": "all", "num_subnets": 2, **common},
    ]
    return make_config(strategy="progressive", phases=phases, batch_size=16, gap_batch_size=8, ema_decay=0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_space: SearchSpace, config: TrainConfig) -> Path:
    """What two ranks left."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "space.json").write_text(json.dumps(tiny_space.to_json()))
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    root = str(SCRIPT.parent.parent.parent)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    ended = subprocess.run([*command, str(folder)], env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Tensor]]:
    return [load_file(folder / f"rank{rank}.safetensors") for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, tiny_space: SearchSpace, config: TrainConfig) -> RunDirectory:
    """The same run by one process."""
    run = RunDirectory(tmp_path_factory.mktemp("alone"))
    train_supernet(run, tiny_space, config, progress=False)
    return run


def test_batch_norm_of_two_halves_is_that_of_the_whole(ranks: list[dict[str, Tensor]]) -> None:
    x = ranks[0]["images"].requires_grad_()
    weight, bias = (torch.full((3,), value, requires_grad=True) for value in (1.5, 0.5))
    mean, var = torch.zeros(3), torch.ones(3)
    out = F.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5)
    (out * ranks[0]["targets"]).sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
    torch.testing.assert_close(torch.cat([r["out"] for r in ranks]), out.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat([r["x_grad"] for r in ranks]), x.grad, rtol=1e-4, atol=1e-5)
    for rank in ranks:
        torch.testing.assert_close(rank["weight_grad"], weight.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(rank["running_mean"], mean)
        torch.testing.assert_close(rank["running_var"], var)


def test_ranks_agree_on_means_sums_and_maxima(ranks: list[dict[str, Tensor]]) -> None:
    for rank in ranks:
        assert rank["mean"].tolist() == [1.5, 3.0]
        assert rank["sum"].tolist() == [3, 20]
        assert rank["largest"].tolist() == [5]
        assert rank["same"].tolist() == [7.0, 7.0]


def test_two_ranks_follow_one(folder: Path, alone: RunDirectory) -> None:
    """The same sub-networks, images, losses and gradients at every step, up to the order of float sums."""
    rows = [[r for r in read_metrics(run) if r["kind"] == "training"] for run in (RunDirectory(folder / "run"), alone)]
    assert len(rows[0]) == len(rows[1]) == 6
    for ours, theirs in zip(*rows, strict=True):
        assert (ours["step"], ours["phase"], ours["lr"]) == (theirs["step"], theirs["phase"], theirs["lr"])
        for name in ("train_loss", "gap_loss", "loss"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3), (ours["step"], name)
    two, one = (read_checkpoint(run).tensors for run in (RunDirectory(folder / "run"), alone))
    start = read_checkpoint(alone, kept_checkpoints(alone)[-1]).tensors
    assert set(two) == set(one)
    assert distance(two, one) < 0.01 * distance(one, start)


def distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Euclidean, over all weights."""
    names = [n for n in theirs if n.startswith("supernet.") and "running_" not in n]
    return sum(float((ours[name] - theirs[name]).square().sum()) for name in names) ** 0.5


def test_metrics_are_those_of_all_ranks_and_written_once(folder: Path, alone: RunDirectory) -> None:
    rows = [read_metrics(run) for run in (RunDirectory(folder / "run"), alone)]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]]
    for name in ("top1_largest", "top1_smallest"):
        assert rows[0][-1][name] == pytest.approx(rows[1][-1][name], abs=0.02)


def test_a_signal_to_one_rank_stops_all_and_the_run_goes_on_to_the_same_bits(folder: Path) -> None:
    stopped, whole = (read_checkpoint(RunDirectory(folder / name)) for name in ("stopped", "run"))
    assert stopped.header["done"]
    assert stopped.header["world_size"] == 2
    for name, tensor in whole.tensors.items():
        assert torch.equal(stopped.tensors[name], tensor), name


def test_micro_batches_and_statistics_of_its_own_train_too(folder: Path) -> None:
    header = read_checkpoint(RunDirectory(folder / "micro")).header
    assert (header["step"], header["done"]) == (6, True)


def test_a_run_of_two_ranks_is_taken_up_by_one(folder: Path, tiny_space: SearchSpace, config: TrainConfig) -> None:
    run = RunDirectory(folder / "run")
    assert train_supernet(run, tiny_space, config, resume=True, progress=False).resumed_from == 6


def test_without_a_launcher_there_is_one_rank() -> None:
    with joined("cpu") as world:
        assert world == World(0, 1, 0)
        assert world.is_main
        tensor = torch.ones(2)
        assert world.mean(tensor) is tensor
