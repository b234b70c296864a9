"""The compiler in a process of its own, for what is compiled once and not timed: export, target checks, GPU kernels.

LLVM ends the process that it runs in (`abort`) where a program or an instruction set is too much for it. Nothing is
compiled in the process that a user started, so that this is an error like any other.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from chanas.core.target import HardwareTarget
from chanas.devices.cores import usable_cores
from chanas.errors import TargetError
from chanas.measuring.messages import ErrorKind, Request, WorkerError
from chanas.measuring.worker.process import WorkerProcess, worker_command

_TIMEOUT_S = 300.0


class Compiler(WorkerProcess):
    """A worker process that compiles for a target, on any core."""

    def __init__(self, target: HardwareTarget) -> None:
        super().__init__(1, usable_cores(), worker_command(target))
        self.target = target

    def result(self, request: Request, what: str, timeout_s: float = _TIMEOUT_S) -> Any:
        """The result of a request that compiles `what`.

        Raises:
            ChanasError: the one that it raised; TargetError where the compiler crashed or took too long.
        """
        answer = self.call(request, timeout_s)
        if answer.error is None:
            return answer.result
        if answer.error.exception_class is not None:
            raise answer.error.exception_class(answer.error.text)
        target = self.target
        raise TargetError(
            f"{what} can't be compiled for {target.name} ({target.instruction_set}): {readable(answer.error)}"
        )


def open_compiler(target: HardwareTarget) -> closing[Compiler]:
    """A compiler for a target that ends with the body."""
    return closing(Compiler(target))


def readable(error: WorkerError) -> str:
    """A crash in a user's words: `crash: the worker ended with signal 6 …` → `the compiler ended with signal 6 …`."""
    if error.kind is not ErrorKind.CRASH:
        return str(error)
    return str(error).removeprefix(f"{error.kind}: ").replace("the worker", "the compiler", 1)
