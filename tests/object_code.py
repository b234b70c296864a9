"""Object code of blocks, or of operators in int8, for many targets: `python object_code.py FOLDER < targets.json`.

Each target is compiled for in a process of its own, since LLVM ends the process where it has no instructions for what
is asked. FOLDER/NAME/KIND.o is the block of that kind, or the operator; FOLDER/NAME/network.so, where NAME ends with
`several`, a network of several dtypes; FOLDER/NAME/error is there where something went wrong.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from chanas.devices.lean_tvm import hide_torch

hide_torch()

from chanas.compiler.backends import schedule_operator, schedule_space  # noqa: E402
from chanas.compiler.cpu.blocks import schedule_block  # noqa: E402
from chanas.compiler.cpu.build import build_network, build_object  # noqa: E402
from chanas.core.blocks import BlockConfig, conversions, with_conversions  # noqa: E402
from chanas.core.target import HardwareTarget  # noqa: E402
from chanas.measuring.checks.target_check import small_block  # noqa: E402
from chanas.operators.workload import Workload  # noqa: E402
from chanas.prescheduler.ideas import default_points  # noqa: E402

MBCONV = dataclasses.replace(small_block(), input_size=4, mid_channels=32)
STEM = BlockConfig("stem", 8, 3, 0, 16, kernel_size=3, stride=2)


IN_INT8 = [
    Workload("pointwise", 4, 32, 32, epilogue="relu", residual=True, dtype="int8"),
    Workload("blockconv", 4, 32, 32, 3, epilogue="hswish", dtype="int8"),
    Workload("depthwise", 4, 32, 32, 3, epilogue="relu6", dtype="int8"),
]


def compile_operators(target: HardwareTarget, folder: Path) -> None:
    for workload in IN_INT8:
        function = schedule_operator(workload, schedule_space(workload, target).middle, target)
        build_object(function.with_attr("global_symbol", "operator"), target, folder / f"{workload.op}.o")
    compile_blocks(conversions_of(target), target, folder)


def compile_blocks(blocks: Iterable[BlockConfig], target: HardwareTarget, folder: Path) -> None:
    for block in blocks:
        function = schedule_block(block, default_points(block, target), target)
        build_object(function.with_attr("global_symbol", "block"), target, folder / f"{block.kind}.o")


def conversions_of(target: HardwareTarget) -> tuple[BlockConfig, ...]:
    """Blocks that convert to and from a target's dtype."""
    return conversions(4, 24, "float32", target.dtype) + conversions(4, 24, target.dtype, "float32")


def compile_network(target: HardwareTarget, folder: Path) -> None:
    """A chain of blocks in all dtypes."""
    dtypes = ("int8", "bfloat16", "float32", "int8", "float32", "bfloat16")
    own = zip((STEM, *[MBCONV] * 5), dtypes, strict=True)
    blocks = with_conversions([dataclasses.replace(block, dtype=dtype) for block, dtype in own])
    build_network(blocks, [default_points(block, target) for block in blocks], target, folder / "network.so")


def main() -> None:
    import tvm  # noqa: F401  (once, before the processes that need it)

    for name, data in json.load(sys.stdin).items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir()
        child = os.fork()
        if child == 0:
            try:
                target = HardwareTarget.from_json(data)
                if name.endswith("several"):
                    compile_network(target, folder)
                elif target.dtype == "int8":
                    compile_operators(target, folder)
                else:
                    compile_blocks((MBCONV, STEM, *conversions_of(target)), target, folder)
            except Exception:
                (folder / "error").write_text(traceback.format_exc())
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            (folder / "error").write_text(f"the compiler ended with status {status}")


if __name__ == "__main__":
    main()
