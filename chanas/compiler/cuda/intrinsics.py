"""Operations that kernels call and TVM has no expression for: tensor cores (`mma.sync`) and conversions of small types,
each as CUDA text with inline PTX (no header is needed, which the compiler would read for longer than the kernel), and
as numpy.

The numpy side is written from the tables of the PTX ISA ("Matrix Fragments for mma.m16n8k16" and its neighbours), not
from the kernels, so that a kernel which puts a value into the wrong thread's register computes something else there.

Notation: T threads, W = T / 32 warps, g = lane // 4 ("groupID"), t = lane % 4 ("threadID_in_group").
    A [W, 16, K], B [W, K, 8], C [W, 16, 8]; each thread has some values of each, in registers of 32 bits
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

WARP = 32
"""Threads of a warp, on every architecture."""


@dataclass(frozen=True)
class Intrinsic:
    """A device function: its CUDA text, the type that it returns, and what it does, in numpy.

    `meaning` gets arrays [T, 1] for values and, for addresses, objects that read and write what lies there.
    """

    name: str
    source: str
    returns: str
    meaning: Callable[..., Array | None]
    of_a_warp: bool = False
    """All threads of a warp call it together."""

    def __call__(self, *arguments: Any) -> Any:
        """The call, as an expression of a kernel."""
        from tvm.backend.cuda.op import cuda_func_call

        return cuda_func_call(self.name, *arguments, source_code=self.source, return_type=self.returns)


@dataclass(frozen=True)
class TensorCore:
    """One shape of `mma.sync`: 16 rows × 8 columns += 16 × `depth` times `depth` × 8, sums in float32.

    `words` registers of 32 bits hold a thread's part of A, half as many its part of B; a register holds
    `values_per_word` neighbours of the sum's direction.
    """

    intrinsic: Intrinsic
    depth: int
    words: int
    values_per_word: int
    first: int
    """Lowest compute capability, times ten."""


def _mma_text(name: str, instruction: str, words: int) -> str:
    a, b = words, words // 2
    places = iter(range(4, 4 + a + b))
    in_a, in_b = (", ".join(f"%{next(places)}" for _ in range(n)) for n in (a, b))
    inputs = ", ".join([f'"r"(x[{i}])' for i in range(a)] + [f'"r"(y[{i}])' for i in range(b)])
    return f"""
