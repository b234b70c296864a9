"""Transposed convolutions as ordinary ones: rows of the output that are a stride apart, a phase, read their own taps of
the kernel, as a convolution of stride 1 of the small map; a stride of s has s phases along an axis.

Output row s·q + p of phase p reads taps r = (p + before) mod s, r + s, …, and the last of ceil(kernel / s) such taps
lies on input row q + `first_row`. Phases of fewer taps than that have zeros for those that they lack.
"""

from __future__ import annotations

import dataclasses

from chanas.operators.workload import Axis, Workload


def num_taps(axis: Axis) -> int:
    """Rows of a phase's kernel."""
    return -(-axis.kernel // axis.stride)


def taps_of_phase(axis: Axis, phase: int) -> list[int]:
    """Rows of the whole kernel that a phase's kernel consists of, from its first row; those beyond it are zeros."""
    first = (phase + axis.before) % axis.stride
    return [first + axis.stride * step for step in reversed(range(num_taps(axis)))]


def first_row(axis: Axis) -> int:
    """The input row under the first row of a phase's kernel at output row 0; 1 more for phases whose `phase + before`
    reaches a stride that `before` does not."""
    return axis.before // axis.stride - num_taps(axis) + 1


def num_rows(axis: Axis) -> int:
    """Output rows of a phase, the last of which may lie beyond the output."""
    return -(-axis.output // axis.stride)


def phase_of(workload: Workload) -> Workload:
    """A block convolution of as many outputs and terms as one phase."""
    (rows, columns), padding, sizes = workload.axes, [], []
    for axis in (rows, columns):
        before, read = -first_row(axis), num_rows(axis) + num_taps(axis) - 1
        sizes.append(min(axis.size, read - before))
        padding.append((before, read - before - sizes[-1]))
    (top, bottom), (left, right) = padding
    return dataclasses.replace(
        workload,
        op="blockconv",
        input_size=sizes[0],
        input_width=sizes[1],
        kernel_size=num_taps(rows),
        kernel_width=num_taps(columns),
        stride=1,
        column_stride=1,
        padding=(top, left, bottom, right),
    )
