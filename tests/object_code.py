"""Object code of two blocks, or of operators in int8, for many targets: `python object_code.py FOLDER < targets.json`.

Each target is compiled for in a process of its own, since LLVM ends the process where it has no instructions for what
is asked. FOLDER/NAME/KIND.o is the block of that kind, or the operator; FOLDER/NAME/error is there where something
went wrong.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from pathlib import Path

from chanas.devices.lean_tvm import hide_torch

hide_torch()

from chanas.compiler.backends import schedule_operator, schedule_space  # noqa: E402
from chanas.compiler.cpu.blocks import schedule_block  # noqa: E402
from chanas.compiler.cpu.build import build_object  # noqa: E402
from chanas.core.arch import BlockConfig  # noqa: E402
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


def compile_blocks(target: HardwareTarget, folder: Path) -> None:
    for block in (MBCONV, STEM):
        function = schedule_block(block, default_points(block, target), target)
        build_object(function.with_attr("global_symbol", "block"), target, folder / f"{block.kind}.o")


def main() -> None:
    import tvm  # noqa: F401  (once, before the processes that need it)

    for name, data in json.load(sys.stdin).items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir()
        child = os.fork()
        if child == 0:
            try:
                target = HardwareTarget.from_json(data)
                (compile_operators if target.dtype == "int8" else compile_blocks)(target, folder)
            except Exception:
                (folder / "error").write_text(traceback.format_exc())
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            (folder / "error").write_text(f"the compiler ended with status {status}")


if __name__ == "__main__":
    main()
