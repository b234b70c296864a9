"""The worker process of a GPU: run as `python -m chanas.measuring.worker.cuda`, it answers the same requests as
`chanas.measuring.worker.cpu`. What compiles needs no GPU; what times uses one
(`chanas.devices.cuda_runtime.CUDADevice`).

Times are the device's own, by events; its clock rates have settled first, and where a timing is to be cold the L2 cache
is flushed before each launch. A CUDA error leaves the process unusable: the parent replaces it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from chanas import interrupts
from chanas.compiler.cases import ReferenceCase
from chanas.devices.lean_tvm import hide_torch
from chanas.devices.timing import Call, Clock
from chanas.measuring.messages import (
    BlockAt,
    Build,
    CompilePoint,
    ErrorKind,
    Measure,
    NetworkAt,
    OperatorAt,
    OperatorsAt,
    WorkerError,
)
from chanas.measuring.worker import serve as serving
from chanas.measuring.worker.cpu import build_each, code_of
from chanas.measuring.worker.timing import CheckedProgram, error_of, measure

# Clock rates have settled when as many batches in a row differ by no more than this, and are not waited for longer.
_SETTLED_BATCHES, _SETTLED_SPREAD, _BATCH_S, _MAX_SETTLING_S = 3, 0.02, 0.005, 1.0
# A GPU that had nothing to do for this long may have slowed down.
_IDLE_S = 0.2


class Device(Protocol):
    """The GPU that times. Programs are compiled by `compile_program` elsewhere."""

    def tensor(self, array: Any) -> Any: ...

    def load(self, library: Path | str) -> Any: ...

    def seconds(self, calls: Iterable[Call], cold: bool) -> float: ...


Compile = Callable[[Any, Any, Path], None]


# ---- compiling ------------------------------------------------------------------------------------------------------
def build(request: Build, compile_: Compile) -> dict[str, str] | None:
    """Compile what is asked for, by `compile_`: a program, for a target, into a file. A block is a kernel for each
    operator, and one graph; `code` of an operator is the same for points of the same machine code."""
    from chanas.compiler.cuda import graph

    target, what = request.target, request.what
    match what, request.form:
        case OperatorAt(workload, point), "library":
            compile_(graph.operator_program(workload, point, target), target, request.path)
            return code_of(request.path)
        case OperatorsAt(), "library":
            build_each(request, functools.partial(build, compile_=compile_))
        case BlockAt(block, points), "library":
            compile_(graph.block_program(block, points, target), target, request.path)
        case NetworkAt(blocks, points), "library":
            compile_(graph.network_program(blocks, points, target), target, request.path)
        case _:
            raise TypeError(f"no {request.form} is made of {type(what).__name__} for GPUs")
    return None


def compile_point(request: CompilePoint) -> Any:
    """Compile one schedule point of one operator to a cubin and read its figures; nothing is kept of the code."""
    from chanas.compiler.cuda import build

    return build.compile_point(request.workload, request.point, request.target)


# ---- timing ---------------------------------------------------------------------------------------------------------
class GPU:
    """One device, as `timing.measure` has it: seconds are those of one copy of a program, all of which run the same
    code, and where a timing is to be cold, as that of a whole network always is, every copy finds its weights in the
    device's memory."""

    def __init__(self, open_device: Callable[[], Device], now: Callable[[], float] = time.monotonic) -> None:
        self._device = functools.cache(open_device)
        self._now, self._last_used_s = now, -math.inf

    def check(self, library: Path, request: Measure) -> CheckedProgram:
        """The first call runs the kernels one by one and captures them: what is checked is the graph, as it is
        timed."""
        device, case = self._device(), ReferenceCase.load(request.case)
        copies = 1 if request.form == "network" else _copies()
        machine = device.load(library)
        output = machine["new_output"]()
        inputs = [device.tensor(a) for i, a in enumerate(case.arguments) if i not in case.weights]
        own = [device.tensor(case.arguments[i]) for _, i in itertools.product(range(copies), case.weights)]
        function, arguments = call = (machine["main"], (*inputs, *own, output))
        function(*arguments)
        return CheckedProgram([call], error_of(call, output, case.expected), case.tolerance, copies, owner=machine)

    def clock(self, programs: Sequence[CheckedProgram], request: Measure) -> Clock:
        """Seconds per launch; the first launches are repeated until the clock rates have settled."""
        is_cold = request.form == "network" or request.settings.cold_bytes > 0
        if programs and self._now() - self._last_used_s > _IDLE_S:
            self._settle(programs[0].calls[0])

        def seconds_per_launch(turns: Iterator[Call], num_calls: int) -> float:
            seconds = self._device().seconds(itertools.islice(turns, num_calls), is_cold) / num_calls
            self._last_used_s = self._now()
            return seconds

        return seconds_per_launch

    def _settle(self, call: Call) -> None:
        """Keep the device busy until batches of launches take the same time, or for a second at most."""
        start, device = self._now(), self._device()
        num = max(1, math.ceil(_BATCH_S / max(device.seconds([call], cold=False), 1e-7)))
        batches: list[float] = []
        while self._now() - start < _MAX_SETTLING_S:
            batches.append(device.seconds(itertools.repeat(call, num), cold=False))
            last = batches[-_SETTLED_BATCHES:]
            if len(last) == _SETTLED_BATCHES and max(last) <= (1.0 + _SETTLED_SPREAD) * min(last):
                return


def _copies() -> int:
    """Return the number of copies that a program timed alone has in its graph. The import is late, because TVM comes
    with it and has to find CUDA's runtime library (`load_runtime`)."""
    from chanas.compiler.cuda.graph import COPIES

    return COPIES


def describe(error: Exception) -> WorkerError:
    """Describe an error in one short line; after those of CUDA the worker is replaced."""
    text = str(error)
    if "CUDA" not in text and "cuda" not in text:
        return serving.describe(error)
    if any(words in text for words in ("out of memory", "OutOfMemory", "MemoryAllocation")):
        text = "the GPU has not enough left; end what else uses it (`nvidia-smi`)"
        return WorkerError(ErrorKind.OUT_OF_MEMORY, text)
    return WorkerError(ErrorKind.GPU_FAULT, WorkerError.of(error).text)


def calls(compile_: Compile, open_device: Callable[[], Device]) -> serving.Calls:
    """The calls that the worker answers, which compile and time with these functions."""
    return {
        Build: functools.partial(build, compile_=compile_),
        CompilePoint: compile_point,
        Measure: functools.partial(measure, timer=GPU(open_device)),
        **serving.ALWAYS,
    }


def _compile(program: Any, target: Any, library: Path) -> None:
    from chanas.compiler.cuda.driver import enable_machine_code
    from chanas.compiler.cuda.programs import compile_program

    enable_machine_code()
    compile_program(program, target, library)


def _open_device() -> Device:
    from chanas.devices.cuda_runtime import CUDADevice
    from chanas.devices.driver import find_gpu

    found = find_gpu()
    return CUDADevice(0 if found is None else found.l2_bytes)


def serve(compile_: Compile = _compile, open_device: Callable[[], Device] = _open_device) -> None:
    """Serve requests until standard input closes. The host's memory is not limited: CUDA maps all of the device's."""
    interrupts.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_torch()
    with contextlib.suppress(Exception):  # what compiles needs no GPU; what times says why there is none
        from chanas.devices.cuda_runtime import load_runtime

        load_runtime()
    serving.serve_requests(calls(compile_, open_device), describe)


if __name__ == "__main__":
    serve()
