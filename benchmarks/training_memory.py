"""How much memory one training step takes, and how much of it activation checkpointing and micro-batches save.

One step of the largest `mbv3` network at 224 px and a batch of 64: forward, backward and update, each case in a process
of its own. On the CPU it is the growth of the process's peak resident memory during the step; on a GPU the peak of what
PyTorch allocated, less what it held before. The weights are there before; gradients and momentum are in the figure.

    python benchmarks/training_memory.py [--quick] [--batch 64] [--threads N] [--seed 0]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import Figure, finish, machine_kind

from chanas.core.arch import SearchSpace
from chanas.supernet.data.loader import Batch
from chanas.supernet.elastic.distributed import World
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.training.phases import Schedule, TrainConfig
from chanas.supernet.training.step import Execution, accumulate_gradients, apply_gradients, make_optimizer

SPACE, RESOLUTION, NUM_CLASSES = "mbv3", 224, 1000
KIB = 1024 if sys.platform.startswith("linux") else 1  # ru_maxrss is in KiB on Linux, in bytes on macOS


@dataclass(frozen=True)
class Case:
    """How the step is computed."""

    name: str
    activation_checkpointing: bool = False
    num_micro_batches: int = 1


CASES = (
    Case("plain"),
    Case("checkpointing", activation_checkpointing=True),
    Case("micro_batches", num_micro_batches=4),
    Case("both", activation_checkpointing=True, num_micro_batches=4),
)


def measure(case: Case, device: str, batch_size: int, threads: int, seed: int) -> dict[str, float]:
    """Peak bytes and seconds of one step in this process, which must have done nothing else."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    space = SearchSpace.load(SPACE)
    config = TrainConfig.from_json(
        {
            "space": SPACE,
            "phases": [{"name": "largest", "steps": 1, "base_lr": 0.01}],
            "batch_size": batch_size,
            "activation_checkpointing": case.activation_checkpointing,
            "num_micro_batches": case.num_micro_batches,
            "objective": {"gap_weight": 0.0},
            "device": device,
        }
    )
    config.check_batch(world_size=1)
    network = Supernet(space, NUM_CLASSES).to(device).train()
    network.activation_checkpointing = config.activation_checkpointing
    execution = Execution.of(network, World(), config.precision, config.num_micro_batches, config.channels_last)
    optimizer = make_optimizer(network, config.optimizer)
    images = torch.randn(batch_size, 3, RESOLUTION, RESOLUTION, device=device)
    batch = Batch(images, torch.randint(NUM_CLASSES, (batch_size,), device=device), batch_size)
    plan = Schedule(config, space, num_train=batch_size).plan(0)
    before = held(device)
    start = time.perf_counter()
    accumulate_gradients(network, batch, plan, None, False, config.objective, execution)
    apply_gradients(network, optimizer, plan.lr, config.optimizer.clip_norm, execution.scaler)
    return {"peak_bytes": peak(device) - before, "step_s": time.perf_counter() - start}


def held(device: str) -> int:
    """Bytes before the step."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    return peak(device)


def peak(device: str) -> int:
    """The most bytes that were held since the start of the process, or on a GPU since `held`."""
    if device == "cuda":
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def in_own_process(case: Case, device: str, options: argparse.Namespace, batch_size: int) -> dict[str, float]:
    """`measure`, with no memory of the process left from another case.

    Raises:
        SystemExit: the process failed, for want of memory most likely.
    """
    numbers = ["--batch", str(batch_size), "--threads", str(options.threads), "--seed", str(options.seed)]
    command = [sys.executable, str(Path(__file__).resolve()), "--case", case.name, "--device", device, *numbers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"case {case.name} on {device} ended with {done.returncode}; a smaller --batch needs less memory"
        )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a batch of 8; nothing is written")
    parser.add_argument("--batch", type=int, default=64, help="images of a step; divisible by 4")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch on the CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", choices=[case.name for case in CASES], help="measure this one in this process")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="with --case")
    options = parser.parse_args(arguments)
    if options.case is not None:
        case = next(case for case in CASES if case.name == options.case)
        print(json.dumps(measure(case, options.device, options.batch, options.threads, options.seed)))
        return

    batch_size = 8 if options.quick else options.batch
    print(f"one step of the largest {SPACE} at {RESOLUTION} px, batch {batch_size}\n")
    print(f"{'device':<8}{'case':<16}{'peak GiB':>10}{'of plain':>10}{'step s':>9}")
    rows: list[dict[str, Any]] = []
    figures: dict[str, Figure] = {}
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        plain = 0.0
        for case in CASES:
            row = in_own_process(case, device, options, batch_size)
            plain = plain or row["peak_bytes"]
            gib, share = row["peak_bytes"] / 2**30, row["peak_bytes"] / plain
            rows.append({"device": device, **dataclasses.asdict(case), **row, "share_of_plain": share})
            figures[f"{device}_{case.name}_gib"] = Figure(gib, lower_is_better=True)
            print(f"{device:<8}{case.name:<16}{gib:>10.2f}{share:>10.2f}{row['step_s']:>9.2f}")
    notes = [] if torch.cuda.is_available() else ["cuda: no GPU here, not measured"]
    extra = {"seed": options.seed, "threads": options.threads, "batch": batch_size, "rows": rows, "notes": notes}
    kind = machine_kind(torch.cuda.get_device_name() if torch.cuda.is_available() else None)
    finish("training_memory", figures, options.quick, extra, kind)


if __name__ == "__main__":
    main()
