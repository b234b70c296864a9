"""chanas/workflows/stages/training.py: what options change in a training config."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chanas.core.arch import SearchSpace
from chanas.errors import CheckpointError, ConfigError, DataError
from chanas.files.run import RunDirectory
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.train import train_supernet as train
from chanas.workflows.stages.training import Changes, plan_supernet, recipe_of


def test_the_gap_weight_changes_and_nothing_else_of_the_objective() -> None:
    config = TrainConfig.load("digits")
    changed = Changes(gap_weight=0.0, seed=3).made_to(config)
    assert (changed.objective.gap_weight, changed.seed) == (0.0, 3)
    assert changed.changed(objective=config.objective.model_dump(), seed=config.seed) == config
    with pytest.raises(ConfigError, match="gap_weight"):
        Changes(gap_weight=-1.0).made_to(config)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of twelve greenish images of 20 × 20 pixels."""
    rng = np.random.default_rng(0)
    for name, low in (("dark", 0), ("light", 100)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(low, low + 60, (20, 20, 3), dtype=np.uint8)
            pixels[..., 1] += 90
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def test_images_without_a_config_get_a_preset_of_their_own(tmp_path: Path, photos: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    lines = plan_supernet(run, changes=Changes(images=photos))
    assert lines[0].startswith("preset     small-images")
    assert "space mbv3-32" in "\n".join(lines)
    assert not run.root.exists()


def test_a_space_without_a_config_keeps_the_recipe_of_the_images(tmp_path: Path, photos: Path) -> None:
    named = recipe_of(RunDirectory(tmp_path / "run"), None, "mbv3", Changes(images=photos), resume=False)
    own = recipe_of(RunDirectory(tmp_path / "run"), None, None, Changes(images=photos), resume=False)
    assert (named.space.name, own.space.name) == ("mbv3", "mbv3-32")
    assert named.config == own.config
    assert named.config.data.mean != TrainConfig.load("digits").data.mean


def test_a_supernet_to_begin_with_keeps_its_normalisation(
    tmp_path: Path, photos: Path, tiny_space: SearchSpace
) -> None:
    init, run = RunDirectory(tmp_path / "init"), RunDirectory(tmp_path / "run")
    phase = {"name": "all", "steps": 1, "base_lr": 0.01}
    data = {"dataset": "digits", "mean": [0.1, 0.2, 0.3]}
    config = TrainConfig.from_json({"phases": [phase], "data": data, "batch_size": 4, "gap_batch_size": 2})
    train(init, tiny_space, config, progress=False)
    recipe = recipe_of(run, None, None, Changes(images=photos, init=init.root), resume=False)
    assert recipe.config.data.mean == (0.1, 0.2, 0.3)
    assert recipe.space == tiny_space


@pytest.mark.parametrize("changes", [Changes(images="x", root=Path("y")), Changes(images="x", dataset="cifar10")])
def test_images_named_twice_are_refused_by_the_options_names(changes: Changes) -> None:
    with pytest.raises(ConfigError, match="got --images and --"):
        changes.named_data()


def test_a_file_is_no_folder_of_images(photos: Path) -> None:
    with pytest.raises(DataError, match="is a file"):
        Changes(images=photos / "dark" / "0.png").named_data()


def test_mistakes_are_told_before_pytorch_is_imported(tmp_path: Path) -> None:
    program = """
import sys
from chanas.commands.process import main
for options in (["--images", "nowhere"], ["--images", "x", "--root", "y"], ["--config", "digit"], ["--space", "moon"]):
    try:
        main(["train-supernet", *options])
    except SystemExit as stop:
        print(stop.code)
print([name for name in ("torch", "tvm") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n1\n1\n1\n[]\n"
    assert done.stderr.count("\n") == 4


@pytest.mark.parametrize("config", [None, "digits"])
def test_a_folder_without_the_kind_of_data_set_in_it_is_refused(
    config: str | None, tmp_path: Path, photos: Path
) -> None:
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(ConfigError, match="--root goes with --dataset KIND"):
        recipe_of(run, config, None, Changes(root=photos), resume=False)
    assert recipe_of(run, None, None, Changes("imagefolder", photos), resume=False).config.data.root == photos


def test_weights_to_begin_with_are_looked_at_when_resuming(tmp_path: Path, tiny_space: SearchSpace) -> None:
    init, run = RunDirectory(tmp_path / "init"), RunDirectory(tmp_path / "run")
    phase = {"name": "all", "steps": 1, "base_lr": 0.01}
    config = TrainConfig.from_json({"phases": [phase], "batch_size": 4, "gap_batch_size": 2})
    for place in (init, run):
        train(place, tiny_space, config, progress=False)
    assert plan_supernet(run, resume=True)
    with pytest.raises(CheckpointError, match="began with other weights"):
        plan_supernet(run, changes=Changes(init=init.root), resume=True)
