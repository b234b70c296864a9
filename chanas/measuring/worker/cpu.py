"""The worker process that compiles for a processor and times on it: run as `python -m chanas.measuring.worker.cpu`.

Torch is hidden here: the compiler's runtime would import it, which costs seconds and 600 MB a process.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chanas import interrupts
from chanas.compiler.cases import ReferenceCase, relative_error
from chanas.compiler.comparison import Comparison, StoredCase
from chanas.compiler.program import FormChange
from chanas.devices.lean_tvm import hide_torch
from chanas.devices.timing import Call, Clock, seconds_per_call
from chanas.measuring.messages import (
    BlockAt,
    Build,
    Compare,
    Measure,
    ModuleFile,
    NetworkAt,
    OperatorAt,
    OperatorsAt,
    Request,
    UntunedBlock,
)
from chanas.measuring.worker.serve import ALWAYS, limit_memory, memory_limit, serve_requests
from chanas.measuring.worker.timing import CheckedProgram, as_float32, error_of, measure

# Copies of small weights beyond this change nothing: what they don't fill stays warm in a network too.
_MAX_WEIGHT_COPIES = 256
# As many operators are tuned side by side (`jobs`), one more, and the canary.
_KEEP_CASES = 5
_EXIT_CANNOT_LOAD = 3


# ---- compiling ------------------------------------------------------------------------------------------------------
def build(request: Build) -> Any:
    """Compile what is asked for.

    The answer about one point of an operator has `code`, the same for points that end in the same machine code; about a
    module for a C library it is a `CallList`.
    """
    from chanas.compiler.backends import schedule_operator
    from chanas.compiler.cpu import blocks, c_kernels, changes, untuned
    from chanas.compiler.cpu import build as cpu_build

    target, path, name = request.target, request.path, request.name
    match request.what, request.form:
        case OperatorAt(workload, point), "library":
            cpu_build.build_function(schedule_operator(workload, point, target), target, path)
            return code_of(path)
        case OperatorsAt(), "library":
            build_each(request, build)
        case BlockAt(block, points), "library":
            cpu_build.build_function(blocks.schedule_block(block, points, target), target, path)
        case BlockAt(block, points), "object":
            function = blocks.schedule_block(block, points, target)
            cpu_build.build_object(function.with_attr("global_symbol", path.stem), target, path)
        case NetworkAt(blocks_, points), "library":
            cpu_build.build_network(blocks_, points, target, path)
        case ModuleFile(module), "library":
            cpu_build.build_module(module, target, path)
        case ModuleFile(module, num_inputs), "kernels":
            return c_kernels.build_calls(name, module, num_inputs, target, path)
        case FormChange() as change, "library":
            cpu_build.build_function(changes.changing(change, target), target, path)
        case UntunedBlock(block), "library":
            untuned.build_block(block, target, path)
        case what, form:
            raise TypeError(f"no {form} is made of {type(what).__name__}")
    return None


def code_of(library: Path) -> dict[str, str]:
    """Identify the machine code in a library."""
    return {"code": hashlib.sha256(library.read_bytes()).hexdigest()[:32]}


def build_each(request: Build, build: Callable[[Build], Any]) -> None:
    """Compile several schedule points of one operator into a folder; `build` compiles one."""
    what = request.what
    assert isinstance(what, OperatorsAt)
    request.path.mkdir(exist_ok=True)
    for i, (point, there) in enumerate(zip(what.points, what.compiled, strict=True)):
        path = request.path / f"{i}.so"
        if there is not None and there.exists():
            shutil.copyfile(there, path)
        else:
            build(dataclasses.replace(request, what=OperatorAt(what.workload, point), path=path))


# ---- timing ---------------------------------------------------------------------------------------------------------
def _tensor(array: Any) -> Any:
    import tvm

    return tvm.runtime.tensor(array)


class _Case:
    """A reference case in device memory, with enough copies of the weights that each call finds its own cold."""

    def __init__(self, path: Path, cold_bytes: int) -> None:
        case = ReferenceCase.load(path)
        copies = -(-cold_bytes // case.weight_bytes) if case.weight_bytes else 1
        self.expected, self.tolerance = case.expected, case.tolerance
        self.output = _tensor(np.empty_like(case.expected))
        fixed = [None if i in case.weights else _tensor(a) for i, a in enumerate(case.arguments)]
        self.argument_sets = [
            [_tensor(a) if f is None else f for a, f in zip(case.arguments, fixed, strict=True)]
            for _ in range(min(_MAX_WEIGHT_COPIES, max(1, copies)))
        ]


class Processor:
    """This machine's processor, as `timing.measure` has it."""

    def __init__(self) -> None:
        self._cases: dict[tuple[Path, int], _Case] = {}

    def clock(self, _programs: Sequence[CheckedProgram], _request: Measure) -> Clock:
        return seconds_per_call

    def check(self, library: Path, request: Measure) -> CheckedProgram:
        """Load what is asked for, and call it once."""
        if request.form == "network":
            return self._check_network(library, request)
        if request.form == "module":
            return self._check_module(library, request)
        return self._check_function(library, request)

    def _check_function(self, library: Path, request: Measure) -> CheckedProgram:
        """Each call has weights of its own (copies of `cold_bytes` together) and code of its own (`code_copies`): in a
        network both come from a cache further away, because everything else ran since."""
        settings = request.settings
        functions, case = _load_functions(library, settings.code_copies), self._case(request)
        sets = [(*arguments, case.output) for arguments in case.argument_sets]
        error = error_of((functions[0], sets[0]), case.output, case.expected)
        num_calls = max(len(sets), len(functions))
        calls = [(functions[i % len(functions)], sets[i % len(sets)]) for i in range(num_calls)]
        return CheckedProgram(calls, error, case.tolerance, num_warm_up=max(settings.code_copies, 2))

    def _case(self, request: Measure) -> _Case:
        key = (request.case, request.settings.cold_bytes)
        if key not in self._cases:
            while len(self._cases) >= _KEEP_CASES:
                del self._cases[next(iter(self._cases))]
            self._cases[key] = _Case(*key)
        return self._cases[key]

    def _check_network(self, library: Path, request: Measure) -> CheckedProgram:
        """A network is called as a user's process does."""
        function, case = _module_function(library), _Case(request.case, request.settings.cold_bytes)
        outputs = [as_float32(o).ravel() for o in _outputs(function(*case.argument_sets[0]))]
        expected = as_float32(case.expected)
        error = relative_error(np.concatenate(outputs).reshape(expected.shape), expected)
        calls: list[Call] = [(function, arguments) for arguments in case.argument_sets]
        return CheckedProgram(calls, error, case.tolerance, num_warm_up=3)

    def _check_module(self, library: Path, request: Measure) -> CheckedProgram:
        """A finished network is compared on the first draw of its case."""
        function, case = _module_function(library), StoredCase(request.case)
        arguments = [_tensor(a) for a in (*case.inputs(0), *case.parameters())]
        worst = max((d.excess for d in case.compare(0, _outputs(function(*arguments)))), default=0.0)
        return CheckedProgram([(function, arguments)], worst, 1.0, num_warm_up=3)


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


def _module_function(library: Path) -> Any:
    """The function of a compiled Relax module."""
    import tvm
    from tvm import relax

    return relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())["main"]


def _outputs(found: Any) -> list[Any]:
    """Copies of what a module gave back."""
    return [o.numpy() for o in ([found] if hasattr(found, "numpy") else found)]


def compare(request: Compare) -> Comparison:
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


CALLS: dict[type[Request], Callable[[Any], Any]] = {
    Build: build,
    Measure: functools.partial(measure, timer=Processor()),
    Compare: compare,
    **ALWAYS,
}


def main() -> None:
    """Serve requests until standard input closes."""
    interrupts.die_with_parent()
    limit_memory(memory_limit())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_torch()
    serve_requests(CALLS)


if __name__ == "__main__":
    main()
