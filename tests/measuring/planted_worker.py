"""The worker process, with candidates planted that go wrong: run as `python planted_worker.py PLAN`.

PLAN is a JSON file with a list of pairs: a schedule point, and how its building or its kernel goes wrong. No planted
candidate takes more than 16 GiB, even where nothing stops it, and none of that is touched.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chanas.measuring.messages import Build, OperatorAt
from chanas.measuring.worker import cpu

_GREED = 64  # times 256 MiB
_KERNELS = {
    "kernel crashes": "*(volatile int *)0 = 1;",
    "kernel never ends": "for (;;) *(volatile int *)&num;",
    "kernel takes all memory": f"for (int i = 0; i < {_GREED}; i++) *(volatile char *)malloc(1u << 28) = 1;",
}
_PLAN = {tuple(point): kind for point, kind in json.loads(Path(sys.argv[1]).read_text())}


def _write_kernel(body: str, library: Path) -> None:
    source = library.with_suffix(".c")
    signature = "int __tvm_ffi_main(void *self, void *arguments, int num, void *result)"
    source.write_text(f"#include <stdlib.h>\n{signature} {{ {body} return 0; }}\n")
    try:
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    finally:
        source.unlink()


def _never_end() -> None:
    while True:
        pass


def _take_all_memory() -> None:
    import numpy as np

    held = [np.zeros(1 << 28, np.uint8) for _ in range(_GREED)]
    raise RuntimeError(f"{len(held)} blocks were to be had")


def _fail() -> None:
    raise RuntimeError("planted")


_BUILDS: dict[str, Callable[[], Any]] = {
    "compiler fails": _fail,
    "compiler crashes": lambda: ctypes.string_at(0),
    "compiler never ends": _never_end,
    "compiler takes all memory": _take_all_memory,
}


def build(request: Build) -> Any:
    """As the worker's own, unless the point of an operator is one of the planted ones."""
    if not isinstance(request.what, OperatorAt):
        return cpu.build(request)
    workload, point = request.what.workload, request.what.point
    kind = _PLAN.get(point)
    if kind in _BUILDS:
        _BUILDS[kind]()
    if kind == "kernel is wrong":
        what = OperatorAt(dataclasses.replace(workload, epilogue="relu"), point)
        return cpu.build(dataclasses.replace(request, what=what))
    if kind in _KERNELS:
        _write_kernel(_KERNELS[kind], request.path)
        return cpu.code_of(request.path)
    return cpu.build(request)


if __name__ == "__main__":
    cpu.CALLS[Build] = build
    cpu.main()
