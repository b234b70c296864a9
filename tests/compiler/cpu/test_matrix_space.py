"""chanas/compiler/cpu/matrix_space.py: tiles that registers and the first cache are made for, and inputs that are
packed where that can be worth it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.cpu.points import ConvPoint, MatrixConvPoint, MatrixPoint
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Workload

from ..workbench import INT8_MATRICES, MATRICES

each_target = pytest.mark.parametrize("target", [MATRICES, INT8_MATRICES], ids=lambda target: target.dtype)
SUM_BYTES = 4


def points(workload: Workload, target: HardwareTarget) -> list[MatrixPoint | MatrixConvPoint]:
    space = schedule_space(replace(workload, dtype=target.dtype), target)
    return [space.decode(point) for point in space.points]


@each_target
@pytest.mark.parametrize("size", [7, 13, 28, 37, 112])
def test_sums_of_a_tile_fit_in_half_of_the_first_cache_and_fill_half_a_register(
    target: HardwareTarget, size: int
) -> None:
    most = target.l1_bytes // 2 // (target.vector_lanes * SUM_BYTES)
    for point in points(Workload("pointwise", size, 64, 96), target):
        assert 8 <= point.m.inner <= point.m.inner * point.n.inner <= most
    for point in points(Workload("blockconv", size, 64, 96, 3), target):
        rows = point.h.tile_rows
        assert min(8, size) <= point.w.inner <= rows * point.w.inner * point.n.inner <= most
        assert rows == 1 or point.w.inner == size


@each_target
def test_inputs_with_gaps_are_packed_and_those_of_one_block_are_not(target: HardwareTarget) -> None:
    assert {p.packs for p in points(Workload("pointwise", 14, 64, 96), target)} == {False, True}
    assert {p.packs for p in points(Workload("pointwise", 14, 64, 96, stride=2), target)} == {True}
    assert {p.packs for p in points(Workload("pointwise", 14, 16, 96), target)} == {False}


@each_target
def test_a_gate_is_applied_as_the_input_is_packed(target: HardwareTarget) -> None:
    found = {(p.packs, p.scales_tiles) for p in points(Workload("pointwise", 14, 64, 24, scaled=True), target)}
    assert (True, False) in found
    assert (True, True) not in found


@each_target
def test_a_map_of_one_pixel_waits_for_its_weights_in_vectors(target: HardwareTarget) -> None:
    assert not any(isinstance(point, MatrixPoint) for point in points(Workload("pointwise", 1, 64, 96), target))


def test_an_image_is_multiplied_in_matrix_registers_where_it_is_rounded() -> None:
    stem = Workload("conv", 224, 3, 64, 7, 2)
    assert {type(point) for point in points(stem, MATRICES)} == {MatrixConvPoint}
    assert {type(point) for point in points(stem, INT8_MATRICES)} == {ConvPoint}
