"""chanas/operators/transposed.py: the phases of a transposed convolution."""

from __future__ import annotations

import pytest

from chanas.operators.transposed import first_row, num_rows, num_taps, phase_of, taps_of_phase
from chanas.operators.workload import Axis, Workload

WINDOWS = ((2, 2, 0, 0), (3, 2, 1, 0), (3, 2, 1, 1), (4, 2, 1, 1), (5, 3, 2, -1), (1, 2, 0, -1))
AXES = [
    Axis(size, kernel, stride, 1, before, after, is_transposed=True)
    for size in (1, 4, 7)
    for kernel, stride, before, after in WINDOWS
]


@pytest.mark.parametrize("axis", AXES, ids=str)
def test_phases_share_out_the_taps_of_the_kernel(axis: Axis) -> None:
    taps = [tap for phase in range(axis.stride) for tap in taps_of_phase(axis, phase)]
    assert sorted(taps) == list(range(axis.stride * num_taps(axis)))
    assert axis.kernel <= len(taps) < axis.kernel + axis.stride


@pytest.mark.parametrize("axis", AXES, ids=str)
def test_each_output_row_reads_what_the_definition_says(axis: Axis) -> None:
    """Input row i times tap r adds to output row stride · i + r − before."""
    for output in range(axis.output):
        row, phase = divmod(output, axis.stride)
        later = (phase + axis.before % axis.stride) // axis.stride
        terms = {(row + first_row(axis) + later + j, tap) for j, tap in enumerate(taps_of_phase(axis, phase))}
        inside = {(i, tap) for i, tap in terms if 0 <= i < axis.size and tap < axis.kernel}
        assert inside == {
            (i, tap)
            for i in range(axis.size)
            for tap in range(axis.kernel)
            if axis.stride * i + tap - axis.before == output
        }


@pytest.mark.parametrize("padding", [None, (0, 0, 0, 0), (1, 1, 0, 0), (3, 2, 3, 2)])
def test_a_phase_has_as_many_outputs_as_are_computed(padding: tuple[int, int, int, int] | None) -> None:
    workload = Workload("upconv", 6, 16, 24, 4, 2, input_width=9, padding=padding)
    phase = phase_of(workload)
    assert [axis.output for axis in phase.axes] == [num_rows(axis) for axis in workload.axes]
    assert phase.kernel_area == 4
