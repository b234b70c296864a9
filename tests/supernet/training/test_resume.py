"""Images and runs that were moved are found again where their content is the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from chanas.core.arch import SearchSpace
from chanas.errors import DataError, StageOrderError
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest
from chanas.supernet.training.checkpoint import checkpoint_path, splits_path
from chanas.supernet.training.evaluate import SupernetEvaluator
from chanas.supernet.training.finetune import Finetuning, finetune
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.resume import stored_setup, take_images
from chanas.supernet.training.train import train_supernet


@pytest.fixture
def trained(
    run: RunDirectory, image_folder: Path, tiny_space: SearchSpace, make_config: Callable[..., TrainConfig]
) -> RunDirectory:
    """A run on an image folder, which was moved since."""
    config = make_config(data={"dataset": "imagefolder", "root": str(image_folder)})
    train_supernet(run, tiny_space, config, progress=False)
    image_folder.rename(image_folder.with_name("moved"))
    return run


def test_images_that_moved_are_missed_until_their_new_place_is_named(trained: RunDirectory, image_folder: Path) -> None:
    with pytest.raises(DataError, match=rf"chanas eval {trained.root} --images"):
        SupernetEvaluator.load(trained)
    digest = file_digest(checkpoint_path(trained))
    take_images(trained, image_folder.with_name("moved"))
    evaluator = SupernetEvaluator.load(trained)
    assert evaluator.data.source.image(0).size == (24, 20)
    assert evaluator.digest == digest
    image_folder.with_name("moved").rename(image_folder)
    take_images(trained, image_folder)
    assert not splits_path(trained).with_name("images.json").exists()


def test_images_that_are_others_are_not_taken_for_the_runs(trained: RunDirectory, image_folder: Path) -> None:
    there = image_folder.with_name("moved")
    status = (there / "dark" / "0.png").stat()
    Image.new("RGB", (5, 5)).save(there / "dark" / "0.png")
    assert (there / "dark" / "0.png").stat().st_mtime_ns != status.st_mtime_ns
    with pytest.raises(DataError, match=r"16 images then, 16 now; 1 are gone, 1 are new: dark/0\.png"):
        take_images(trained, there)
    (there / "dark" / "0.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"16 images then, 15 now; .* cannot be used now: dark/0\.png"):
        take_images(trained, there)
    assert not splits_path(trained).with_name("images.json").exists()
    with pytest.raises(StageOrderError):
        take_images(RunDirectory(trained.root / "none"), there)


def test_a_run_is_resumed_with_images_that_moved(
    trained: RunDirectory, image_folder: Path, tiny_space: SearchSpace
) -> None:
    config = stored_setup(trained)[1].changed(data={"root": str(image_folder.with_name("moved"))})
    assert train_supernet(trained, tiny_space, config, resume=True, progress=False).resumed_from == 6
    assert SupernetEvaluator.load(trained).data.config.root == image_folder.with_name("moved")
    assert train_supernet(trained, *stored_setup(trained), resume=True, progress=False).resumed_from == 6


def test_fine_tuning_on_the_supernets_own_images_keeps_its_splits(
    trained: RunDirectory, image_folder: Path, tiny_space: SearchSpace
) -> None:
    architecture, there = tiny_space.smallest, image_folder.with_name("moved")
    finetune(trained, architecture, Finetuning(epochs=2, images=there), progress=False)
    own = trained.finetuned(architecture.key, False)
    assert json.loads(splits_path(own).read_text()) == json.loads(splits_path(trained).read_text())
    again = there.rename(there.with_name("again"))
    summary = finetune(trained, architecture, Finetuning(epochs=2, images=again), resume=True, progress=False)
    assert summary.training.resumed_from == summary.training.num_steps
    assert SupernetEvaluator.load(own).data.config.root == again


def test_a_run_that_moved_is_a_run(trained: RunDirectory, image_folder: Path) -> None:
    take_images(trained, image_folder.with_name("moved"))
    shutil.move(trained.root, trained.root.with_name("elsewhere"))
    assert SupernetEvaluator.load(RunDirectory(trained.root.with_name("elsewhere"))).num_classes == 2


def test_new_splits_forget_where_images_lay(trained: RunDirectory, image_folder: Path, tiny_space: SearchSpace) -> None:
    there = image_folder.with_name("moved")
    take_images(trained, there)
    shutil.copytree(there, image_folder)
    train_supernet(trained, *stored_setup(trained), overwrite=True, progress=False)
    assert SupernetEvaluator.load(trained).data.config.root == image_folder
