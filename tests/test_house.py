"""tools/house.py: small folders, no two modules that import each other, short functions with few parameters."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_folder_holds_twelve_modules_at_most(house: ModuleType) -> None:
    numbers = house.modules_of_folders()
    assert numbers["chanas/core"] > 0
    assert {folder: n for folder, n in numbers.items() if n > house.MAX_MODULES} == {}


def test_no_two_modules_import_each_other(house: ModuleType) -> None:
    imports = house.imports_of_modules()
    assert "chanas.core.arch" in imports["chanas.core.genome"]
    assert house.circles(imports) == []


def test_every_folder_of_modules_says_what_it_is_for(house: ModuleType) -> None:
    folders = {path.parent for path in house.PACKAGE.rglob("*.py")}
    assert (
        sorted(f.name for f in folders if not (f / "__init__.py").read_text(encoding="utf-8").startswith('"""')) == []
    )


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


def test_no_function_is_long_and_no_public_one_takes_many_parameters(house: ModuleType) -> None:
    assert house.long_functions() == []
    assert house.wide_functions() == []


def test_commands_are_measured_without_their_options(house: ModuleType) -> None:
    commands = house.commands()
    assert {"chanas.commands.search.search", "chanas.commands.lut.check", "chanas.commands.main.demo"} <= commands
    assert "chanas.commands.options.usage_of" not in commands


def test_what_is_too_long_or_too_wide_is_found(house: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "chanas"
    (package / "commands").mkdir(parents=True)
    parameters = ", ".join(f"a{i}" for i in range(10))
    body = "\n".join(["    x = 0"] * 60)
    options = ",\n    ".join(f"a{i}" for i in range(10))
    (package / "a.py").write_text(f"def wide({parameters}):\n    pass\ndef long():\n{body}\n", encoding="utf-8")
    (package / "commands" / "b.py").write_text(
        f"@app.command()\ndef command(\n    {options}\n):\n{body}\n", encoding="utf-8"
    )
    assert house.long_functions(package) == [(61, "chanas.a.long")]
    assert house.wide_functions(package) == [(10, "chanas.a.wide")]


def test_the_figures_are_printed(house: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    house.main()
    told = capsys.readouterr().out
    assert "chanas/prescheduler/kernels/cuda" in told
    assert "0 circles" in told
