"""The compiler in a process of its own, for what is compiled once and not timed: export, target checks, GPU kernels.

LLVM ends the process that it runs in (`abort`) where a program or an instruction set is too much for it. Nothing is
compiled in the process that a user started, so that this is an error like any other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chanas.core.target import HardwareTarget
from chanas.devices.lean_tvm import torch_hidden
from chanas.errors import TargetError
from chanas.measuring.messages import Answer, ErrorKind, Request, WorkerError
from chanas.measuring.worker.process import WorkerProcess, worker_command

_TIMEOUT_S = 300.0


class Compiler:
    """One worker process that compiles for a target, started on first use."""

    def __init__(self, target: HardwareTarget) -> None:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        self.target = target
        self._worker = WorkerProcess(1, list(cores), worker_command(target))

    def answer(self, request: Request, timeout_s: float = _TIMEOUT_S) -> Answer:
        """Answer a request; a crash is an answer with an error."""
        return self._worker.call(request, timeout_s)

    def result(self, request: Request, what: str, timeout_s: float = _TIMEOUT_S) -> Any:
        """The result of a request that compiles `what`.

        Raises:
            ChanasError: the one that it raised; TargetError where the compiler crashed or took too long.
        """
        answer = self.answer(request, timeout_s)
        if answer.error is None:
            return answer.result
        if answer.error.exception_class is not None:
            raise answer.error.exception_class(answer.error.text)
        target = self.target
        raise TargetError(
            f"{what} can't be compiled for {target.name} ({target.instruction_set}): {readable(answer.error)}"
        )

    def close(self) -> None:
        self._worker.close()


@contextmanager
def open_compiler(target: HardwareTarget) -> Iterator[Compiler]:
    """A compiler for a target that ends with the body."""
    compiler = Compiler(target)
    try:
        yield compiler
    finally:
        compiler.close()


def readable(error: WorkerError) -> str:
    """A crash in a user's words: `crash: the worker ended with signal 6 …` → `the compiler ended with signal 6 …`."""
    if error.kind is not ErrorKind.CRASH:
        return str(error)
    return str(error).removeprefix(f"{error.kind}: ").replace("the worker", "the compiler", 1)


def llvm_version() -> int | None:
    """The major version of the LLVM inside the compiler, where it tells (imports tvm)."""
    with torch_hidden():
        import tvm

    asked = tvm.get_global_func("target.llvm_version_major", allow_missing=True)
    return None if asked is None else int(asked())
