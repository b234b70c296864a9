"""Elastic layers: each holds the weights of its largest form, and runs with the leading channels of them.

Shapes: N images, C channels, H×W pixels, K the largest kernel size, k an active one.
A layer takes the sizes it shall have from its input and from its call; it holds no state about what is active.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chanas.errors import ConfigError
from chanas.network.folding import BN_EPSILON
from chanas.supernet.elastic.distributed import World, sync_batch_norm

BN_MOMENTUM = 0.1


class ElasticConv2d(nn.Module):
    """Dense convolution without bias whose input and output channels are a prefix of the largest ones."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, stride
        # fan-out initialisation: keeps the variance of ReLU networks' gradients (He et al., 2015)
        deviation = math.sqrt(2.0 / (kernel_size**2 * out_channels))
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels, kernel_size, kernel_size) * deviation)

    def active_weight(self, in_channels: int, out_channels: int) -> Tensor:
        """float[out_channels, in_channels, k, k], a view of the largest weight."""
        return self.weight[:out_channels, :in_channels]

    def forward(self, x_nchw: Tensor, out_channels: int) -> Tensor:
        weight = self.active_weight(x_nchw.shape[1], out_channels)
        return F.conv2d(x_nchw, weight, stride=self.stride, padding=self.kernel_size // 2)


class ElasticDepthwiseConv2d(nn.Module):
    """Depthwise convolution of elastic channels and kernel size.

    A smaller kernel is the centre of the next larger one times a learned matrix: k² × k², the identity at the start,
    shared by the channels, chained from the largest (7 -> 5 -> 3; once-for-all, section 3.3).
    """

    def __init__(self, channels: int, kernel_sizes: Sequence[int], stride: int = 1) -> None:
        super().__init__()
        sizes = list(kernel_sizes)
        if not sizes or sizes != sorted(set(sizes)) or any(k % 2 == 0 for k in sizes):
            raise ConfigError(f"expected ascending odd kernel sizes, got {sizes}")
        self.kernel_sizes, self.stride = tuple(sizes), stride
        deviation = math.sqrt(2.0 / sizes[-1] ** 2)
        self.weight = nn.Parameter(torch.randn(channels, 1, sizes[-1], sizes[-1]) * deviation)
        self.transforms = nn.ParameterDict(
            {f"{large}to{small}": nn.Parameter(torch.eye(small**2)) for small, large in itertools.pairwise(sizes)}
        )

    def active_weight(self, channels: int, kernel_size: int) -> Tensor:
        """float[channels, 1, kernel_size, kernel_size]; gradients reach the largest kernel and the matrices."""
        weight = self.weight[:channels]
        for large, small in itertools.pairwise(reversed(self.kernel_sizes)):
            if large <= kernel_size:
                break
            edge = (large - small) // 2
            centre = weight[:, :, edge : edge + small, edge : edge + small].reshape(channels, small**2)
            weight = F.linear(centre, self.transforms[f"{large}to{small}"]).view(channels, 1, small, small)
        return weight

    def active_transforms(self, kernel_size: int) -> list[nn.Parameter]:
        """The matrices that lead to a kernel size."""
        pairs = itertools.pairwise(self.kernel_sizes)
        return [self.transforms[f"{large}to{small}"] for small, large in pairs if large > kernel_size]

    def forward(self, x_nchw: Tensor, kernel_size: int) -> Tensor:
        channels = x_nchw.shape[1]
        weight = self.active_weight(channels, kernel_size)
        return F.conv2d(x_nchw, weight, stride=self.stride, padding=kernel_size // 2, groups=channels)


class ElasticBatchNorm2d(nn.Module):
    """Batch normalisation of the leading channels.

    The running statistics are shared by all sub-networks and fit none of them exactly: a sub-network that is to be
    evaluated gets its own (`calibrate.recalibrate`).
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.world = World()
        """The ranks whose images are normalised together in training."""

    def forward(self, x_nchw: Tensor) -> Tensor:
        c = x_nchw.shape[1]
        mean, var, weight, bias = self.running_mean[:c], self.running_var[:c], self.weight[:c], self.bias[:c]
        if self.training and self.world.size > 1:
            return sync_batch_norm(x_nchw, mean, var, weight, bias, BN_MOMENTUM, BN_EPSILON, self.world)
        return F.batch_norm(x_nchw, mean, var, weight, bias, self.training, BN_MOMENTUM, BN_EPSILON)

    def copy_into(self, bn: nn.BatchNorm2d) -> None:
        """Scale, shift and running statistics of the leading channels into a static layer."""
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(bn, name).data.copy_(getattr(self, name).data[: bn.num_features])


class ElasticSqueezeExcite(nn.Module):
    """Channel attention over the leading channels, with the leading part of the squeezed vector."""

    def __init__(self, channels: int, reduced: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, reduced, 1)
        self.expand = nn.Conv2d(reduced, channels, 1)

    def active(self, channels: int, reduced: int) -> dict[str, Tensor]:
        """Weights and biases by the parameter names of `chanas.network.static.SqueezeExcite`."""
        return {
            "reduce.weight": self.reduce.weight[:reduced, :channels],
            "reduce.bias": bias_of(self.reduce)[:reduced],
            "expand.weight": self.expand.weight[:channels, :reduced],
            "expand.bias": bias_of(self.expand)[:channels],
        }

    def forward(self, x_nchw: Tensor, reduced: int) -> Tensor:
        w = self.active(x_nchw.shape[1], reduced)
        squeezed = F.relu(F.conv2d(x_nchw.mean((2, 3), keepdim=True), w["reduce.weight"], w["reduce.bias"]))
        return x_nchw * F.hardsigmoid(F.conv2d(squeezed, w["expand.weight"], w["expand.bias"]))


class ElasticLinear(nn.Module):
    """Dense layer with the leading inputs and outputs: float[N, in] -> float[N, out]."""

    def __init__(self, in_features: int, out_features: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_features, in_features) / math.sqrt(in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def active_weight(self, in_features: int, out_features: int) -> Tensor:
        return self.weight[:out_features, :in_features]

    def forward(self, x: Tensor, out_features: int) -> Tensor:
        bias = None if self.bias is None else self.bias[:out_features]
        return F.linear(x, self.active_weight(x.shape[1], out_features), bias)


def bias_of(layer: nn.Conv2d | nn.Linear) -> Tensor:
    """The bias of a layer that was made with one."""
    assert layer.bias is not None
    return layer.bias
