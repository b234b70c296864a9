"""The package's rooms: what each is for, modules per folder, circles of imports, long modules.

python tools/house.py           figures
python tools/house.py --rooms   the tree of docs/design.md
"""

from __future__ import annotations

import ast
import sys
import textwrap
import tomllib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "chanas"
MAX_LINES = 600


def modules_of_folders(package: Path = PACKAGE) -> dict[str, int]:
    """Number of modules by folder, without `__init__.py` and `__main__.py`; `chanas` is the package itself."""
    folders = [path.parent for path in package.rglob("__init__.py")]
    names = {folder.relative_to(package.parent).as_posix(): folder for folder in folders}
    return {name: sum(not p.name.startswith("__") for p in names[name].glob("*.py")) for name in sorted(names)}


def name_of(file: Path, package: Path = PACKAGE) -> str:
    """chanas/core/arch.py -> chanas.core.arch; chanas/core/__init__.py -> chanas.core"""
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of_modules(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Modules of the package that each of its modules imports: those inside functions and for types count, too."""
    files = {name_of(file, package): file for file in package.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, file in files.items():
        found[name] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names} & files.keys()
            elif isinstance(node, ast.ImportFrom) and node.module:
                wholes = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= wholes & files.keys()
                if not wholes <= files.keys():
                    found[name] |= {node.module} & files.keys()
        found[name].discard(name)
    return found


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others: each group of a depth-first search for
    strongly connected components (Tarjan, 1972) that has more than one module."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(imports[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            start = stack.index(name)
            group = stack[start:]
            del stack[start:]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(imports):
        if name not in index:
            visit(name)
    return found


def long_modules(package: Path = PACKAGE) -> list[tuple[int, str]]:
    """Lines and names of the modules that are too long, the longest first."""
    lines = [(len(f.read_text(encoding="utf-8").splitlines()), name_of(f, package)) for f in package.rglob("*.py")]
    return sorted(((n, name) for n, name in lines if n > MAX_LINES), reverse=True)


def rooms(package: Path = PACKAGE) -> str:
    """Folders as a tree, each with the first sentence of its `__init__.py`, in the order of imports."""
    contracts = tomllib.loads((package.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c.get("containers") == [package.name])
    lines: list[str] = []
    for name in (name.strip() for layer in layers for name in layer.split("|")):
        files = sorted((package / name).rglob("__init__.py")) or [package / f"{name}.py"]
        for file in files:
            docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            sentence = " ".join(docstring.split()).partition(". ")[0].removesuffix(".")
            folder = file.parent.relative_to(package)
            label = f"{'    ' * (len(folder.parts) - 1)}{folder.name}/" if file.name == "__init__.py" else name
            lines += textwrap.wrap(sentence, 119, initial_indent=f"    {label:<20} ", subsequent_indent=" " * 25)
    return "\n".join(lines)


def main() -> None:
    """Print the figures, or with `--rooms` the tree."""
    if sys.argv[1:] == ["--rooms"]:
        print(rooms())
        return
    for folder, number in modules_of_folders().items():
        print(f"{number:3d} {folder}")
    found, long = circles(imports_of_modules()), long_modules()
    print(f"\n{len(found)} circles", *(" <-> ".join(group) for group in found), sep="\n  ")
    print(f"\n{len(long)} modules over {MAX_LINES} lines", *(f"{n:4d} {name}" for n, name in long), sep="\n  ")


if __name__ == "__main__":
    main()
