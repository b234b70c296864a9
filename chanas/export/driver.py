"""A scheduled module as the tables of a C program: the kernels that it calls, one after the other, and the places of
what they read and write, in the weights, in one piece of memory, or in the caller's inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.cpu.c_kernels import CallList, Place, aligned
from chanas.core.arrays import Array
from chanas.core.codec import fields_from_json
from chanas.core.target import HardwareTarget
from chanas.export.memory_plan import MemoryPlan
from chanas.export.signature import Tensor
from chanas.measuring.messages import Build, ModuleFile
from chanas.measuring.worker.compiler import open_compiler

# All functions of a network one after the other: a second each at most.
_TIMEOUT_S = 1800.0
_BUFFERS = """\
    /* What kernels leave for each other, and copies of inputs whose addresses are no multiples of the alignment. */
    unsigned char memory[{}] __attribute__((aligned(ALIGNMENT)));"""
_WEIGHTS_BASE, _MEMORY_BASE, _FIRST_INPUT_BASE = 0, 1, 2


def build_calls(name: str, module: Path, num_inputs: int, target: HardwareTarget, folder: Path) -> CallList:
    """Compile a Relax module's functions to object files in `folder`, in another process; their symbols begin with
    `name`.

    Raises:
        TargetError: the module does what takes TVM's runtime, the compiler crashes, or makes other object code than is
            expected here.
    """
    request = Build(target=target, what=ModuleFile(module, num_inputs), path=folder, form="kernels", name=name)
    with open_compiler(target) as compiler:
        found: CallList = fields_from_json(CallList, compiler.result(request, "the network", _TIMEOUT_S))
    return found


def write_weights(parameters: Iterable[Array], calls: CallList, path: Path) -> tuple[dict[Place, int], int]:
    """Parameters and constants in one file, one in memory at a time; returns where each begins, and the end of the
    last."""
    offsets, end = dict[Place, int](), 0
    with open(path, "wb") as file:

        def write(place: Place, content: Array) -> None:
            nonlocal end
            offsets[place], end = end, end + aligned(content.nbytes)
            content.tofile(file)
            file.write(bytes(end - offsets[place] - content.nbytes))

        for i, parameter in enumerate(parameters):
            write(Place("parameter", i), parameter)
        for i, constant in enumerate(calls.constants):
            write(Place("constant", i), np.fromfile(constant, np.uint8))
    return offsets, end


def driver(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], calls: CallList, plan: MemoryPlan, weights: Mapping[Place, int]
) -> dict[str, Any]:
    """Values of the placeholders in what calls the kernels. Its variables have numbers: names might hide others."""

    def located(place: Place) -> tuple[int, int]:
        """The index of a base, and the offset there."""
        if place.kind == "input":
            return _FIRST_INPUT_BASE + place.index, 0
        return (_MEMORY_BASE, plan.offsets[place]) if place.kind == "buffer" else (_WEIGHTS_BASE, weights[place])

    arguments = [located(place) for call in calls.calls for place in call.arguments] or [(0, 0)]
    copies = [(i, *located(place)) for i, place in enumerate(calls.outputs)]
    rows = [(call.symbol, len(call.arguments)) for call in calls.calls]
    return {
        "KERNELS": "\n".join(f"INTERNAL kernel {symbol};" for symbol in dict.fromkeys(c.symbol for c in calls.calls)),
        "NUM_CALLS": len(calls.calls),
        "MOST_ARGUMENTS": max((len(c.arguments) for c in calls.calls), default=1),
        "CALLS": "\n".join(f"    {{{symbol}, {num}}}," for symbol, num in rows or [("NULL", 0)]),
        "PLACES": "\n".join(f"    {{{base}, {offset}}}," for base, offset in arguments),
        "BASES": "\n".join(
            f"        aligned_input(in{i}, handle->memory + {plan.offsets[Place('input', i)]}, {t.num_bytes}),"
            for i, t in enumerate(inputs)
        ),
        "COPIES": "\n".join(
            f"    memcpy(out{i}, bases[{base}] + {offset}, {outputs[i].num_bytes});" for i, base, offset in copies
        ),
        "BUFFERS": _BUFFERS.format(max(plan.num_bytes, 1)),
        "WORKSPACE_BYTES": calls.workspace_bytes,
        "STATIC_BYTES": plan.num_bytes + calls.workspace_bytes,
    }
