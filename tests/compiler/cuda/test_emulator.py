"""emulator.py, emulator_memory.py and intrinsics.py of chanas/compiler/cuda: kernels whose threads get in each
other's way are found out, and tensor cores multiply what their lanes hold as the PTX ISA says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tvm import tirx

from chanas.compiler.cuda import product as cuda_product
from chanas.compiler.cuda.build import kernel_program, verify
from chanas.compiler.cuda.emulator import run_kernel, sequential_error
from chanas.compiler.cuda.emulator_memory import KernelError
from chanas.compiler.cuda.intrinsics import HIGH_HALF, INTRINSICS, LOW_HALF, round_to_tf32, tensor_core
from chanas.compiler.cuda.ir import assign, barrier, guarded, kernel, new_buffer, sequence
from chanas.compiler.space import Point
from chanas.errors import MeasureError
from chanas.operators.workload import Workload

from ..cuda_cases import GPU
from .test_schedules import DEEP, DEEP_IN_HALVES, a_point

Array = npt.NDArray[Any]


# ---- threads --------------------------------------------------------------------------------------------------------
WARP_BARRIER = tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "warp"))
KERNELS: dict[str, Callable[..., Any]] = {
    "reversed in blocks": lambda x, out, shared, i, t: [
        assign(shared, t, x[i]),
        barrier(),
        assign(out, i, shared[63 - t]),
    ],
    "without a barrier": lambda x, out, shared, i, t: [assign(shared, t, x[i]), assign(out, i, shared[63 - t])],
    "with a barrier for some": lambda x, out, shared, i, t: [guarded([t < 32], barrier()), assign(out, i, x[i])],
    "past the end": lambda x, out, shared, i, t: [assign(out, i, x[i + 1])],
    "in step": lambda x, out, shared, i, t: [
        guarded([t < 16], sequence(assign(shared, t, x[i]), WARP_BARRIER, assign(out, i, shared[15 - t])))
    ],
    "in step with another warp": lambda x, out, shared, i, t: [guarded([t < 48], WARP_BARRIER), assign(out, i, x[i])],
}
"""Statements of a kernel of two blocks of 64 threads: what it reads and writes, memory of a block, places in all
and in the block."""


def carried_out(name: str, **given: Array) -> Array:
    """What is written by threads that each read a number of their own."""
    x, out = (new_buffer((128,), "float32", n, "") for n in ("x", "out"))
    shared = new_buffer((64,), "float32", "shared", "shared")
    block, thread = (tirx.Var(n, "int32") for n in ("blockIdx.x", "threadIdx.x"))
    statements = KERNELS[name](x, out, shared, block * 64 + thread, thread)
    function = kernel([x, out], sequence(tirx.AllocBuffer(shared), *statements), [(thread, 64), (block, 2)])
    arrays = given or {"x": np.arange(128, dtype=np.float32), "out": np.zeros(128, np.float32)}
    run_kernel(kernel_program(verify(function, GPU), GPU), arrays)
    return arrays["out"].reshape(2, 64)


X = np.arange(128, dtype=np.float32).reshape(2, 64)


def test_threads_of_a_warp_run_in_step() -> None:
    out = carried_out("in step")
    assert (out[:, :16] == X[:, 15::-1]).all()
    assert not out[:, 16:].any()


def test_threads_of_a_block_see_what_the_others_left_before_a_barrier() -> None:
    assert (carried_out("reversed in blocks") == X[:, ::-1]).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("without a barrier", r"^a thread reads what another one wrote in 'shared', with no barrier in between$"),
        ("with a barrier for some", r"^a barrier that some threads of a block do not reach$"),
        ("in step with another warp", r"^a barrier of a warp that threads of several warps reach, and others do not$"),
        ("past the end", r"^place 128 of buffer 'x.*', which has 128$"),
    ],
)
def test_what_is_wrong_on_a_gpu_is_a_fault(name: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        carried_out(name)


def test_an_argument_that_is_missing_is_named() -> None:
    with pytest.raises(MeasureError, match=r"^a kernel wants argument 'out', got x$"):
        carried_out("reversed in blocks", x=np.zeros(128, np.float32))


# ---- products -------------------------------------------------------------------------------------------------------
def a_deep_point(workload: Workload, stages: int = 1, shares: int = 1) -> Point:
    return a_point(workload, stages=stages, shares=shares, mma=int(workload is DEEP_IN_HALVES))


@pytest.mark.parametrize(("stages", "shares"), [(1, 1), (2, 1), (1, 2)])
def test_a_product_without_its_barriers_is_found_out(stages: int, shares: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_product, "barrier", lambda: tirx.Evaluate(0))
    with pytest.raises(KernelError, match="with no barrier"):
        sequential_error(DEEP, a_deep_point(DEEP, stages, shares), GPU)


def test_one_stage_used_twice_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next stretch is put where the one in use still is."""
    put = cuda_product._Product._put
    monkeypatch.setattr(cuda_product._Product, "_put", lambda self, t, _stage: put(self, t, 0))
    with pytest.raises(KernelError, match="with no barrier"):
        sequential_error(DEEP, a_deep_point(DEEP, 2), GPU)


