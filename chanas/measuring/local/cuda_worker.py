"""The worker process of a GPU: run as `python -m chanas.measuring.local.cuda_worker`, it answers the same
requests as `chanas.measuring.local.worker`. What compiles needs no GPU; what times uses one
(`chanas.devices.cuda_runtime.CUDADevice`).

Times are the device's own, by events; its clock rates have settled first, and where a timing is to be cold the L2 cache
is flushed before each launch. A CUDA error leaves the process unusable: the parent replaces it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from chanas import interrupts
from chanas.compiler.cases import relative_error
from chanas.devices.lean_tvm import hide_torch
from chanas.devices.timing import Call, Clock
from chanas.measuring.answers import Answer, ErrorKind, Timing, WorkerError
from chanas.measuring.local import worker
from chanas.measuring.local.timing import CheckedProgram, time_program, time_programs_in_turns
from chanas.measuring.requests import (
    BuildBlock,
    BuildNetwork,
    BuildOperator,
    BuildOperators,
    CompilePoint,
    Crash,
    Hang,
    Measure,
    MeasureInTurns,
    MeasureNetwork,
    Ping,
)

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
class Builder:
    """Compiles what is asked for, by `compile_`: a program, for a target, into a file."""

    def __init__(self, compile_: Compile) -> None:
        self._compile = compile_

    def operator(self, request: BuildOperator) -> dict[str, Any]:
        """Compile one schedule point of one operator; `code` is the same for points of the same machine code."""
        from chanas.compiler.cuda.graph import operator_program

        program = operator_program(request.workload, request.point, request.target)
        self._compile(program, request.target, request.library)
        return {"code": hashlib.sha256(request.library.read_bytes()).hexdigest()[:32]}

    def block(self, request: BuildBlock) -> None:
        """Compile one block: a kernel for each operator, one graph."""
        from chanas.compiler.cuda.graph import block_program

        program = block_program(request.block, request.points, request.target)
        self._compile(program, request.target, request.library)

    def network(self, request: BuildNetwork) -> None:
        """Compile a whole network."""
        from chanas.compiler.cuda.graph import network_program

        program = network_program(request.blocks, request.points, request.target)
        self._compile(program, request.target, request.library)


def compile_point(request: CompilePoint) -> dict[str, Any]:
    """Compile one schedule point of one operator to a cubin and read its figures; nothing is kept of the code."""
    from chanas.compiler.cuda import build

    return build.compile_point(request.workload, request.point, request.target).to_json()


# ---- timing ---------------------------------------------------------------------------------------------------------
class _Program:
    """A compiled program with the arguments of a reference case, on the device."""

    def __init__(self, device: Device, library: Path, case: Path, copies: int) -> None:
        import numpy as np

        with np.load(case, allow_pickle=False) as data:
            self.expected, self.tolerance = data["expected"], float(data["tolerance"])
            weights = [int(i) for i in data["weights"]]
            arrays = [data[f"argument{i}"] for i in range(sum(name.startswith("argument") for name in data.files))]
        machine = device.load(library)
        self.copies = copies
        self.output = machine["new_output"]()
        self.unwritten = np.full(tuple(map(int, self.output.shape)), np.nan, dtype=str(self.output.dtype))
        inputs = [device.tensor(a) for i, a in enumerate(arrays) if i not in weights]
        own = [device.tensor(arrays[i]) for _, i in itertools.product(range(copies), weights)]
        self.call: Call = (machine["main"], (*inputs, *own, self.output))
        self.machine = machine

    def check(self) -> CheckedProgram:
        """The program with its error."""
        return CheckedProgram([self.call], self._error(), self.tolerance, self.copies)

    def _error(self) -> float:
        """Largest error relative to the largest expected magnitude, of an output that was not a number before.

        The first call runs the kernels one by one and captures them: what is checked is the graph, as it is timed.
        """
        import numpy as np

        function, arguments = self.call
        function(*arguments)
        self.output.copyfrom(self.unwritten)
        function(*arguments)
        got = self.output.numpy().astype(np.float32).reshape(-1, self.expected.shape[-1])[: len(self.expected)]
        if got.shape != self.expected.shape:
            return math.inf
        return relative_error(got, self.expected)


class Timer:
    """Checks and times compiled programs on one device."""

    def __init__(self, open_device: Callable[[], Device], now: Callable[[], float] = time.monotonic) -> None:
        self._device = functools.cache(open_device)
        self._now, self._last_used_s = now, -math.inf

    def measure(self, request: Measure) -> Timing | WorkerError:
        """Check an operator or a block against its reference case, then time it: seconds of one of its copies.

        Where it is to be cold, every copy finds its weights in the device's memory. All copies run the same code.
        """
        return self._measure(request, _copies(), request.hopeless_s, is_cold=request.settings.cold_bytes > 0)

    def _measure(
        self, request: Measure | MeasureNetwork, copies: int, hopeless_s: float | None = None, *, is_cold: bool
    ) -> Timing | WorkerError:
        program = _Program(self._device(), request.library, request.case, copies)  # its machine lives as long
        checked = program.check()
        clock = self._clock([checked], is_cold)
        return time_program(checked, 1, request.settings, hopeless_s, clock)

    def measure_in_turns(self, request: MeasureInTurns) -> list[Answer]:
        """Check several programs, then time the right ones in turns against each other."""
        device, copies, settings = self._device(), _copies(), request.settings
        programs = [_Program(device, request.library / f"{i}.so", request.case, copies) for i in range(request.num)]
        checked = [program.check() for program in programs]
        return time_programs_in_turns(checked, 1, settings, self._clock(checked, settings.cold_bytes > 0))

    def measure_network(self, request: MeasureNetwork) -> Timing | WorkerError:
        """Check a whole network against its reference case, then time single inferences, cold as blocks are."""
        return self._measure(request, 1, is_cold=True)

    def _clock(self, checked: Sequence[CheckedProgram], cold: bool) -> Clock:
        """Seconds per launch of what is right; the first launches are repeated until the clock rates have settled."""
        calls = [call for c in checked if c.is_right for call in c.calls]
        if calls and self._now() - self._last_used_s > _IDLE_S:
            self._settle(calls[0])

        def seconds_per_launch(turns: Iterator[Call], num_calls: int) -> float:
            seconds = self._device().seconds(itertools.islice(turns, num_calls), cold) / num_calls
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
        return worker.describe(error)
    if any(words in text for words in ("out of memory", "OutOfMemory", "MemoryAllocation")):
        text = "the GPU has not enough left; end what else uses it (`nvidia-smi`)"
        return WorkerError(ErrorKind.OUT_OF_MEMORY, text)
    return WorkerError(ErrorKind.GPU_FAULT, WorkerError.of(error).text)


def calls(compile_: Compile, open_device: Callable[[], Device]) -> worker.Calls:
    """The calls that the worker answers, which compile and time with these functions."""
    builder, timer = Builder(compile_), Timer(open_device)
    return {
        BuildOperator: builder.operator,
        BuildOperators: functools.partial(worker.build_operators, build=builder.operator),
        BuildBlock: builder.block,
        BuildNetwork: builder.network,
        CompilePoint: compile_point,
        Measure: timer.measure,
        MeasureInTurns: timer.measure_in_turns,
        MeasureNetwork: timer.measure_network,
        Ping: worker.ping,
        Hang: worker.hang,
        Crash: worker.crash,
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
    worker.serve_requests(calls(compile_, open_device), describe)


if __name__ == "__main__":
    serve()
