"""Whole programs in int8 compared with a plain emulation of each operator, to the bit, and with float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from chanas.compiler.cpu.module import Chosen
from chanas.compiler.emulation import exact_sums
from chanas.compiler.program import Program, TunedOperation
from chanas.core.arrays import Array
from chanas.errors import MeasureError
from chanas.operators.quantised import computed
from chanas.operators.workload import Workload


def numbers_to_check(program: Program) -> list[int]:
    """The values that operators in int8 read and write."""
    whole = _in_int8(program)
    return sorted({*whole, *(read for operation in whole.values() for read in operation.reads)})


def check_numbers(program: Program, chosen: Chosen, values: Mapping[int, Array]) -> int:
    """Compare the numbers that each operator in int8 has written, where it stands in the network, with those that a
    plain emulation computes from what it reads. Sums of an image are of float32, so that one number may be the next.

    Args:
        values: those of `numbers_to_check` for some inputs.

    Returns the number of operators that were compared.

    Raises:
        MeasureError: an operator computes something else; names it.
    """
    whole = _in_int8(program)
    for number, operation in whole.items():
        workload = chosen[operation.key][0]
        wrong = _num_wrong(workload, operation, values, number)
        if wrong:
            raise MeasureError(
                f"wrong result: operator {workload.key} in int8 computes other numbers than its emulation in {wrong} "
                f"of {values[number].size} places"
            )
    return len(whole)


def _in_int8(program: Program) -> dict[int, TunedOperation]:
    return {n: o for n, o in program.tuned_numbers().items() if o.numbers is not None}


def _num_wrong(workload: Workload, operation: TunedOperation, values: Mapping[int, Array], number: int) -> int:
    """Places where an operator's output is not what its emulation gives, or the next number of an image's sums."""
    by = operation.numbers
    assert by is not None
    x, gate, residual = taken(operation, workload, [values[read] for read in operation.reads])
    expected = computed(workload, by, x, exact_sums(workload), gate, residual)
    found = as_map(values[number]).reshape(expected.shape)
    if workload.wide:
        return int((found != expected).sum())
    apart = np.abs(by.output.encode(found).astype(np.int64) - expected.astype(np.int64))
    return int((apart > (1 if workload.reads_image else 0)).sum())


def taken(
    operation: TunedOperation, workload: Workload, values: Sequence[Array]
) -> tuple[Array, Array | None, Array | None]:
    """The inputs of an operator in int8, of the values that it reads: numbers [B, C, H, W] (or an image), the gate
    [B, C], and the numbers of the residual."""
    by = operation.numbers
    assert by is not None
    maps = [as_map(value) for value in values]
    gates = [x[:, :, 0, 0] for i, x in enumerate(maps) if operation.takes_gate(i)]
    x = maps[0] if workload.reads_image else by.input.encode(maps[0])
    return x, gates[0] if gates else None, by.residual.encode(maps[-1]) if workload.residual else None


def as_map(values: Array) -> Array:
    """Values of the framework's shape as [B, C, H, W]; rows are pixels of one map, the channels last."""
    if values.ndim == 4:
        return values
    return np.ascontiguousarray(values.reshape(-1, values.shape[-1]).T)[None, :, :, None]
