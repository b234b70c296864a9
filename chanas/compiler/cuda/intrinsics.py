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
from tvm.backend.cuda.op import cuda_func_call

from chanas.core.arrays import Array

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


def _fill(shape: tuple[int, ...], where: tuple[Array, ...], values: Array) -> Array:
    matrix = np.full(shape, np.nan, dtype=np.float32)
    matrix[where] = values
    return matrix


def _multiply(words: int, values: Callable[[Array], Array], c: Any, a: Any, b: Any) -> None:
    """C += A · B, of `words` registers of A and half as many of B, each of some `values`.

    Register r of A has, one after the other, values of row g (of even r) or g + 8 (of odd r), from the t-th word on of
    the first four words of the row (r = 0, 1) or of the second four (r = 2, 3); register r of B those of column g, from
    the t-th word of the r-th four words on. C has two neighbours of row g, and two of row g + 8.
    """
    x, y = values(a.read(words)), values(b.read(words // 2))
    num_threads, per_word = x.shape[0], x.shape[1] // words
    thread = np.arange(num_threads)[:, None]
    warp, group, in_group = thread // WARP, thread % WARP // 4, thread % 4
    num_warps, depth = num_threads // WARP, 2 * words * per_word
    register, value = np.divmod(np.arange(words * per_word), per_word)
    in_a = (warp, group + register % 2 * 8, (in_group + register // 2 * 4) * per_word + value)
    register, value = np.divmod(np.arange(words // 2 * per_word), per_word)
    in_b = (warp, (in_group + register * 4) * per_word + value, group)
    i = np.arange(4)
    in_c = (warp, group + i // 2 * 8, in_group * 2 + i % 2)
    product = _fill((num_warps, 16, depth), in_a, x) @ _fill((num_warps, depth, 8), in_b, y)
    total = _fill((num_warps, 16, 8), in_c, c.read(4)) + product
    c.write(total[in_c])


def _halves(words: Array) -> Array:
    """[T, 2 · words], the low half of a word first."""
    return np.ascontiguousarray(words).view(np.float16).astype(np.float32)


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


def _mma(kind: str, instruction: str, words: int, values: Callable[[Array], Array]) -> Intrinsic:
    """The instruction of a kind of factors, of which A has so many registers."""
    name = f"chanas_mma_{kind}"
    text = _mma_text(name, f"mma.sync.aligned.{instruction}", words)
    return Intrinsic(name, text, "void", functools.partial(_multiply, words, values), of_a_warp=True)


_MMA_F16_K16 = _mma("f16_k16", "m16n8k16.row.col.f32.f16.f16.f32", 4, _halves)
_MMA_F16_K8 = _mma("f16_k8", "m16n8k8.row.col.f32.f16.f16.f32", 2, _halves)
_MMA_TF32_K8 = _mma("tf32_k8", "m16n8k8.row.col.f32.tf32.tf32.f32", 4, _cut_to_tf32)
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
