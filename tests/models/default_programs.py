"""Programs of networks with default schedules, and what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from chanas.compiler.cpu.module import ProgramModule, program_module
from chanas.compiler.program import Form, Program
from chanas.core.arrays import Array
from chanas.core.target import HardwareTarget
from chanas.prescheduler.ideas import ranked_points


def default_module(program: Program, target: HardwareTarget, choice: int = 0) -> ProgramModule:
    """The module of a program with default schedules. Of operators that compute the same it takes the one that `choice`
    says, as far as there are so many."""
    taken = {o.key: o.choices[min(choice, len(o.choices) - 1)] for o in program.tuned}
    chosen = {key: (w, ranked_points(w, Form(key[1], w.dtype).on(target), 1)[0]) for key, w in taken.items()}
    return program_module(program, chosen, target)


def outputs_of(executable: Any, made: ProgramModule, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a compiled module."""
    tensors = (tvm.runtime.tensor(np.asarray(a, order="C")) for a in (*inputs, *made.parameters))
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](*tensors)
    return [o.numpy() for o in ([found] if hasattr(found, "numpy") else found)]
