"""The plan says what a training is going to do, and what to expect of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chanas.core.arch import SearchSpace
from chanas.files.run import RunDirectory
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.train import plan_supernet, train_supernet

MakeConfig = Callable[..., TrainConfig]


def test_a_plan_counts_images_passes_and_steps(
    run: RunDirectory, tiny_space: SearchSpace, make_config: MakeConfig
) -> None:
    plan = plan_supernet(run, tiny_space, make_config())
    num_train = len(plan.data.indices("train"))
    assert plan.num_passes == pytest.approx(6 * 8 / num_train)
    assert plan.seconds > 0
    text = "\n".join(plan.lines())
    for part in (f"train {num_train}", "holdout 269", "6 steps of 8 + 4 gap images", tiny_space.name, "passes over"):
        assert part in text
    assert not run.root.exists()


def test_the_plan_is_printed_before_anything_is_trained(
    run: RunDirectory, tiny_space: SearchSpace, make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    train_supernet(run, tiny_space, make_config(), progress=True)
    text = capsys.readouterr().err
    assert text.index("splits ") < text.index("6/6 step")


def test_a_continued_training_says_where_it_begins(
    run: RunDirectory, tiny_space: SearchSpace, make_config: MakeConfig
) -> None:
    config = make_config()
    train_supernet(run, tiny_space, config, progress=False)
    plan = plan_supernet(run, tiny_space, config, resume=True)
    assert (plan.start, plan.seconds) == (6, 0.0)
    assert "from step 6" in "\n".join(plan.lines())


def test_few_images_of_a_class_are_told(
    run: RunDirectory, tiny_space: SearchSpace, make_config: MakeConfig, image_folder: Path
) -> None:
    config = make_config(data={"dataset": "imagefolder", "root": str(image_folder)}, gap_batch_size=2)
    text = "\n".join(plan_supernet(run, tiny_space, config).lines())
    assert "import-supernet" in text
