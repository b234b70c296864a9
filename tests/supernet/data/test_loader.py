"""Batches are a function of (seed, step): the order, the augmentation, the resolution."""

from __future__ import annotations

import dataclasses
import errno
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from chanas.errors import ChanasError, DataError
from chanas.supernet.data import loader
from chanas.supernet.data.data_config import AugmentConfig, DataConfig
from chanas.supernet.data.image_source import ArraySource, ImageSource
from chanas.supernet.data.images import ImageData, load_data
from chanas.supernet.data.loader import (
    Batch,
    LoaderConfig,
    in_memory,
    in_order,
    random_affine,
    shard_rows,
    step_indices,
    training_batches,
    warp,
)

CONFIG = LoaderConfig(batch_size=6, gap_batch_size=2, seed=3)


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return load_data(DataConfig(augment=AugmentConfig(rotation_deg=10, shift=0.1, scale=0.1)), seed=0)


@pytest.fixture
def folder(image_folder: Path) -> ImageData:
    return load_data(DataConfig(dataset="imagefolder", root=image_folder, augment=AugmentConfig(flip=True)), seed=0)


def augment(images: torch.Tensor, resolution: int, config: AugmentConfig, seed: int = 0) -> torch.Tensor:
    affine = random_affine(len(images), config, torch.Generator().manual_seed(seed))
    return warp(images, affine, resolution, config.padding)


def assert_same(one: Batch, other: Batch) -> None:
    assert torch.equal(one.images_nchw, other.images_nchw)
    assert torch.equal(one.labels, other.labels)


