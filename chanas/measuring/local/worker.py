"""The worker process that compiles and times candidates: run as `python -m chanas.measuring.local.worker`.

One JSON request (`chanas.measuring.requests`) per line on standard input, one JSON answer per line on the
descriptor that standard output was. A candidate that crashes or hangs takes only this process with it; the parent
(`chanas.measuring.local.pool`) starts another. Torch is hidden here: the compiler's runtime would import
it, which costs seconds and 600 MB a process.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chanas import interrupts
from chanas.compiler.cases import relative_error
from chanas.compiler.comparison import Comparison, StoredCase
from chanas.core.units import format_bytes
from chanas.devices.lean_tvm import hide_torch
from chanas.devices.timing import Call, TimingSettings
from chanas.measuring.answers import Answer, ErrorKind, Timing, WorkerError
from chanas.measuring.local.timing import CheckedProgram, time_program, time_programs_in_turns
from chanas.measuring.requests import (
    BuildBlock,
    BuildCalls,
    BuildModule,
    BuildNetwork,
    BuildObject,
    BuildOperator,
    BuildOperators,
    BuildUntunedBlock,
    CompareModule,
    Crash,
    Hang,
    Measure,
    MeasureInTurns,
    MeasureModule,
    MeasureNetwork,
    Ping,
    Request,
    read_request,
)
from chanas.network.bfloat16 import from_bits

# Copies of small weights beyond this change nothing: what they don't fill stays warm in a network too.
_MAX_WEIGHT_COPIES = 256
# As many operators are tuned side by side (`jobs`), one more, and the canary.
_KEEP_CASES = 5
_EXIT_CANNOT_LOAD = 3


def memory_limit() -> int:
    """Bytes that a worker may allocate: 4 GiB, and on a small machine no more than half of its memory.

    Building and timing whole networks of 224 pixels takes well under 1 GiB; what needs more is a bad candidate.
    """
    return min(4 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def limit_memory(num_bytes: int) -> None:
    """An allocation beyond so many bytes fails in this process, instead of the system ending some other one."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def build_operator(request: BuildOperator) -> dict[str, Any]:
    """Compile one schedule point of one operator; `code` is the same for points that end in the same machine code."""
    from chanas.compiler.cpu.build import build_function
    from chanas.compiler.cpu.families import schedule_operator

    function = schedule_operator(request.workload, request.point, request.target)
    build_function(function, request.target, request.library)
    return {"code": hashlib.sha256(request.library.read_bytes()).hexdigest()[:32]}


def build_operators(request: BuildOperators, build: Callable[[BuildOperator], Any] = build_operator) -> None:
    """Compile several schedule points of one operator into a folder; `build` compiles one."""
    request.library.mkdir(exist_ok=True)
    for i, (point, there) in enumerate(zip(request.points, request.compiled, strict=True)):
        path = request.library / f"{i}.so"
        if there is not None and there.exists():
            shutil.copyfile(there, path)
        else:
            build(BuildOperator(target=request.target, library=path, workload=request.workload, point=point))


def build_block(request: BuildBlock) -> None:
    """Compile one fused block."""
    from chanas.compiler.cpu.blocks import schedule_block
    from chanas.compiler.cpu.build import build_function

    build_function(schedule_block(request.block, request.points, request.target), request.target, request.library)


def build_network(request: BuildNetwork) -> None:
    """Compile a whole network."""
    from chanas.compiler.cpu import build as cpu_build

    cpu_build.build_network(request.blocks, request.points, request.target, request.library)


def build_module(request: BuildModule) -> None:
    """Compile a scheduled module."""
    from chanas.compiler.cpu import build as cpu_build

    cpu_build.build_module(request.module, request.target, request.library)


def build_object(request: BuildObject) -> None:
    """Compile one fused block to an object file."""
    from chanas.compiler.cpu import blocks as cpu_blocks
    from chanas.compiler.cpu import build as cpu_build

    function = cpu_blocks.schedule_block(request.block, request.points, request.target)
    cpu_build.build_object(function.with_attr("global_symbol", request.name), request.target, request.path)


def build_calls(request: BuildCalls) -> Any:
    """Compile a scheduled module to the kernels of a static library; the answer is a `CallList`."""
    from chanas.compiler.cpu import c_kernels

    r = request
    return c_kernels.build_calls(r.network, r.module, r.num_inputs, r.target, r.folder)


