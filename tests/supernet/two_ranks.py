"""What each of two ranks does for test_distributed.py, started by `torchrun`: python two_ranks.py FOLDER.

FOLDER holds `space.json` and `config.json`; `rank0.safetensors` and `rank1.safetensors` are left there, and runs of the
config in `run`, `stopped` and `micro`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from chanas.core.arch import SearchSpace
from chanas.files.run import RunDirectory
from chanas.interrupts import Interrupted
from chanas.supernet.elastic.distributed import joined, sync_batch_norm
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.train import train_supernet

CPU = torch.device("cpu")


def main(folder: Path) -> None:
    space = SearchSpace.from_json(json.loads((folder / "space.json").read_text()))
    config = TrainConfig.from_json(json.loads((folder / "config.json").read_text()))
    with joined("cpu") as world:
        rows = slice(world.rank * 4, world.rank * 4 + 4)
        x = images()[rows].requires_grad_()
        weight, bias = (torch.full((3,), value, requires_grad=True) for value in (1.5, 0.5))
        mean, var = torch.zeros(3), torch.ones(3)
        out = sync_batch_norm(x, mean, var, weight, bias, 0.1, 1e-5, world)
        (out * targets()[rows]).sum().backward()
        same = torch.full((2,), float(world.rank) + 7)
        world.same(iter([same]))
        found = {
            "images": images(),
            "targets": targets(),
            "out": out.detach(),
            "x_grad": x.grad,
            "weight_grad": world.mean(weight.grad) * world.size,
            "running_mean": mean,
            "running_var": var,
            "mean": world.mean(torch.tensor([1.0, 2.0]) * (world.rank + 1)),
            "sum": torch.tensor(world.sum(world.rank + 1, 10, device=CPU)),
            "largest": torch.tensor([world.largest(world.rank * 5, CPU)]),
            "same": same,
        }
        save_file({k: v.contiguous() for k, v in found.items()}, folder / f"rank{world.rank}.safetensors")
        torch.set_num_threads(1)
        train_supernet(RunDirectory(folder / "run"), space, config, progress=False)
        # stopped after three steps and taken up by both ranks
        for stop in (True, False):
            patch_stop(3 if stop else None)
            try:
                train_supernet(RunDirectory(folder / "stopped"), space, config, resume=not stop, progress=False)
            except Interrupted:
                assert stop
        plain = dataclasses.replace(space, name="plain")
        micro = config.changed(num_micro_batches=2, sync_batch_norm=False)
        train_supernet(RunDirectory(folder / "micro"), plain, micro, progress=False)


def patch_stop(step: int | None) -> None:
    """SIGTERM reaches rank 1 alone, in the middle of a step."""
    import os
    import signal

    from chanas.supernet.training import step as training_step
    from chanas.supernet.training import train

    original = getattr(train, "_original", training_step.apply_gradients)
    train._original = original  # type: ignore[attr-defined]
    calls = []

    def wrapped(*args: object) -> bool:
        calls.append(1)
        if len(calls) == step and os.environ["RANK"] == "1":
            signal.raise_signal(signal.SIGTERM)
        return bool(original(*args))  # type: ignore[arg-type]

    training_step.apply_gradients = wrapped  # type: ignore[assignment]


def images() -> torch.Tensor:
    """float[8, 3, 5, 5]."""
    return torch.randn(8, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 3 + 5


def targets() -> torch.Tensor:
    """float[8, 3, 5, 5]."""
    return torch.randn(8, 3, 5, 5, generator=torch.Generator().manual_seed(1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
