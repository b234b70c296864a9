"""tools/house.py: no two modules that import each other, none that is too long."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from tool_modules import load_tool


@pytest.fixture(scope="module")
def house() -> ModuleType:
    return load_tool("house")


def test_no_two_modules_import_each_other(house: ModuleType) -> None:
    imports = house.imports_of_modules()
    assert "chanas.core.arch" in imports["chanas.core.genome"]
    assert house.circles(imports) == []


def test_every_folder_of_modules_says_what_it_is_for(house: ModuleType) -> None:
    folders = {path.parent for path in house.PACKAGE.rglob("*.py")}
    assert (
        sorted(f.name for f in folders if not (f / "__init__.py").read_text(encoding="utf-8").startswith('"""')) == []
    )


def test_the_design_page_draws_the_rooms(house: ModuleType) -> None:
    page = (house.PACKAGE.parent / "docs" / "design.md").read_text(encoding="utf-8")
    assert "    compiler/ " in house.rooms()
    assert f"\n\n{house.rooms()}\n\n" in page, "python tools/house.py --rooms prints the tree of docs/design.md"


def test_a_circle_through_three_modules_is_found(house: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "chanas"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "a": "from chanas.b import x",
        "b": "def late():\n    from chanas import c",
        "c": "import chanas.a",
        "d": "from chanas.a import y",
    }.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    assert house.circles(house.imports_of_modules(package)) == [["chanas.a", "chanas.b", "chanas.c"]]
    assert house.modules_of_folders(package) == {"chanas": 4}


def test_no_module_is_too_long_to_read_in_one_go(house: ModuleType, tmp_path: Path) -> None:
    assert house.long_modules() == []
    (tmp_path / "long.py").write_text("x = 0\n" * (house.MAX_LINES + 1), encoding="utf-8")
    assert [n for n, _ in house.long_modules(tmp_path)] == [house.MAX_LINES + 1]
