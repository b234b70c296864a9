"""What commands print for `--help` and for bad input: `golden/COMMAND.txt` holds command lines and what each prints.

A line `$ chanas …` begins a case, its output follows, and last its exit code. `world.py` makes the working directory.
A new case is a new such line; `pytest --update-golden` runs all of them and writes what they print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.core import TyperGroup

from chanas import __version__
from chanas.commands.main import command
from chanas.commands.process import main
from chanas.core.arch import SearchSpace
from chanas.core.target import tvm_version
from chanas.devices import host
from chanas.devices.cores import usable_cores
from chanas.devices.host import load_target

from .world import make_world

GOLDEN = Path(__file__).parent / "golden"


def read_golden(file: Path) -> dict[str, str]:
    """What is printed, by command line."""
    blocks = re.split(r"^\$ ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert blocks[0] == "", f"{file.name} begins with something else than a command"
    pairs = [block.partition("\n")[::2] for block in blocks[1:]]
    assert len(dict(pairs)) == len(pairs), f"{file.name} has a command line twice"
    return {line: text.rstrip("\n") + "\n" for line, text in pairs}


FILES = {file.stem: read_golden(file) for file in sorted(GOLDEN.glob("*.txt"))}
CASES = [(name, line) for name, cases in FILES.items() for line in cases]


@pytest.fixture(scope="module")
def golden(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str, str], None]]:
    """Compare what a command line prints with its file; with --update-golden, write it there."""
    updates = request.config.getoption("--update-golden")

    def check(name: str, line: str, printed: str) -> None:
        if updates:
            FILES[name][line] = printed
        assert printed == FILES[name][line], "where this is what it should print, run pytest with --update-golden"

    yield check
    if updates:
        for name, cases in FILES.items():
            text = "\n".join(f"$ {line}\n{printed}" for line, printed in cases.items())
            (GOLDEN / f"{name}.txt").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_space: SearchSpace) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder, tiny_space)
    return folder


def listing(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*")}


def general(text: str, world: Path) -> str:
    """The text with placeholders for what differs from machine to machine."""
    here = load_target("cpu")
    for actual, placeholder in (
        (str(world), "HERE"),
        (here.device, "PROCESSOR"),
        (here.fingerprint, "FINGERPRINT"),
        (tvm_version(), "TVM"),
        (f"between 1 and {len(usable_cores())} threads", "between 1 and CORES threads"),
        (f"chanas {__version__}", "chanas VERSION"),
    ):
        text = text.replace(actual, placeholder)
    return text


@pytest.mark.parametrize(("name", "line"), CASES, ids=[line.removeprefix("chanas ") for _, line in CASES])
def test_a_command_prints_what_is_written_down(
    golden: Callable[[str, str, str], None],
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    line: str,
) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(host, "find_gpu", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    program, *arguments = shlex.split(line)
    before = listing(world)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    out, err = capfd.readouterr()
    err = "".join(line for line in err.splitlines(keepends=True) if not line.endswith(" …\n"))  # no waits
    if end.value.code != 0:  # an error is told in one line and leaves nothing behind
        assert out == ""
        assert err.startswith("Usage:") or (err.startswith("chanas: ") and err.count("\n") == 1)
    assert listing(world) == before
    assert program == "chanas"
    golden(name, line, general(out + err, world) + f"exit {end.value.code}\n")


def commands(group: TyperGroup, name: str) -> Iterator[str]:
    """Names of a group and of all commands in it, as they are typed."""
    yield name
    for part in group.commands.values():
        typed = f"{name} {part.name}"
        yield from commands(part, typed) if isinstance(part, TyperGroup) else [typed]


def test_the_help_of_every_command_is_written_down() -> None:
    known = {line for _, line in CASES}
    assert {f"{name} --help" for name in commands(command(), "chanas")} <= known
