"""bfloat16 in numpy: numbers as uint16 bits, and weights two by two in the 32-bit words that a dot product reads.

A word is a float32 that holds no number: its lower half is the first weight, its upper half the second. So weights and
float32 biases fit in one array, and no file or call needs another type for them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]


def to_bits(values: Array) -> Bits:
    """uint16 bits of the bfloat16 nearest to each float32, ties to even; NaN of NaN."""
    whole = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = whole + np.uint32(0x7FFF) + ((whole >> np.uint32(16)) & np.uint32(1))
    # rounding would carry the bits of some NaN over into the sign
    kept = np.where(np.isnan(whole.view(np.float32)), whole | np.uint32(0x400000), rounded)
    return (kept >> np.uint32(16)).astype(np.uint16)


def from_bits(bits: Bits) -> Array:
    """The float32 of each bfloat16, exactly."""
    widened: Array = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return widened


def rounded(values: Array) -> Array:
    """Each float32 as the nearest bfloat16, a float32 again."""
    return from_bits(to_bits(values))


def pair_rows(packed: Array) -> Array:
    """Words of neighbouring rows: float32[B, D, l] -> float32[B, ceil(D / 2), l]; the last odd row is with zero."""
    blocks, depth, lanes = packed.shape
    bits = np.zeros((blocks, depth + depth % 2, lanes), dtype=np.uint16)
    bits[:, :depth] = to_bits(packed)
    words = bits[:, 0::2].astype(np.uint32) | (bits[:, 1::2].astype(np.uint32) << np.uint32(16))
    return words.view(np.float32)


def pair_taps(packed: Array, kernel_size: int) -> Array:
    """Words of neighbouring taps of a row: float32[B, k·k, l] -> float32[B, k·ceil(k / 2), l]."""
    blocks, _, lanes = packed.shape
    rows = packed.reshape(blocks * kernel_size, kernel_size, lanes)
    return pair_rows(rows).reshape(blocks, -1, lanes)
