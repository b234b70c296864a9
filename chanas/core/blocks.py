"""The blocks of networks with their concrete shapes: pure data, no torch, no tvm.

`BlockConfig.key` is the only key of a latency look-up table. In a network of several dtypes each block says its own,
and between two neighbours in different ones stand blocks that convert: `decode` to float32, then `encode` from it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

CHANNEL_DIVISOR = 8
SE_REDUCTION = 4

Activation = Literal["relu", "hswish", "none"]
ACTIVATIONS: tuple[Activation, ...] = ("relu", "hswish", "none")
BlockKind = Literal["stem", "mbconv", "head", "classifier", "encode", "decode"]
CONVERSIONS: tuple[BlockKind, ...] = ("encode", "decode")
DTYPE_LETTERS = {"float32": "f", "bfloat16": "b", "int8": "i"}
"""The dtypes that blocks of one network may be in, as keys of architectures have them."""


def make_divisible(value: float, divisor: int = CHANNEL_DIVISOR) -> int:
    """The multiple of `divisor` nearest to `value`, never more than 10 % below it (MobileNet's rule)."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """One block with concrete shapes: what the prescheduler compiles and the LUT has a row for.

    Kinds and their use of the fields (sizes in pixels, square maps, batch 1):
      stem        k×k convolution `in_channels` -> `out_channels`, stride, activation (`mid_channels` unused: 0)
      mbconv      1×1 to `mid_channels` (left out when equal to `in_channels`: expand ratio 1), depthwise k×k, optional
                  squeeze-excite, 1×1 to `out_channels`, optional residual
      head        1×1 to `out_channels`, activation, then the mean over all pixels
      classifier  dense to `mid_channels`, activation, dense to `out_channels` (the number of classes)
      encode      a map in float32 as one in `dtype`
      decode      a map in `dtype` as one in float32

    `dtype` is that of the block in a network of several; empty: that of the target.
    """

    kind: BlockKind
    input_size: int
    in_channels: int
    mid_channels: int
    out_channels: int
    kernel_size: int = 1
    stride: int = 1
    activation: Activation = "relu"
    use_se: bool = False
    residual: bool = False
    dtype: str = ""

    @property
    def output_size(self) -> int:
        return 1 if self.kind == "head" else -(-self.input_size // self.stride)

    @property
    def se_channels(self) -> int:
        return make_divisible(self.mid_channels // SE_REDUCTION) if self.use_se else 0

    @property
    def has_expand(self) -> bool:
        return self.kind == "mbconv" and self.mid_channels != self.in_channels

    @property
    def converts(self) -> bool:
        """True of a block that computes nothing, and writes the same map in another dtype."""
        return self.kind in CONVERSIONS

    @property
    def input_dtype(self) -> str:
        """The dtype of what it reads in a network of several: images are float32, and so are means in int8."""
        is_float32 = self.kind in ("stem", "encode") or (self.kind == "classifier" and self.dtype == "int8")
        return "float32" if is_float32 else self.dtype

    @property
    def output_dtype(self) -> str:
        """The dtype of what it writes in a network of several: logits are float32, and so are means in int8."""
        is_float32 = self.kind in ("classifier", "decode") or (self.kind == "head" and self.dtype == "int8")
        return "float32" if is_float32 else self.dtype

    @property
    def key(self) -> str:
        """Readable and unique among the blocks of a table, whose rows are of one dtype; that of a block that converts,
        whose operators don't tell it from others, has the dtype."""
        if self.converts:
            return f"{self.kind}-{self.input_size}px-{self.in_channels}-{self.dtype}"
        flags = ("-se" if self.use_se else "") + ("-res" if self.residual else "")
        channels = "x".join(str(c) for c in (self.in_channels, self.mid_channels, self.out_channels) if c)
        return f"{self.kind}-{self.input_size}px-{channels}-k{self.kernel_size}s{self.stride}-{self.activation}{flags}"

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates at batch 1; biases, activations and pooling are not counted."""
        area_in, area_out, k2 = self.input_size**2, self.output_size**2, self.kernel_size**2
        if self.kind == "stem":
            return area_out * k2 * self.in_channels * self.out_channels
        if self.kind == "head":
            return area_in * self.in_channels * self.out_channels
        if self.kind == "classifier":
            return self.in_channels * self.mid_channels + self.mid_channels * self.out_channels
        if self.converts:
            return 0
        expand = area_in * self.in_channels * self.mid_channels if self.has_expand else 0
        squeeze = 2 * self.mid_channels * self.se_channels
        return expand + area_out * self.mid_channels * (k2 + self.out_channels) + squeeze

    @property
    def num_params(self) -> int:
        """Trainable parameters of the block in training form (convolution weights, BN scale and shift, biases)."""
        k2, mid, out = self.kernel_size**2, self.mid_channels, self.out_channels
        if self.kind == "stem":
            return k2 * self.in_channels * out + 2 * out
        if self.kind == "head":
            return self.in_channels * out + 2 * out
        if self.kind == "classifier":
            return self.in_channels * mid + mid * out + out
        if self.converts:
            return 0
        expand = self.in_channels * mid + 2 * mid if self.has_expand else 0
        squeeze = 2 * mid * self.se_channels + mid + self.se_channels if self.use_se else 0
        return expand + k2 * mid + 2 * mid + squeeze + mid * out + 2 * out

    def to_json(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        return data if self.dtype else {name: value for name, value in data.items() if name != "dtype"}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BlockConfig:
        return cls(**data)


def conversions(size: int, channels: int, before: str, after: str) -> tuple[BlockConfig, ...]:
    """The blocks that make a map of one dtype one of another: none, `encode`, `decode`, or one after the other."""
    if before == after:
        return ()
    ends: tuple[tuple[BlockKind, str], ...] = (("decode", before), ("encode", after))
    return tuple(
        BlockConfig(kind, size, channels, 0, channels, activation="none", dtype=dtype)
        for kind, dtype in ends
        if dtype != "float32"
    )


def with_conversions(blocks: Sequence[BlockConfig]) -> tuple[BlockConfig, ...]:
    """A network's blocks, in several dtypes, with what converts between them."""
    found = [blocks[0]]
    for before, block in itertools.pairwise(blocks):
        found += conversions(block.input_size, block.in_channels, before.output_dtype, block.input_dtype)
        found.append(block)
    return tuple(found)


def computing(blocks: Iterable[BlockConfig]) -> tuple[BlockConfig, ...]:
    """The blocks of a network but those that convert: those that have weights."""
    return tuple(block for block in blocks if not block.converts)
