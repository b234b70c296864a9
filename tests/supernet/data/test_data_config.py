"""Data configs are checked before anything is read, and a wrong one is named in one line."""

from __future__ import annotations

from pathlib import Path

from chanas.supernet.data.data_config import DataConfig, validated


def test_a_relative_root_is_remembered_as_an_absolute_one() -> None:
    config = validated(DataConfig, {"dataset": "imagefolder", "root": "images"}, "data")
    assert config.root == Path.cwd() / "images"


def test_a_data_config_survives_json() -> None:
    config = DataConfig(dataset="imagefolder", root="images", augment={"flip": True})  # type: ignore[arg-type]
    assert validated(DataConfig, config.model_dump(mode="json"), "data") == config
