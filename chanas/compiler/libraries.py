"""Relax executables as shared libraries."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chanas.compiler import elf
from chanas.compiler.toolchains import is_native, required_linker
from chanas.core.target import HardwareTarget

_LOOKED_UP = ("__tvm_ffi_", "__TVM")
"""Prefixes of the names that TVM's runtime looks up in a library."""


def export(executable: Any, library_path: Path, target: HardwareTarget) -> None:
    """A Relax executable as a shared library that `relax.VirtualMachine` loads. It offers what TVM looks up and nothing
    else: LLVM adds functions of a compiler's library, which would stand for those of the program that loads it."""
    from tvm.support import cc

    linker = None if is_native(target.mtriple) else required_linker(target.mtriple)

    def hide(name: str, is_offered: bool) -> str:
        return f"hidden_{name}" if is_offered and not name.startswith(_LOOKED_UP) else name

    def make_hidden(library: str, objects: Sequence[str], *arguments: Any, **options: Any) -> None:
        paths = [Path(path) for path in ([objects] if isinstance(objects, str) else objects)]
        for path in paths:
            path.write_bytes(elf.rename_symbols(path.read_bytes(), hide))
        if linker is None:
            cc.create_shared(library, objects, *arguments, **options)
        else:
            linker.link(paths, Path(library))

    with tempfile.TemporaryDirectory(dir=library_path.parent) as objects:  # not where a killed process leaves them
        executable.export_library(str(library_path), fcompile=make_hidden, workspace_dir=objects)
