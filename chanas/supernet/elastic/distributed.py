"""One training process or several, as `torchrun` starts them: their view of each other.

Every process (rank) holds all weights and takes an equal part of each step's images. `World()` is a single process;
`World.join` reads what `torchrun` set up. Every method but `rank` and `size` must be called by all ranks together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from chanas.errors import ConfigError


@dataclass(frozen=True)
class World:
    """The processes that train together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Position among the ranks of this machine: the number of its GPU."""

    @property
    def is_main(self) -> bool:
        """True for the rank that writes files and prints."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """The device that ranks communicate through: a GPU of each, or the processor."""
        if self.size > 1 and dist.get_backend() == "nccl":
            return torch.device("cuda", self.local_rank)
        return torch.device("cpu")

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over ranks of a tensor that each has; not differentiable. The tensor itself for one rank."""
        if self.size == 1:
            return tensor
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total / self.size

    def sum(self, *counts: int, device: torch.device) -> list[int]:
        """The sums over ranks of some counts."""
        if self.size == 1:
            return list(counts)
        total = torch.tensor(counts, dtype=torch.int64, device=device)
        dist.all_reduce(total)
        return [int(n) for n in total.tolist()]

    def largest(self, number: int, device: torch.device) -> int:
        """The largest of the ranks' numbers."""
        if self.size == 1:
            return number
        found = torch.tensor(number, dtype=torch.int64, device=device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return int(found.item())

    def same(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def wait(self) -> None:
        """Return when all ranks are here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The world that `torchrun` started this process in, or a world of one; left again at the end.

    Args:
        device: cpu (ranks talk through gloo) or cuda (NCCL, one GPU for each rank of a machine).

    Raises:
        ConfigError: there are fewer GPUs than ranks on this machine.
    """
    if not dist.is_torchelastic_launched():
        yield World()
        return
    # the launcher's protocol: these four name the rank and where rank 0 listens
    world = World(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
    if device == "cuda":
        if world.local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"{torch.cuda.device_count()} GPUs on this machine, but rank {world.local_rank} of it needs one too; "
                "start torchrun with fewer processes per node"
            )
        torch.cuda.set_device(world.local_rank)
    if dist.is_initialized():  # the caller joined already, and leaves again
        yield world
        return
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield world
    finally:
        dist.destroy_process_group()


class _GatherMoments(torch.autograd.Function):
    """float[...] of this rank -> float[size, ...] of all; gradients travel back to the rank that a row came from."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, moments: Tensor, rank: int, size: int) -> Tensor:
        ctx.rank = rank  # type: ignore[attr-defined]
        rows = [torch.empty_like(moments) for _ in range(size)]
        dist.all_gather(rows, moments.contiguous())
        return torch.stack(rows)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None, None]:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total[ctx.rank], None, None  # type: ignore[attr-defined]


def sync_batch_norm(
    x_nchw: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor,
    bias: Tensor,
    momentum: float,
    epsilon: float,
    world: World,
) -> Tensor:
    """Batch normalisation in training over the images of all ranks, as if they were one batch.

    `torch.nn.SyncBatchNorm` runs on GPUs alone and on whole layers; this one takes leading channels and any backend.
    Moments are joined by the parallel variance formula (Chan et al., 1979), so nothing cancels.

    Args:
        x_nchw: float[N, C, H, W], N the same on every rank.
        running_mean: float[C], updated in place, as is running_var: float[C].
        weight: float[C]; bias: float[C].
        momentum: share of the new statistics in the running ones.
        epsilon: added to the variance.
        world: two ranks or more.
    """
    variance, mean = torch.var_mean(x_nchw.float(), (0, 2, 3), correction=0)
    rows: Tensor = _GatherMoments.apply(torch.stack([mean, variance]), world.rank, world.size)
    mean = rows[:, 0].mean(0)
    variance = (rows[:, 1] + (rows[:, 0] - mean).square()).mean(0)
    with torch.no_grad():
        count = x_nchw.numel() // x_nchw.shape[1] * world.size
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(variance * (count / max(1, count - 1)), momentum)
    scale = weight * (variance + epsilon).rsqrt()
    shift = bias - mean * scale
    return (x_nchw * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)).to(x_nchw.dtype)
