"""Tar shards are listed once and read at any place; what cannot be used is refused in one line that names it."""

from __future__ import annotations

import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chanas.errors import DataError
from chanas.supernet.data.data_config import DataConfig, LoaderConfig
from chanas.supernet.data.images import ImageData, load_data
from chanas.supernet.data.loader import training_batches
from chanas.supernet.data.shards import expand_braces
from chanas.supernet.data.sources import inspect_source, load_source, named_images
from chanas.supernet.data.splits import SPLITS

from ..tars import png, write_shard


def some(first: int, num: int) -> dict[str, bytes]:
    """Members of samples whose label is that of even and odd."""
    pairs = ({f"{i:04d}.png": png(i), f"{i:04d}.cls": str(i % 2).encode()} for i in range(first, first + num))
    return {name: data for pair in pairs for name, data in pair.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        write_shard(tmp_path / f"s-{number:02d}.tar", some(20 * number, 20))
    return tmp_path


def load(images: Path, **changes: Any) -> ImageData:
    return load_data(DataConfig(**{**named_images(images), **changes}), seed=0)


@pytest.mark.parametrize("name", ["s-{00..02}.tar", "s-{00,01,02}.tar", "."])
def test_images_of_all_shards_are_split_like_any_others(folder: Path, name: str) -> None:
    data = load(folder / name)
    assert data.class_names == ("0", "1")
    assert data.source.labels.tolist() == 30 * [0, 1]
    assert [np.asarray(data.source.image(i))[0, 0, 0] for i in (0, 37, 59)] == [0, 37, 59]
    parts = [data.indices(split) for split in SPLITS]
    assert sorted(np.concatenate(parts).tolist()) == list(range(60))
    again = load(folder / name)
    assert again.splits.digest == data.splits.digest


def test_batches_come_from_worker_processes_too(folder: Path) -> None:
    data = load(folder, num_workers=1)
    (batch,) = training_batches(data, LoaderConfig(4, 2, seed=0), [(0, 8)])
    assert batch.images_nchw.shape == (6, 3, 8, 8)


def test_names_of_classes_lie_beside_the_shards(folder: Path) -> None:
    (folder / "classnames.txt").write_text("even\nodd\n")
    assert load(folder).class_names == ("even", "odd")
    (folder / "classnames.txt").write_text("even\n")
    with pytest.raises(DataError, match="names 1 classes, but labels go from 0 to 1"):
        load(folder)


def test_labels_may_be_names_or_lie_in_json(tmp_path: Path) -> None:
    members = {}
    for i in range(12):
        text = json.dumps({"label": "dog" if i % 2 else "cat", "width": 9}) if i % 3 else ""
        members |= {f"a/{i}.png": png(i), f"a/{i}.json": text.encode()} if text else {f"a/{i}.png": png(i)}
        members |= {} if text else {f"a/{i}.cls": b"dog" if i % 2 else b"cat"}
    data = load_source(DataConfig(dataset="webdataset", root=write_shard(tmp_path / "a.tar", members)))
    assert data.class_names == ("cat", "dog")
    assert data.labels.tolist() == 6 * [0, 1]


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("something was unpickled",))


def test_other_members_are_never_decoded(tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb())
    members = {**some(0, 8), "0000.pyd": bomb, "0001.pickle": bomb, "0002.pth": bomb}
    assert load_source(DataConfig(dataset="webdataset", root=write_shard(tmp_path / "a.tar", members))).class_names


