"""chanas/operators/steps.py: a block is exactly its operators, and each reads what it computes from."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from strategies import mixed_spaces_and_architectures, spaces_and_architectures

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.blocks import BlockConfig
from chanas.core.target import in_batches, in_dtype
from chanas.operators.precision import precision_of
from chanas.operators.steps import (
    Step,
    block_steps,
    block_target,
    block_workloads,
    device_steps,
    device_workloads,
    fuse_squeeze,
    network_tolerance,
)
from chanas.operators.workload import Workload

from ..compiler.cuda_cases import GPU
from ..compiler.workbench import HOST

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


@pytest.mark.parametrize("block", OPERATORS, ids=lambda b: b.key)
def test_the_operators_of_a_block(block: BlockConfig) -> None:
    assert list(block_workloads(block)) == OPERATORS[block]


def test_squeeze_excite_scales_what_it_has_the_mean_of() -> None:
    """The projection reads the depthwise convolution's output, the gate, and the block's input as residual."""
    assert [step.reads for step in block_steps(EVERYTHING)] == [(0,), (1,), (2,), (3,), (4,), (2, 5, 0)]


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
def test_an_operator_reads_values_of_its_shapes(member: tuple[SearchSpace, Architecture]) -> None:
    """The input's channels and pixels, a gate for each input channel, a residual of the output's shape."""
    space, architecture = member
    for block in architecture.blocks(space, num_classes=7):
        steps = block_steps(block)
        shapes = [(block.in_channels, block.input_size)]
        for step in steps:
            workload = step.workload
            expected = [(workload.in_channels, workload.input_size)]
            expected += [(workload.in_channels, 1)] if workload.scaled else []
            shapes.append((workload.out_channels, workload.output_size))
            expected += [shapes[-1]] if workload.residual else []
            assert [shapes[value] for value in step.reads] == expected
        assert shapes[-1] == (block.out_channels, block.output_size)


@of_some_network
@given(spaces_and_architectures())
def test_every_value_but_the_last_is_read_later(member: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = member
    for block in architecture.blocks(space, num_classes=7):
        for steps in (block_steps(block), fuse_squeeze(block_steps(block))):
            assert all(value <= i for i, step in enumerate(steps) for value in step.reads)
            assert {value for step in steps for value in step.reads} == set(range(len(steps)))


@of_some_network
@given(spaces_and_architectures())
def test_different_operators_have_different_keys(member: tuple[SearchSpace, Architecture]) -> None:
    space, _ = member
    found = {w for block in space.all_blocks(7) for w in block_workloads(block)}
    assert len({w.key for w in found}) == len(found)


def test_several_images_are_another_workload_with_as_many_times_the_work() -> None:
    for one, many in zip(block_workloads(EVERYTHING), block_workloads(EVERYTHING, "float16", 32), strict=True):
        assert many.key == one.key.removesuffix("float32") + "float16-b32"
        assert many.num_flops == 32 * one.num_flops
        assert Workload.from_json(json.loads(json.dumps(many.to_json()))) == many


def test_squeeze_excite_is_two_operators_where_pooling_and_its_dense_layer_are_one() -> None:
    expand, depthwise, _, _, gate, project = block_workloads(EVERYTHING)
    one = Workload("squeeze", 7, 64, 16, epilogue="relu")
    steps = fuse_squeeze(block_steps(EVERYTHING))
    assert [step.workload for step in steps] == [expand, depthwise, one, gate, project]
    assert [step.reads for step in steps] == [(0,), (1,), (2,), (3,), (2, 4, 0)]
    assert one.output_size == 1
    assert one.num_flops == 49 * 64 + 2 * 64 * 16
    assert one.weight_bytes == 4 * (64 * 16 + 16)


def test_a_mean_that_others_read_too_is_kept() -> None:
    pool, dense = Workload("pool", 7, 16, 16), Workload("pointwise", 1, 16, 8)
    steps = (Step(pool, (0,)), Step(dense, (1,)), Step(dense, (1,)))
    assert fuse_squeeze(steps) == steps


def test_gpus_have_squeeze_excite_in_two() -> None:
    assert device_steps(EVERYTHING, GPU) == fuse_squeeze(block_steps(EVERYTHING))
    assert device_steps(EVERYTHING, HOST) == block_steps(EVERYTHING)


def test_squeeze_excite_of_several_images_is_three_operators() -> None:
    ops = [w.op for w in device_workloads(EVERYTHING, in_batches(GPU, 2))]
    assert ops == ["pointwise", "depthwise", "pool", "pointwise", "pointwise", "pointwise"]


@pytest.mark.parametrize("block", [PLAIN, HEAD, CLASSIFIER], ids=["plain", "head", "classifier"])
def test_other_blocks_stay_as_they_are(block: BlockConfig) -> None:
    assert fuse_squeeze(block_steps(block)) == block_steps(block)


# ---- precision ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", OPERATORS, ids=lambda b: b.key)
def test_a_block_has_the_same_operators_in_any_dtype(block: BlockConfig) -> None:
    plain, mine = block_workloads(block), block_workloads(block, "bfloat16")
    assert [dataclasses.replace(w, dtype="float32", wide=False) for w in mine] == list(plain)
    assert not {w.key for w in plain} & {w.key for w in mine}
    assert [w.wide for w in mine] == [block.kind == "classifier" and w == mine[-1] for w in mine]


def test_an_image_and_logits_are_float32_and_all_between_is_bits() -> None:
    workloads = [w for block in (STEM, EVERYTHING, HEAD, CLASSIFIER) for w in block_workloads(block, "bfloat16")]
    assert [w.input_storage for w in workloads] == ["float32"] + ["uint16"] * (len(workloads) - 1)
    assert [w.output_storage for w in workloads] == ["uint16"] * (len(workloads) - 1) + ["float32"]


def test_weights_weigh_half() -> None:
    plain = Workload("pointwise", 7, 960, 160)
    assert dataclasses.replace(plain, dtype="bfloat16").weight_bytes == plain.weight_bytes - 2 * 960 * 160


# ---- int8 -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", OPERATORS, ids=lambda b: b.key)
def test_in_int8_an_operator_reads_what_is_written(block: BlockConfig) -> None:
    steps = block_steps(block, "int8")
    written = ["float32" if block.kind in ("stem", "classifier") else "uint8"]
    for step in steps:
        given, *extras = (written[value] for value in step.reads)
        assert given == step.workload.input_storage
        assert extras == ["float32"] * step.workload.scaled + ["uint8"] * step.workload.residual
        written.append(step.workload.output_storage)


def test_in_int8_what_is_computed_from_means_is_float32() -> None:
    dtypes = {step.workload.op: step.workload.dtype for step in block_steps(CLASSIFIER, "int8")}
    assert dtypes == {"pointwise": "float32"}
    on_one_pixel = BlockConfig("mbconv", 1, 16, 64, 16, 3, 1, "hswish", use_se=True, residual=True)
    expand, depthwise, pool, reduce, gate, project = block_workloads(on_one_pixel, "int8")
    assert {w.dtype for w in (expand, depthwise, pool, project)} == {"int8"}
    assert {w.dtype for w in (reduce, gate)} == {"float32"}
    assert pool.wide


# ---- several dtypes -------------------------------------------------------------------------------------------------
DTYPES = ("float32", "bfloat16", "int8")
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@each_dtype
@pytest.mark.parametrize("block", OPERATORS, ids=lambda b: b.key)
def test_a_blocks_own_dtype_goes_before_that_of_the_target(block: BlockConfig, dtype: str) -> None:
    own = dataclasses.replace(block, dtype=dtype)
    for other in DTYPES:
        assert block_steps(own, other) == block_steps(block, dtype)
        assert device_steps(own, in_dtype(HOST, other)) == device_steps(block, in_dtype(HOST, dtype))


@each_dtype
@pytest.mark.parametrize("block", OPERATORS, ids=lambda b: b.key)
def test_a_block_reads_and_writes_numbers_of_the_dtypes_that_it_says(block: BlockConfig, dtype: str) -> None:
    """The rule by which a network converts between blocks is that of operators."""
    own = dataclasses.replace(block, dtype=dtype)
    workloads = block_workloads(own)
    assert workloads[0].input_storage == precision_of(own.input_dtype).storage
    assert workloads[-1].output_storage == precision_of(own.output_dtype).storage


@of_some_network
@given(mixed_spaces_and_architectures())
def test_in_a_network_of_several_dtypes_a_block_reads_what_is_written(
    member: tuple[SearchSpace, Architecture],
) -> None:
    space, architecture = member
    written = "float32"
    for block in architecture.blocks(space, num_classes=7):
        if block.converts:
            assert block_steps(block) == ()
            assert written == precision_of(block.input_dtype).storage
            written = precision_of(block.output_dtype).storage
        else:
            workloads = block_workloads(block)
            assert workloads[0].input_storage == written
            written = workloads[-1].output_storage
    assert written == "float32"


def test_a_block_is_compiled_for_its_dtype() -> None:
    with_all = dataclasses.replace(HOST, has_matrices=True, has_dots=True)
    assert block_target(STEM, with_all) is with_all
    for dtype in DTYPES:
        own = block_target(dataclasses.replace(STEM, dtype=dtype), with_all)
        assert own == dataclasses.replace(with_all, dtype=dtype)


def test_a_network_may_be_as_far_off_as_its_least_precise_dtype() -> None:
    f32, bf16, int8 = (dataclasses.replace(EVERYTHING, dtype=dtype) for dtype in DTYPES)
    tolerances = {dtype: precision_of(dtype).network_tolerance for dtype in DTYPES}
    assert network_tolerance([f32, STEM], "float32") == tolerances["float32"]
    assert network_tolerance([f32, int8, f32], "float32") == tolerances["int8"] > tolerances["float32"]
    assert network_tolerance([f32, bf16, STEM], "float32") == tolerances["bfloat16"]
    assert network_tolerance([f32, STEM], "int8") == tolerances["int8"]
    assert network_tolerance([f32, f32], "int8") == tolerances["float32"]
