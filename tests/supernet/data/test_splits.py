"""Splits are disjoint, stratified, stable, and know which images they were made of."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from chanas.errors import CheckpointError, DataError
from chanas.supernet.data.data_config import DataConfig, SplitFractions
from chanas.supernet.data.image_source import ArraySource
from chanas.supernet.data.sources import load_source
from chanas.supernet.data.splits import SPLITS, load_splits, make_splits, save_splits


def source_of(counts: list[int], num_test: int = 0) -> ArraySource:
    """Classes of the given sizes; the last `num_test` images of each are an official test split."""
    labels = np.repeat(np.arange(len(counts)), counts)
    is_test = np.concatenate([np.arange(n) >= n - num_test for n in counts]) if num_test else None
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 4, 4, 3), dtype=np.uint8)
    return ArraySource("made up", tuple(f"c{i}" for i in range(len(counts))), labels, pixels, is_test=is_test)


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
    message = f"c1 {num_images - num_test}; at least {needed}"
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
    with pytest.raises(DataError, match="40 images then, 40 now; 1 are gone, 1 are new: 7"):
        load_splits(tmp_path / "splits.json", source)


def with_copies(source: ArraySource, copies: dict[int, int]) -> ArraySource:
    """The same, with images replaced by copies of others."""
    for place, original in copies.items():
        source.pixels[place] = source.pixels[original]
    return source


@given(seed=st.integers(0, 9))
def test_exact_copies_lie_in_one_split(seed: int) -> None:
    source = with_copies(source_of([20, 20]), {3: 8, 9: 8, 25: 8, 30: 31})
    splits = make_splits(source, SplitFractions(), seed)
    split_of = {int(i): name for name in SPLITS for i in splits.indices[name]}
    assert sorted(split_of) == list(range(40))
    assert len({split_of[i] for i in (3, 8, 9, 25)}) == len({split_of[i] for i in (30, 31)}) == 1


def test_copies_of_official_test_images_are_not_trained_on() -> None:
    source = with_copies(source_of([20, 20], num_test=5), {2: 19, 30: 39})
    splits = make_splits(source, SplitFractions(), 0)
    assert sorted(splits.indices["test"].tolist()) == [*range(15, 20), *range(35, 40)]
    used = np.concatenate([splits.indices[name] for name in SPLITS])
    assert sorted(set(range(40)) - set(used.tolist())) == [2, 30]


def test_parts_that_are_copies_of_each_other_stay_parts() -> None:
    source = with_copies(source_of([20, 20], num_test=10), {i: i + 10 for i in (*range(10), *range(20, 30))})
    splits = make_splits(source, SplitFractions(), 0)
    assert sum(len(splits.indices[name]) for name in SPLITS) == 40


def test_copies_do_not_make_up_for_too_few_images() -> None:
    with pytest.raises(DataError, match="c1 2; at least 4 different ones"):
        make_splits(with_copies(source_of([20, 4]), {21: 20, 22: 20}), SplitFractions(), 0)


def test_all_classes_with_too_few_images_are_named() -> None:
    with pytest.raises(DataError, match=r"2 of 3 classes of made up have too few images: c0 1, c2 3"):
        make_splits(source_of([1, 9, 3]), SplitFractions(), 0)


def test_an_official_holdout_part_stays_the_holdout_split() -> None:
    source = source_of([20, 20], num_test=5)
    is_holdout = np.isin(np.arange(40), [0, 1, 20, 21])
    splits = make_splits(dataclasses.replace(source, is_holdout=is_holdout), SplitFractions(), 0)
    assert sorted(splits.indices["holdout"].tolist()) == [0, 1, 20, 21]
    assert not {0, 1, 20, 21, *range(15, 20), *range(35, 40)} & set(splits.indices["gap"].tolist())


def test_what_was_gone_and_what_is_new_is_said(tmp_path: Path) -> None:
    save_splits(tmp_path / "splits.json", make_splits(source_of([20, 20]), SplitFractions(), 0))
    source = source_of([20, 20])
    source.pixels[[4, 30]] = 0
    with pytest.raises(DataError, match="2 are gone, 2 are new: 4, 30"):
        load_splits(tmp_path / "splits.json", source)
    fewer = dataclasses.replace(source_of([20, 20]), pixels=source_of([20, 20]).pixels[:39], labels=np.zeros(39, int))
    with pytest.raises(DataError, match="40 images then, 39 now; 1 are gone, 0 are new"):
        load_splits(tmp_path / "splits.json", fewer)


def test_splits_that_know_sizes_alone_still_open(tmp_path: Path, image_folder: Path) -> None:
    source = load_source(DataConfig(dataset="imagefolder", root=image_folder))
    old = dataclasses.replace(
        make_splits(source, SplitFractions(), 0), source_digest=source.old_digest, images=None, schema=1
    )
    save_splits(tmp_path / "splits.json", old)
    assert "images" not in json.loads((tmp_path / "splits.json").read_text())
    assert load_splits(tmp_path / "splits.json", source).digest == old.digest
    Image.new("RGB", (9, 9)).save(image_folder / "dark" / "0.png")
    with pytest.raises(DataError, match="changed"):
        load_splits(tmp_path / "splits.json", load_source(DataConfig(dataset="imagefolder", root=image_folder)))


@pytest.mark.parametrize("content", ["{", "{}", '{"indices": 3}'])
def test_damaged_splits_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "splits.json").write_text(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_splits(tmp_path / "splits.json", source_of([20, 20]))