WHOLE = some(0, 8)
FAULTS = {
    "no label": ({**WHOLE, "x.png": png(1), "x.pyd": b""}, r"x of .*a\.tar has no label .* it has: png, pyd"),
    "no image": ({**WHOLE, "x.cls": b"1"}, r"x of .*a\.tar has no image; it has: cls"),
    "two images": ({**WHOLE, "0003.jpg": png(1)}, r"sample 0003 of .* has several images: png, cls, jpg"),
    "cut short": ({**WHOLE, "0003.png": png(1)[:40]}, r"a\.tar/0003 is not an image that can be read"),
    "no image at all": ({**WHOLE, "0003.png": b"GIF"}, r"a\.tar/0003 is not an image that can be read"),
    "one class": ({k: v for k, v in WHOLE.items() if int(k[:4]) % 2}, "has 1 class"),
    "strange label": ({**WHOLE, "0003.json": b"[1]", "0003.cls": b"\xff"}, r"0003\.\w+ of .* is no label"),
    "label of a strange kind": ({"1.png": png(1), "1.json": b'{"label": [1]}'}, "expected a number or a name as label"),
    "nothing": ({"README": b"x"}, "has no image"),
    "empty": ({}, "holds no samples"),
}


def test_shards_that_are_named_after_parts_are_parts(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name, start in (("train-0", 0), ("val-0", 20), ("test-0", 40)):
        write_shard(tmp_path / "set" / f"{name}.tar", some(start, 8))
    source = load(tmp_path / "set").source
    assert source.is_test is not None
    assert source.is_holdout is not None
    assert [source.key(i).partition("/")[0] for i in np.flatnonzero(source.is_test).tolist()] == 8 * ["test-0.tar"]
    assert [source.key(i).partition("/")[0] for i in np.flatnonzero(source.is_holdout).tolist()] == 8 * ["val-0.tar"]


def test_samples_that_cannot_be_used_are_named_at_once_or_left_out(tmp_path: Path) -> None:
    members = {**WHOLE, "x.cls": b"1", "y.png": png(3), "0003.png": b"GIF"}
    config = DataConfig(dataset="webdataset", root=write_shard(tmp_path / "a.tar", members))
    with pytest.raises(DataError, match=r"2 samples .* x of .* y of"):
        load_source(config)
    source, inspection = inspect_source(config.model_copy(update={"skip_bad": True}))
    assert len(source.labels) == 7
    assert list(inspection.bad) == ["a.tar/0003"]
    assert inspection.left_out == {"samples without image or label": 2}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_used_is_named(fault: str, tmp_path: Path) -> None:
    members, says = FAULTS[fault]
    write_shard(tmp_path / "a.tar", members)
    with pytest.raises(DataError, match=says):
        load(tmp_path / "a.tar")


def test_shards_that_are_missing_or_damaged_are_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"s-03\.tar does not exist, one of 4"):
        load(folder / "s-{00..03}.tar")
    whole = (folder / "s-01.tar").read_bytes()
    (folder / "s-01.tar").write_bytes(whole[:5000])
    with pytest.raises(DataError, match=r"shard .*s-01\.tar is not a whole tar file"):
        load(folder)
    with tarfile.open(folder / "s-01.tar", "w:gz"):
        pass
    with pytest.raises(DataError, match=r"s-01\.tar is not a whole tar file without compression"):
        load(folder)


def test_an_image_that_is_replaced_changes_the_digest(folder: Path) -> None:
    before = load(folder).source.digest()
    write_shard(folder / "s-01.tar", {**some(20, 20), "0030.png": png(0) + b"more"})
    assert load(folder).source.digest() != before


def test_braces_multiply() -> None:
    assert expand_braces("a-{08..10}-{x,y}.tar") == [f"a-{n}-{c}.tar" for n in ("08", "09", "10") for c in "xy"]
    assert expand_braces("a.tar") == ["a.tar"]


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    library = pytest.importorskip("webdataset", reason="the library webdataset is not installed")
    with library.ShardWriter(str(tmp_path / "s-%03d.tar"), maxcount=15, verbose=0) as writer:
        for i in range(40):
            image = Image.new("RGB", (8, 8), (i, i, i))
            writer.write({"__key__": f"{i:05d}", "png": image, "cls": i % 2, "json": {"i": i}, "extra.pyd": {"a": i}})
    data = load(tmp_path / "s-{000..002}.tar")
    assert data.source.labels.tolist() == 20 * [0, 1]
    assert np.asarray(data.source.image(33))[0, 0, 0] == 33
