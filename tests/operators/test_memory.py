"""chanas/operators/memory.py: the peak of activations is what the compiled network's plan allocates."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
from fast_cases import fast
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import seeds, spaces, spaces_and_genomes

from chanas.core.arch import SearchSpace
from chanas.core.blocks import BlockConfig, with_conversions
from chanas.core.genome import Genomes, decode, encode, sample
from chanas.core.target import HardwareTarget, gpu_in_dtype, in_batches
from chanas.operators.memory import ActivationMemory, inner_bytes, network_bytes, output_bytes
from chanas.operators.steps import block_workloads, device_workloads

from ..compiler.cuda_cases import GPU
from ..compiler.workbench import HOST, in_dtypes, random_points

NUM_CLASSES = 10
# Beside what is counted, a network has small buffers: accumulators, padded rows, and outputs too small to share.
TOLERANCE = 0.1
# `T.alloc_buffer((14,), "float32x16")`: a flat buffer, float32 where no type stands
ALLOCATION = re.compile(r"T\.alloc_buffer\(\((\d+),\)(?:, \"[a-z]+(\d+)(?:x(\d+))?\")?")


def planned_bytes(network: Any, target: HardwareTarget) -> int:
    """Storage and logits in the plan of a compiled network."""
    import tvm
    from tvm import relax

    steps = (
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
    )
    device = target.tvm_target()
    with device, tvm.transform.PassContext(opt_level=3):
        planned = tvm.ir.transform.Sequential(list(steps))(network)["main"]
    between = 0

    def visit(call: Any) -> None:
        nonlocal between
        name = getattr(getattr(call, "op", None), "name", "")
        if name == "relax.memory.alloc_storage":
            between += int(call.args[0].values[0])
        elif name == "relax.builtin.alloc_tensor":
            between += 4 * math.prod(int(n) for n in call.args[0].values)

    relax.analysis.post_order_visit(planned, visit)
    return between


def allocated_bytes(network: Any, functions: list[Any], target: HardwareTarget) -> int:
    """What the compiled network allocates: what the plan of the whole has, and most inside one block."""
    import tvm

    from chanas.compiler.cpu.lowering import _make

    device, inner = target.tvm_target(), []
    for function in functions:
        module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        with device, tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True}):
            module = tvm.tirx.transform.BindTarget(device.with_host(device))(module)
            for step in _make()[0].passes:
                if "VerifyMemory" in str(step.info):
                    break
                module = step(module)
        found = ALLOCATION.findall(module["main"].script())
        sizes = [int(num) * int(bits or 32) * int(lanes or 1) // 8 for num, bits, lanes in found]
        inner.append(sum(sizes))
    return planned_bytes(network, target) + max(inner)


@pytest.mark.parametrize(
    ("name", "which"),
    fast([(name, which) for name in ("tiny", "mbv3-32") for which in ("smallest", "largest", "random")], [1, 2, 5]),
)
def test_a_compiled_network_allocates_what_was_foretold(name: str, which: str, tiny_space: SearchSpace) -> None:
    from chanas.compiler.cpu.blocks import schedule_block
    from chanas.compiler.cpu.module import program_module
    from chanas.compiler.program import Program

    space = tiny_space if name == "tiny" else SearchSpace.load(name)
    rng = np.random.default_rng(1)
    chosen = {"smallest": space.smallest, "largest": space.largest, "random": decode(space, sample(space, 1, rng))[0]}
    genomes = encode(space, [chosen[which]])
    predicted = float(ActivationMemory(space, NUM_CLASSES, HOST).of(genomes)[0])
    points = {b: random_points(b, HOST, rng) for b in dict.fromkeys(chosen[which].blocks(space, NUM_CLASSES))}
    blocks = chosen[which].blocks(space, NUM_CLASSES)
    network = program_module(Program.from_blocks(blocks, [points[b] for b in blocks], HOST), {}, HOST).module
    functions = [schedule_block(b, p, HOST) for b, p in points.items()]
    actual = allocated_bytes(network, functions, HOST)
    assert predicted * 0.999 <= actual <= predicted * (1 + TOLERANCE)


@pytest.mark.parametrize(
    ("name", "dtype", "batch", "logits"),
    [("tiny", "f32", 1, 1), ("tiny", "f32", 9, 16), ("mbv3-32", "f16", 1, 1), ("mbv3-32", "f16", 3, 3)],
)
def test_a_gpu_program_has_the_memory_that_was_foretold(
    name: str, dtype: str, batch: int, logits: int, tiny_space: SearchSpace
) -> None:
    """Arrays between steps, and rows of logits: nine images have spare ones."""
    from tvm import relax

    from chanas.compiler.backends import schedule_space
    from chanas.compiler.cuda.graph import network_program

    space = tiny_space if name == "tiny" else SearchSpace.load(name)
    target, rng = in_batches(gpu_in_dtype(GPU, dtype), batch), np.random.default_rng(1)
    (architecture,) = decode(space, sample(space, 1, rng))
    blocks = architecture.blocks(space, NUM_CLASSES)
    points = [[schedule_space(w, target).sample(1, rng)[0] for w in device_workloads(b, target)] for b in blocks]
    found: list[int] = []

    def visit(call: Any) -> None:
        if getattr(getattr(call, "op", None), "name", "") == "relax.memory.alloc_storage":
            found.append(int(call.args[0].values[0]))

    relax.analysis.post_order_visit(network_program(blocks, points, target)["main"], visit)
    (predicted,) = ActivationMemory(space, NUM_CLASSES, target).of(encode(space, [architecture]))
    assert predicted == sum(found) + 4 * NUM_CLASSES * logits


@pytest.mark.parametrize("target", [HOST, GPU, in_batches(GPU, 3)], ids=["cpu", "gpu", "gpu-b3"])
@settings(max_examples=10)
@given(spaces, seeds)
def test_nothing_random_needs_less_than_the_least(target: HardwareTarget, space: SearchSpace, seed: int) -> None:
    memory = ActivationMemory(space, NUM_CLASSES, target)
    value, genomes = memory.smallest()
    rows = sample(space, 200, np.random.default_rng(seed))
    assert (memory.of(rows) >= value[rows[:, 0], rows[:, 1]]).all()
    assert (memory.of(genomes.reshape(-1, genomes.shape[-1])) == value.ravel()).all()
    assert len(decode(space, genomes.reshape(-1, genomes.shape[-1]))) == value.size


def test_it_is_a_maximum_over_blocks_and_not_a_sum(tiny_space: SearchSpace) -> None:
    memory = ActivationMemory(tiny_space, NUM_CLASSES, HOST)
    first, last = tiny_space.smallest.stages
    deeper = dataclasses.replace(tiny_space.smallest, stages=(first, last * 2))
    shallow_bytes, deeper_bytes, largest_bytes = memory.of(
        encode(tiny_space, [tiny_space.smallest, deeper, tiny_space.largest])
    )
    # a further small block in the last stage takes its turn with buffers that are there already
    assert deeper_bytes == shallow_bytes
    assert largest_bytes > shallow_bytes


def test_bfloat16_takes_half(tiny_space: SearchSpace) -> None:
    rows = sample(tiny_space, 50, np.random.default_rng(0))
    wide, narrow = (
        ActivationMemory(tiny_space, NUM_CLASSES, dataclasses.replace(HOST, vector_lanes=16, dtype=dtype)).of(rows)
        for dtype in ("float32", "bfloat16")
    )
    logits = 16 * 4
    assert narrow - logits == pytest.approx((wide - logits) / 2)


# ---- one network ----------------------------------------------------------------------------------------------------
HOST_16 = dataclasses.replace(HOST, vector_lanes=16)
IN_BFLOAT16 = dataclasses.replace(HOST, vector_lanes=16, dtype="bfloat16")


@pytest.mark.parametrize(
    "target", [HOST, IN_BFLOAT16, GPU, in_batches(GPU, 3)], ids=["float32", "bfloat16", "gpu", "gpu-b3"]
)
@settings(max_examples=20)
@given(population=spaces_and_genomes())
def test_the_memory_of_a_network_is_that_of_its_row(
    target: HardwareTarget, population: tuple[SearchSpace, Genomes]
) -> None:
    space, genomes = population
    found = [network_bytes(a.blocks(space, NUM_CLASSES), target) for a in decode(space, genomes)]
    assert found == ActivationMemory(space, NUM_CLASSES, target).of(genomes).tolist()


@settings(max_examples=20)
@given(population=spaces_and_genomes(), dtype=st.sampled_from(["float32", "bfloat16", "int8"]))
def test_blocks_that_say_the_dtype_of_the_target_need_as_much(
    population: tuple[SearchSpace, Genomes], dtype: str
) -> None:
    space, genomes = population
    target = dataclasses.replace(HOST, vector_lanes=16, dtype=dtype)
    for architecture in decode(space, genomes):
        blocks = architecture.blocks(space, NUM_CLASSES)
        named = [dataclasses.replace(block, dtype=dtype) for block in blocks]
        mean = output_bytes(block_workloads(named[-2])[-1], target) if dtype == "int8" else 0  # has a buffer for itself
        assert network_bytes(named, HOST_16) == pytest.approx(network_bytes(blocks, target) + mean / 2, abs=mean / 2)


def test_what_converts_writes_buffers_as_all_others_do() -> None:
    """Three blocks of one size: the second in int8, between conversions."""
    block = BlockConfig("mbconv", 7, 16, 16, 16, 3, 1, "relu", residual=True)
    classifier = BlockConfig("classifier", 1, 16, 8, NUM_CLASSES)
    chain = [dataclasses.replace(block, dtype=dtype) for dtype in ("float32", "int8", "float32")]
    whole, bytes_each, logits = with_conversions(chain), 16 * 49, 16 * 4
    assert [b.kind for b in whole] == ["mbconv", "encode", "mbconv", "decode", "mbconv"]
    # a buffer of float32, two of int8; beside them the depthwise convolution's output, and what the last block writes
    inside = 4 * bytes_each
    assert network_bytes(whole, HOST_16) == (4 + 1 + 1) * bytes_each + inside + 4 * bytes_each
    assert network_bytes(whole[:3], HOST_16) == (4 + 1) * bytes_each + inside + bytes_each
    assert network_bytes([*chain[:1], classifier], HOST_16) == 4 * bytes_each + inside + logits


@pytest.mark.parametrize("letters", ["ffffff", "iiiiii", "fiiiif", "ififif", "fbifbi"])
def test_the_plan_of_a_network_of_several_dtypes_is_as_foretold(letters: str, tiny_space: SearchSpace) -> None:
    """Buffers of one dtype are not used for another."""
    from chanas.compiler.cpu.module import program_module
    from chanas.compiler.program import Program

    rng = np.random.default_rng(1)
    blocks = in_dtypes(tiny_space.smallest, letters).blocks(tiny_space, NUM_CLASSES)
    points = [random_points(block, HOST_16, rng) for block in blocks]
    network = program_module(Program.from_blocks(blocks, points, HOST_16), {}, HOST_16).module
    inside = max(sum(inner_bytes(block, HOST_16)) for block in blocks)
    predicted, planned = network_bytes(blocks, HOST_16) - inside, planned_bytes(network, HOST_16)
    assert predicted * 0.98 <= planned <= predicted * (1 + TOLERANCE)