def test_sums_in_the_wrong_lanes_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cuda_product._Product._lane.fget  # type: ignore[attr-defined]

    def wrong(self: Any) -> tuple[Any, Any, Any, Any]:
        warp_m, warp_n, group, in_group = right(self)
        return warp_m, warp_n, group, 3 - in_group

    monkeypatch.setattr(cuda_product._Product, "_lane", property(wrong))
    assert sequential_error(DEEP_IN_HALVES, a_deep_point(DEEP_IN_HALVES), GPU) > 0.01


# ---- tensor cores ---------------------------------------------------------------------------------------------------
class Registers:
    """What each of a warp's threads has, in words."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def read(self, _num: int) -> Array:
        return self.values

    def write(self, values: Array) -> None:
        self.values = values


def products_of(kind: str, a: Array, b: Array, c: Array) -> Array:
    sums = Registers(c)
    INTRINSICS[f"chanas_mma_{kind}"].meaning(sums, Registers(a), Registers(b))
    return sums.values


def in_lanes(matrix: Array) -> list[list[float]]:
    """The four numbers of a matrix of 16 × 8 that each lane has."""
    places = [(lane // 4, 2 * (lane % 4)) for lane in range(32)]
    return [[*matrix[g, k : k + 2].tolist(), *matrix[g + 8, k : k + 2].tolist()] for g, k in places]


def pair(low: float, high: float) -> int:
    bits = np.array([low, high], dtype=np.float16).view(np.uint16)
    return int(bits[0]) | int(bits[1]) << 16


@pytest.mark.parametrize("depth", [8, 16])
def test_a_warp_of_float16_multiplies_matrices(depth: int) -> None:
    """Registers of mma.m16n8k16 as the PTX ISA lists them: a0a1 (g, 2t), a2a3 (g + 8, 2t), a4a5 (g, 2t + 8),
    a6a7 (g + 8, 2t + 8); b0b1 (2t, g), b2b3 (2t + 8, g); c0c1 (g, 2t), c2c3 (g + 8, 2t). Those of m16n8k8 are the first
    halves of a and b."""
    rng = np.random.default_rng(0)
    first, second, start = (rng.integers(-4, 5, s).astype(np.float32) for s in ((16, depth), (depth, 8), (16, 8)))
    a, b, c = (
        np.zeros((32, depth // 4), np.uint32),
        np.zeros((32, depth // 8), np.uint32),
        np.zeros((32, 4), np.float32),
    )
    for lane in range(32):
        g, k = lane // 4, 2 * (lane % 4)
        places = ((g, k), (g + 8, k), (g, k + 8), (g + 8, k + 8))[: depth // 4]
        a[lane] = [pair(*first[row, column : column + 2]) for row, column in places]
        b[lane] = [pair(second[row, g], second[row + 1, g]) for row in (k, k + 8)[: depth // 8]]
        c[lane] = [*start[g, k : k + 2], *start[g + 8, k : k + 2]]
    assert products_of(f"f16_k{depth}", a, b, c).tolist() == in_lanes(start + first @ second)


def test_a_warp_of_tf32_multiplies_matrices() -> None:
    """mma.m16n8k8 of tf32: a0 (g, t), a1 (g + 8, t), a2 (g, t + 4), a3 (g + 8, t + 4); b0 (t, g), b1 (t + 4, g)."""
    rng = np.random.default_rng(1)
    first, second = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((16, 8), (8, 8)))
    a, b = np.zeros((32, 4), np.float32), np.zeros((32, 2), np.float32)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        a[lane] = [first[g, t], first[g + 8, t], first[g, t + 4], first[g + 8, t + 4]]
        b[lane] = [second[t, g], second[t + 4, g]]
    assert products_of("tf32_k8", a, b, np.zeros((32, 4), np.float32)).tolist() == in_lanes(first @ second)


def test_tf32_has_ten_bits_of_mantissa() -> None:
    one = np.array([1.0, 1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -1 - 2**-11], dtype=np.float32)
    assert round_to_tf32(one).tolist() == [1.0, 1 + 2**-10, 1 + 2**-10, 1.0, -1 - 2**-10]


def test_words_have_a_low_and_a_high_half() -> None:
    word = np.array([[pair(1.5, -2.0)]], dtype=np.uint32)
    assert (LOW_HALF.meaning(word), HIGH_HALF.meaning(word)) == (1.5, -2.0)


@pytest.mark.parametrize(
    ("dtype", "capability", "depth"),
    [("float16", 70, None), ("float16", 75, 8), ("float16", 90, 16), ("tf32", 75, None), ("tf32", 80, 8)],
)
def test_architectures_have_the_instructions_that_they_have(dtype: str, capability: int, depth: int | None) -> None:
    core = tensor_core(dtype, capability)
    assert (core.depth if core else None) == depth
