"""The worker process of a GPU: run as `python -m chanas.prescheduler.measuring.local.cuda_worker`, it answers the same
requests as `chanas.prescheduler.measuring.local.worker`. What compiles needs no GPU; what times uses one
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

from chanas.devices.lean_tvm import hide_torch
from chanas.prescheduler.measuring.local import worker
from chanas.prescheduler.measuring.local.timing import Call, Clock, answer_of_turns
from chanas.prescheduler.workloads.cases import relative_error

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
def build_operator(
    target: dict[str, Any], workload: dict[str, Any], point: Sequence[int], library: str, *, compile_: Compile
) -> dict[str, Any]:
    """Compile one schedule point of one operator; `code` is the same for points that end in the same machine code."""
    from chanas.core.target import HardwareTarget
    from chanas.prescheduler.kernels.cuda.graph import operator_program
    from chanas.prescheduler.workloads.workload import Workload

    device = HardwareTarget.from_json(target)
    compile_(operator_program(Workload.from_json(workload), tuple(point), device), device, Path(library))
    return {"code": hashlib.sha256(Path(library).read_bytes()).hexdigest()[:32]}


def build_block(
    target: dict[str, Any], block: dict[str, Any], points: Sequence[Sequence[int]], library: str, *, compile_: Compile
) -> None:
    """Compile one block: a kernel for each operator, one graph."""
    from chanas.core.arch import BlockConfig
    from chanas.core.target import HardwareTarget
    from chanas.prescheduler.kernels.cuda.graph import block_program

    device = HardwareTarget.from_json(target)
    compile_(block_program(BlockConfig.from_json(block), [tuple(p) for p in points], device), device, Path(library))


def build_network(
    target: dict[str, Any],
    blocks: Sequence[dict[str, Any]],
    points: Sequence[Sequence[Sequence[int]]],
    library: str,
    *,
    compile_: Compile,
) -> None:
    """Compile a whole network."""
    from chanas.core.arch import BlockConfig
    from chanas.core.target import HardwareTarget
    from chanas.prescheduler.kernels.cuda.graph import network_program

    device = HardwareTarget.from_json(target)
    configs = [BlockConfig.from_json(b) for b in blocks]
    compile_(network_program(configs, [[tuple(p) for p in group] for group in points], device), device, Path(library))


def compile_point(target: dict[str, Any], workload: dict[str, Any], point: Sequence[int]) -> dict[str, Any]:
    """Compile one schedule point of one operator to a cubin and read its figures; nothing is kept of the code."""
    from chanas.core.target import HardwareTarget
    from chanas.prescheduler.codegen.cuda.compiled import compile_point
    from chanas.prescheduler.workloads.workload import Workload

    return compile_point(Workload.from_json(workload), tuple(point), HardwareTarget.from_json(target)).to_json()


# ---- timing ---------------------------------------------------------------------------------------------------------
class _Program:
    """A compiled program with the arguments of a reference case, on the device."""

    def __init__(self, device: Device, library: str, case: str, copies: int) -> None:
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

    def error(self) -> float:
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

    def measure(
        self,
        library: str,
        case: str,
        cold_bytes: int = 0,
        code_copies: int = 1,
        repeats: int = 5,
        min_repeat_s: float = 0.002,
        max_spread: float = 0.02,
        hopeless_s: float | None = None,
    ) -> dict[str, Any]:
        """Check an operator or a block against its reference case, then time it: seconds of one of its copies.

        With `cold_bytes` above zero the L2 cache is flushed before each launch, so that every copy finds its weights in
        the device's memory. All copies run the same code.
        """
        copies = _copies()
        hopeless = None if hopeless_s is None else copies * hopeless_s
        how = (repeats, min_repeat_s, max_spread, hopeless)
        return self._measure(library, case, copies, how, is_cold=cold_bytes > 0)

    def _measure(
        self, library: str, case: str, copies: int, how: tuple[int, float, float, float | None], *, is_cold: bool
    ) -> dict[str, Any]:
        """The same of a program with so many copies; `how` is the repeats, the least seconds of one, the spread at
        which it ends, and the seconds of all copies that are hopeless."""
        program = _Program(self._device(), library, case, copies)
        error = program.error()
        if error > program.tolerance:
            return {"wrong": error}
        clock = self._clock([program.call], cold=is_cold)
        timed = worker._time([program.call], 1, *how, clock)
        return {**_of_one_copy(timed, copies), "max_error": error}

    def measure_in_turns(
        self,
        library: str,
        num: int,
        case: str,
        cold_bytes: int = 0,
        code_copies: int = 1,
        repeats: int = 15,
        min_repeat_s: float = 0.002,
    ) -> dict[str, Any]:
        """Check the programs 0.so … of the folder `library`, then time the right ones in turns against each other."""
        device, copies = self._device(), _copies()
        programs = [_Program(device, f"{library}/{i}.so", case, copies) for i in range(num)]
        errors = [program.error() for program in programs]
        checked = [([p.call], error, error <= p.tolerance) for p, error in zip(programs, errors, strict=True)]

        def time_in_turns(right: list[list[Call]]) -> list[dict[str, Any]]:
            clock = self._clock([call for (call,) in right], cold=cold_bytes > 0)
            return [_of_one_copy(t, copies) for t in worker._time_in_turns(right, 1, repeats, min_repeat_s, clock)]

        return answer_of_turns(checked, time_in_turns)

    def measure_network(
        self,
        library: str,
        case: str,
        repeats: int = 15,
        min_repeat_s: float = 0.01,
        max_spread: float = 0.02,
        cold_bytes: int = 1,
    ) -> dict[str, Any]:
        """Check a whole network against its reference case, then time single inferences, cold as blocks are."""
        return self._measure(library, case, 1, (repeats, min_repeat_s, max_spread, None), is_cold=cold_bytes > 0)

    def _clock(self, calls: Sequence[Call], cold: bool) -> Clock:
        """Seconds per launch; the first launches are repeated until the device's clock rates have settled."""
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
    from chanas.prescheduler.kernels.cuda.graph import COPIES

    return COPIES


