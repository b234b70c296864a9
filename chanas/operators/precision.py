"""Number formats of weights and activations, by the names that keys, records and tables have for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chanas.core.arrays import Array, Float32Array
from chanas.errors import ScheduleError

_WORD_BYTES = 4
_MOST_UINT8 = 255


def to_bits(values: Float32Array) -> Array:
    """uint16 bits of the bfloat16 nearest to each float32, ties to even; NaN of NaN."""
    values = np.asarray(values, np.float32)
    whole = values.view(np.uint32)
    rounded = whole >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += whole
    is_nan = np.isnan(values)
    if is_nan.any():  # rounding would carry the bits of some over into the sign
        rounded = np.where(is_nan, whole | np.uint32(0x400000), rounded)
    rounded >>= np.uint32(16)
    return rounded.astype(np.uint16)


def from_bits(bits: Array) -> Float32Array:
    """The float32 of each bfloat16, exactly."""
    widened = bits.astype(np.uint32)
    widened <<= np.uint32(16)
    return widened.view(np.float32)


def _as_float16(values: Float32Array) -> Array:
    return values.astype(np.float16)


def _as_uint8(values: Float32Array) -> Array:
    return np.clip(np.rint(values), 0, _MOST_UINT8).astype(np.uint8)


def _as_int8(values: Float32Array) -> Array:
    return np.rint(values).astype(np.int8).view(np.uint8)


def _as_float32(values: Array) -> Float32Array:
    return values.astype(np.float32, copy=False)


@dataclass(frozen=True)
class Precision:
    """A number format of weights and activations; sums and biases are float32, sums of whole numbers int32.

    storage             type in memory
    operator_tolerance  largest error of an operator alone that is right, relative to the largest expected magnitude,
                        where the reference rounds input and weights too
    block_tolerance     the same of a block against PyTorch in float32
    network_tolerance   the same of a whole network
    encode, decode      float32 to numbers in memory, the nearest ones, and back
    encode_weights      the same of weights, where that is another type
    units               units in the last place of float32 that lie between two neighbours
    """

    dtype: str
    storage: str
    operator_tolerance: float
    block_tolerance: float
    network_tolerance: float
    encode: Callable[[Float32Array], Array] = _as_float32
    decode: Callable[[Array], Float32Array] = _as_float32
    units: int = 1
    encode_weights: Callable[[Float32Array], Array] | None = None

    @property
    def item_bytes(self) -> int:
        return int(np.dtype(self.storage).itemsize)

    @property
    def per_word(self) -> int:
        """Numbers in a word of 32 bits, whose products one instruction adds up."""
        return _WORD_BYTES // self.item_bytes

    def rounded(self, values: Float32Array) -> Float32Array:
        """Each float32 as the nearest number of this format, a float32 again."""
        return self.decode(self.encode(values))


# Sums of up to ~1000 terms in another order than PyTorch's.
FLOAT32 = Precision("float32", "float32", 1e-4, 1e-4, 1e-4)
# A sum that lies a little to the other side of the middle of two bfloat16 numbers comes out one step away, which is at
# most 2⁻⁷ of a number and 2⁻⁸ ≈ 4e-3 of the largest half. In blocks and networks every weight and each operator's
# output is rounded by up to 2⁻⁹, three to six times in a block (5e-3 is usual), in some twenty blocks (under 1e-2).
BFLOAT16 = Precision("bfloat16", "uint16", 5e-3, 2e-2, 5e-2, to_bits, from_bits, 1 << 16)
# Three bits more; every operator rounds by up to 2⁻¹¹, at most sixty in a row. TF32 rounds factors alone.
FLOAT16 = Precision("float16", "float16", 2e-3, 1e-2, 2e-2, _as_float16, units=1 << 13)
TF32 = Precision("tf32", "float32", 2e-3, 1e-2, 2e-2, units=1 << 13)
# Whole numbers: what a number stands for depends on its operator (`chanas.operators.quantised`). Sums are exact, but
# those of the image: one that lies at the middle of two numbers may become the other, which a few further on tell.
INT8 = Precision("int8", "uint8", 0.0, 0.0, 5e-2, _as_uint8, encode_weights=_as_int8)
PRECISIONS = {precision.dtype: precision for precision in (FLOAT32, BFLOAT16, FLOAT16, TF32, INT8)}


def precision_of(dtype: str) -> Precision:
    """The precision that keys and targets call `dtype`.

    Raises:
        ScheduleError: there is none of this name.
    """
    if dtype not in PRECISIONS:
        raise ScheduleError(f"expected a dtype among {', '.join(PRECISIONS)}, got {dtype}")
    return PRECISIONS[dtype]
