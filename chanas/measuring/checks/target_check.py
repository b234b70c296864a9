"""Check that a target works: a small block is compiled for it, and if it can be run here, by this machine or an
emulator, run and compared with PyTorch. Steps that were not tried say so."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.backends import case_of, schedule_space
from chanas.compiler.space import Point
from chanas.compiler.toolchains import find_linker, no_cross_linker
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.errors import ChanasError, TargetError
from chanas.files.scratch import scratch_folder
from chanas.measuring.checks.qemu import Call, compile_block, find_emulator, run_emulated
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import BlockAt, Build, ErrorKind, Measure
from chanas.measuring.worker.compiler import open_compiler
from chanas.operators.steps import device_workloads

_TIMEOUT_S = 60.0
# Kinds of machine by the number that an ELF file has for them (System V ABI, "e_machine").
_ELF_MACHINES = {62: "x86-64", 183: "AArch64"}


@dataclass(frozen=True)
class Step:
    """One thing that was tried: whether it worked (None: it was not tried) and what came of it."""

    what: str
    works: bool | None
    detail: str

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "works": self.works, "detail": self.detail}

    def line(self) -> str:
        word = {True: "works", False: "fails", None: "not tried"}[self.works]
        return f"{self.what:10s} {word:10s} {self.detail}"


def small_block() -> BlockConfig:
    """An MBConv block with everything that one can have: expansion, depthwise 3×3, squeeze-excite, residual."""
    return BlockConfig(
        kind="mbconv",
        input_size=8,
        in_channels=16,
        mid_channels=48,
        out_channels=16,
        kernel_size=3,
        stride=1,
        activation="hswish",
        use_se=True,
        residual=True,
    )


def random_points(block: BlockConfig, target: HardwareTarget) -> list[Point]:
    """A random schedule of each operator of a block."""
    rng = np.random.default_rng(0)
    return [schedule_space(w, target).sample(1, rng)[0] for w in device_workloads(block, target)]


def check_processor(target: HardwareTarget, why_not_here: str | None) -> Iterator[Step]:
    """Compile a small block for a processor; where it runs here (`why_not_here` is None), run it and compare."""
    block = small_block()
    with scratch_folder() as scratch:
        if why_not_here is None:
            yield from check_here(block, target, scratch)
        else:
            yield from _check_elsewhere(block, target, scratch, why_not_here)


def check_here(block: BlockConfig, target: HardwareTarget, scratch: Path) -> Iterator[Step]:
    """Compile a block for a device of this machine, run it and compare."""
    case, library = scratch / "case.npz", scratch / "block.so"
    case_of(block, target).save(case)
    build = Build(target=target, what=BlockAt(block, random_points(block, target)), path=library)
    with WorkerPool(target) as pool:
        built = pool.build(build, _TIMEOUT_S).result()
        if built.error is not None:
            yield Step("compile", False, str(built.error))
            return
        yield Step("compile", True, f"{block.key}, random schedules")
        ran = pool.measure(Measure(library=library, case=case), _TIMEOUT_S).result()
    if ran.error is not None and ran.error.kind is not ErrorKind.WRONG:
        yield Step("run", False, str(ran.error))
        return
    yield Step("run", True, "on this machine")
    if ran.error is not None:
        yield Step("compare", False, ran.error.text)
    else:
        yield Step("compare", True, f"relative error {ran.timing.max_error:.1g} against PyTorch")


def _check_elsewhere(block: BlockConfig, target: HardwareTarget, scratch: Path, why_not: str) -> Iterator[Step]:
    case = case_of(block, target)
    try:
        with open_compiler(target) as compiler:
            path = compile_block(compiler, block, random_points(block, target), "block", scratch)
    except ChanasError as error:
        yield Step("compile", False, str(error))
        return
    yield Step("compile", True, f"{block.key}: object code for {_elf_machine(path)} ({target.compiled_for})")
    linker = find_linker(target.mtriple)
    if linker is None:
        yield Step("link", None, no_cross_linker(target.mtriple))
    else:
        library = scratch / "block.so"
        try:
            linker.link([path], library)
        except TargetError as error:
            yield Step("link", False, str(error))
            return
        yield Step("link", True, f"shared library for {_elf_machine(library)}, by {linker.name}")
    yield from _emulate(Call("block", path, case), target, scratch, why_not)


def _emulate(call: Call, target: HardwareTarget, scratch: Path, why_not: str) -> Iterator[Step]:
    try:
        emulator = find_emulator(target.mtriple)
    except TargetError as missing:
        yield Step("run", None, f"{why_not}, and none is emulated: {missing}")
        yield Step("compare", None, "nothing was run")
        return
    try:
        (ran,) = run_emulated(emulator, [call], scratch, _TIMEOUT_S)
    except TargetError as error:
        yield Step("run", False, str(error))
        return
    if ran.error is not None:
        yield Step("run", False, f"by {emulator.name}: {ran.error}")
        return
    yield Step("run", True, f"by {emulator.name}, which emulates such a processor")
    yield Step("compare", ran.is_right, f"relative error {ran.max_error:.1g} against PyTorch")


def _elf_machine(path: Path) -> str:
    """Read the processor of an object file or a library from its header."""
    header = path.read_bytes()[:20]
    if header[:4] != b"\x7fELF":
        return "no ELF file"
    number: int = struct.unpack_from("<H", header, 18)[0]
    return _ELF_MACHINES.get(number, f"ELF machine {number}")
