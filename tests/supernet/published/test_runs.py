"""chanas/supernet/published/runs.py: an imported supernet is used like one that was trained in the run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from chanas.core.arch import SearchSpace
from chanas.errors import CheckpointError, DataError
from chanas.files.run import RunDirectory
from chanas.network.static import StaticNetwork
from chanas.supernet.data.imagenet import NUM_CLASSES
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.published.runs import import_ofa, keep
from chanas.supernet.training.checkpoint import read_checkpoint, read_header
from chanas.supernet.training.evaluate import SupernetEvaluator, read_supernet
from chanas.supernet.training.finetune import Finetuning, finetune
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.resume import stored_setup
from chanas.supernet.training.train import Start, train_supernet

from .test_ofa import random_checkpoint, saved

FROM = {"kind": "test"}


def tiny(space: SearchSpace) -> Supernet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Supernet(space, NUM_CLASSES).eval()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images of two classes."""
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for name in ("goldfish", "zebra"):
        (root / name).mkdir()
        for number in range(30):
            pixels = rng.integers(256, size=(20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def means(network: StaticNetwork) -> torch.Tensor:
    return torch.cat([tensor for name, tensor in network.state_dict().items() if name.endswith("running_mean")])


def test_a_published_file_becomes_a_runs_supernet(tmp_path: Path) -> None:
    run, file = RunDirectory(tmp_path / "run"), tmp_path / "ofa.pth"
    tensors = random_checkpoint("ofa-mbv3-w1.0")
    summary = import_ofa(run, saved(file, tensors))
    assert (summary.space.name, summary.num_classes, summary.num_images) == ("ofa-mbv3-w1.0", NUM_CLASSES, 0)
    header = read_header(run)
    assert header is not None
    assert (header["done"], header["step"], header["published"]["file"]) == (True, 0, "ofa.pth")
    evaluator = SupernetEvaluator.load(run)
    largest = evaluator.extract(summary.space.largest)
    assert torch.equal(largest.state_dict()["blocks.0.conv.bn.running_mean"], tensors["first_conv.bn.running_mean"])
    with pytest.raises(CheckpointError, match="--overwrite"):
        import_ofa(run, file)
    import_ofa(run, file, overwrite=True)


def test_nothing_is_measured_without_images(tmp_path: Path, tiny_space: SearchSpace) -> None:
    run = RunDirectory(tmp_path)
    assert keep(run, tiny(tiny_space), FROM).top1_largest is None
    evaluator = SupernetEvaluator.load(run)
    assert not evaluator.recalibrates
    assert torch.equal(
        means(evaluator.extract(tiny_space.smallest)), means(tiny(tiny_space).extract(tiny_space.smallest))
    )
    with pytest.raises(DataError, match=r"no holdout images .* --accuracy-table"):
        evaluator.top1(tiny_space.smallest)
    with pytest.raises(CheckpointError, match="nothing to resume"):
        stored_setup(run)


def test_with_images_statistics_and_accuracies_are_its_own(
    tmp_path: Path, images: Path, tiny_space: SearchSpace
) -> None:
    run = RunDirectory(tmp_path)
    summary = keep(run, tiny(tiny_space), FROM, images)
    assert summary.num_images == 60
    assert summary.top1_largest is not None
    evaluator = SupernetEvaluator.load(run)
    assert not torch.equal(
        means(evaluator.extract(tiny_space.smallest)), means(tiny(tiny_space).extract(tiny_space.smallest))
    )
    assert evaluator.top1(tiny_space.largest) == summary.top1_largest  # of all holdout images: they are few


def test_a_sub_network_learns_other_classes(tmp_path: Path, images: Path, tiny_space: SearchSpace) -> None:
    run, architecture = RunDirectory(tmp_path), tiny_space.smallest
    keep(run, tiny(tiny_space), FROM)
    with pytest.raises(DataError, match="no images to train on"):
        finetune(run, architecture, Finetuning(epochs=1), progress=False)
    recipe = Finetuning(epochs=2, base_lr=1e-9, images=images)
    summary = finetune(run, architecture, recipe, progress=False)
    assert summary.top1_inherited is None
    (folder,) = (run.root / "finetuned" / architecture.key).iterdir()
    own = SupernetEvaluator.load(RunDirectory(folder))
    assert own.class_names == ("goldfish", "zebra")
    assert own.only == architecture
    ours, theirs = (e.extract(architecture).state_dict() for e in (own, SupernetEvaluator.load(run)))
    last = max(name for name in theirs if name.endswith("linear.weight"))
    assert ours[last].shape[0] == 2
    for name, tensor in theirs.items():
        if "linear" not in name and "running" not in name and "num_batches" not in name:
            torch.testing.assert_close(ours[name], tensor, msg=name)


def test_a_supernet_begins_with_the_weights_of_another(tmp_path: Path, images: Path, tiny_space: SearchSpace) -> None:
    config = TrainConfig.load("transfer").changed(
        data={"root": str(images), "num_workers": 0},
        phases=[{"name": "a", "steps": 1, "base_lr": 1e-9}],
        batch_size=8,
        gap_batch_size=4,
    )
    run, given = RunDirectory(tmp_path / "mine"), tiny(tiny_space)
    train_supernet(run, tiny_space, config, progress=False, start=Start(inherited=given))
    weights = read_supernet(read_checkpoint(run)).state_dict()
    assert weights["classifier.linear.weight"].shape[0] == 2
    for name, tensor in given.state_dict().items():
        if "linear" not in name and "running" not in name:
            torch.testing.assert_close(weights[name], tensor, msg=name)
    wider = dataclasses.replace(tiny_space, head_width=64)
    with pytest.raises(CheckpointError, match="not of space 'tiny'"):
        train_supernet(RunDirectory(tmp_path / "wider"), wider, config, progress=False, start=Start(inherited=given))
