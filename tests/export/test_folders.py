"""chanas/export/folders.py: what an exported network is called, and what may be replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from chanas.compiler.toolchains import CToolchain, find_c_toolchain
from chanas.errors import ConfigError, TargetError
from chanas.export.folders import checked_name, free_name

from .test_c_library import needs_compiler


@pytest.mark.parametrize(("folder", "name", "result"), [("My-net", None, "my_net"), ("My-net", "other", "other")])
def test_a_network_is_called_after_its_folder(folder: str, name: str | None, result: str, tmp_path: Path) -> None:
    assert checked_name(tmp_path / folder, name) == result


def test_only_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("A neural network for C programs, made by `chanas export`.\n\nmore")
    assert checked_name(tmp_path, "net") == "net"
    (tmp_path / "README").write_text("My own.\nfor C programs, made by `chanas export`.")
    with pytest.raises(ConfigError, match="was not made by `chanas export`"):
        checked_name(tmp_path, "net")


@needs_compiler
@pytest.mark.parametrize(
    ("name", "telling"),
    [
        ("math", "header math.h"),
        ("string", "header string.h"),
        ("m", "-lm"),
        ("c", "-lc"),
        ("timer", "timer_create"),
    ],
)
def test_what_the_platform_calls_so_is_not_hidden(name: str, telling: str, tmp_path: Path) -> None:
    toolchain = find_c_toolchain("")
    with pytest.raises(ConfigError, match=f"the name {name} is taken: .*{telling}.*--name my_{name}"):
        free_name(name, name, toolchain, tmp_path)
    assert free_name(name, None, toolchain, tmp_path) == f"net_{name}"


@needs_compiler
@pytest.mark.parametrize("name", ["net", "digits", "x", "template", "first_net"])
def test_other_names_stay(name: str, tmp_path: Path) -> None:
    assert free_name(name, name, find_c_toolchain(""), tmp_path) == name


def test_a_compiler_that_takes_no_name_is_told_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no message"):
        free_name("net", None, CToolchain("false", ("false",), ("ar",), static=False), tmp_path)
