"""emulator.py, emulator_memory.py and intrinsics.py of chanas/compiler/cuda: kernels whose threads get in each
other's way are found out, and tensor cores multiply what their lanes hold as the PTX ISA says."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tvm import tirx
from tvm.script import tirx as T

from chanas.compiler.cuda import product as cuda_product
from chanas.compiler.cuda.build import kernel_program, verify
from chanas.compiler.cuda.emulator import run_kernel, sequential_error
from chanas.compiler.cuda.emulator_memory import KernelError
from chanas.compiler.cuda.intrinsics import HIGH_HALF, INTRINSICS, LOW_HALF, round_to_tf32, tensor_core
from chanas.compiler.space import Point
from chanas.errors import MeasureError
from chanas.operators.workload import Workload

from ..cuda_cases import GPU
from .test_schedules import DEEP, DEEP_IN_HALVES, a_point

Array = npt.NDArray[Any]


def run(function: Any, **arrays: Array) -> None:
    run_kernel(kernel_program(verify(function, GPU), GPU), arrays)


# ---- threads --------------------------------------------------------------------------------------------------------
@T.prim_func
def reversed_in_blocks(x: T.Buffer((128,), "float32"), out: T.Buffer((128,), "float32")) -> None:
    T.func_attr({"global_symbol": "main", "tirx.noalias": True, "chanas.own_barriers": True})
    block = T.launch_thread("blockIdx.x", 2)
    thread = T.launch_thread("threadIdx.x", 64)
    shared = T.alloc_buffer((64,), "float32", scope="shared")
    shared[thread] = x[block * 64 + thread]
    T.evaluate(T.tvm_storage_sync("shared"))
    out[block * 64 + thread] = shared[63 - thread]


@T.prim_func
def without_a_barrier(x: T.Buffer((128,), "float32"), out: T.Buffer((128,), "float32")) -> None:
    T.func_attr({"global_symbol": "main", "tirx.noalias": True, "chanas.own_barriers": True})
    block = T.launch_thread("blockIdx.x", 2)
    thread = T.launch_thread("threadIdx.x", 64)
    shared = T.alloc_buffer((64,), "float32", scope="shared")
    shared[thread] = x[block * 64 + thread]
    out[block * 64 + thread] = shared[63 - thread]


@T.prim_func
def with_a_barrier_for_some(x: T.Buffer((128,), "float32"), out: T.Buffer((128,), "float32")) -> None:
    T.func_attr({"global_symbol": "main", "tirx.noalias": True, "chanas.own_barriers": True})
    block = T.launch_thread("blockIdx.x", 2)
    thread = T.launch_thread("threadIdx.x", 64)
    if thread < 32:
        T.evaluate(T.tvm_storage_sync("shared"))
    out[block * 64 + thread] = x[block * 64 + thread]


@T.prim_func
def past_the_end(x: T.Buffer((128,), "float32"), out: T.Buffer((128,), "float32")) -> None:
    T.func_attr({"global_symbol": "main", "tirx.noalias": True, "chanas.own_barriers": True})
    block = T.launch_thread("blockIdx.x", 2)
    thread = T.launch_thread("threadIdx.x", 64)
    out[block * 64 + thread] = x[block * 64 + thread + 1]


@T.prim_func
def in_step(x: T.Buffer((128,), "float32"), out: T.Buffer((128,), "float32")) -> None:
    T.func_attr({"global_symbol": "main", "tirx.noalias": True, "chanas.own_barriers": True})
    block = T.launch_thread("blockIdx.x", 2)
    thread = T.launch_thread("threadIdx.x", 64)
    shared = T.alloc_buffer((64,), "float32", scope="shared")
    if thread < 16:
        shared[thread] = x[block * 64 + thread]
        T.evaluate(T.tvm_storage_sync("warp"))
        out[block * 64 + thread] = shared[15 - thread]


@T.prim_func
def in_step_with_another_warp(x: T.Buffer((128,), "float32"), out: T.Buffer((128,), "float32")) -> None:
    T.func_attr({"global_symbol": "main", "tirx.noalias": True, "chanas.own_barriers": True})
    block = T.launch_thread("blockIdx.x", 2)
    thread = T.launch_thread("threadIdx.x", 64)
    if thread < 48:
        T.evaluate(T.tvm_storage_sync("warp"))
    out[block * 64 + thread] = x[block * 64 + thread]


def test_threads_of_a_warp_run_in_step() -> None:
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, dtype=np.float32)
    run(in_step, x=x, out=out)
    assert (out.reshape(2, 64)[:, :16] == x.reshape(2, 64)[:, 15::-1]).all()
    assert not out.reshape(2, 64)[:, 16:].any()


def test_threads_of_a_block_see_what_the_others_left_before_a_barrier() -> None:
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, dtype=np.float32)
    run(reversed_in_blocks, x=x, out=out)
    assert (out.reshape(2, 64) == x.reshape(2, 64)[:, ::-1]).all()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (without_a_barrier, r"^a thread reads what another one wrote in 'shared', with no barrier in between$"),
        (with_a_barrier_for_some, r"^a barrier that some threads of a block do not reach$"),
        (in_step_with_another_warp, r"^a barrier of a warp that threads of several warps reach, and others do not$"),
        (past_the_end, r"^place 128 of buffer 'x.*', which has 128$"),
    ],
)
def test_what_is_wrong_on_a_gpu_is_a_fault(function: Any, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        run(function, x=np.zeros(128, np.float32), out=np.zeros(128, np.float32))


def test_an_argument_that_is_missing_is_named() -> None:
    with pytest.raises(MeasureError, match=r"^a kernel wants argument 'out', got x$"):
        run(reversed_in_blocks, x=np.zeros(128, np.float32))


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


def pair(low: float, high: float) -> int:
    bits = np.array([low, high], dtype=np.float16).view(np.uint16)
    return int(bits[0]) | int(bits[1]) << 16


def test_a_warp_of_float16_multiplies_matrices() -> None:
    """Registers of mma.m16n8k16 as the PTX ISA lists them: a0a1 (g, 2t), a2a3 (g + 8, 2t), a4a5 (g, 2t + 8),
    a6a7 (g + 8, 2t + 8); b0b1 (2t, g), b2b3 (2t + 8, g); c0c1 (g, 2t), c2c3 (g + 8, 2t)."""
    rng = np.random.default_rng(0)
    first, second, start = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((16, 16), (16, 8), (16, 8)))
    a, b, c = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32), np.zeros((32, 4), np.float32)
    for lane in range(32):
        g, k = lane // 4, 2 * (lane % 4)
        for word, (row, column) in enumerate(((g, k), (g + 8, k), (g, k + 8), (g + 8, k + 8))):
            a[lane, word] = pair(*first[row, column : column + 2])
        for word, row in enumerate((k, k + 8)):
            b[lane, word] = pair(second[row, g], second[row + 1, g])
        c[lane] = [*start[g, k : k + 2], *start[g + 8, k : k + 2]]
    sums = Registers(c)
    INTRINSICS["chanas_mma_f16_k16"].meaning(sums, Registers(a), Registers(b))
    expected = start + first @ second
    for lane in range(32):
        g, k = lane // 4, 2 * (lane % 4)
        assert sums.values[lane].tolist() == [*expected[g, k : k + 2], *expected[g + 8, k : k + 2]]


def test_a_warp_of_tf32_multiplies_matrices() -> None:
    """mma.m16n8k8 of tf32: a0 (g, t), a1 (g + 8, t), a2 (g, t + 4), a3 (g + 8, t + 4); b0 (t, g), b1 (t + 4, g)."""
    rng = np.random.default_rng(1)
    first, second = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((16, 8), (8, 8)))
    a, b = np.zeros((32, 4), np.float32), np.zeros((32, 2), np.float32)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        a[lane] = [first[g, t], first[g + 8, t], first[g, t + 4], first[g + 8, t + 4]]
        b[lane] = [second[t, g], second[t + 4, g]]
    sums = Registers(np.zeros((32, 4), np.float32))
    INTRINSICS["chanas_mma_tf32_k8"].meaning(sums, Registers(a), Registers(b))
    expected = first @ second
    for lane in range(32):
        g, k = lane // 4, 2 * (lane % 4)
        assert sums.values[lane].tolist() == [*expected[g, k : k + 2], *expected[g + 8, k : k + 2]]


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
