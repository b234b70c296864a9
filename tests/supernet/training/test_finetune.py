"""A sub-network trained on its own starts from what it inherited, keeps the splits, and can be interrupted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chanas.core.arch import SearchSpace
from chanas.errors import ArchitectureError, CheckpointError
from chanas.files.run import RunDirectory
from chanas.supernet.training import train
from chanas.supernet.training.checkpoint import read_checkpoint, splits_path
from chanas.supernet.training.evaluate import SupernetEvaluator
from chanas.supernet.training.finetune import Finetuning, finetune, finetune_config
from chanas.supernet.training.metrics import read_metrics
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.train import train_supernet

from ..tars import png, write_shard

MakeConfig = Callable[..., TrainConfig]
EPOCHS = 0.02  # of some 1,100 images in batches of 8: three steps


@pytest.fixture(scope="module")
def supernet(
    tmp_path_factory: pytest.TempPathFactory, tiny_space: SearchSpace, make_config: MakeConfig
) -> RunDirectory:
    run = RunDirectory(tmp_path_factory.mktemp("supernet"))
    train_supernet(run, tiny_space, make_config(), progress=False)
    return run


def test_training_starts_from_the_inherited_weights(
    supernet: RunDirectory, tiny_space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a learning rate of (almost) nothing, the accuracy stays that of the supernet's sub-network."""
    architecture = tiny_space.smallest
    summary = finetune(supernet, architecture, recipe=Finetuning(epochs=EPOCHS, base_lr=1e-9), progress=False)
    assert summary.top1_inherited == SupernetEvaluator.load(supernet).top1(architecture)
    assert summary.top1 == summary.top1_inherited
    assert summary.training.num_steps == 3
    inherited = SupernetEvaluator.load(supernet).extract(architecture)
    ours = SupernetEvaluator.load(supernet.finetuned(architecture.key, False)).extract(architecture)
    for name, tensor in inherited.named_parameters():
        torch.testing.assert_close(dict(ours.named_parameters())[name], tensor, msg=name)


def test_training_changes_the_weights_and_says_so(supernet: RunDirectory, tiny_space: SearchSpace) -> None:
    architecture = tiny_space.largest
    summary = finetune(supernet, architecture, recipe=Finetuning(epochs=EPOCHS), overwrite=True, progress=False)
    run = supernet.finetuned(architecture.key, False)
    header = read_checkpoint(run).header
    assert (header["architecture"], header["done"], header["step"]) == (architecture.key, True, 3)
    rows = read_metrics(run)
    assert set(rows[0]["by_size"]) == {"only"}
    assert rows[-1]["top1_only"] == summary.top1
    assert splits_path(run).read_text() == splits_path(supernet).read_text()


def test_from_scratch_is_another_run_with_fresh_weights(supernet: RunDirectory, tiny_space: SearchSpace) -> None:
    architecture = tiny_space.largest
    finetune(supernet, architecture, recipe=Finetuning(epochs=EPOCHS, base_lr=1e-9, from_scratch=True), progress=False)
    inherited = SupernetEvaluator.load(supernet).extract(architecture)
    fresh = SupernetEvaluator.load(supernet.finetuned(architecture.key, True)).extract(architecture)
    for name in ("blocks.0.conv.conv.weight", "blocks.3.project.conv.weight"):
        assert not torch.allclose(fresh.state_dict()[name], inherited.state_dict()[name]), name


def test_a_killed_call_goes_on(
    supernet: RunDirectory, tiny_space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture = dataclasses.replace(tiny_space.largest, resolution=12)

    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "accumulate_gradients", stop)
        with pytest.raises(KeyboardInterrupt):
            finetune(supernet, architecture, recipe=Finetuning(epochs=EPOCHS), progress=False)
    summary = finetune(supernet, architecture, resume=True, progress=False)
    assert (summary.training.resumed_from, summary.training.num_steps) == (0, 3)
    assert finetune(supernet, architecture, Finetuning(EPOCHS), resume=True, progress=False).training.resumed_from == 3
    for other in (Finetuning(2 * EPOCHS), Finetuning(base_lr=0.5), Finetuning(seed=9)):
        with pytest.raises(CheckpointError, match="holds a finished run with another "):
            finetune(supernet, architecture, other, resume=True, progress=False)
    again = finetune(supernet, architecture, recipe=Finetuning(epochs=EPOCHS), progress=False)
    assert again.training.resumed_from == 3
    with pytest.raises(CheckpointError, match=r"holds a finished run with another phases \(phases.0.base_lr: "):
        finetune(supernet, architecture, recipe=Finetuning(epochs=EPOCHS, base_lr=0.5), progress=False)


def test_each_set_of_images_has_a_folder_of_its_own(
    supernet: RunDirectory, tiny_space: SearchSpace, image_folder: Path
) -> None:
    architecture = dataclasses.replace(tiny_space.smallest, resolution=16)
    members = {f"{i}.{e}": d for i in range(16) for e, d in {"png": png(i), "cls": str(i % 2).encode()}.items()}
    other = write_shard(image_folder.with_name("others.tar"), members)
    recipes = [Finetuning(epochs=2, images=images) for images in (image_folder, other)]
    for recipe in recipes:
        finetune(supernet, architecture, recipe, progress=False)
    folders = sorted((supernet.root / "finetuned" / architecture.key).iterdir())
    assert [folder.name[:16] for folder in folders] == ["inherited-images", "inherited-others"]
    assert SupernetEvaluator.load(RunDirectory(folders[1])).class_names == ("0", "1")
    assert finetune(supernet, architecture, recipes[1], progress=False).training.resumed_from == 2
    assert finetune(supernet, architecture, recipes[1], resume=True, progress=False).training.resumed_from == 2
    with pytest.raises(CheckpointError, match="nothing to resume"):
        finetune(supernet, architecture, resume=True, progress=False)


def test_a_strange_architecture_is_refused(supernet: RunDirectory, tiny_space: SearchSpace) -> None:
    strange = dataclasses.replace(tiny_space.largest, resolution=999)
    with pytest.raises(ArchitectureError):
        finetune(supernet, strange, progress=False)
    assert not supernet.finetuned(strange.key, False).root.exists()


def test_defaults_come_from_the_supernets_training(progressive: TrainConfig) -> None:
    inherited = finetune_config(progressive, Finetuning(10))
    scratch = finetune_config(progressive, Finetuning(10, from_scratch=True, seed=5))
    assert inherited.phases[0].base_lr == pytest.approx(0.1 * progressive.phases[-1].base_lr)
    assert scratch.phases[0].base_lr == max(phase.base_lr for phase in progressive.phases)
    assert (inherited.seed, scratch.seed) == (progressive.seed, 5)
    assert inherited.data == progressive.data
