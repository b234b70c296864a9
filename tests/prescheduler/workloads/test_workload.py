"""chanas/prescheduler/workloads/workload.py: a block is exactly its operators."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from strategies import spaces_and_architectures

from chanas.core.arch import Architecture, BlockConfig, SearchSpace
from chanas.core.target import in_batches
from chanas.prescheduler.workloads.blocks import block_workloads, device_workloads, fuse_squeeze
from chanas.prescheduler.workloads.workload import Workload, tiled_columns

from ..cases import HOST, workloads
from ..cuda_cases import GPU

STEM = BlockConfig("stem", 13, 3, 0, 24, 3, 2, "hswish")
PLAIN = BlockConfig("mbconv", 9, 16, 48, 24, 5, 2, "relu")
EVERYTHING = BlockConfig("mbconv", 7, 16, 64, 16, 3, 1, "hswish", use_se=True, residual=True)
NO_EXPAND = BlockConfig("mbconv", 7, 16, 16, 16, 3, 1, "relu", residual=True)
HEAD = BlockConfig("head", 4, 24, 0, 40, activation="hswish")
CLASSIFIER = BlockConfig("classifier", 1, 40, 32, 10, activation="hswish")

OPERATORS = {
    STEM: [Workload("conv", 13, 3, 24, 3, 2, "hswish")],
    PLAIN: [
        Workload("pointwise", 9, 16, 48, epilogue="relu"),
        Workload("depthwise", 9, 48, 48, 5, 2, "relu"),
        Workload("pointwise", 5, 48, 24),
    ],
    EVERYTHING: [
        Workload("pointwise", 7, 16, 64, epilogue="hswish"),
        Workload("depthwise", 7, 64, 64, 3, 1, "hswish"),
        Workload("pool", 7, 64, 64),
        Workload("pointwise", 1, 64, 16, epilogue="relu"),
        Workload("pointwise", 1, 16, 64, epilogue="hsigmoid"),
        Workload("pointwise", 7, 64, 16, scaled=True, residual=True),
    ],
    NO_EXPAND: [
        Workload("depthwise", 7, 16, 16, 3, 1, "relu"),
        Workload("pointwise", 7, 16, 16, residual=True),
    ],
    HEAD: [Workload("pointwise", 4, 24, 40, epilogue="hswish"), Workload("pool", 4, 40, 40)],
    CLASSIFIER: [Workload("pointwise", 1, 40, 32, epilogue="hswish"), Workload("pointwise", 1, 32, 10)],
}

of_some_network = settings(max_examples=40)


def test_what_was_stored_before_there_were_batches_is_of_one_image() -> None:
    before = {
        "op": "pointwise",
        "input_size": 7,
        "in_channels": 16,
        "out_channels": 64,
        "kernel_size": 1,
        "stride": 1,
        "epilogue": "hswish",
        "scaled": False,
        "residual": True,
        "dtype": "float16",
        "wide": False,
    }
    workload = Workload.from_json(before)
    assert workload == Workload("pointwise", 7, 16, 64, epilogue="hswish", residual=True, dtype="float16")
    assert workload.key == "pointwise-7px-16x64-k1s1-hswish-res-float16"


def test_several_images_are_another_workload_with_as_many_times_the_work() -> None:
    for one, many in zip(block_workloads(EVERYTHING), block_workloads(EVERYTHING, "float16", 32), strict=True):
        assert many.key == one.key.removesuffix("float32") + "float16-b32"
        assert many.num_flops == 32 * one.num_flops
        assert Workload.from_json(json.loads(json.dumps(many.to_json()))) == many


def test_squeeze_excite_of_several_images_is_three_operators() -> None:
    ops = [w.op for w in device_workloads(EVERYTHING, in_batches(GPU, 2))]
    assert ops == ["pointwise", "depthwise", "pool", "pointwise", "pointwise", "pointwise"]


@pytest.mark.parametrize("block", OPERATORS, ids=lambda b: b.key)
def test_the_operators_of_a_block(block: BlockConfig) -> None:
    assert list(block_workloads(block)) == OPERATORS[block]


def num_folded_values(block: BlockConfig) -> int:
    """Weights and biases once BN is folded: one value per channel where training has scale and shift."""
    if block.kind == "classifier":
        return block.num_params + block.mid_channels  # the feature layer has no bias in training
    expanded = block.mid_channels if block.has_expand else 0
    return block.num_params - block.out_channels - (expanded + block.mid_channels if block.kind == "mbconv" else 0)


@of_some_network
@given(spaces_and_architectures())
def test_operators_add_up_to_their_block(member: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = member
    for block in architecture.blocks(space, num_classes=7):
        operators = block_workloads(block)
        assert sum(w.num_flops for w in operators if w.op != "pool") == 2 * block.num_macs
        assert sum(w.weight_bytes for w in operators) == 4 * num_folded_values(block)


@of_some_network
@given(spaces_and_architectures())
def test_an_operator_takes_what_the_one_before_it_gives(member: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = member
    for block in architecture.blocks(space, num_classes=7):
        operators = block_workloads(block)
        assert operators[0].in_channels == block.in_channels
        assert operators[0].input_size == block.input_size
        assert operators[-1].out_channels == block.out_channels
        assert operators[-1].output_size == block.output_size
        for before, after in pairwise(operators):
            assert after.in_channels == before.out_channels
            assert after.scaled or after.input_size == before.output_size


@of_some_network
@given(spaces_and_architectures())
def test_different_operators_have_different_keys(member: tuple[SearchSpace, Architecture]) -> None:
    space, _ = member
    found = {w for block in space.all_blocks(7) for w in block_workloads(block)}
    assert len({w.key for w in found}) == len(found)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "depthwise"},
        {"input_size": 8},
        {"in_channels": 8},
        {"out_channels": 8},
        {"kernel_size": 3},
        {"stride": 2},
        {"epilogue": "relu"},
        {"scaled": True},
        {"residual": True},
        {"dtype": "int8"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_is_in_the_key(change: dict[str, object]) -> None:
    workload = Workload("pointwise", 7, 16, 16)
    assert Workload.from_json({**workload.to_json(), **change}).key != workload.key


@given(workloads)
def test_a_workload_survives_json(workload: Workload) -> None:
    assert Workload.from_json(json.loads(json.dumps(workload.to_json()))) == workload


@pytest.mark.parametrize(("size", "stride", "expected"), [(13, 2, 7), (12, 2, 6), (1, 2, 1), (13, 1, 13)])
def test_strides_round_up(size: int, stride: int, expected: int) -> None:
    assert Workload("depthwise", size, 8, 8, 3, stride).output_size == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 1), (7, 7), (13, 13), (15, 15), (17, 18), (25, 25), (28, 28), (29, 30), (37, 39), (224, 224)],
)
def test_columns_are_rounded_up_to_equal_tiles(size: int, expected: int) -> None:
    assert tiled_columns(Workload("blockconv", size, 8, 8, 3)) == expected


def test_few_columns_are_computed_in_vain() -> None:
    for size in range(1, 300):
        columns = tiled_columns(Workload("blockconv", size, 8, 8, 3))
        assert size <= columns <= 1.06 * size


def test_pooling_leaves_one_pixel_and_has_no_weights() -> None:
    pool = Workload("pool", 7, 24, 24)
    assert (pool.output_size, pool.weight_bytes, pool.num_flops) == (1, 0, 7 * 7 * 24)


def test_squeeze_excite_is_two_operators_where_pooling_and_its_dense_layer_are_one() -> None:
    expand, depthwise, _, _, gate, project = block_workloads(EVERYTHING)
    one = Workload("squeeze", 7, 64, 16, epilogue="relu")
    assert fuse_squeeze(block_workloads(EVERYTHING)) == (expand, depthwise, one, gate, project)
    assert one.output_size == 1
    assert one.num_flops == 49 * 64 + 2 * 64 * 16
    assert one.weight_bytes == 4 * (64 * 16 + 16)


def test_gpus_have_squeeze_excite_in_two() -> None:
    assert device_workloads(EVERYTHING, GPU) == fuse_squeeze(block_workloads(EVERYTHING))
    assert device_workloads(EVERYTHING, HOST) == block_workloads(EVERYTHING)


@pytest.mark.parametrize("block", [PLAIN, HEAD, CLASSIFIER], ids=["plain", "head", "classifier"])
def test_other_blocks_stay_as_they_are(block: BlockConfig) -> None:
    assert fuse_squeeze(block_workloads(block)) == block_workloads(block)
