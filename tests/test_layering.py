"""The direction of imports, as docs/design.md has it, read from the source without running it."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "chanas"
MODULES = sorted(PACKAGE.rglob("*.py"))
STAGES = ("supernet", "prescheduler", "search", "report")

TORCH = {"torch", "torchvision"}
TORCH_ANYWHERE = (
    "network/state_dicts.py",
    "network/static.py",
    "bundle/",
    "supernet/",
    "search/accuracy/perceptrons.py",
    "compiler/cases.py",
    "compiler/emulation.py",
    "prescheduler/tables/eager.py",
    "prescheduler/tuning/offline/networks.py",
    "models/sources/bundles.py",
    "models/sources/libraries.py",
    "models/sources/reference_operators.py",
    "models/sources/torch_models.py",
)
TORCH_IN_FUNCTIONS = ("workflows/", "devices/cores.py")
TVM = {"tvm", "tvm_ffi"}
TVM_ANYWHERE = ("compiler/", "models/", "bundle/runtimes.py", "bundle/tuned.py")
TVM_IN_FUNCTIONS = (
    "bundle/benchmark.py",
    "core/target.py",
    "devices/",
    "measuring/worker/",
    "measuring/remote/",
)
PURE = (
    "core/arch.py",
    "core/genome.py",
    "core/units.py",
    "operators/epilogues.py",
    "operators/grouped.py",
    "operators/precision.py",
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


def modules_except(places: tuple[str, ...]) -> list[Path]:
    """Where a rule holds: everywhere but in these places."""
    return [file for file in MODULES if not is_one_of(file, places)]


def offenders(found: Iterable[tuple[Path, Iterable[str]]]) -> dict[str, list[str]]:
    """Modules that break a rule, with what breaks it."""
    return {place(file): broken for file, names in found if (broken := sorted(names))}


def imported_from(file: Path, packages: tuple[str, ...]) -> list[str]:
    return [i.name for i in imports(file) if f"{i.name}.".startswith(tuple(f"{package}." for package in packages))]


def imported_at_run_time(file: Path, packages: set[str], in_functions: tuple[str, ...]) -> list[str]:
    """Names from these packages; those that functions import count where functions may not."""
    found = [i for i in imports(file) if top(i.name) in packages and not i.typing_only]
    return [i.name for i in found if not (i.lazy and is_one_of(file, in_functions))]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_no_other_stage(stage: str) -> None:
    others = tuple(f"chanas.{other}" for other in STAGES if other != stage)
    files = [file for file in MODULES if place(file).startswith(f"{stage}/")]
    assert files
    assert offenders((file, imported_from(file, others)) for file in files) == {}


def test_nothing_imports_the_command_line() -> None:
    files = modules_except(("commands/", "__main__.py"))
    assert offenders((file, imported_from(file, ("chanas.commands",))) for file in files) == {}


def test_only_the_command_line_and_the_service_import_workflows() -> None:
    files = modules_except(("commands/", "service/", "workflows/"))
    assert offenders((file, imported_from(file, ("chanas.workflows",))) for file in files) == {}


def test_torch_is_imported_where_it_is_needed_only() -> None:
    files = modules_except(TORCH_ANYWHERE)
    assert offenders((file, imported_at_run_time(file, TORCH, TORCH_IN_FUNCTIONS)) for file in files) == {}


def test_tvm_is_imported_where_it_is_needed_only() -> None:
    files = modules_except(TVM_ANYWHERE)
    assert offenders((file, imported_at_run_time(file, TVM, TVM_IN_FUNCTIONS)) for file in files) == {}


@pytest.mark.parametrize("name", PURE)
def test_pure_data_imports_neither_torch_nor_tvm(name: str) -> None:
    assert [i.name for i in imports(PACKAGE / name) if top(i.name) in TORCH | TVM] == []


def called(file: Path) -> set[str]:
    nodes = ast.walk(parsed(file))
    return {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def test_no_module_uses_eval_or_pickle() -> None:
    pickles = {"pickle", "cloudpickle", "dill", "joblib", "shelve"}
    assert offenders((file, called(file) & {"eval", "exec"}) for file in MODULES) == {}
    assert offenders((file, {top(i.name) for i in imports(file)} & pickles) for file in MODULES) == {}


HELP = """
import sys
sys.argv = ["chanas", "--help"]
from chanas.commands.process import main
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