def _of_one_copy(timed: dict[str, Any], copies: int) -> dict[str, Any]:
    return {**timed, "seconds": timed["seconds"] / copies, "spread_s": timed["spread_s"] / copies}


def describe(error: Exception) -> str:
    """Describe an error in one short line; CUDA's begin so that the parent replaces the worker."""
    text = " ".join(str(error).split())
    if "CUDA" not in text and "cuda" not in text:
        return worker._describe(error)
    if "out of memory" in text or "OutOfMemory" in text or "MemoryAllocation" in text:
        return f"{worker.OUT_OF_MEMORY}: the GPU has not enough left; end what else uses it (`nvidia-smi`)"
    return f"{worker.GPU_FAULT}: {text[:300]}"


def calls(compile_: Compile, open_device: Callable[[], Device]) -> dict[str, Callable[..., Any]]:
    """The calls that the worker answers, by name, which compile and time with these functions."""
    timer = Timer(open_device)
    own_operator = functools.partial(build_operator, compile_=compile_)
    return {
        "build_operator": own_operator,
        "build_operators": functools.partial(worker.build_operators, build=own_operator),
        "build_block": functools.partial(build_block, compile_=compile_),
        "build_network": functools.partial(build_network, compile_=compile_),
        "compile_point": compile_point,
        "measure": timer.measure,
        "measure_in_turns": timer.measure_in_turns,
        "measure_network": timer.measure_network,
        "ping": worker.ping,
        "hang": worker.CALLS["hang"],
        "crash": worker.CALLS["crash"],
    }


def _compile(program: Any, target: Any, library: Path) -> None:
    from chanas.prescheduler.codegen.cuda.driver import enable_machine_code
    from chanas.prescheduler.codegen.cuda.programs import compile_program

    enable_machine_code()
    compile_program(program, target, library)


def _open_device() -> Device:
    from chanas.devices.cuda_runtime import CUDADevice
    from chanas.devices.driver import find_gpu

    found = find_gpu()
    return CUDADevice(0 if found is None else found.l2_bytes)


def serve(compile_: Compile = _compile, open_device: Callable[[], Device] = _open_device) -> None:
    """Serve requests until standard input closes. The host's memory is not limited: CUDA maps all of the device's."""
    worker.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_torch()
    with contextlib.suppress(Exception):  # what compiles needs no GPU; what times says why there is none
        from chanas.devices.cuda_runtime import load_runtime

        load_runtime()
    worker.serve_requests(calls(compile_, open_device), describe)


if __name__ == "__main__":
    serve()
