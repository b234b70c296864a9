"""Relax executables as shared libraries."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chanas.compiler import elf
from chanas.compiler.toolchains import library_maker
from chanas.core.target import HardwareTarget

_LOOKED_UP = ("__tvm_ffi_", "__TVM")
"""Prefixes of the names that TVM's runtime looks up in a library."""


def export(executable: Any, library_path: Path, target: HardwareTarget) -> None:
    """A Relax executable as a shared library that `relax.VirtualMachine` loads. It offers what TVM looks up and nothing
    else: LLVM adds functions of a compiler's library, which would stand for those of the program that loads it."""
    from tvm.support import cc

    make = library_maker(target.mtriple) or cc.create_shared

    def hide(name: str, is_offered: bool) -> str:
        return f"hidden_{name}" if is_offered and not name.startswith(_LOOKED_UP) else name

    def make_hidden(library: str, objects: Sequence[str], *arguments: Any, **options: Any) -> None:
        for path in map(Path, [objects] if isinstance(objects, str) else objects):
            path.write_bytes(elf.rename_symbols(path.read_bytes(), hide))
        make(library, objects, *arguments, **options)

    with tempfile.TemporaryDirectory(dir=library_path.parent) as objects:  # not where a killed process leaves them
        executable.export_library(str(library_path), fcompile=make_hidden, workspace_dir=objects)
