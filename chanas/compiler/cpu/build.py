"""Scheduled operators, blocks and networks compiled to objects and shared libraries for CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chanas.compiler.cpu.lowering import pipeline
from chanas.compiler.cpu.module import program_module
from chanas.compiler.libraries import export
from chanas.compiler.program import Program
from chanas.compiler.space import Point
from chanas.compiler.toolchains import required_linker
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget


def build_function(function: Any, target: HardwareTarget, library_path: Path) -> None:
    """Compile one PrimFunc (symbol `main`) to a shared library. Arguments are not checked by the compiled code.

    It is stripped: what is left is the same file wherever the machine code is the same.
    """
    object_path = library_path.with_suffix(".o")
    try:
        build_object(function, target, object_path)
        required_linker(target.mtriple).link([object_path], library_path)
    finally:
        object_path.unlink(missing_ok=True)


def build_object(function: Any, target: HardwareTarget, object_path: Path) -> None:
    """Compile one PrimFunc to an object file, with the symbol that it has."""
    import tvm

    with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True}):
        library = tvm.tirx.build(function, target.tvm_target(), pipeline())
    library.write_to_file(str(object_path))


def build_network(
    blocks: Sequence[BlockConfig],
    points: Sequence[Sequence[Point]],
    target: HardwareTarget,
    library_path: Path,
) -> None:
    """Compile a whole network to a shared library that `relax.VirtualMachine` loads."""
    program = Program.from_blocks(blocks, points, target)
    _build_relax(program_module(program, {}, target).module, target, library_path)


def build_module(json_path: Path, target: HardwareTarget, library_path: Path) -> None:
    """Compile a stored Relax module to a library that `relax.VirtualMachine` loads."""
    _build_relax(load_module(json_path), target, library_path)


def load_module(json_path: Path) -> Any:
    """A Relax module as `tvm.ir.save_json` wrote it."""
    import tvm

    import chanas.compiler.cpu.intrinsics  # noqa: F401 -- which the module calls

    return tvm.ir.load_json(json_path.read_text(encoding="utf-8"))


def _build_relax(module: Any, target: HardwareTarget, library_path: Path) -> None:
    import tvm

    with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True}):
        executable = tvm.relax.build(module, target.tvm_target(), tir_pipeline=pipeline(), exec_mode="compiled")
    export(executable, library_path, target)
