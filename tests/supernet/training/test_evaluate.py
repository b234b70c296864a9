"""A loaded supernet judges sub-networks as they would be deployed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from chanas.core.arch import SearchSpace
from chanas.errors import ArchitectureError, CheckpointError, DataError, StageOrderError
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest
from chanas.supernet.data.images import load_data
from chanas.supernet.training import evaluate, train
from chanas.supernet.training.checkpoint import checkpoint_path, splits_path
from chanas.supernet.training.evaluate import EvaluationImages, SupernetEvaluator
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.train import train_supernet

MakeConfig = Callable[..., TrainConfig]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_space: SearchSpace) -> RunDirectory:
    """Sixty steps on the digits: better than chance, and different sub-networks differ."""
    run = RunDirectory(tmp_path_factory.mktemp("trained"))
    choices = dict.fromkeys(("kernel_sizes", "expand_ratios", "depths", "width_multipliers", "resolutions"), "all")
    config = TrainConfig.from_json(
        {
            "phases": [{"name": "all", "steps": 60, "base_lr": 0.05, "num_subnets": 2, **choices}],
            "batch_size": 32,
            "gap_batch_size": 8,
            "recalibration_images": 200,
            "optimizer": {"lr_batch_size": 32},
        }
    )
    train_supernet(run, tiny_space, config, progress=False)
    return run


@pytest.fixture
def copy(trained: RunDirectory, tmp_path: Path) -> RunDirectory:
    """The trained run, free to be damaged."""
    run = RunDirectory(tmp_path / "copy")
    run.supernet.mkdir(parents=True)
    for path in (checkpoint_path(trained), splits_path(trained)):
        (run.supernet / path.name).write_bytes(path.read_bytes())
    return run


def test_a_loaded_supernet_knows_its_task(trained: RunDirectory, tiny_space: SearchSpace) -> None:
    found = SupernetEvaluator.load(trained)
    assert found.space == tiny_space
    assert (found.num_classes, found.class_names) == (10, tuple("0123456789"))
    assert found.finished
    assert found.digest == file_digest(checkpoint_path(trained))
    assert found.preprocess(12).resolution == 12


def test_accuracy_is_that_of_the_extracted_network_on_the_same_images(trained: RunDirectory) -> None:
    found = SupernetEvaluator.load(trained)
    for architecture in (found.space.smallest, found.space.largest):
        network = found.extract(architecture)
        assert not network.training
        images, labels = found.images("holdout", architecture.resolution)
        with torch.no_grad():
            right = network(torch.from_numpy(images)).argmax(1).numpy() == labels
        assert found.top1(architecture) == pytest.approx(right.mean(), abs=1 / len(labels))
        assert right.mean() > 0.3  # chance is 0.1
        assert found.top1(architecture, max_images=50) == pytest.approx(right[:50].mean(), abs=1 / 50)


def test_statistics_are_recalibrated_on_train_images_of_the_resolution(trained: RunDirectory) -> None:
    found = SupernetEvaluator.load(trained)
    network = found.extract(found.space.largest)
    images = torch.from_numpy(found.images("train", found.space.largest.resolution)[0][:200])
    stem = network.blocks[0].conv  # type: ignore[union-attr]
    mean = stem.conv(images).mean((0, 2, 3))
    torch.testing.assert_close(stem.bn.running_mean, mean, rtol=1e-4, atol=1e-5)


def test_evaluating_again_gives_the_same(trained: RunDirectory) -> None:
    found = SupernetEvaluator.load(trained)
    first = found.top1(found.space.smallest)
    found.top1(found.space.largest)
    assert found.top1(found.space.smallest) == first == SupernetEvaluator.load(trained).top1(found.space.smallest)


def test_large_splits_are_streamed_to_the_same_accuracy(trained: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "MAX_BATCH", 100)
    whole = SupernetEvaluator.load(trained)
    expected = whole.top1(whole.space.largest)
    monkeypatch.setattr(evaluate, "MAX_CACHE_BYTES", 0)
    streamed = SupernetEvaluator.load(trained)
    assert streamed.top1(streamed.space.largest) == expected
    assert streamed._images._cache == {}


def test_images_are_of_the_split(trained: RunDirectory) -> None:
    found = SupernetEvaluator.load(trained)
    images, labels = found.images("test", 12)
    assert images.shape == (359, 3, 12, 12)
    assert images.dtype == np.float32
    np.testing.assert_array_equal(labels, found.data.source.labels[found.data.indices("test")])


def test_the_test_split_is_not_touched_by_holdout_accuracies(trained: RunDirectory) -> None:
    found = SupernetEvaluator.load(trained)
    found.top1(found.space.smallest)
    assert {split for split, *_ in found._images._cache} == {"train", "holdout"}


def test_wrong_questions_are_refused(trained: RunDirectory) -> None:
    found = SupernetEvaluator.load(trained)
    with pytest.raises(DataError, match="'val'"):
        found.top1(found.space.smallest, "val")
    with pytest.raises(ArchitectureError, match="tiny"):
        found.top1(SearchSpace.load("mbv3-32").smallest)


def test_an_unfinished_supernet_works_and_says_so(
    tmp_path: Path, tiny_space: SearchSpace, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "accumulate_gradients", stop)
    run = RunDirectory(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train_supernet(run, tiny_space, make_config(), progress=False)
    found = SupernetEvaluator.load(run)
    assert (found.finished, found.step) == (False, 0)
    assert 0 <= found.top1(tiny_space.smallest) <= 1


def test_a_truncated_checkpoint_is_refused(copy: RunDirectory) -> None:
    whole = checkpoint_path(copy).read_bytes()
    checkpoint_path(copy).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cut short or damaged"):
        SupernetEvaluator.load(copy)


def test_missing_splits_are_refused(copy: RunDirectory) -> None:
    splits_path(copy).unlink()
    with pytest.raises(CheckpointError, match=r"splits file .*splits\.json does not exist"):
        SupernetEvaluator.load(copy)


def test_changed_splits_are_refused(copy: RunDirectory) -> None:
    text = splits_path(copy).read_text()
    splits_path(copy).write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(CheckpointError, match="is not the one of the checkpoint beside it"):
        SupernetEvaluator.load(copy)


def test_no_checkpoint_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(StageOrderError, match="run `chanas train-supernet` first"):
        SupernetEvaluator.load(RunDirectory(tmp_path))


def test_images_kept_in_memory_stay_under_one_limit_for_all(
    tiny_space: SearchSpace, make_config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = EvaluationImages(load_data(make_config().data, 0), torch.device("cpu"))
    monkeypatch.setattr(evaluate, "MAX_CACHE_BYTES", 10 * 12 * 16**2)
    for resolution in (12, 14, 16):
        first = list(images.batches("holdout", resolution, 8))
        assert all(
            torch.equal(a, b) for (a, _), (b, _) in zip(first, images.batches("holdout", resolution, 8), strict=True)
        )
    assert [key[1] for key in images._cache] == [16]


def test_shards_of_a_split_are_the_split(make_config: Callable[..., TrainConfig]) -> None:
    data = load_data(make_config().data, 0)
    parts = [EvaluationImages(data, torch.device("cpu")).batches("holdout", 8, None, (i, 3)) for i in range(3)]
    labels = sorted(int(n) for part in parts for _, batch in part for n in batch)
    assert labels == sorted(data.source.labels[data.indices("holdout")].tolist())
