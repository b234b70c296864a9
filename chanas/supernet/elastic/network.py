"""The supernet: the largest network's weights, run as any architecture of its space (paper, section 3.3, figure 6).

Shapes: float[N, 3, R, R] images in, float[N, num_classes] logits out. The modules below mirror those of
`chanas.network.static` one to one, take the `BlockConfig` they shall act as, and copy themselves into the static form
of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.blocks import Activation, BlockConfig
from chanas.errors import ArchitectureError
from chanas.network.static import Classifier, ConvBN, Head, MBConv, StaticNetwork, Stem, activation_module
from chanas.supernet.elastic.distributed import World
from chanas.supernet.elastic.layers import (
    ElasticBatchNorm2d,
    ElasticConv2d,
    ElasticDepthwiseConv2d,
    ElasticLinear,
    ElasticSqueezeExcite,
    bias_of,
)


class ElasticConvBN(nn.Module):
    """Dense convolution, batch normalisation, activation."""

    def __init__(self, inp: int, out: int, kernel_size: int, stride: int, activation: Activation) -> None:
        super().__init__()
        self.conv = ElasticConv2d(inp, out, kernel_size, stride)
        self.bn = ElasticBatchNorm2d(out)
        self.act = activation_module(activation)

    def forward(self, x_nchw: Tensor, out_channels: int) -> Tensor:
        out: Tensor = self.act(self.bn(self.conv(x_nchw, out_channels)))
        return out

    def copy_into(self, static: ConvBN) -> None:
        out_channels, in_channels = static.conv.weight.shape[:2]
        static.conv.weight.data.copy_(self.conv.active_weight(in_channels, out_channels))
        self.bn.copy_into(static.bn)


class ElasticDepthwiseBN(nn.Module):
    """Depthwise convolution, batch normalisation, activation."""

    def __init__(self, channels: int, kernel_sizes: tuple[int, ...], stride: int, activation: Activation) -> None:
        super().__init__()
        self.conv = ElasticDepthwiseConv2d(channels, kernel_sizes, stride)
        self.bn = ElasticBatchNorm2d(channels)
        self.act = activation_module(activation)

    def forward(self, x_nchw: Tensor, kernel_size: int) -> Tensor:
        out: Tensor = self.act(self.bn(self.conv(x_nchw, kernel_size)))
        return out

    def copy_into(self, static: ConvBN) -> None:
        channels, _, kernel_size, _ = static.conv.weight.shape
        static.conv.weight.data.copy_(self.conv.active_weight(channels, kernel_size))
        self.bn.copy_into(static.bn)


class ElasticStem(nn.Module):
    """The first convolution, of elastic width."""

    def __init__(self, largest: BlockConfig) -> None:
        super().__init__()
        b = largest
        self.conv = ElasticConvBN(b.in_channels, b.out_channels, b.kernel_size, b.stride, b.activation)

    def forward(self, x_nchw: Tensor, block: BlockConfig) -> Tensor:
        out: Tensor = self.conv(x_nchw, block.out_channels)
        return out

    def copy_into(self, static: nn.Module) -> None:
        self.conv.copy_into(cast(Stem, static).conv)


class ElasticMBConv(nn.Module):
    """Expand 1×1, depthwise k×k, squeeze-excite, project 1×1, residual; elastic in kernel, expand ratio and width."""

    def __init__(self, largest: BlockConfig, kernel_sizes: tuple[int, ...]) -> None:
        super().__init__()
        b, mid = largest, largest.mid_channels
        self.expand = ElasticConvBN(b.in_channels, mid, 1, 1, b.activation) if b.has_expand else None
        self.depthwise = ElasticDepthwiseBN(mid, kernel_sizes, b.stride, b.activation)
        self.se = ElasticSqueezeExcite(mid, b.se_channels) if b.use_se else None
        self.project = ElasticConvBN(mid, b.out_channels, 1, 1, "none")

    def forward(self, x_nchw: Tensor, block: BlockConfig) -> Tensor:
        out: Tensor = x_nchw
        if self.expand is not None and block.has_expand:
            out = self.expand(out, block.mid_channels)
        out = self.depthwise(out, block.kernel_size)
        if self.se is not None:
            out = self.se(out, block.se_channels)
        out = self.project(out, block.out_channels)
        return out + x_nchw if block.residual else out

    def copy_into(self, static: nn.Module) -> None:
        static = cast(MBConv, static)
        if static.expand is not None and self.expand is not None:
            self.expand.copy_into(static.expand)
        self.depthwise.copy_into(static.depthwise)
        if static.se is not None and self.se is not None:
            active = self.se.active(static.se.reduce.in_channels, static.se.reduce.out_channels)
            static.se.load_state_dict({name: tensor.detach() for name, tensor in active.items()})
        self.project.copy_into(static.project)

    @torch.no_grad()
    def sort_channels(self) -> None:
        """Order the mid channels by the L1 norm of their projection weights, the most important first.

        The squeezed channels of squeeze-excite are ordered the same way by their outgoing weights. A block that never
        expands is left alone: its mid channels are those of its input.
        """
        if self.expand is None:
            return
        order = self.project.conv.weight.abs().sum((0, 2, 3)).argsort(descending=True, stable=True)
        rows: list[Tensor] = [self.expand.conv.weight, self.depthwise.conv.weight]
        for bn in (self.expand.bn, self.depthwise.bn):
            rows += [bn.weight, bn.bias, bn.running_mean, bn.running_var]
        columns: list[Tensor] = [self.project.conv.weight]
        if self.se is not None:
            rows += [self.se.expand.weight, bias_of(self.se.expand)]
            columns += [self.se.reduce.weight]
            squeezed = self.se.expand.weight.abs().sum((0, 2, 3)).argsort(descending=True, stable=True)
            self.se.expand.weight.copy_(self.se.expand.weight[:, squeezed])
            self.se.reduce.weight.copy_(self.se.reduce.weight[squeezed])
            reduce_bias = bias_of(self.se.reduce)
            reduce_bias.copy_(reduce_bias[squeezed])
        for tensor in rows:
            tensor.copy_(tensor[order])
        for tensor in columns:
            tensor.copy_(tensor[:, order])


class ElasticHead(nn.Module):
    """1×1 convolution of elastic width, then the mean over all pixels."""

    def __init__(self, largest: BlockConfig) -> None:
        super().__init__()
        self.conv = ElasticConvBN(largest.in_channels, largest.out_channels, 1, 1, largest.activation)

    def forward(self, x_nchw: Tensor, block: BlockConfig) -> Tensor:
        out: Tensor = self.conv(x_nchw, block.out_channels).mean((2, 3))
        return out

    def copy_into(self, static: nn.Module) -> None:
        self.conv.copy_into(cast(Head, static).conv)


class ElasticClassifier(nn.Module):
    """Dense, activation, dense, of elastic input and feature width: float[N, C] -> logits."""

    def __init__(self, largest: BlockConfig) -> None:
        super().__init__()
        self.feature = ElasticLinear(largest.in_channels, largest.mid_channels, bias=False)
        self.act = activation_module(largest.activation)
        self.linear = ElasticLinear(largest.mid_channels, largest.out_channels, bias=True)

    def forward(self, x: Tensor, block: BlockConfig) -> Tensor:
        out: Tensor = self.linear(self.act(self.feature(x, block.mid_channels)), block.out_channels)
        return out

    def copy_into(self, static: nn.Module) -> None:
        static = cast(Classifier, static)
        mid, inp = static.feature.weight.shape
        static.feature.weight.data.copy_(self.feature.active_weight(inp, mid))
        static.linear.weight.data.copy_(self.linear.active_weight(mid, static.linear.out_features))
        assert self.linear.bias is not None
        bias_of(static.linear).data.copy_(self.linear.bias)


class _ElasticBlock(Protocol):
    def __call__(self, x: Tensor, block: BlockConfig) -> Tensor: ...
    def copy_into(self, static: nn.Module) -> None: ...


class Supernet(nn.Module):
    """All architectures of `space` in one set of weights; the largest one is active at first.

    A sub-network's channels are the leading ones, its blocks the first of each stage (Cai et al., ICLR 2020).
    With `only`, the network is that one architecture and no larger: what is left to train when one was chosen.
    """

    def __init__(self, space: SearchSpace, num_classes: int, only: Architecture | None = None) -> None:
        super().__init__()
        self.space, self.num_classes, self.only = space, num_classes, only
        largest = only or space.largest
        blocks = largest.blocks(space, num_classes)
        body = iter(blocks[2:-2])
        self.stem = ElasticStem(blocks[0])
        self.first = ElasticMBConv(blocks[1], (blocks[1].kernel_size,))
        self.stages = nn.ModuleList(
            nn.ModuleList(
                ElasticMBConv(b, space.kernel_sizes if only is None else (b.kernel_size,))
                for b in itertools.islice(body, depth)
            )
            for depth in largest.depths
        )
        self.head = ElasticHead(blocks[-2])
        self.classifier = ElasticClassifier(blocks[-1])
        self.activation_checkpointing = False
        """Keep only what goes in and out of a block for the backward pass, and compute the rest again then."""
        self._compiled: Callable[[Tensor], Tensor] | None = None
        self.set_active_subnet(largest)

    def set_active_subnet(self, architecture: Architecture, recurs: bool = False) -> None:
        """Make `architecture` what `forward` runs.

        Args:
            architecture: of this space.
            recurs: it comes back at many steps, so that `compile_recurring` may compile it.

        Raises:
            ArchitectureError: it is not in the space, or this is another `only` one.
        """
        self._check(architecture)
        self._blocks = architecture.blocks(self.space, self.num_classes)
        self._architecture, self._recurs = architecture, recurs

    def get_active_subnet(self) -> Architecture:
        """The architecture that `forward` runs."""
        return self._architecture

    def compile_recurring(self) -> None:
        """Run sub-networks that recur through torch.compile, one program for each and each resolution.

        Random ones come once, and a program takes longer to compile than thousands of steps take to run.
        """
        self._compiled = torch.compile(self._run, dynamic=False)

    def forward(self, x_nchw: Tensor) -> Tensor:
        return (self._compiled if self._compiled is not None and self._recurs else self._run)(x_nchw)

    def _run(self, x_nchw: Tensor) -> Tensor:
        out, saves = x_nchw, self.activation_checkpointing and torch.is_grad_enabled()
        for module, block in zip(self._path(self._architecture), self._blocks, strict=True):
            out = checkpoint(module, out, block, use_reentrant=False) if saves else module(out, block)
        return out

    def active_parameters(self) -> list[nn.Parameter]:
        """The parameters of which the active sub-network uses at least a part."""
        found: list[nn.Parameter] = []
        for module, block in zip(self._path(self._architecture), self._blocks, strict=True):
            if not isinstance(module, ElasticMBConv):
                found += cast(nn.Module, module).parameters()
                continue
            conv = module.depthwise.conv
            skipped = {id(p) for p in conv.transforms.values()} - {
                id(p) for p in conv.active_transforms(block.kernel_size)
            }
            if module.expand is not None and not block.has_expand:
                skipped |= {id(p) for p in module.expand.parameters()}
            found += (p for p in module.parameters() if id(p) not in skipped)
        return found

    def synchronise(self, world: World) -> None:
        """Take BN statistics over the images of all ranks from now on."""
        for module in self.modules():
            if isinstance(module, ElasticBatchNorm2d):
                module.world = world

    def extract(self, architecture: Architecture) -> StaticNetwork:
        """A static copy of one sub-network with the weights it has here, in the mode (train or eval) of the supernet.

        Its BN statistics are the supernet's shared ones; recalibrate them before the network is judged.

        Raises:
            ArchitectureError: it is not in the space, or this is another `only` one.
        """
        self._check(architecture)
        static = StaticNetwork(architecture.blocks(self.space, self.num_classes))
        with torch.no_grad():
            for module, target in zip(self._path(architecture), static.blocks, strict=True):
                module.copy_into(target)
        return static.to(self.stem.conv.conv.weight.device).train(self.training)

    @torch.no_grad()
    def inherit(self, other: StaticNetwork | Supernet) -> None:
        """Take over the weights and BN statistics of a static network of the same `only` architecture, or of a supernet
        with the same layers; the last layer is left as it is where the other has another number of classes."""
        if isinstance(other, Supernet):
            modules, sources = [*self.children()], [*other.children()]
        else:
            assert self.only is not None
            modules, sources = cast(list[nn.Module], self._path(self.only)), [*other.blocks]
        for module, source in zip(modules, sources, strict=True):
            state = {k: v for k, v in source.state_dict().items() if not k.endswith("num_batches_tracked")}
            if isinstance(module, ElasticClassifier) and state["linear.bias"].shape[0] != self.num_classes:
                own = module.state_dict()
                state |= {name: own[name] for name in ("linear.weight", "linear.bias")}
            module.load_state_dict(state)  # the elastic modules mirror the static ones name by name

    def sort_channels(self) -> None:
        """Order every block's mid channels by importance, so that a smaller expand ratio keeps the best of them.

        The largest network computes the same function as before, up to the order of float sums.
        """
        for stage in self.stages:
            for block in cast(nn.ModuleList, stage):
                cast(ElasticMBConv, block).sort_channels()

    def _check(self, architecture: Architecture) -> None:
        if self.only is not None and architecture != self.only:
            raise ArchitectureError(f"this network is {self.only.key} alone, not {architecture.key}")

    def _path(self, architecture: Architecture) -> list[_ElasticBlock]:
        """The modules that `architecture` uses, in order of execution."""
        path: list[nn.Module] = [self.stem, self.first]
        for stage, depth in zip(self.stages, architecture.depths, strict=True):
            path += list(cast(nn.ModuleList, stage))[:depth]
        return cast(list[_ElasticBlock], [*path, self.head, self.classifier])