def build_untuned_block(request: BuildUntunedBlock) -> None:
    """Compile one block with TVM's default pipeline (no schedules)."""
    from chanas.compiler.cpu import untuned

    untuned.build_block(request.block, request.target, request.library)


def _tensor(array: Any) -> Any:
    import tvm

    return tvm.runtime.tensor(array)


def _as_float32(array: Any) -> Any:
    import numpy as np

    return from_bits(array) if array.dtype == np.uint16 else array


class _Case:
    """A reference case in device memory, with enough copies of the weights that each call finds its own cold."""

    def __init__(self, path: Path, cold_bytes: int) -> None:
        import numpy as np

        with np.load(path, allow_pickle=False) as data:
            expected = data["expected"]
            self.tolerance = float(data["tolerance"])
            count = sum(name.startswith("argument") for name in data.files)
            arrays = [data[f"argument{i}"] for i in range(count)]
            weights = {int(i) for i in data["weights"]}
        own = sum(arrays[i].nbytes for i in weights)
        copies = min(_MAX_WEIGHT_COPIES, max(1, -(-cold_bytes // own))) if own else 1
        # An output that nobody wrote to is NaN, as bits of a bfloat16 too.
        self.unwritten = np.full_like(expected, 0x7FC0 if expected.dtype == np.uint16 else np.nan)
        self.output = _tensor(self.unwritten)
        self.expected = _as_float32(expected)
        fixed = [None if i in weights else _tensor(a) for i, a in enumerate(arrays)]
        self.argument_sets = [
            [_tensor(a) if f is None else f for a, f in zip(arrays, fixed, strict=True)] for _ in range(copies)
        ]

    def check(self, output: Any) -> float:
        """The error of an output, of several one after the other."""
        import numpy as np

        outputs = [_as_float32(o.numpy()) for o in ([output] if hasattr(output, "numpy") else output)]
        got = outputs[0] if len(outputs) == 1 else np.concatenate([np.asarray(o, np.float32).ravel() for o in outputs])
        return relative_error(got.reshape(self.expected.shape), self.expected)


_CASES: dict[tuple[Path, int], _Case] = {}


def _case(path: Path, cold_bytes: int) -> _Case:
    key = (path, cold_bytes)
    if key not in _CASES:
        while len(_CASES) >= _KEEP_CASES:
            del _CASES[next(iter(_CASES))]
        _CASES[key] = _Case(path, cold_bytes)
    return _CASES[key]


def _load_functions(library: Path, copies: int) -> list[Any]:
    """The library's function, loaded `copies` times from files of their own, so that each has code of its own.

    The library is unloaded with the last reference. When the process cannot map any more code it ends, so that its
    successor starts clean and no other candidate is blamed.
    """
    import tvm_ffi

    functions = []
    try:
        for i in range(copies):
            path = str(library) if i == 0 else f"{library}.{i}.so"
            if i:
                shutil.copyfile(library, path)
            functions.append(tvm_ffi.load_module(path, keep_module_alive=False)["main"])
            if i:
                os.unlink(path)
    except (RuntimeError, OSError):
        os._exit(_EXIT_CANNOT_LOAD)
    return functions


def _check(library: Path, case: Path, settings: TimingSettings) -> CheckedProgram:
    """Call a compiled function once and compare its result.

    Each call has weights of its own (copies of `cold_bytes` together) and code of its own (`code_copies`): in a network
    both come from a cache further away, because everything else ran since.
    """
    functions = _load_functions(library, settings.code_copies)
    reference = _case(case, settings.cold_bytes)
    reference.output.copyfrom(reference.unwritten)
    functions[0](*reference.argument_sets[0], reference.output)
    error = reference.check(reference.output)
    sets = [(*arguments, reference.output) for arguments in reference.argument_sets]
    num_calls = max(len(sets), len(functions))
    calls = [(functions[i % len(functions)], sets[i % len(sets)]) for i in range(num_calls)]
    return CheckedProgram(calls, error, reference.tolerance)


def measure(request: Measure) -> Timing | WorkerError:
    """Check a compiled function against its reference case, then time it as a network would run it."""
    settings = request.settings
    checked = _check(request.library, request.case, settings)
    return time_program(checked, max(settings.code_copies, 2), settings, request.hopeless_s)


def measure_in_turns(request: MeasureInTurns) -> list[Answer]:
    """Check several functions, then time the right ones in turns against each other."""
    settings = request.settings
    checked = [_check(request.library / f"{i}.so", request.case, settings) for i in range(request.num)]
    return time_programs_in_turns(checked, max(settings.code_copies, 2), settings)


def measure_network(request: MeasureNetwork) -> Timing | WorkerError:
    """Check a compiled Relax module against its reference case, then time whole calls, as a user's process does."""
    function = _module_function(request.library)
    reference = _Case(request.case, request.settings.cold_bytes)
    error = reference.check(function(*reference.argument_sets[0]))
    calls: list[Call] = [(function, arguments) for arguments in reference.argument_sets]
    return time_program(CheckedProgram(calls, error, reference.tolerance), 3, request.settings)


def _module_function(library: Path) -> Any:
    """The function of a compiled Relax module."""
    import tvm
    from tvm import relax

    return relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())["main"]


def _outputs(found: Any) -> list[Any]:
    """Copies of what a module gave back."""
    return [o.numpy() for o in ([found] if hasattr(found, "numpy") else found)]


def compare_module(request: CompareModule) -> Comparison:
    """Run a finished network on each draw of its case, and on the first once more in the end: nothing that another call
    left behind may change its outputs."""
    function, case = _module_function(request.library), StoredCase(request.case)
    parameters = [_tensor(a) for a in case.parameters()]
    found, first = [], list[bytes]()
    for draw in range(case.num_draws):
        outputs = _outputs(function(*map(_tensor, case.inputs(draw)), *parameters))
        found.append(case.compare(draw, outputs))
        first = first or [o.tobytes() for o in outputs]
    again = _outputs(function(*map(_tensor, case.inputs(0)), *parameters))
    return Comparison(tuple(found), tuple(i for i, o in enumerate(again) if o.tobytes() != first[i]))


def measure_module(request: MeasureModule) -> Timing | WorkerError:
    """Check a finished network on the first draw of its case, then time whole calls, as a user's process does."""
    function, case = _module_function(request.library), StoredCase(request.case)
    arguments = [_tensor(a) for a in (*case.inputs(0), *case.parameters())]
    worst = max((d.excess for d in case.compare(0, _outputs(function(*arguments)))), default=0.0)
    return time_program(CheckedProgram([(function, arguments)], worst, 1.0), 3, request.settings)


def ping(_request: Ping) -> dict[str, Any]:
    """Answers when the worker is ready."""
    return {"pid": os.getpid()}


def hang(_request: Hang) -> None:
    """Never answers."""
    time.sleep(3600)


def crash(_request: Crash) -> None:
    """Ends the process as a broken kernel does."""
    os.kill(os.getpid(), signal.SIGSEGV)


Calls = Mapping[type[Request], Callable[[Any], Any]]

CALLS: dict[type[Request], Callable[[Any], Any]] = {
    BuildOperator: build_operator,
    BuildOperators: build_operators,
    BuildBlock: build_block,
    BuildModule: build_module,
    BuildNetwork: build_network,
    BuildObject: build_object,
    BuildCalls: build_calls,
    BuildUntunedBlock: build_untuned_block,
    Measure: measure,
    MeasureInTurns: measure_in_turns,
    MeasureNetwork: measure_network,
    CompareModule: compare_module,
    MeasureModule: measure_module,
    Ping: ping,
    Hang: hang,
    Crash: crash,
}


def describe(error: Exception) -> WorkerError:
    """Describe an error in one line."""
    if isinstance(error, MemoryError) or "bad_alloc" in str(error):
        limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
        text = "" if limit == resource.RLIM_INFINITY else f"a worker may allocate {format_bytes(limit)}"
        return WorkerError(ErrorKind.OUT_OF_MEMORY, text)
    return WorkerError.of(error)


def load_compiler() -> None:
    """Import what workers compile with: that cost belongs to a worker's start, not to its first candidate."""
    import tvm  # noqa: F401


def serve_requests(
    calls: Calls,
    describe: Callable[[Exception], WorkerError] = describe,
    prepare: Callable[[], None] = load_compiler,
) -> None:
    """Answer one request after the other until standard input closes; whatever else is printed goes to stderr.

    Args:
        prepare: what is done before the first.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare()
    for line in sys.stdin:
        try:
            request = read_request(json.loads(line), calls)
            answer = Answer.of(calls[type(request)](request))
        except Exception as error:
            answer = Answer.of(describe(error))
        answers.write(json.dumps(answer.to_json()) + "\n")
        answers.flush()


def main() -> None:
    """Serve requests until standard input closes."""
    interrupts.die_with_parent()
    limit_memory(memory_limit())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_torch()
    serve_requests(CALLS)


if __name__ == "__main__":
    main()
