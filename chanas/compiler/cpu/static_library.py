"""Parts of a network as object code that is called from C: one kernel for each different part, no TVM beside it.

Kernels look up by name what they need of a runtime (`_RUNTIME`), and LLVM adds functions of a compiler's library, such
as conversions of half floats. All names that an object file offers get the network's own in front, so that several
networks fit into one program and replace nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chanas.compiler import elf
from chanas.compiler.cpu.blocks import schedule_block
from chanas.compiler.cpu.lowering import pipeline
from chanas.compiler.space import Point
from chanas.core.arch import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.errors import TargetError

ALIGNMENT = 64
"""Bytes: what compiled code may take for granted of tensors, and more than any vector has."""

# What TVM's code generator calls (include/tvm/runtime/base.h, tvm/ffi/c_api.h), and what run.c calls it.
_RUNTIME = {
    "__TVMBackendAllocWorkspace": "allocate",
    "__TVMBackendFreeWorkspace": "give_back",
    "__TVMBackendParallelLaunch": "launch",
    "TVMFFIErrorSetRaisedFromCStr": "raise",
    "TVMFFIErrorSetRaisedFromCStrParts": "raise_parts",
}
_TAKES_WORKSPACE = "__TVMBackendAllocWorkspace"
_KERNEL_PREFIX = "__tvm_ffi_"
_LOOKED_UP = ".tvm_func."
"""Symbols that keep functions of TVM's runtime which code has looked up by name."""
# `%7 = tail call ptr %6(i32 1, i32 %dev_id, i64 4608, i32 2, i32 32)`: device, bytes, type of the elements
_ALLOCATION = re.compile(r"call ptr %\S+\(i32 \S+, i32 \S+, i64 (\d+), i32 \d+, i32 \d+\)")


@dataclass(frozen=True)
class Kernels:
    """Compiled blocks.

    symbols          the kernel of each block, in the network's order; equal blocks have the same one
    objects          the object files, one for each different kernel
    workspace_bytes  most that one of them takes at once for what is inside a block
    features         of LLVM that the code may use
    """

    symbols: tuple[str, ...]
    objects: tuple[Path, ...]
    workspace_bytes: int
    features: tuple[str, ...]


def code_features(target: HardwareTarget) -> tuple[str, ...]:
    """LLVM's features of a target's processor: `avx2`, `dotprod`."""
    from tvm.target import codegen

    return tuple(sorted(map(str, codegen.llvm_get_cpu_features(target.tvm_target()))))


def build_kernel(
    name: str, symbol: str, block: BlockConfig, points: Sequence[Point], target: HardwareTarget, path: Path
) -> int:
    """Compile one block in the calling process; returns the bytes that it takes of the workspace."""
    return compile_kernel(name, symbol, schedule_block(block, points, target), target, path, f"block {block.key}")


def compile_kernel(name: str, symbol: str, function: Any, target: HardwareTarget, path: Path, what: str) -> int:
    """Compile a scheduled function, which messages call `what`; returns the bytes that it takes of the workspace.

    Raises:
        TargetError: it calls something that only TVM's runtime has, or does not tell its memory.
    """
    import tvm

    module = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True}):
        library = tvm.tirx.build(module, target.tvm_target(), pipeline())
    library.write_to_file(str(path))
    text = library.inspect_source("ll")
    sizes, num_asked = _ALLOCATION.findall(text), text.count(f"load ptr, ptr @{_TAKES_WORKSPACE},")

    def rename(found: str, is_offered: bool) -> str:
        if found == _TAKES_WORKSPACE and len(sizes) < max(1, num_asked):
            raise TargetError(f"how much memory {what} takes can't be read from its code; export needs to know")
        if found.startswith(_LOOKED_UP):
            raise TargetError(
                f"{what} calls {found.removeprefix(_LOOKED_UP)} of TVM's runtime, which a C library does not have; the "
                "network can't be exported"
            )
        if found == f"{_KERNEL_PREFIX}{symbol}":
            return symbol
        if found in _RUNTIME:
            return f"{name}_{_RUNTIME[found]}"
        return f"{name}_{found}" if is_offered else found

    path.write_bytes(elf.rename_symbols(path.read_bytes(), rename))
    return sum(aligned(int(size)) for size in sizes)


def aligned(num_bytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
