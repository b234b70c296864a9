"""The kind of data set at a path, and what is said where its library is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chanas.errors import ConfigError, DataError
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.places import kind_of
from chanas.supernet.data.sources import load_source, named_images
from chanas.supernet.training.phases import TrainConfig
from chanas.workflows.stages.training import Changes


def test_what_lies_at_a_path_says_what_it_is(tmp_path: Path) -> None:
    for place in ("saved/state.json", "parts/dataset_dict.json", "hub/data/train-0.parquet", "tars/a.tar", "cat/1.png"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).touch()
    named = ("saved", "parts", "hub", "hub/data/train-0.parquet", "tars", "tars/a.tar", "b-{0..9}.tar", ".", "none")
    assert [kind_of(tmp_path / name) for name in named] == 4 * ["hf"] + 3 * ["webdataset"] + 2 * ["imagefolder"]


def test_a_set_is_named_by_its_path_or_its_name(tmp_path: Path) -> None:
    config = TrainConfig.load("transfer")
    assert named_images("digits") == {"dataset": "digits"}
    changed = Changes(images=str(tmp_path / "a.tar")).made_to(config).data
    assert (changed.dataset, changed.root) == ("webdataset", tmp_path / "a.tar")
    with pytest.raises(ConfigError, match="--images"):
        Changes("digits", images=tmp_path).made_to(config)


def test_a_missing_library_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'chanas\[hf\]'"):
        load_source(DataConfig(dataset="hf", root=tmp_path))
    for dataset in ("hf", "webdataset"):
        with pytest.raises(DataError, match=f"data set {dataset} needs `root`"):
            load_source(DataConfig(dataset=dataset))
