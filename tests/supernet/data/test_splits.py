"""Splits are disjoint, stratified, stable, and know which images they were made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.errors import CheckpointError, DataError
from chanas.supernet.data.data_config import DataConfig, SplitFractions
from chanas.supernet.data.sources import ArraySource, load_source
from chanas.supernet.data.splits import SPLITS, load_splits, make_splits, save_splits


def source_of(counts: list[int], num_test: int = 0) -> ArraySource:
    """Classes of the given sizes; the last `num_test` images of each are an official test split."""
    labels = np.repeat(np.arange(len(counts)), counts)
    is_test = np.concatenate([np.arange(n) >= n - num_test for n in counts]) if num_test else None
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 4, 4, 3), dtype=np.uint8)
    return ArraySource("made up", tuple(f"c{i}" for i in range(len(counts))), labels, pixels, is_test)


FRACTIONS = st.builds(SplitFractions, gap=st.floats(0.01, 0.3), holdout=st.floats(0.01, 0.3), test=st.floats(0.01, 0.3))


@given(counts=st.lists(st.integers(4, 60), min_size=2, max_size=5), fractions=FRACTIONS, seed=st.integers(0, 9))
def test_splits_are_disjoint_whole_and_have_every_class(
    counts: list[int], fractions: SplitFractions, seed: int
) -> None:
    source = source_of(counts)
    splits = make_splits(source, fractions, seed)
    together = np.concatenate([splits.indices[name] for name in SPLITS])
    assert sorted(together.tolist()) == list(range(sum(counts)))
    for name in SPLITS:
        assert set(source.labels[splits.indices[name]]) == set(range(len(counts)))


def test_each_class_is_divided_by_the_fractions() -> None:
    source = source_of([100, 200])
    splits = make_splits(source, SplitFractions(gap=0.1, holdout=0.15, test=0.2), 0)
    sizes = {name: np.bincount(source.labels[splits.indices[name]]).tolist() for name in SPLITS}
    assert sizes == {"train": [55, 110], "gap": [10, 20], "holdout": [15, 30], "test": [20, 40]}


def test_the_seed_decides_the_splits() -> None:
    source = source_of([50, 50])
    assert make_splits(source, SplitFractions(), 1).digest == make_splits(source, SplitFractions(), 1).digest
    assert make_splits(source, SplitFractions(), 1).digest != make_splits(source, SplitFractions(), 2).digest


def test_the_splits_of_the_digits_stay_what_they_are() -> None:
    splits = make_splits(load_source(DataConfig()), SplitFractions(), 0)
    assert {name: len(splits.indices[name]) for name in SPLITS} == {
        "train": 990,
        "gap": 179,
        "holdout": 269,
        "test": 359,
    }
    assert splits.indices["test"][:3].tolist() == [464, 625, 93]


def test_an_official_test_split_stays_the_test_split() -> None:
    source = source_of([20, 20], num_test=5)
    splits = make_splits(source, SplitFractions(), 0)
    assert source.is_test is not None
    assert sorted(splits.indices["test"].tolist()) == np.flatnonzero(source.is_test).tolist()


def test_the_first_images_of_a_split_are_of_many_classes() -> None:
    source = source_of([30] * 10)
    assert len(set(source.labels[make_splits(source, SplitFractions(), 0).indices["train"][:40]])) > 5


@pytest.mark.parametrize(("num_images", "num_test", "needed"), [(3, 0, 4), (4, 2, 3)])
def test_a_class_with_too_few_images_is_named(num_images: int, num_test: int, needed: int) -> None:
    source = source_of([20, num_images], num_test)
    message = f"class 'c1' of made up has {num_images - num_test} images; at least {needed} are needed"
    with pytest.raises(DataError, match=message):
        make_splits(source, SplitFractions(), 0)


def test_stored_splits_come_back(tmp_path: Path) -> None:
    source = source_of([20, 20])
    splits = make_splits(source, SplitFractions(), 0)
    save_splits(tmp_path / "splits.json", splits)
    assert load_splits(tmp_path / "splits.json", source).digest == splits.digest


def test_a_changed_data_set_is_noticed(tmp_path: Path) -> None:
    save_splits(tmp_path / "splits.json", make_splits(source_of([20, 20]), SplitFractions(), 0))
    with pytest.raises(DataError, match=r"40 .* 41 "):
        load_splits(tmp_path / "splits.json", source_of([20, 21]))


def test_an_image_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    source = source_of([20, 20])
    save_splits(tmp_path / "splits.json", make_splits(source, SplitFractions(), 0))
    source.pixels[7, 0, 0, 0] ^= 1
    with pytest.raises(DataError, match="40 images as before"):
        load_splits(tmp_path / "splits.json", source)


@pytest.mark.parametrize("content", ["{", "{}", '{"indices": 3}'])
def test_damaged_splits_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "splits.json").write_text(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_splits(tmp_path / "splits.json", source_of([20, 20]))
