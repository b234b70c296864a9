"""A layout from outside the package: all channels of a pixel side by side (NHWC), as TensorFlow has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chanas.core.arrays import Array, Float32Array
from chanas.operators.layout import Argument, Shape
from chanas.operators.precision import FLOAT32, Precision
from chanas.operators.workload import Workload


class ChannelsLast:
    """Maps [B, M, C]; weights [k, k, C / groups, C_out], biases [C_out]."""

    def shape(self, channels: int, pixels: int, batch: int = 1) -> Shape:
        """The shape of maps in memory."""
        return (batch, pixels, channels)

    def pack(self, values: Float32Array, precision: Precision = FLOAT32) -> Array:
        """float32[B, C, …] as it is in memory."""
        flat = values.reshape(values.shape[0], values.shape[1], -1)
        return precision.encode(np.ascontiguousarray(flat.swapaxes(1, 2)))

    def unpack(
        self, stored: Array, channels: int, pixels: int, batch: int = 1, precision: Precision = FLOAT32
    ) -> Float32Array:
        """Inverse of `pack`: float32[B, C, M]."""
        return precision.decode(stored).reshape(batch, pixels, channels).swapaxes(1, 2)

    def expected(self, workload: Workload, values: Float32Array) -> Array:
        """An operator's output, as its kernel leaves it."""
        return self.pack(values, workload.output_precision)

    def parameters(self, workload: Workload) -> tuple[Argument, ...]:
        """Weights and bias of an operator."""
        if not workload.has_weights:
            return ()
        (rows, columns), channels = workload.axes, workload.out_channels
        shape = (rows.kernel, columns.kernel, workload.channels_per_group, channels)
        return Argument("weights", shape, "float32"), Argument("bias", (channels,), "float32")

    def pack_parameters(self, workload: Workload, weight: Float32Array, bias: Float32Array) -> list[Array]:
        """Weights and bias as a kernel reads them."""
        weights, biases = self.parameters(workload)
        kernel = weight.reshape(weight.shape[0], -1, *weights.shape[:2])
        return [np.ascontiguousarray(kernel.transpose(2, 3, 1, 0)), bias.reshape(biases.shape)]

    def together(self, parameters: Sequence[Array]) -> list[Array]:
        """As many arguments as there are."""
        return list(parameters)
