"""One sub-network as a plain PyTorch module built from its blocks: what the supernet extracts, what compiled modules
are compared with, and what a user trains further. Parameter names are part of the bundle's format (docs/formats.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from chanas.core.arrays import Float32Array
from chanas.core.blocks import Activation, BlockConfig
from chanas.network.folding import BN_EPSILON


def activation_module(name: Activation) -> nn.Module:
    """ReLU, h-swish (MobileNetV3, equation 5) or nothing."""
    return {"relu": nn.ReLU(), "hswish": nn.Hardswish(), "none": nn.Identity()}[name]


class ConvBN(nn.Module):
    """Convolution without bias, batch normalisation, activation."""

    def __init__(
        self, inp: int, out: int, kernel_size: int, stride: int, activation: Activation, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inp, out, kernel_size, stride, kernel_size // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=BN_EPSILON)
        self.act = activation_module(activation)

    def forward(self, x_nchw: Tensor) -> Tensor:
        out: Tensor = self.act(self.bn(self.conv(x_nchw)))
        return out


class SqueezeExcite(nn.Module):
    """Channel attention: mean over pixels, dense, ReLU, dense, h-sigmoid, scale (MobileNetV3, section 5.3)."""

    def __init__(self, channels: int, reduced: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, reduced, 1)
        self.expand = nn.Conv2d(reduced, channels, 1)

    def forward(self, x_nchw: Tensor) -> Tensor:
        pooled = x_nchw.mean((2, 3), keepdim=True)
        gate = nn.functional.hardsigmoid(self.expand(nn.functional.relu(self.reduce(pooled))))
        return x_nchw * gate


class MBConv(nn.Module):
    """Expand 1×1, depthwise k×k, squeeze-excite, project 1×1, residual."""

    def __init__(self, block: BlockConfig) -> None:
        super().__init__()
        mid = block.mid_channels
        self.expand = ConvBN(block.in_channels, mid, 1, 1, block.activation) if block.has_expand else None
        self.depthwise = ConvBN(mid, mid, block.kernel_size, block.stride, block.activation, groups=mid)
        self.se = SqueezeExcite(mid, block.se_channels) if block.use_se else None
        self.project = ConvBN(mid, block.out_channels, 1, 1, "none")
        self.residual = block.residual

    def forward(self, x_nchw: Tensor) -> Tensor:
        out: Tensor = x_nchw if self.expand is None else self.expand(x_nchw)
        out = self.depthwise(out)
        if self.se is not None:
            out = self.se(out)
        out = self.project(out)
        return out + x_nchw if self.residual else out


class Stem(nn.Module):
    """The first convolution: float[N, 3, R, R] -> float[N, out, R / stride, R / stride]."""

    def __init__(self, block: BlockConfig) -> None:
        super().__init__()
        self.conv = ConvBN(block.in_channels, block.out_channels, block.kernel_size, block.stride, block.activation)

    def forward(self, x_nchw: Tensor) -> Tensor:
        out: Tensor = self.conv(x_nchw)
        return out


class Head(nn.Module):
    """1×1 convolution, then the mean over all pixels: float[N, C, H, W] -> float[N, out]."""

    def __init__(self, block: BlockConfig) -> None:
        super().__init__()
        self.conv = ConvBN(block.in_channels, block.out_channels, 1, 1, block.activation)

    def forward(self, x_nchw: Tensor) -> Tensor:
        out: Tensor = self.conv(x_nchw).mean((2, 3))
        return out


class Classifier(nn.Module):
    """Dense without bias or normalisation, activation, dense: float[N, in] -> logits float[N, classes]."""

    def __init__(self, block: BlockConfig) -> None:
        super().__init__()
        self.feature = nn.Linear(block.in_channels, block.mid_channels, bias=False)
        self.act = activation_module(block.activation)
        self.linear = nn.Linear(block.mid_channels, block.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.act(self.feature(x)))
        return out


def block_module(block: BlockConfig) -> nn.Module:
    """The PyTorch module of one block."""
    return {"stem": Stem, "mbconv": MBConv, "head": Head, "classifier": Classifier}[block.kind](block)


class StaticNetwork(nn.Module):
    """float[N, 3, R, R] -> logits float[N, classes], through the given blocks in order."""

    def __init__(self, blocks: Sequence[BlockConfig]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block_module(b) for b in blocks)

    def forward(self, x_nchw: Tensor) -> Tensor:
        out = x_nchw
        for block in self.blocks:
            out = block(out)
        return out


def for_inference(network: StaticNetwork) -> StaticNetwork:
    """The network itself, in evaluation mode, changed to be evaluated sooner: batch normalisation folded into the
    convolutions, activations in place. It can't be trained any more."""
    network.eval().requires_grad_(False)
    for module in network.modules():
        if isinstance(module, ConvBN):
            module.conv = fuse_conv_bn_eval(module.conv, module.bn)
            module.register_module("bn", nn.Identity())
            if isinstance(module.act, nn.ReLU | nn.Hardswish):
                module.act.inplace = True
    return network


def random_static_network(blocks: Sequence[BlockConfig], seed: int) -> StaticNetwork:
    """A network in evaluation mode with random weights and BN statistics, the same for a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = StaticNetwork(blocks).eval()
        randomise_statistics(network, seed)
    return network


def parameters_by_name(network: nn.Module) -> dict[str, Float32Array]:
    """float32 parameters and BN statistics as numpy arrays of their own."""
    state = network.state_dict()
    return {k: v.numpy().copy() for k, v in state.items() if not k.endswith("num_batches_tracked")}


def randomise_statistics(module: nn.Module, seed: int) -> None:
    """Random BN statistics and affine parameters, so that a comparison of outputs would notice wrong folding."""
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor, low, high in (
                (layer.weight.data, 0.5, 1.5),
                (layer.bias.data, -0.2, 0.2),
                (layer.running_mean, -0.2, 0.2),
                (layer.running_var, 0.5, 1.5),
            ):
                assert tensor is not None
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)
