"""README.md, CONTRIBUTING.md and docs/: files, functions and headings that they name are there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = ("chanas", "benchmarks", "examples", "tests", "tools")
NOT_WRITTEN_BY_US = {"NAME", "TARGET", "FILE"}
OF_RUNS = ("README.md", "formats.md", "training.md")  # their folders are those of a run directory
PACKAGE = ROOT / "chanas"


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def code_files() -> tuple[str, ...]:
    return tuple(
        relative(p) for folder in CODE for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".yaml", ".c")
    )


@functools.cache
def words() -> frozenset[str]:
    """Every word of the code."""
    texts = [(ROOT / file).read_text(encoding="utf-8") for file in (*code_files(), "pyproject.toml")]
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


@functools.cache
def folders() -> tuple[str, ...]:
    inside = (p for top in CODE for p in (ROOT / top).rglob("*") if p.is_dir() and "__pycache__" not in p.parts)
    return (*CODE, "docs", "configs", "luts", *(relative(folder) for folder in inside))


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def quoted(page: Path) -> list[str]:
    """What the page has between backticks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def files_called(name: str) -> list[str]:
    """`codesign.py`, `chanas/bundle/codesign.py` -> the files that this can mean."""
    return [file for file in code_files() if file == name or file.endswith(f"/{name}")]


def defines(file: str, name: str) -> bool:
    """Has a module this function, class, constant, attribute of a class (`A.b`), or key of a dict?"""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    body: list[ast.stmt] | None = tree.body
    for part in name.split("."):
        found = next((node for node in body or [] if part in _names(node)), None)
        if found is None:
            keys = {
                k.value
                for d in ast.walk(tree)
                if isinstance(d, ast.Dict)
                for k in d.keys
                if isinstance(k, ast.Constant)
            }
            return name in keys
        body = found.body if isinstance(found, ast.ClassDef) else None
    return True


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def anchors(page: Path) -> set[str]:
    """What links to headings are called, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_modules_that_a_page_names_are_there(page: Path) -> None:
    named = {text for text in quoted(page) if re.fullmatch(r"[\w./-]+\.py", text)}
    assert sorted(name for name in named if not files_called(name)) == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_paths_that_a_page_names_are_there(page: Path) -> None:
    named = {
        text for text in quoted(page) if re.fullmatch(r"(chanas|benchmarks|docs|examples|tests|configs)/[\w./-]*", text)
    }
    ours = {name for name in named if Path(name).stem not in NOT_WRITTEN_BY_US}
    assert sorted(name for name in ours if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_a_page_names_one_module_not_several(page: Path) -> None:
    named = {text for text in quoted(page) if re.fullmatch(r"[\w./-]+\.py", text) and not text.startswith("__")}
    assert {name: files_called(name) for name in named if len(files_called(name)) > 1} == {}


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in OF_RUNS], ids=relative)
def test_folders_that_a_page_names_are_there(page: Path) -> None:
    named = {text.rstrip("/") for text in quoted(page) if re.fullmatch(r"[\w-]+(/[\w-]+)*/", text)}
    assert sorted(name for name in named if not any(f"/{folder}".endswith(f"/{name}") for folder in folders())) == []


@pytest.mark.parametrize("kind", ["Equations", "Tables", "Figures", "Sections"])
def test_each_row_of_the_method_page_leads_to_a_file_or_to_another_row(kind: str) -> None:
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[-1] for line in section.splitlines()[2:] if line.startswith("|")]
    assert len(rows) > 2
    somewhere = re.compile(r"`[\w/]+/[\w.-]+`|\bas figures? \d|equation \d above")
    assert [row for row in rows if not somewhere.search(row)] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_what_a_page_says_a_module_has_is_in_it(page: Path) -> None:
    said = re.findall(r"`([A-Za-z_][\w.]*)`(?:,? (?:and )?`([A-Za-z_][\w.]*)`)? (?:in|of) `([\w/]+\.py)`", prose(page))
    lacking = [
        f"{file} has no {name}"
        for one, other, file in said
        for name in (one, other)
        if name and not any(defines(found, name) for found in files_called(file))
    ]
    assert lacking == []


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "scaling.md"], ids=relative)  # its names are quantities
def test_classes_and_functions_that_a_page_names_are_in_the_code(page: Path) -> None:
    named = {text.removesuffix("()") for text in quoted(page) if re.fullmatch(r"[A-Za-z_][A-Za-z_.]*(\(\))?", text)}
    figures = re.findall(r"^\| `(\w+)` \|.*\| `\w+: [^`]+` \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    whole = {name.replace("NAME", "") for name in named - set(figures)}  # NAME stands for any name
    assert sorted(name for name in whole if not set(re.findall(r"\w+", name)) <= words()) == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    dead = []
    for link in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(page)):
        file, _, anchor = link.partition("#")
        if ":" in file:
            continue
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("number", range(1, 6))
def test_an_equation_leads_to_functions_and_their_modules_name_it(number: int) -> None:
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {number} \|.*$", page.partition("\n## Tables")[0], re.MULTILINE)
    files = re.findall(r"`[\w.]+` in `([\w/]+\.py)`", row)
    assert files
    assert any(re.search(rf"equation {number}\b", (ROOT / file).read_text(encoding="utf-8")) for file in files)
