"""What an operator or a block must compute, according to PyTorch: inputs and expected outputs that every candidate is
checked against before its time counts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chanas.arch import BlockConfig
from chanas.folding import pack_block, pack_channels, pack_convolution
from chanas.prescheduler.winograd import pack_winograd
from chanas.prescheduler.workload import Workload, block_workloads

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ReferenceCase:
    """One call of a compiled function: arguments in call order without the output, and the output that it must give.

    `weights` tells which arguments are weights: those are cold in a network and are rotated among copies when timed.
    """

    arguments: tuple[Array, ...]
    weights: tuple[int, ...]
    expected: Array

    @property
    def weight_bytes(self) -> int:
        return sum(self.arguments[i].nbytes for i in self.weights)

    def save(self, path: Path) -> None:
        """An uncompressed .npz that `chanas.prescheduler.worker` reads."""
        named = {f"argument{i}": a for i, a in enumerate(self.arguments)}
        np.savez(path, expected=self.expected, weights=np.array(self.weights, dtype=np.int64), **named)  # type: ignore[arg-type]


def case_seed(key: str) -> int:
    """A seed that is the same for a workload or block in every process."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")


def operator_case(workload: Workload, lanes: int) -> ReferenceCase:
    """Random input and weights of an operator alone, and PyTorch's answer."""
    import torch
    from torch.nn import functional

    rng = np.random.default_rng(case_seed(workload.key))
    size, inp, out, kernel = workload.input_size, workload.in_channels, workload.out_channels, workload.kernel_size
    x = rng.standard_normal((inp, size, size), dtype=np.float32)
    arguments: list[Array] = [x.reshape(inp, -1) if workload.op == "conv" else pack_channels(x.reshape(inp, -1), lanes)]
    value = torch.from_numpy(x)[None]
    weights: tuple[int, ...] = ()
    if workload.op == "pool":
        value = value.mean((2, 3), keepdim=True)
    else:
        groups = inp if workload.op == "depthwise" else 1
        shape = (out, inp // groups, kernel, kernel)
        weight = rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
        bias = rng.standard_normal(out, dtype=np.float32)
        if workload.op == "winograd":
            arguments += pack_winograd(weight, bias, workload.stride, lanes)
        else:
            arguments += pack_convolution(weight, bias, lanes)
        weights = (1, 2)
        if workload.scaled:
            gate = rng.random(inp, dtype=np.float32)
            arguments.append(pack_channels(gate[:, None], lanes))
            value = value * torch.from_numpy(gate)[None, :, None, None]
        value = functional.conv2d(
            value, torch.from_numpy(weight), torch.from_numpy(bias), workload.stride, kernel // 2, groups=groups
        )
        epilogues = {"relu": functional.relu, "hswish": functional.hardswish, "hsigmoid": functional.hardsigmoid}
        if workload.epilogue != "none":
            value = epilogues[workload.epilogue](value)
        if workload.residual:
            residual = rng.standard_normal(tuple(value.shape[1:]), dtype=np.float32)
            arguments.append(pack_channels(residual.reshape(out, -1), lanes))
            value = value + torch.from_numpy(residual)[None]
    return ReferenceCase(tuple(arguments), weights, _packed_output(value.numpy()[0], lanes, workload.epilogue))


def _packed_output(value: Array, lanes: int, epilogue: str) -> Array:
    packed = pack_channels(value.reshape(value.shape[0], -1), lanes)
    if epilogue == "hsigmoid" and value.shape[0] % lanes:  # hsigmoid(0): what gates of padding channels are
        packed[-1, :, value.shape[0] % lanes :] = 0.5
    return packed


def block_case(block: BlockConfig, lanes: int) -> ReferenceCase:
    """Random input and weights of a whole block, and PyTorch's answer (batch normalisation folded in ours)."""
    import torch

    from chanas.network import block_module, randomise_statistics

    seed = case_seed(block.key)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        module = block_module(block).eval()
        randomise_statistics(module, seed)
        size = block.input_size
        x = torch.randn(1, block.in_channels, size, size)
        out = module(x.flatten(1) if block.kind == "classifier" else x)[0]
        tensors = {name: value.numpy() for name, value in module.state_dict().items()}
    flat = x.numpy().reshape(block.in_channels, -1)
    expected = pack_channels(np.ascontiguousarray(out.numpy()).reshape(block.out_channels, -1), lanes)
    first: Array = flat if block.kind == "stem" else pack_channels(flat, lanes)
    return ReferenceCase((first, pack_block(block, tensors, lanes)), (1,), expected)


def mean_network_weight_bytes(networks: Sequence[Sequence[BlockConfig]]) -> int:
    """Mean bytes of weights of whole networks: how much else passes through the caches before a block runs again."""
    totals = [sum(w.weight_bytes for block in network for w in block_workloads(block)) for network in networks]
    return int(np.mean(totals))


def random_network(blocks: Sequence[BlockConfig], seed: int) -> tuple[tuple[dict[str, Array], ...], Array, Array]:
    """A network with random weights: parameters of each block by name, an image float32[3, R, R], PyTorch's logits."""
    import torch

    from chanas.folding import split_tensors
    from chanas.network import parameters_by_name, random_static_network

    network = random_static_network(blocks, seed)
    shape = (1, blocks[0].in_channels, blocks[0].input_size, blocks[0].input_size)
    image = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        logits = network(image)[0].numpy()
    return tuple(split_tensors(parameters_by_name(network), len(blocks))), image[0].numpy(), logits