def test_every_epoch_sees_every_image_once_in_another_order() -> None:
    indices = np.arange(100, 110)
    epochs = in_order(indices, seed=0, stream=1, start=0, count=30).reshape(3, 10)
    assert all(sorted(epoch) == indices.tolist() for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3


def test_the_order_does_not_depend_on_how_it_is_cut() -> None:
    indices = np.arange(7)
    whole = in_order(indices, 0, 1, 0, 20)
    parts = np.concatenate([in_order(indices, 0, 1, start, 4) for start in range(0, 20, 4)])
    np.testing.assert_array_equal(whole, parts)


def test_a_step_takes_train_images_then_gap_images(digits: ImageData) -> None:
    chosen = step_indices(digits, CONFIG, step=50)
    assert set(chosen[:6].tolist()) <= set(digits.indices("train").tolist())
    assert set(chosen[6:].tolist()) <= set(digits.indices("gap").tolist())
    assert len(chosen) == 8


def test_gap_images_join_the_train_images_on_request(digits: ImageData) -> None:
    config = LoaderConfig(batch_size=1169, gap_batch_size=0, seed=0, add_gap_to_train=True)
    seen = step_indices(digits, config, step=0)
    assert set(seen.tolist()) == {*digits.indices("train").tolist(), *digits.indices("gap").tolist()}


@pytest.mark.parametrize("name", ["digits", "folder"])
def test_batches_from_the_middle_equal_those_of_a_whole_run(name: str, request: pytest.FixtureRequest) -> None:
    data = request.getfixturevalue(name)
    steps = [(step, 16 + 4 * (step % 2)) for step in range(4)]
    whole = list(training_batches(data, CONFIG, steps))
    for one, other in zip(whole[2:], training_batches(data, CONFIG, steps[2:]), strict=True):
        assert_same(one, other)
    assert not torch.equal(whole[0].images_nchw, whole[2].images_nchw)


@pytest.mark.parametrize("name", ["digits", "folder"])
def test_the_resolution_changes_from_step_to_step(name: str, request: pytest.FixtureRequest) -> None:
    batches = training_batches(request.getfixturevalue(name), CONFIG, [(0, 16), (1, 40), (2, 32)])
    assert [tuple(b.images_nchw.shape) for b in batches] == [(8, 3, r, r) for r in (16, 40, 32)]


@given(
    world=st.sampled_from([1, 2, 4]),
    train_share=st.integers(1, 4),
    gap_share=st.integers(0, 2),
    step=st.integers(0, 500),
    resolution=st.sampled_from([16, 32, 40]),
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("name", ["digits", "folder"])
def test_the_shards_of_all_ranks_are_the_batch_of_one(
    name: str,
    request: pytest.FixtureRequest,
    world: int,
    train_share: int,
    gap_share: int,
    step: int,
    resolution: int,
) -> None:
    data = request.getfixturevalue(name)
    config = LoaderConfig(train_share * world, gap_share * world, seed=3)
    steps = [(step, resolution)]
    (whole,) = training_batches(data, config, steps)
    shards = [b for rank in range(world) for b in training_batches(data, config, steps, shard=(rank, world))]
    assert [len(shard.labels) for shard in shards] == [train_share + gap_share] * world
    assert [shard.num_train for shard in shards] == [train_share] * world
    for part in (slice(train_share), slice(train_share, None)):
        images = torch.cat([shard.images_nchw[part] for shard in shards])
        labels = torch.cat([shard.labels[part] for shard in shards])
        of_whole = slice(whole.num_train) if part.start is None else slice(whole.num_train, None)
        assert torch.equal(images, whole.images_nchw[of_whole])
        assert torch.equal(labels, whole.labels[of_whole])


def test_a_shard_takes_its_part_of_the_train_and_of_the_gap_images() -> None:
    config = LoaderConfig(batch_size=8, gap_batch_size=4, seed=0)
    assert [shard_rows(config, (rank, 4)).tolist() for rank in range(4)] == [
        [0, 1, 8],
        [2, 3, 9],
        [4, 5, 10],
        [6, 7, 11],
    ]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", ["digits", "folder"])
def test_batches_on_a_gpu_agree_with_those_of_the_cpu(name: str, request: pytest.FixtureRequest) -> None:
    data, device = request.getfixturevalue(name), torch.device("cuda")
    steps = [(0, 16), (1, 40)]
    for one, other in zip(
        training_batches(data, CONFIG, steps), training_batches(data, CONFIG, steps, device=device), strict=True
    ):
        assert other.images_nchw.device.type == other.labels.device.type == "cuda"
        torch.testing.assert_close(other.images_nchw.cpu(), one.images_nchw, atol=1e-4, rtol=1e-4)
        assert torch.equal(other.labels.cpu(), one.labels)


def test_worker_processes_give_the_same_batches(folder: ImageData) -> None:
    config = folder.config.model_copy(update={"num_workers": 1})
    with_worker = dataclasses.replace(folder, config=config)
    steps = [(0, 16), (1, 24)]
    for one, other in zip(
        training_batches(folder, CONFIG, steps), training_batches(with_worker, CONFIG, steps), strict=True
    ):
        assert_same(one, other)


@pytest.mark.parametrize("size", [(1, 1), (1, 1000), (1000, 1)])
def test_the_narrowest_images_that_are_read_can_be_cropped(image_folder: Path, size: tuple[int, int]) -> None:
    for path in image_folder.rglob("*.png"):
        Image.effect_noise(size, 50).save(path)
    data = load_data(DataConfig(dataset="imagefolder", root=image_folder, augment=AugmentConfig(flip=True)), seed=0)
    (batch,) = training_batches(data, LoaderConfig(8, 0, seed=0), [(0, 16)])
    assert batch.images_nchw.shape == (8, 3, 16, 16)
    assert data.images([0], 16).shape == (1, 3, 16, 16)


def without_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loader, "_SHARED_BYTES", 1 << 62)


def without_locks(patch: pytest.MonkeyPatch) -> None:
    def lock() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(multiprocessing, "Lock", lock)


def with_few_locks(patch: pytest.MonkeyPatch) -> None:
    """Room for the locks that are tried or for the loader's, not for both at once."""
    made = weakref.WeakSet[Any]()
    lock = multiprocessing.Lock

    def counted() -> Any:
        made.add(found := lock())
        return found

    def event() -> Any:
        assert not made
        return multiprocessing.get_context().Event()

    patch.setattr(multiprocessing, "Lock", counted)
    patch.setattr(torch.multiprocessing, "Event", event)


@pytest.mark.parametrize(
    ("lack", "said"),
    [(without_room, ""), (without_locks, "no shared memory for 1 processes"), (with_few_locks, "")],
)
def test_without_shared_memory_batches_are_the_same(
    folder: ImageData,
    lack: Callable[[pytest.MonkeyPatch], None],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = folder.config.model_copy(update={"num_workers": 1})
    (whole,) = training_batches(folder, CONFIG, [(0, 16)])
    lack(monkeypatch)
    (batch,) = training_batches(dataclasses.replace(folder, config=config), CONFIG, [(0, 16)])
    assert_same(batch, whole)
    assert said in capsys.readouterr().err


class _Endless:
    """A source whose images are never read to its end, as of a disk that is gone."""

    def __init__(self, source: ImageSource, place: Path) -> None:
        self._source, self._place, self.labels = source, place, source.labels
        os.mkfifo(place)

    def image(self, index: int) -> Image.Image:
        self._place.with_suffix(".pid").write_text(str(os.getpid()))
        self._place.read_bytes()
        raise AssertionError


@pytest.mark.usefixtures("default_signals")
def test_processes_that_hang_end_with_the_loop(folder: ImageData, tmp_path: Path) -> None:
    source = _Endless(folder.source, tmp_path / "endless")
    config = folder.config.model_copy(update={"num_workers": 1})
    endless = dataclasses.replace(folder, source=cast(ImageSource, source), config=config)
    batches = training_batches(endless, CONFIG, [(0, 16)])
    threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    pid = int((tmp_path / "endless.pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_image_that_breaks_during_training_is_named(folder: ImageData, image_folder: Path, num_workers: int) -> None:
    data = dataclasses.replace(folder, config=folder.config.model_copy(update={"num_workers": num_workers}))
    for path in image_folder.rglob("*.png"):
        path.write_bytes(b"gone")
    with pytest.raises(DataError, match=r"\.png .* is not an image that can be read") as caught:
        list(training_batches(data, CONFIG, [(0, 16)]))
    assert "\n" not in str(caught.value)


class _Deadly:
    """A source whose images end the process that asks for them, as running out of memory would."""

    def image(self, index: int) -> Image.Image:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_worker_process_that_is_killed_is_reported_in_one_line(folder: ImageData) -> None:
    config = folder.config.model_copy(update={"num_workers": 1})
    data = dataclasses.replace(folder, source=cast(ImageSource, _Deadly()), config=config)
    with pytest.raises(ChanasError, match="num_workers") as caught:
        list(training_batches(data, CONFIG, [(0, 16)]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["digits", "folder"])
def test_batches_leave_the_global_random_state_alone(name: str, request: pytest.FixtureRequest) -> None:
    data = request.getfixturevalue(name)
    state = torch.get_rng_state()
    list(training_batches(data, CONFIG, [(0, 16)]))
    assert torch.equal(torch.get_rng_state(), state)


def test_no_augmentation_leaves_images_as_they_are() -> None:
    images = torch.rand(3, 3, 12, 12)
    torch.testing.assert_close(augment(images, 12, AugmentConfig()), images)


def test_a_flip_mirrors_about_half_of_the_images() -> None:
    images = torch.rand(60, 1, 8, 8)
    out = augment(images, 8, AugmentConfig(flip=True))
    mirrored = torch.isclose(out, images.flip(3), atol=1e-4).flatten(1).all(1)
    kept = torch.isclose(out, images, atol=1e-4).flatten(1).all(1)
    assert bool((mirrored | kept).all())
    assert 15 < int(mirrored.sum()) < 45


def test_augmentation_keeps_most_of_a_centred_shape() -> None:
    images = torch.zeros(40, 1, 32, 32)
    images[:, :, 12:20, 12:20] = 1.0
    config = AugmentConfig(rotation_deg=15, shift=0.1, scale=0.1)
    out = augment(images, 32, config)
    assert bool(((out.sum((1, 2, 3)) / 64 - 1).abs() < 0.3).all())
    assert len({tuple(row) for row in out.flatten(1).tolist()}) == 40


# ---- sets that are decoded once -------------------------------------------------------------------------------------
def test_images_of_one_size_are_decoded_once_and_stay_the_same(image_folder: Path) -> None:
    for path in image_folder.rglob("*.png"):
        Image.open(path).resize((20, 20)).save(path)
    data = load_data(DataConfig(dataset="imagefolder", root=image_folder), seed=0)
    held = in_memory(data)
    indices = data.indices("train")
    np.testing.assert_array_equal(held.images(indices, 16), data.images(indices, 16))
    assert isinstance(held.source, ArraySource)
    assert held.splits.digest == data.splits.digest
    assert in_memory(held) is held
    (batch,) = training_batches(held, CONFIG, [(0, 16)])
    assert batch.images_nchw.shape == (8, 3, 16, 16)


def test_images_of_several_sizes_cannot_be_kept_so(folder: ImageData) -> None:
    with pytest.raises(DataError, match="one size"):
        in_memory(folder)
