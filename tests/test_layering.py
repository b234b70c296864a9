"""The direction of imports, as docs/design.md has it, read from the source without running it."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "chanas"
MODULES = sorted(PACKAGE.rglob("*.py"))
STAGES = ("supernet", "prescheduler", "search", "report")

TORCH = {"torch", "torchvision"}
TORCH_ANYWHERE = (
    "network/static.py",
    "bundle/",
    "supernet/",
    "search/accuracy/predictor.py",
    "prescheduler/workloads/cases.py",
    "prescheduler/tables/eager.py",
    "prescheduler/tuning/offline/fit.py",
    "prescheduler/tuning/offline/networks.py",
    "prescheduler/models/sources/torch_models.py",
)
TORCH_IN_FUNCTIONS = ("workflows/", "devices/cores.py")
TVM = {"tvm", "tvm_ffi"}
TVM_ANYWHERE = ("prescheduler/", "bundle/runtimes.py", "bundle/tuned.py")
TVM_IN_FUNCTIONS = ("bundle/benchmark.py", "core/target.py", "devices/")
PURE = (
    "core/arch.py",
    "core/genome.py",
    "core/layouts.py",
    "core/units.py",
    "operators/epilogues.py",
    "operators/transposed.py",
    "operators/winograd.py",
    "operators/workload.py",
    "errors.py",
)


@dataclass(frozen=True)
class Import:
    """A name such as `chanas.search.evolution.pareto`; `lazy` inside a function, `typing_only` under TYPE_CHECKING."""

    name: str
    lazy: bool
    typing_only: bool


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def imports(file: Path) -> tuple[Import, ...]:
    return tuple(_imports(parsed(file), file, lazy=False, typing_only=False))


def _imports(node: ast.AST, file: Path, lazy: bool, typing_only: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, lazy, typing_only) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        origin = node.module or ""
        if node.level:
            parents = ("chanas", *file.relative_to(PACKAGE).parts)[: -node.level]
            origin = ".".join((*parents, *filter(None, [node.module])))
        yield from (Import(f"{origin}.{alias.name}", lazy, typing_only) for alias in node.names)
    if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
        for child in node.body:
            yield from _imports(child, file, lazy, typing_only=True)
        for child in node.orelse:
            yield from _imports(child, file, lazy, typing_only)
        return
    inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, file, inside, typing_only)


def place(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def is_one_of(file: Path, places: tuple[str, ...]) -> bool:
    return any(place(file) == p or (p.endswith("/") and place(file).startswith(p)) for p in places)


def top(name: str) -> str:
    return name.partition(".")[0]


each_module = pytest.mark.parametrize("file", MODULES, ids=place)


@each_module
def test_a_stage_imports_no_other_stage(file: Path) -> None:
    stage = place(file).partition("/")[0]
    if stage not in STAGES:
        return
    others = tuple(f"chanas.{other}" for other in STAGES if other != stage)
    assert [i.name for i in imports(file) if f"{i.name}.".startswith(tuple(f"{o}." for o in others))] == []


@each_module
def test_nothing_imports_the_command_line(file: Path) -> None:
    if is_one_of(file, ("commands/", "__main__.py")):
        return
    assert [i.name for i in imports(file) if f"{i.name}.".startswith("chanas.commands.")] == []


@each_module
def test_only_the_command_line_and_the_service_import_workflows(file: Path) -> None:
    if is_one_of(file, ("commands/", "service/", "workflows/")):
        return
    assert [i.name for i in imports(file) if f"{i.name}.".startswith("chanas.workflows.")] == []


@each_module
def test_torch_is_imported_where_it_is_needed_only(file: Path) -> None:
    if is_one_of(file, TORCH_ANYWHERE):
        return
    found = [i for i in imports(file) if top(i.name) in TORCH and not i.typing_only]
    if is_one_of(file, TORCH_IN_FUNCTIONS):
        found = [i for i in found if not i.lazy]
    assert [i.name for i in found] == []


@each_module
def test_tvm_is_imported_where_it_is_needed_only(file: Path) -> None:
    if is_one_of(file, TVM_ANYWHERE):
        return
    found = [i for i in imports(file) if top(i.name) in TVM and not i.typing_only]
    if is_one_of(file, TVM_IN_FUNCTIONS):
        found = [i for i in found if not i.lazy]
    assert [i.name for i in found] == []


@pytest.mark.parametrize("name", PURE)
def test_pure_data_imports_neither_torch_nor_tvm(name: str) -> None:
    assert [i.name for i in imports(PACKAGE / name) if top(i.name) in TORCH | TVM] == []


@each_module
def test_no_module_uses_eval_or_pickle(file: Path) -> None:
    tree = parsed(file)
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert called.isdisjoint({"eval", "exec"})
    assert {top(i.name) for i in imports(file)}.isdisjoint({"pickle", "cloudpickle", "dill", "joblib", "shelve"})


HELP = """
import sys
sys.argv = ["chanas", "--help"]
from chanas.commands.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("imported:", *sorted({"torch", "torchvision", "tvm", "sklearn", "matplotlib"} & set(sys.modules)))
"""


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "train-supernet" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "imported:"
