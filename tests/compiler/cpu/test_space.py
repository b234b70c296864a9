"""chanas/compiler/cpu/space.py: every point of a space can be carried out, on devices of every kind."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chanas.compiler.backends import schedule_space
from chanas.compiler.cpu.points import Bands, BlockConvPoint, LoopOrder, Padding, ReductionOrder
from chanas.compiler.cpu.space import max_accumulators
from chanas.compiler.space import Coordinate, Named, ScheduleSpace, Split, factorisations
from chanas.core.arch import SearchSpace
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.layout import num_blocks
from chanas.operators.steps import block_workloads
from chanas.operators.winograd import transforms
from chanas.operators.workload import Operator, Workload, ends_in_half_a_block

from ..workbench import DEVICES, NEON, OPERATORS, device, generators, workloads

devices = st.sampled_from(list(DEVICES.values()))
some = settings(max_examples=20)

TILED = Workload("pointwise", 7, 48, 96, epilogue="relu", scaled=True)


def extents(workload: Workload, target: HardwareTarget) -> dict[str, int]:
    """The length of each loop that a point splits."""
    lanes, size, inputs = target.vector_lanes, workload.output_size, workload.in_channels
    blocks = num_blocks(workload.out_channels, lanes)
    if workload.op == "pointwise":
        in_half = ends_in_half_a_block(workload, lanes)
        return {"split_m": size**2, "split_n": blocks - in_half, "split_k": inputs // (2 if in_half else 1)}
    if workload.op == "pool":
        return {"split_c": blocks, "split_m": workload.input_size**2}
    if workload.op == "depthwise":
        return {"split_h": size, "split_w": size}
    if workload.op == "conv":
        return {"split_h": size, "split_w": size, "split_n": blocks}
    if workload.op == "blockconv":
        return {"split_h": size, "split_w": size, "split_n": blocks, "split_k": inputs}
    tiles = -(-size // transforms(workload.kernel_size, workload.stride).outputs)
    rows = tiles if workload.op == "winograd2" else size
    return {"split_h": rows, "split_w": tiles, "split_n": blocks, "split_k": inputs}


def num_accumulators(workload: Workload, named: Named) -> int:
    """Vectors that the innermost tile sums up in registers."""
    tile = {"pool": "c", "pointwise": "mn", "depthwise": "hw"}.get(workload.op, "hwn")
    return math.prod(named[f"split_{loop}"][-1] for loop in tile)


# ---- factorisations -------------------------------------------------------------------------------------------------
@given(st.integers(1, 400), st.integers(1, 3), st.integers(1, 400))
def test_factorisations_are_all_of_them_once(extent: int, parts: int, innermost_max: int) -> None:
    found = factorisations(extent, parts, innermost_max)
    divisors = [d for d in range(1, extent + 1) if extent % d == 0]
    candidates = itertools.product(divisors, repeat=parts)
    assert sorted(found) == [f for f in candidates if math.prod(f) == extent and f[-1] <= innermost_max]


# ---- tiles that don't divide their loop -----------------------------------------------------------------------------
def test_a_prime_number_of_columns_has_tiles_the_last_of_which_is_smaller() -> None:
    assert Coordinate.tiles("w", 13, 6, range(4, 7)).options == ((13, 1), (4, 4), (3, 5))


def test_a_last_tile_is_not_much_smaller() -> None:
    assert Coordinate.tiles("w", 7, 6, range(4, 7)).options == ((7, 1), (2, 4))


def test_seven_columns_have_tiles_that_fill_few_registers() -> None:
    """With 12 of them, seven sums are nearly enough, and four columns by two channel blocks are."""
    space = schedule_space(Workload("blockconv", 7, 512, 512, 3, 1), device(lanes=8))
    tiles = {(named["split_w"][-1], named["split_n"][-1]) for named in map(space.groups, space.points)}
    assert tiles == {(7, 1), (4, 2)}


def test_seven_columns_are_one_tile_where_registers_are_many() -> None:
    space = schedule_space(Workload("blockconv", 7, 512, 512, 3, 1), device(lanes=16))
    assert {named["split_w"] for named in map(space.groups, space.points)} == {(1, 7)}


@pytest.mark.parametrize("extent", [1, 3, 5, 12, 28])
def test_where_a_tile_divides_the_columns_all_do(extent: int) -> None:
    assert Coordinate.tiles("w", extent, 6, range(4, 7)).options == factorisations(extent, 2, 6)


@given(st.integers(1, 400), st.integers(1, 30), st.integers(1, 30))
def test_a_split_into_tiles_covers_its_loop_and_no_tile_is_empty(extent: int, limit: int, smallest: int) -> None:
    tiles = Coordinate.tiles("w", extent, limit, range(smallest, limit + 1))
    assert tiles.extent == extent
    assert len(set(tiles.options)) == len(tiles.options)
    for outer, inner in tiles.options:
        assert (outer - 1) * inner < extent <= outer * inner
        assert tiles.means((outer, inner))
        assert not tiles.means((outer + 1, inner))


# ---- points ---------------------------------------------------------------------------------------------------------
@some
@given(workloads, devices)
def test_split_factors_multiply_to_their_loops_or_leave_a_smaller_last_tile(
    workload: Workload, target: HardwareTarget
) -> None:
    space, loops = schedule_space(workload, target), extents(workload, target)
    for point in space.points:
        splits = {name: group for name, group in space.groups(point).items() if name.startswith("split_")}
        assert splits.keys() == loops.keys()
        for name, group in splits.items():
            assert min(group) >= 1
            assert 0 <= math.prod(group) - loops[name] < (group[-1] if name in ("split_m", "split_w", "split_n") else 1)


@some
@given(workloads, devices)
def test_accumulators_stay_in_registers(workload: Workload, target: HardwareTarget) -> None:
    space = schedule_space(workload, target)
    most = max(num_accumulators(workload, space.groups(point)) for point in space.points)
    assert most <= max_accumulators(target) < target.num_vector_registers


REGISTER_TILED = ("pointwise", "conv", "blockconv", "winograd", "winograd2")


@some
@given(workloads, st.sampled_from([NEON, device(lanes=4)]))
def test_with_short_vectors_a_tiles_operands_stay_in_registers_too(workload: Workload, target: HardwareTarget) -> None:
    """A multiply-add of NEON has no operand in memory: one kind of them stays, one of the other kind passes by."""
    space = schedule_space(workload, target)
    for named in map(space.groups, space.points if workload.op in REGISTER_TILED else ()):
        sums, vectors = num_accumulators(workload, named), named["split_n"][-1]
        assert sums + min(sums // vectors, vectors) + 1 <= target.num_vector_registers - 2


@pytest.mark.parametrize("workload", [Workload("pointwise", 28, 40, 120), Workload("blockconv", 28, 80, 112, 3, 1)])
def test_with_short_vectors_a_loaded_operand_serves_several_multiply_adds(workload: Workload) -> None:
    """The register blocking that the paper found on a phone: at most one load for two multiply-adds."""
    space = schedule_space(workload, NEON)
    found = [space.groups(point) for point in space.points]
    assert len(found) > 8
    for named in found:
        sums, vectors, steps = num_accumulators(workload, named), named["split_n"][-1], named["split_k"][-1]
        steps *= 1 if named.get("reduce", (1,))[0] else workload.kernel_size
        assert sums >= 8
        assert sums // vectors * -(-steps // 4) + vectors * steps <= sums * steps / 2


@some
@given(workloads, devices, generators, st.integers(0, 30))
def test_points_are_there_once_and_read_back_and_drawn(
    workload: Workload, target: HardwareTarget, rng: np.random.Generator, num: int
) -> None:
    space = schedule_space(workload, target)
    points = space.points
    assert 0 < len(points) == len(set(points)) == len({space.decode(point) for point in points})
    assert [space.encode(space.groups(point)) for point in points] == list(points)
    drawn = space.sample(num, rng)
    assert len(drawn) == len(set(drawn)) == min(num, len(points))
    assert set(drawn) <= set(points)


def test_a_point_has_a_field_for_each_coordinate() -> None:
    """The example of docs/method.md."""
    layer = Workload("blockconv", 28, 80, 112, 3, 1, "relu")
    point = schedule_space(layer, device(num_threads=2)).decode((14, 2, 1, 2, 14, 7, 1, 20, 4, 1, 0, 1, 0, 1))
    assert point == BlockConvPoint(
        h=Bands(bands=14, steps=2, tile_rows=1),
        w=Split(outer=2, inner=14),
        n=Split(outer=7, inner=1),
        k=Split(outer=20, inner=4),
        order=LoopOrder.PIXELS_OUTSIDE,
        reduction=ReductionOrder.CHANNELS_OUTSIDE,
        num_fused=1,
        writes_columns_out=False,
        padding=Padding.BY_BAND,
    )


def test_a_field_without_a_coordinate_stands_at_what_its_absence_means() -> None:
    plain = Workload("pointwise", 7, 48, 96)
    space = schedule_space(plain, device())
    assert {c.name for c in space.coordinates} == {"split_m", "split_n", "split_k", "order"}
    assert (space.decode(space.middle).num_fused, space.decode(space.middle).scales_tiles) == (1, False)


@some
@given(workloads, st.sampled_from([16, 8, 4]))
def test_loops_are_fused_only_for_several_threads(workload: Workload, lanes: int) -> None:
    def names(num_threads: int) -> set[str]:
        return {c.name for c in schedule_space(workload, device(lanes, num_threads)).coordinates}

    assert "fuse" not in names(1)
    assert names(2) - names(1) == (set() if workload.op == "pool" else {"fuse"})


@pytest.mark.parametrize("op", [op for op in OPERATORS if op not in ("blockconv", "winograd", "winograd2")])
def test_the_spaces_of_a_preset_can_be_listed(op: Operator) -> None:
    found = {w for block in SearchSpace.load("mbv3-32").all_blocks(10) for w in block_workloads(block) if w.op == op}
    sizes = [len(schedule_space(w, device(num_threads=2)).points) for w in found]
    assert min(sizes) > 0
    assert max(sizes) < 5000


def bands(workload: Workload, num_threads: int = 1) -> list[Named]:
    space = schedule_space(workload, device(num_threads=num_threads))
    return [space.groups(point) for point in space.points]


@pytest.mark.parametrize(
    ("op", "kernel_size", "stride"),
    [
        *(("blockconv", 3, 2), ("blockconv", 7, 2), ("groupconv", 3, 2), ("groupconv", 7, 2)),
        *(("winograd", 3, 2), ("winograd", 7, 2), ("winograd2", 3, 1)),
    ],
)
def test_the_spaces_of_large_convolutions_can_be_listed(op: Operator, kernel_size: int, stride: int) -> None:
    groups = 8 if op == "groupconv" else 1
    workload = Workload(op, 224, 16, 24, kernel_size, stride, "relu", groups=groups)
    assert 0 < len(bands(workload)) <= len(bands(workload, num_threads=2)) < 5000


def test_a_convolution_all_but_hides_the_latency_of_its_multiply_adds_where_the_map_allows() -> None:
    def fewest(workload: Workload) -> int:
        return min(num_accumulators(workload, named) for named in bands(workload))

    assert fewest(Workload("blockconv", 28, 80, 112, 3, 1)) >= 7
    assert fewest(Workload("blockconv", 1, 80, 64, 3, 1)) == 4  # one pixel of four blocks is all there is
    assert fewest(Workload("blockconv", 1, 80, 112, 3, 1)) == 7
    assert fewest(Workload("blockconv", 2, 5, 10, 3, 1)) == 4


@pytest.mark.parametrize("size", [7, 14, 28, 56, 224])
def test_a_weight_of_square_tiles_is_loaded_for_several_of_them(size: int) -> None:
    found = bands(Workload("winograd2", size, 512, 512, 3, 1))
    assert found
    assert min(named["split_h"][-1] * named["split_w"][-1] for named in found) >= 4


def test_a_band_is_chosen_only_where_something_belongs_to_it() -> None:
    for named in bands(Workload("blockconv", 28, 40, 80, 3, 1)):
        split, padded, blocks_inside = named["split_h"], named["pad_at"] == (1,), named["order"] == (1,)
        assert (split[0] > 1) if padded or blocks_inside else (split[1] == 1)


def test_a_1x1_convolution_has_no_padding_to_place() -> None:
    assert {named["pad_at"] for named in bands(Workload("blockconv", 8, 32, 32, 1, 2))} == {(2,)}


@pytest.mark.parametrize("size", [7, 11, 13, 17, 19, 29, 31])
def test_a_convolution_of_prime_size_has_full_tiles(size: int) -> None:
    workload = Workload("blockconv", size, 16, 32, 3, 1)
    assert max(num_accumulators(workload, named) for named in bands(workload)) >= 12


@pytest.mark.parametrize("size", [7, 14, 28, 56, 112])
@pytest.mark.parametrize("kernel_size", [3, 5, 7])
def test_depthwise_tiles_are_neither_tiny_nor_long_to_compile(size: int, kernel_size: int) -> None:
    found = bands(Workload("depthwise", size, 32, 32, kernel_size, 1))
    for named in found:
        taps = kernel_size * (kernel_size if named["unroll"] == (1,) else 1)
        assert 4 <= math.prod((named["split_h"][-1], named["split_w"][-1])) <= 16
        assert math.prod((named["split_h"][-1], named["split_w"][-1])) * taps <= 200
    assert {named["pad_at"] for named in found} == {(2,)}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("target", DEVICES.values(), ids=DEVICES)
def test_depthwise_never_stores_its_padding_so_that_any_of_its_outer_loops_can_be_fused(
    target: HardwareTarget, stride: int
) -> None:
    space = schedule_space(Workload("depthwise", 28, 32, 32, 5, stride), target)
    options = {c.name: c.options for c in space.coordinates}
    assert options["pad_at"] == ((2,),)
    assert options.get("fuse", ((1,),)) == (((1,), (2,)) if target.num_threads > 1 else ((1,),))


@pytest.mark.parametrize(
    ("has_dots", "dilation", "has_words"),
    [(True, (1, 1), True), (True, (2, 1), True), (True, (1, 2), False), (False, (1, 1), False)],
)
def test_depthwise_in_int8_reads_words_of_four_neighbours_where_they_are_multiplied_at_once(
    has_dots: bool, dilation: tuple[int, int], has_words: bool
) -> None:
    target = dataclasses.replace(device(), dtype="int8", has_dots=has_dots)
    workload = Workload("depthwise", 14, 32, 32, 3, 1, dilation=dilation, dtype="int8")
    space = schedule_space(workload, target)
    assert (Padding.IN_WORDS in {space.decode(point).padding for point in space.points}) == has_words


@pytest.mark.parametrize("size", [1, 2, 3, 11, 13, 17, 19, 23, 29, 31])
@pytest.mark.parametrize("op", ["depthwise", "pointwise"])
def test_maps_of_any_size_have_tiles(op: Operator, size: int) -> None:
    assert bands(Workload(op, size, 24, 24, 3 if op == "depthwise" else 1))


@pytest.mark.parametrize(("size", "channels", "fewest"), [(28, 112, 7), (7, 160, 7), (1, 160, 1), (2, 32, 8)])
def test_a_1x1_convolution_hides_the_latency_of_its_multiply_adds(size: int, channels: int, fewest: int) -> None:
    found = bands(Workload("pointwise", size, 64, channels))
    assert min(named["split_m"][-1] * named["split_n"][-1] for named in found) == fewest
    assert min(named["split_m"][-1] for named in found) >= min(4, size**2)


def test_a_half_empty_block_of_channels_is_not_split_with_the_full_ones() -> None:
    split = {channels: bands(Workload("pointwise", 28, 96, channels))[0]["split_n"] for channels in (24, 32, 40, 120)}
    assert {channels: math.prod(factors) for channels, factors in split.items()} == {24: 1, 32: 2, 40: 2, 120: 8}


def test_the_gate_multiplies_what_there_is_less_of() -> None:
    assert "scale_at" not in bands(Workload("pointwise", 28, 96, 40, scaled=True))[0]
    assert "scale_at" in bands(Workload("pointwise", 7, 96, 160, scaled=True))[0]


# ---- what is not a point --------------------------------------------------------------------------------------------
def changed(space: ScheduleSpace, **groups: tuple[int, ...]) -> tuple[int, ...]:
    return space.encode({**space.groups(space.points[0]), **groups})


@pytest.mark.parametrize(
    ("groups", "named"),
    [
        ({"split_m": (7, 6)}, r"split_m=\[7, 6\]"),
        ({"split_m": (-7, -7)}, r"split_m=\[-7, -7\]"),
        ({"order": (2,)}, r"order=\[2\]"),
    ],
)
def test_an_option_that_is_not_there_is_refused_by_name(groups: Named, named: str) -> None:
    space = schedule_space(TILED, device())
    point = changed(space, **groups)
    assert not space.contains(point)
    with pytest.raises(ScheduleError, match=rf"{named} is not an option of workload {TILED.key}"):
        space.groups(point)


def test_a_tile_that_does_not_fit_in_registers_is_a_schedule_and_not_in_the_space() -> None:
    space = schedule_space(TILED, device(lanes=16))
    point = changed(space, split_m=(7, 7), split_n=(1, 6))
    assert space.means(point)
    assert not space.contains(point)
    assert point not in space.points


def test_both_orders_of_one_tile_are_one_point() -> None:
    space = schedule_space(Workload("pointwise", 7, 48, 32), device())
    for split_n, orders in (((2, 1), 2), ((1, 2), 1)):
        points = [changed(space, split_m=(7, 7), split_n=split_n, split_k=(12, 4), order=(o,)) for o in (0, 1)]
        assert sum(map(space.contains, points)) == orders


@settings(max_examples=40)
@given(workloads, devices, st.lists(st.integers(-3, 60), max_size=12))
def test_any_integers_are_a_point_or_refused(workload: Workload, target: HardwareTarget, numbers: list[int]) -> None:
    space = schedule_space(workload, target)
    point = tuple(numbers)
    assert space.contains(point) == (point in space.points)
