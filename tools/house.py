"""Figures of the package's rooms: modules per folder, circles of imports, long functions, long parameter lists.

Commands are measured without their options: Typer makes one of each parameter, so that there are as many as users may
set; of their lines the signature does not count, and their number of parameters neither.

python tools/house.py
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "chanas"
MAX_MODULES = 12
MAX_LINES = 60
MAX_PARAMETERS = 9

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules_of_folders(package: Path = PACKAGE) -> dict[str, int]:
    """Number of modules by folder, without `__init__.py` and `__main__.py`; `chanas` is the package itself."""
    folders = [path.parent for path in package.rglob("__init__.py")]
    names = {folder.relative_to(package.parent).as_posix(): folder for folder in folders}
    return {name: sum(not p.name.startswith("__") for p in names[name].glob("*.py")) for name in sorted(names)}


@functools.cache
def parsed(file: Path) -> ast.Module:
    """A module's tree, read once: the figures are counted in several walks."""
    return ast.parse(file.read_text(encoding="utf-8"))


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
        for node in ast.walk(parsed(file)):
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


def functions(package: Path = PACKAGE) -> Iterator[tuple[str, Function]]:
    """Every function of the package with a name such as `chanas.core.arch.Architecture.blocks`."""
    for file in sorted(package.rglob("*.py")):
        module = parsed(file)
        yield from _functions(module, name_of(file, package))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield f"{prefix}.{child.name}", child
            yield from _functions(child, f"{prefix}.{child.name}")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}.{child.name}")
        else:
            yield from _functions(child, prefix)


def num_lines(function: Function, *, with_signature: bool = True) -> int:
    """Lines of a function, from `def` (or from its docstring) to its end, without its docstring."""
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if is_docstring else 0
    start = function.lineno if with_signature else first.lineno
    return (function.end_lineno or 0) - start + 1 - docstring


def _is_command(decorator: str) -> bool:
    return "app.command" in decorator or "app.callback" in decorator


def commands(package: Path = PACKAGE) -> set[str]:
    """Names of the functions that Typer makes commands of: decorated with `@app.command` or `@app.callback`, or passed
    to the first."""
    found: set[str] = set()
    for file in sorted((package / "commands").rglob("*.py")):
        module, name = parsed(file), name_of(file, package)
        rooms = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in module.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(module):
            if isinstance(node, Function) and any(_is_command(ast.unparse(d)) for d in node.decorator_list):
                found.add(f"{name}.{node.name}")
            elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("app.command("):
                room, _, function = ast.unparse(node.args[0]).partition(".")
                found.add(f"{rooms[room]}.{function}")
    return found


def long_functions(package: Path = PACKAGE) -> list[tuple[int, str]]:
    """Lines and names of the functions that are too long, the longest first; commands without their signatures."""
    exempt = commands(package)
    lines = [(num_lines(f, with_signature=name not in exempt), name) for name, f in functions(package)]
    return sorted(((n, name) for n, name in lines if n > MAX_LINES), reverse=True)


def wide_functions(package: Path = PACKAGE) -> list[tuple[int, str]]:
    """Parameters and names of the public functions that take too many, the widest first; without commands."""
    exempt = commands(package)
    public = ((name, f) for name, f in functions(package) if not f.name.startswith("_") and name not in exempt)
    widths = [(num_parameters(f), name) for name, f in public]
    return sorted(((n, name) for n, name in widths if n > MAX_PARAMETERS), reverse=True)


def num_parameters(function: Function) -> int:
    """Parameters of a function, without `self` and `cls`."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return sum(name not in ("self", "cls") for name in names)


def main() -> None:
    """Print the figures."""
    for folder, number in modules_of_folders().items():
        print(f"{number:3d} {folder}{'   more than ' + str(MAX_MODULES) if number > MAX_MODULES else ''}")
    found = circles(imports_of_modules())
    print(f"\n{len(found)} circles", *(" <-> ".join(group) for group in found), sep="\n  ")
    long, wide = long_functions(), wide_functions()
    print(f"\n{len(long)} functions over {MAX_LINES} lines", *(f"{n:4d} {name}" for n, name in long), sep="\n  ")
    print(
        f"\n{len(wide)} public functions over {MAX_PARAMETERS} parameters",
        *(f"{n:4d} {name}" for n, name in wide),
        sep="\n  ",
    )


if __name__ == "__main__":
    main()