__device__ __forceinline__ void {name}(float* c, const void* a, const void* b) {{
  const unsigned* x = (const unsigned*)a;
  const unsigned* y = (const unsigned*)b;
  asm volatile("{instruction} {{%0, %1, %2, %3}}, {{{in_a}}}, {{{in_b}}}, {{%0, %1, %2, %3}};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : {inputs});
}}
"""


def _lane(num_threads: int) -> tuple[Array, Array, Array]:
    """Return each thread's warp, groupID and threadID_in_group, each [T, 1]."""
    thread = np.arange(num_threads)[:, None]
    return thread // WARP, thread % WARP // 4, thread % 4


def _fill(shape: tuple[int, ...], where: tuple[Array, ...], values: Array) -> Array:
    matrix = np.full(shape, np.nan, dtype=np.float32)
    matrix[where] = values
    return matrix


def _multiply(c: Any, a: tuple[Array, Array, Array], b: tuple[Array, Array, Array], depth: int) -> None:
    """C += A · B: `a` and `b` are each thread's values, their rows and their columns [T, …]."""
    num_threads = a[0].shape[0]
    warp, group, in_group = _lane(num_threads)
    num_warps = num_threads // WARP
    i = np.arange(4)
    row, col = np.where(i < 2, group, group + 8), in_group * 2 + (i & 1)
    first = _fill((num_warps, 16, depth), (warp, a[1], a[2]), a[0])
    second = _fill((num_warps, depth, 8), (warp, b[1], b[2]), b[0])
    total = _fill((num_warps, 16, 8), (warp, row, col), c.read(4)) + first @ second
    c.write(total[warp, row, col])


def _halves(pointer: Any, num_words: int) -> Array:
    """[T, 2 · words], the low half of a word first."""
    words = np.ascontiguousarray(pointer.read(num_words))
    return words.view(np.float16).astype(np.float32)


def _mma_f16_k16(c: Any, a: Any, b: Any) -> None:
    x, y = _halves(a, 4), _halves(b, 2)
    _, group, in_group = _lane(x.shape[0])
    i = np.arange(8)
    row = np.where((i < 2) | ((i >= 4) & (i < 6)), group, group + 8)
    col = in_group * 2 + (i & 1) + np.where(i < 4, 0, 8)
    j = np.arange(4)
    in_row = in_group * 2 + (j & 1) + np.where(j < 2, 0, 8)
    _multiply(c, (x, row, col), (y, in_row, np.broadcast_to(group, in_row.shape)), 16)


def _mma_f16_k8(c: Any, a: Any, b: Any) -> None:
    x, y = _halves(a, 2), _halves(b, 1)
    _, group, in_group = _lane(x.shape[0])
    i = np.arange(4)
    j = np.arange(2)
    in_row = in_group * 2 + j
    where_a = (np.where(i < 2, group, group + 8), in_group * 2 + (i & 1))
    _multiply(c, (x, *where_a), (y, in_row, np.broadcast_to(group, in_row.shape)), 8)


def _mma_tf32_k8(c: Any, a: Any, b: Any) -> None:
    x, y = (_cut_to_tf32(p.read(n)) for p, n in ((a, 4), (b, 2)))
    _, group, in_group = _lane(x.shape[0])
    i, j = np.arange(4), np.arange(2)
    row = np.where((i == 0) | (i == 2), group, group + 8)
    col = np.where(i < 2, in_group, in_group + 4)
    in_row = np.where(j == 0, in_group, in_group + 4)
    _multiply(c, (x, row, col), (y, in_row, np.broadcast_to(group, in_row.shape)), 8)


def _cut_to_tf32(values: Array) -> Array:
    """The multiplier reads ten bits of a float32's mantissa."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def round_to_tf32(values: Array) -> Array:
    """Round to ten bits of mantissa, half-way away from zero (`cvt.rna.tf32.f32`)."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def _half_of(place: int, word: Array) -> Array:
    return np.ascontiguousarray(word, dtype=np.uint32).view(np.float16)[:, place::2].astype(np.float32)


def _product_of_halves(a: Array, b: Array) -> Array:
    x, y = np.broadcast_arrays(a, b)
    left, right = (np.ascontiguousarray(v, dtype=np.uint32).view(np.float16) for v in (x, y))
    return np.ascontiguousarray(left * right).view(np.uint32)


_MMA_F16_K16 = Intrinsic(
    "chanas_mma_f16_k16",
    _mma_text("chanas_mma_f16_k16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 4),
    "void",
    _mma_f16_k16,
    of_a_warp=True,
)
_MMA_F16_K8 = Intrinsic(
    "chanas_mma_f16_k8",
    _mma_text("chanas_mma_f16_k8", "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 2),
    "void",
    _mma_f16_k8,
    of_a_warp=True,
)
_MMA_TF32_K8 = Intrinsic(
    "chanas_mma_tf32_k8",
    _mma_text("chanas_mma_tf32_k8", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 4),
    "void",
    _mma_tf32_k8,
    of_a_warp=True,
)
TO_TF32 = Intrinsic(
    "chanas_to_tf32",
    """
__device__ __forceinline__ float chanas_to_tf32(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return __uint_as_float(y);
}
""",
    "float32",
    round_to_tf32,
)
"""float32 -> the nearest value that a tensor core reads in full."""
LOW_HALF, HIGH_HALF = (
    Intrinsic(
        f"chanas_{name}_half",
        f"""
__device__ __forceinline__ float chanas_{name}_half(unsigned x) {{
  float y;
  asm("{{.reg .b16 l, h; mov.b32 {{l, h}}, %1; cvt.f32.f16 %0, {name[0]};}}" : "=f"(y) : "r"(x));
  return y;
}}
""",
        "float32",
        functools.partial(_half_of, place),
    )
    for place, name in enumerate(("low", "high"))
)
"""One of the two float16 of a 32-bit word, as float32."""
MULTIPLY_HALVES = Intrinsic(
    "chanas_multiply_halves",
    """
__device__ __forceinline__ unsigned chanas_multiply_halves(unsigned x, unsigned y) {
  unsigned z;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
""",
    "uint32",
    _product_of_halves,
)
"""Two float16 times two, each product rounded once."""

_TENSOR_CORES = {
    "float16": (TensorCore(_MMA_F16_K16, 16, 4, 2, 80), TensorCore(_MMA_F16_K8, 8, 2, 2, 75)),
    "tf32": (TensorCore(_MMA_TF32_K8, 8, 4, 1, 80),),
}
INTRINSICS = {
    i.name: i for i in (_MMA_F16_K16, _MMA_F16_K8, _MMA_TF32_K8, TO_TF32, LOW_HALF, HIGH_HALF, MULTIPLY_HALVES)
}


def tensor_core(dtype: str, capability: int) -> TensorCore | None:
    """The largest product that tensor cores of a compute capability (times ten) do in a type; None without any."""
    return next((t for t in _TENSOR_CORES.get(dtype, ()) if capability >= t.first), None)
