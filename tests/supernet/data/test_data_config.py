"""Data configs are checked before anything is read, and a wrong one is named in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chanas.errors import ConfigError
from chanas.supernet.data.data_config import DataConfig, validated
from chanas.supernet.training.phases import TrainConfig


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"data": {"augment": {"flop": True}}}, r"unknown key 'data.augment.flop'; known here: flip, min_crop_area"),
        ({"batchsize": 3}, r"unknown key 'batchsize'; known here: .*batch_size"),
        ({"phases": [{"name": "a", "steps": 1, "base_lr": 1, "kernels": 3}]}, r"unknown key 'phases.0.kernels'; known"),
        ({"phases": [{"name": "a", "steps": 1}]}, r"key 'phases.0.base_lr' is missing"),
        ({"phases": [{"name": "a", "base_lr": 1}]}, r"phases.0: phase 'a' needs either steps or epochs"),
        ({"phases": []}, r"phases: .*at least 1"),
        ({"batch_size": 1}, r"batch_size: .*greater than or equal to 2, got 1"),
        ({"batch_size": "many"}, r"batch_size: .*, got 'many'"),
        ({"strategy": "random"}, r"strategy: .*'progressive' or 'sandwich', got 'random'"),
        ({"data": {"std": [1, 0, 1]}}, r"data: std must be positive"),
        ({"data": {"splits": {"gap": 0.5, "holdout": 0.5}}}, r"data.splits: gap \+ holdout \+ test must leave a share"),
        ([1, 2], r"expected a mapping of TrainConfig fields, got list"),
    ],
)
def test_a_wrong_config_is_named_in_one_line(data: Any, message: str) -> None:
    phases = {"phases": [{"name": "a", "steps": 1, "base_lr": 1}]}
    with pytest.raises(ConfigError, match=message) as caught:
        TrainConfig.from_json({**phases, **data} if isinstance(data, dict) else data, "my.yaml")
    assert str(caught.value).startswith("my.yaml: ")
    assert "\n" not in str(caught.value)


def test_a_relative_root_is_remembered_as_an_absolute_one() -> None:
    config = validated(DataConfig, {"dataset": "imagefolder", "root": "images"}, "data")
    assert config.root == Path.cwd() / "images"


def test_a_data_config_survives_json() -> None:
    config = DataConfig(dataset="imagefolder", root="images", augment={"flip": True})  # type: ignore[arg-type]
    assert validated(DataConfig, config.model_dump(mode="json"), "data") == config
