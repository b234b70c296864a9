"""Places where a wrong program and its framework part: values between inputs and outputs beside those of the ONNX
model that the program was read from, as ONNX Runtime or ONNX's reference evaluator has them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chanas.compiler.comparison import Difference, Draw, difference, largest_of
from chanas.compiler.cpu.module import ProgramModule, program_module
from chanas.compiler.program import Program, TunedOperation
from chanas.core.statistics import spread
from chanas.core.target import HardwareTarget
from chanas.errors import ChanasError
from chanas.measuring.fleet import Pool
from chanas.models.graph import numbered
from chanas.models.lowering import with_outputs
from chanas.models.proof.comparing import build, compare
from chanas.models.proof.reference import Reference
from chanas.models.proof.rounding import Growth
from chanas.models.proof.uncertainty import values_and_bounds
from chanas.models.sources.onnx_models import values_of
from chanas.operators.precision import FLOAT32, precision_of

_SECONDS = 60.0
_MOST_VALUES, _MOST_BYTES = 64, 1 << 27
"""Values that are compared at a time."""


def first_difference(
    made: ProgramModule, reference: Reference, draw: Draw, target: HardwareTarget, pool: Pool, scratch: Path
) -> str:
    """A line about the first operation whose result is wrong while what it reads is right, as far as that is found in a
    minute.

    Args:
        draw: one for which the module's outputs are wrong.
    """
    try:
        return _Search(made, reference, draw, target, pool, scratch).line()
    except ChanasError as error:
        return f"where they part is not known: {error}"


class _Search:
    """The values of a program that have a name in the ONNX model; `before` has what each one is computed from, `share`
    is what they may be further off where operators are in bfloat16."""

    def __init__(
        self, made: ProgramModule, reference: Reference, draw: Draw, target: HardwareTarget, pool: Pool, scratch: Path
    ) -> None:
        self.made, self.draw, self.target, self.pool, self.scratch = made, draw, target, pool, scratch
        self.program, self.opened = made.program, reference.opened
        self.nodes = {name: node for node in self.opened.proto.graph.node for name in node.output if name}
        self.names = {v: name for v, name in made.program.names.items() if name in self.nodes}
        self.growths = {node.name: reference.growths[v] for v, node in numbered(reference.graph)}
        self.before = _ancestors(made.program)
        precisions = {precision_of(operation.form.dtype) for operation in made.program.tuned} - {FLOAT32}
        self.share = max((precision.network_tolerance for precision in precisions), default=0.0)
        self.deadline = time.monotonic() + _SECONDS

    def line(self) -> str:
        said = self._of_export()
        if said:
            return said
        needed = set[int]().union(*(self.before[o] for o in self.program.outputs))
        left, found = [v for v in sorted(self.names) if v in needed], None
        while left and time.monotonic() < self.deadline:
            apart = self._compared(_spread(left, self.program))
            wrong = [v for v, d in apart.items() if d.excess > 1.0]
            if wrong:
                found = wrong[0], apart[wrong[0]]
                left = [v for v in left if v in self.before[found[0]]]
            done = set(apart).union(*(self.before[v] for v, d in apart.items() if d.excess <= 1.0))
            left = [v for v in left if v not in done]
        if found is None:
            return "no value before the outputs that has a name differs"
        more = f", or one of {len(left)} before it that there was no time for" if left else ""
        return f"the first to differ is {self._described(*found)}{more}"

    def _of_export(self) -> str:
        """Message for an ONNX model that itself differs from its framework; empty where it does not."""
        outputs = [o.name for o in self.opened.proto.graph.output]
        found = values_of(self.opened.proto, outputs, self.opened.inputs)([x.copy() for x in self.draw.inputs])
        for i, (got, wanted, bounds) in enumerate(zip(found, self.draw.outputs, self.draw.allowed, strict=True)):
            apart = difference(got, wanted, bounds)
            if apart.excess > 1.0:
                return (
                    "the network differs already as it was exported to ONNX: there "
                    f"{self.opened.output_name(i)} is {apart.error:.2g} of its largest number off"
                )
        return ""

    def _compared(self, values: Sequence[int]) -> dict[int, Difference]:
        """The differences of these values, in order; those that the ONNX model has in another size are left out."""
        names = [self.names[v] for v in values]
        growths = [self.growths.get(name, Growth()) for name in names]
        known = values_and_bounds(self.opened, names, self.draw.inputs, growths)
        kept = {
            v: found
            for v, found in zip(values, known, strict=True)
            if found[0].size == math.prod(self.program.value(v).shape)
        }
        expected = tuple(value for value, _ in kept.values())
        bounds = tuple(bound + np.float32(self.share * largest_of(value)) for value, bound in kept.values())
        draw = Draw(self.draw.name, self.draw.inputs, expected, bounds)
        program = with_outputs(self.program, list(kept), self.target)
        made = program_module(program, self.made.chosen, self.target)
        library, left_s = self.scratch / "parting.so", max(1.0, self.deadline - time.monotonic())
        build(made, self.target, library, self.scratch / "parting.json", self.pool, left_s)
        [found] = compare(made, [draw], library, self.scratch / "parting.npz", self.pool, left_s).draws
        return dict(zip(kept, found, strict=True))

    def _described(self, value: int, apart: Difference) -> str:
        """A value by its node, what computes it here, and its difference."""
        node, operation = self.nodes[self.names[value]], self.program.operations[value - len(self.program.inputs)]
        by = operation.name if not isinstance(operation, TunedOperation) else self.made.chosen[operation.key][0].key
        return (
            f"{node.op_type} (node {node.name or self.names[value]}, computed by {by}): "
            f"{apart.error:.2g} of its largest number off, {apart.bound:.2g} allowed"
        )


def _ancestors(program: Program) -> list[set[int]]:
    """Values from which each value is computed, itself included."""
    found = [{v} for v in range(len(program.inputs))]
    for operation in program.operations:
        reads = [r for r in operation.reads if isinstance(r, int)]
        found.append({len(found)}.union(*(found[r] for r in reads)))
    return found


def _spread(values: Sequence[int], program: Program) -> list[int]:
    """Some of the values, as far apart as possible, the first and the last among them."""
    mean_bytes = sum(4 * math.prod(program.value(v).shape) for v in values) / len(values)
    num = min(len(values), _MOST_VALUES, max(2, int(_MOST_BYTES / max(1.0, mean_bytes))))
    return [values[i] for i in spread(len(values), num)]
