"""Operators as workloads that are tuned one by one (paper, section 3.5, figure 7).

Batch normalisation is folded into the weights; bias, activation, squeeze-excite's scale and the residual are fused into
the operator that they follow. Activations are stored as [channel blocks, pixels, lanes] (NCHW16c on AVX-512).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from chanas.operators.winograd import transforms

Operator = Literal["conv", "blockconv", "winograd", "pointwise", "depthwise", "pool", "squeeze"]
Epilogue = Literal["none", "relu", "hswish", "hsigmoid"]

# Columns of a tile that keep a core's multiply-add units busy, for some number of channel blocks.
_TILE_COLUMNS = range(5, 16)
_MAX_FULL_BLOCKS = 3


# Types of activations in memory that are not float32; TF32 is rounded only where it is multiplied.
_STORAGE = {"bfloat16": "uint16", "float16": "float16"}


@dataclass(frozen=True, slots=True)
class Workload:
    """One operator with its shapes and its fused neighbours (square maps).

    conv       k×k, input [in_channels, pixels] as an image comes (the stem)
    blockconv  k×k over all channels, input in channel blocks like everything after the stem
    winograd   the same as blockconv, with fewer multiplications (`chanas.operators.winograd`)
    pointwise  1×1; a dense layer is one of input size 1
    depthwise  k×k, one filter per channel
    pool       mean over all pixels
    squeeze    mean over all pixels and a dense layer of that: two operators that GPUs have one kernel for (`squeezed`)
    scaled     the input is multiplied by a gate per channel first (squeeze-excite)
    residual   a tensor of the output's shape is added last
    dtype      of weights and activations; sums and biases are float32, and so is the image that `conv` reads, with its
               weights
    wide       the output is float32 whatever the dtype (logits)
    batch      images that one call computes; processors have kernels for 1
    """

    op: Operator
    input_size: int
    in_channels: int
    out_channels: int
    kernel_size: int = 1
    stride: int = 1
    epilogue: Epilogue = "none"
    scaled: bool = False
    residual: bool = False
    dtype: str = "float32"
    wide: bool = False
    batch: int = 1

    @property
    def output_size(self) -> int:
        return 1 if self.takes_mean else -(-self.input_size // self.stride)

    @property
    def key(self) -> str:
        """Readable and unique: the key of records and schedules. Those of batch 1 don't name it."""
        flags = ("-scaled" if self.scaled else "") + ("-res" if self.residual else "") + ("-wide" if self.wide else "")
        return (
            f"{self.op}-{self.input_size}px-{self.in_channels}x{self.out_channels}-k{self.kernel_size}s{self.stride}"
            f"-{self.epilogue}{flags}-{self.dtype}{f'-b{self.batch}' if self.batch > 1 else ''}"
        )

    @property
    def in_pairs(self) -> bool:
        """True if it computes two bfloat16 products at a time (`bf16_operators`), from weights in pairs."""
        return self.dtype == "bfloat16" and self.op in ("pointwise", "depthwise")

    @property
    def reads_image(self) -> bool:
        """True if the input is an image, [channels, pixels] in float32, and not an activation."""
        return self.op == "conv"

    @property
    def has_weights(self) -> bool:
        """True of all but pooling."""
        return self.op != "pool"

    @property
    def takes_mean(self) -> bool:
        """True if it reads all pixels of a channel at once, and leaves one."""
        return self.op in ("pool", "squeeze")

    @property
    def is_channelwise(self) -> bool:
        """True if each output channel is computed from its own input channel alone."""
        return self.op in ("depthwise", "pool")

    @property
    def num_groups(self) -> int:
        """Groups of channels that are computed apart."""
        return self.in_channels if self.is_channelwise else 1

    @property
    def channels_per_group(self) -> int:
        """Input channels that an output channel is summed over."""
        return self.in_channels // self.num_groups

    @property
    def input_storage(self) -> str:
        """Type of the input activations in memory; bfloat16 is stored as uint16 bits."""
        return _STORAGE.get(self.dtype, "float32") if not self.reads_image else "float32"

    @property
    def output_storage(self) -> str:
        """Type of the output activations in memory."""
        return _STORAGE.get(self.dtype, "float32") if not self.wide else "float32"

    @property
    def input_itemsize(self) -> int:
        """Bytes of one input activation."""
        return 4 if self.input_storage == "float32" else 2

    @property
    def output_itemsize(self) -> int:
        """Bytes of one output activation."""
        return 4 if self.output_storage == "float32" else 2

    @property
    def weight_itemsize(self) -> int:
        """Bytes of one weight."""
        return 2 if self.in_pairs or self.input_storage == "float16" else 4

    @property
    def num_flops(self) -> int:
        """Floating-point operations of the operator itself (2 per multiply-accumulate), without padding or epilogue.

        Those of the definition, whatever the algorithm; of all images."""
        pixels, k2 = self.batch * self.output_size**2, self.kernel_size**2
        if self.op == "pool":
            return self.batch * self.input_size**2 * self.in_channels
        if self.op == "squeeze":
            return self.batch * (self.input_size**2 + 2 * self.out_channels) * self.in_channels
        return 2 * pixels * k2 * self.channels_per_group * self.out_channels

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights and bias, unpadded."""
        if not self.has_weights:
            return 0
        per_output = self.kernel_size**2 * self.channels_per_group
        if self.op == "winograd":
            per_output = transforms(self.kernel_size, self.stride).products * self.in_channels * self.kernel_size
            per_output *= self.stride
        return self.out_channels * (self.weight_itemsize * per_output + 4)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Workload:
        return cls(**data)


def tiled_columns(workload: Workload) -> int:
    """Columns that a block convolution computes: its output's, or the next few more that cut into equal tiles.

    A prime number of columns would leave tiles of one; those beyond the output are computed from zeros and not stored.
    """
    columns = workload.output_size
    while columns > _TILE_COLUMNS[-1] and not any(columns % tile == 0 for tile in _TILE_COLUMNS):
        columns += 1
    return columns


def ends_in_half_a_block(workload: Workload, lanes: int) -> bool:
    """True if the last channel block of a 1×1 convolution is at most half full, and that costs enough to have a kernel
    of its own: a quarter of all multiply-adds at 24 channels in vectors of 16, a sixteenth at 120.

    Channels are counted in eights: shorter vectors are full anyway. In bfloat16 a single full block beside it is too
    little work for each load.
    """
    full, rest = divmod(workload.out_channels, lanes)
    at_once, fewest = (4, 2) if workload.in_pairs else (2, 1)  # input channels, full blocks
    worth_it = lanes >= 16 and 0 < rest <= lanes // 2 and fewest <= full <= _MAX_FULL_BLOCKS
    return workload.op == "pointwise" and worth_it and workload.in_channels % at_once == 0 and workload.output_size > 1


def scales_weights(workload: Workload) -> bool:
    """True if squeeze-excite's gate multiplies the weights, not the input: if there are fewer of them."""
    return workload.scaled and workload.output_size**2 > workload.out_channels
