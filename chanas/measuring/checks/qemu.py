"""Code for another processor, run here by an emulator: QEMU's user mode (`qemu-aarch64-static`, of Debian's package
qemu-user-static). What it computes is compared with PyTorch; how long that takes says nothing.

Kernels are linked statically with a small C program (`emulator.c`) in place of TVM's runtime, so that neither Python
nor any library of the other processor is needed. Code for Android runs as a Linux program: it calls nothing of either.
"""

from __future__ import annotations

import importlib.util
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chanas.compiler.cases import ReferenceCase, relative_error
from chanas.compiler.space import Point
from chanas.compiler.toolchains import TOOLS, Platform, Tools, find_c_toolchain, search_path
from chanas.core.arrays import Array
from chanas.core.blocks import BlockConfig
from chanas.errors import TargetError
from chanas.measuring.messages import BlockAt, Build
from chanas.measuring.worker.compiler import Compiler

# The first time, zig builds the C library that it links.
_COMPILE_TIMEOUT_S = 280.0


@dataclass(frozen=True)
class Emulator:
    """`command` runs programs of another processor, `compiler` makes them, static ones, out of C."""

    name: str
    command: tuple[str, ...]
    compiler: tuple[str, ...]


def find_emulator(triple: str, tools: Tools = TOOLS) -> Emulator:
    """Find the emulator that runs a platform's code here. Programs are made for Linux and the platform's processor,
    Android's too.

    Raises:
        TargetError: one is missing; says what to install.
    """
    machine = Platform.of(triple).machine
    if machine == tools.machine():  # QEMU has fewer instruction sets than real ones, AVX-512 not at all
        raise TargetError("QEMU is asked for other kinds of processors alone")
    program = emulator_program(f"{machine}-linux-gnu", tools)
    if program is None:
        raise TargetError(f"qemu-{machine} is not there (Debian's package qemu-user-static)")
    toolchain = find_c_toolchain(f"{machine}-linux-gnu", tools)
    return Emulator(Path(program).name, (program,), (*toolchain.compiler, "-static"))


def emulator_program(triple: str, tools: Tools = TOOLS) -> str | None:
    """The path of what runs a platform's static programs here."""
    if not Platform.of(triple).system.startswith("linux"):
        return None
    name = f"qemu-{Platform.of(triple).machine}"
    return tools.which(f"{name}-static") or tools.which(name)


@dataclass(frozen=True)
class Call:
    """One call of the function `name` in an object file, and what it must give."""

    name: str
    object_path: Path
    case: ReferenceCase


@dataclass(frozen=True)
class Emulated:
    """The result of an emulated call: its error relative to the largest expected magnitude, or why there is none."""

    max_error: float = np.inf
    tolerance: float = 0.0
    error: str | None = None

    @property
    def is_right(self) -> bool:
        return self.error is None and self.max_error <= self.tolerance


def compile_block(compiler: Compiler, block: BlockConfig, points: Sequence[Point], name: str, folder: Path) -> Path:
    """The object file of one fused block for the compiler's target, with its function called `name`.

    Raises:
        ChanasError: it can't be compiled.
    """
    path = folder / f"{name}.o"
    request = Build(target=compiler.target, what=BlockAt(block, points), path=path, form="object")
    compiler.result(request, f"block {block.key}")
    return path


def run_emulated(emulator: Emulator, calls: Sequence[Call], folder: Path, timeout_s: float = 60.0) -> list[Emulated]:
    """Link all functions into one program and call each once; outcomes in the order of the calls.

    A call that crashes the program, or keeps it busy beyond `timeout_s`, is one with an error; those after it are run
    by another start.

    Raises:
        TargetError: the program can't be made.
    """
    program, outputs = _link(emulator, calls, folder), folder / "outputs"
    outcomes: list[Emulated] = []
    while len(outcomes) < len(calls):
        first = len(outcomes)
        with (folder / "cases").open("wb") as file:
            for index, call in enumerate(calls[first:], first):
                file.writelines(_serialise(index, call.case))
        outputs.unlink(missing_ok=True)
        ending = _ending([*emulator.command, str(program), str(folder / "cases"), str(outputs)], timeout_s)
        outcomes += _read(outputs.read_bytes() if outputs.is_file() else b"", calls[first:])
        if len(outcomes) < len(calls):
            outcomes.append(Emulated(error=ending or "the program ended before its time"))
    return outcomes


def _link(emulator: Emulator, calls: Sequence[Call], folder: Path) -> Path:
    objects = dict.fromkeys(str(call.object_path) for call in calls)  # one may hold several functions
    names = " ".join(f"X({call.name})" for call in calls)
    (folder / "kernels.h").write_text(f"#define KERNELS(X) {names}\n")
    source, program = Path(__file__).with_name("emulator.c"), folder / "kernels"
    include = [f"-I{folder}", f"-I{_headers()}"]
    command = [*emulator.compiler, "-O1", "-w", *include, str(source), *objects, "-o", str(program), "-lm"]
    failed = _ending(command, _COMPILE_TIMEOUT_S)
    if failed is not None:
        raise TargetError(f"{shlex.join(emulator.compiler)} can't make a program to emulate: {failed}")
    return program


def _headers() -> Path:
    """The C headers of the compiler's function calls, found without importing it."""
    spec = importlib.util.find_spec("tvm_ffi")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "include"


def _ending(command: Sequence[str], timeout_s: float) -> str | None:
    """Describe the end of a failed program; None if it ended well."""
    try:
        done = subprocess.run(
            command, env=search_path(), capture_output=True, text=True, timeout=timeout_s, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return f"timeout: it ran for more than {timeout_s:g} s"
    if done.returncode < 0:
        return f"crash: signal {-done.returncode} ({signal.Signals(-done.returncode).name})"
    said = " ".join(done.stderr.split())[:200]
    return f"exit code {done.returncode}: {said}".removesuffix(": ") if done.returncode else None


def _serialise(index: int, case: ReferenceCase) -> Iterator[bytes]:
    """A call as `emulator.c` reads it."""
    yield np.array([index, len(case.arguments) + 1], np.int32).tobytes()
    for array in case.arguments:
        yield _header(array)
        yield np.ascontiguousarray(array).tobytes()
    yield _header(case.expected)


_DLPACK_KINDS = {"i": 0, "u": 1, "f": 2}
"""DLPack's kinds of numbers by those of NumPy."""


def _header(array: Array) -> bytes:
    kind = [_DLPACK_KINDS[array.dtype.kind], 8 * array.itemsize, array.ndim]
    return np.array(kind, np.int32).tobytes() + np.array(array.shape, np.int64).tobytes()


def _read(data: bytes, calls: Sequence[Call]) -> list[Emulated]:
    """The outcomes that are whole; a program that crashed leaves fewer than were asked for."""
    outcomes, start = [], 0
    for call in calls:
        expected = call.case.expected
        end = start + 4 + expected.nbytes
        if end > len(data):
            break
        status = int(np.frombuffer(data, np.int32, 1, start)[0])
        got = np.frombuffer(data, expected.dtype, expected.size, start + 4).reshape(expected.shape)
        error = f"the function returned {status}" if status else None
        difference = relative_error(got.astype(np.float64), expected.astype(np.float64))
        outcomes.append(Emulated(difference, call.case.tolerance, error))
        start = end
    return outcomes
