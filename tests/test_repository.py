"""The repository around the package: what is named is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from chanas.core.arch import SearchSpace

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "chanas" / "configs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("file", sorted(CONFIGS.rglob("*.yaml")), ids=relative)
def test_every_config_is_a_mapping(file: Path) -> None:
    assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)


@pytest.mark.parametrize("file", sorted((CONFIGS / "spaces").glob("*.yaml")), ids=relative)
def test_every_space_preset_loads_under_its_file_name(file: Path) -> None:
    assert SearchSpace.load(file) == SearchSpace.load(file.stem)
    assert SearchSpace.load(file).name == file.stem


@pytest.mark.parametrize("name", ["supernet", "prescheduler", "search", "configs", "luts"])
def test_the_links_at_the_root_lead_into_the_package(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == ROOT / "chanas" / name
    assert link.is_dir()


def test_the_method_page_names_files_that_are_there() -> None:
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(chanas/[\w/.-]+)`", page))
    assert len(named) > 20
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


@pytest.mark.parametrize(
    ("kind", "numbers"), [("Equations", range(1, 6)), ("Tables", range(1, 4)), ("Figures", range(1, 14))]
)
def test_the_method_page_has_every_equation_table_and_figure(kind: str, numbers: range) -> None:
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    section = page.partition(f"## {kind}\n")[2].partition("\n## ")[0]
    assert [int(n) for n in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)] == list(numbers)


def test_every_dependency_has_a_constraint() -> None:
    def canonical(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    constrained = {canonical(line.partition("==")[0]) for line in lines}
    required = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
    names = [re.match(r"[\w.-]+", r) for r in required]
    assert sorted(m[0] for m in names if m and canonical(m[0]) not in constrained) == []


def test_the_changelog_has_the_version() -> None:
    assert f"\n## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("[", "")
