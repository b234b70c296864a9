"""chanas/export/folders.py: what an exported network is called, and what may be replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from chanas.errors import ConfigError
from chanas.export.folders import checked_name


@pytest.mark.parametrize(("folder", "name", "result"), [("My-net", None, "my_net"), ("My-net", "other", "other")])
def test_a_network_is_called_after_its_folder(folder: str, name: str | None, result: str, tmp_path: Path) -> None:
    assert checked_name(tmp_path / folder, name) == result


def test_only_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("A neural network for C programs, made by `chanas export`.\n\nmore")
    assert checked_name(tmp_path, "net") == "net"
    (tmp_path / "README").write_text("My own.\nfor C programs, made by `chanas export`.")
    with pytest.raises(ConfigError, match="was not made by `chanas export`"):
        checked_name(tmp_path, "net")
