"""A lowered network with default schedules: its module, compiled, and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def default_module(program: Any, target: Any) -> Any:
    """The `ProgramModule` in which each operator has the best of its default points."""
    from chanas.compiler.cpu.module import program_module
    from chanas.prescheduler.ideas import ranked_points

    chosen = {o.key: (o.choices[0], ranked_points(o.choices[0], target, 1)[0]) for o in program.tuned}
    return program_module(program, chosen, target)


def compiled(made: Any, target: Any) -> Any:
    """TVM's executable of a module."""
    import tvm

    with target.tvm_target() as device, tvm.transform.PassContext(opt_level=3):
        return tvm.compile(made.module, device)


def outputs_of(executable: Any, made: Any, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a compiled module, as arrays."""
    import numpy as np
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(executable, tvm.cpu())
    found = machine["main"](*(tvm.runtime.tensor(np.asarray(a, order="C")) for a in (*inputs, *made.parameters)))
    return [o.numpy() for o in ([found] if hasattr(found, "numpy") else found)]
