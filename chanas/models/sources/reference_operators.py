"""Operators of ONNX's reference evaluator that are computed here instead, most of them by PyTorch: those that it gets
wrong (batch normalisation before opset 14, which it takes for training; transposed convolutions of several groups, or
of a size that is given), that it lacks (`Scatter`), and convolutions, which it takes longer for.

Their names are those of ONNX's operators. A form that is not here raises `NotImplementedError`, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from onnx.reference.op_run import OpRun
from torch import Tensor
from torch.nn import functional

from chanas.core.arrays import Array
from chanas.devices.cores import limited_to

_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_TRANSPOSED = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
_SAME = ("SAME_UPPER", "SAME_LOWER")


def _computed(compute: Callable[..., Tensor], *arrays: Array | None) -> tuple[Array]:
    """The result in the type of the first array; of float16 computed in float32, as ONNX Runtime does."""
    first = np.asarray(arrays[0])
    wide = np.float32 if first.dtype == np.float16 else first.dtype
    tensors = [None if a is None else torch.from_numpy(np.array(a, wide)) for a in arrays]
    with limited_to(1), torch.inference_mode():
        return (compute(*tensors).numpy().astype(first.dtype),)


def _halves(total: int, auto_pad: str) -> tuple[int, int]:
    """Zeros before and after, of so many together: the odd one is after, or before with `SAME_LOWER`."""
    less, more = total // 2, total - total // 2
    return (less, more) if auto_pad == "SAME_UPPER" else (more, less)


def _padded(x: Tensor, pads: Sequence[tuple[int, int]]) -> Tensor:
    """Zeros around each axis of a map; fewer rows where they are negative."""
    return functional.pad(x, [number for pair in reversed(pads) for number in pair])


def _by_axis(num: int, facts: Mapping[str, Sequence[int] | None]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Strides, dilations and pads before and after, of so many axes."""
    strides, dilations = (list(facts[name] or [1] * num) for name in ("strides", "dilations"))
    pads = facts["pads"] or [0] * (2 * num)
    return strides, dilations, list(zip(pads[:num], pads[num:], strict=True))


class Conv(OpRun):
    """Convolution of 1 to 3 axes."""

    def _run(
        self, x: Array, weight: Array, bias: Array | None = None, *, auto_pad: str, group: int, **facts: Any
    ) -> tuple[Array]:
        strides, dilations, around = _by_axis(num := x.ndim - 2, facts)
        if auto_pad in _SAME:
            reaches = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
            totals = [
                max(0, (-(-size // stride) - 1) * stride + reach - size)
                for size, stride, reach in zip(x.shape[2:], strides, reaches, strict=True)
            ]
            around = [_halves(total, auto_pad) for total in totals]
        convolve = _CONVOLUTIONS[num - 1]
        return _computed(
            lambda x, w, b: convolve(_padded(x, around), w, b, strides, 0, dilations, group), x, weight, bias
        )


class ConvTranspose(OpRun):
    """Transposed convolution of 1 to 3 axes."""

    def _run(
        self, x: Array, weight: Array, bias: Array | None = None, *, auto_pad: str, group: int, **facts: Any
    ) -> tuple[Array]:
        strides, dilations, cut = _by_axis(num := x.ndim - 2, facts)
        beyond, sizes = facts["output_padding"] or [0] * num, facts["output_shape"]
        if sizes is not None or auto_pad in _SAME:
            sizes = sizes or [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
            cut = [
                _halves(stride * (size - 1) + more + (k - 1) * d + 1 - wanted, auto_pad)
                for size, stride, more, k, d, wanted in zip(
                    x.shape[2:], strides, beyond, weight.shape[2:], dilations, sizes[-num:], strict=True
                )
            ]
        around = [(-before, more - after) for (before, after), more in zip(cut, beyond, strict=True)]
        transpose = _TRANSPOSED[num - 1]

        def compute(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            out = _padded(transpose(x, w, None, strides, 0, 0, group, dilations), around)
            return out if b is None else out + b.reshape(-1, *[1] * num)

        return _computed(compute, x, weight, bias)


class BatchNormalization(OpRun):
    """Batch normalisation with statistics that are given."""

    def _run(
        self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float, **facts: Any
    ) -> tuple[Array]:
        version = self.run_params["opsets"][""]
        is_training = facts["training_mode"] if version >= 14 else not facts.get("is_test", version >= 7)
        if is_training or not facts.get("spatial", 1):
            raise NotImplementedError("BatchNormalization in training, or with numbers for each pixel")

        def compute(x: Tensor, *numbers: Tensor) -> Tensor:
            s, b, m, v = (n.reshape(-1, *[1] * (x.ndim - 2)) for n in numbers)
            return (x - m) / torch.sqrt(v + epsilon) * s + b

        return _computed(compute, x, scale, bias, mean, variance)


class Scatter(OpRun):
    """`ScatterElements` as it was called up to opset 10."""

    def _run(self, x: Array, places: Array, updates: Array, *, axis: int | None = None) -> tuple[Array]:
        found, axis = np.array(x), axis or 0
        index: list[Any] = list(np.indices(places.shape))
        index[axis] = np.where(places < 0, places + x.shape[axis], places)
        found[tuple(index)] = updates
        return (found,)


OPERATORS: tuple[type[OpRun], ...] = (Conv, ConvTranspose, BatchNormalization, Scatter)
