"""How many images a second one training step takes, where its time goes, and whether the data keep up.

A step is the sandwich rule's: four sub-networks forward and backward with all terms of the loss, then one update. It is
timed twice, in turns and on the same sub-networks: as the trainer runs it, and written down plainly (this file's
`plain_step`: NCHW in memory order, full precision, nothing compiled). Images are random, so that no file is needed.

    python benchmarks/training_throughput.py [--quick] [--threads N] [--seed 0]
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import Figure, finish, machine_kind
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from chanas.core.arch import SearchSpace
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.image_source import ArraySource
from chanas.supernet.data.images import ImageData
from chanas.supernet.data.inspection.inspect import inspect_sample
from chanas.supernet.data.loader import Batch, training_batches
from chanas.supernet.data.splits import make_splits
from chanas.supernet.elastic.distributed import World
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.training.phases import Schedule, StepPlan, TrainConfig
from chanas.supernet.training.step import Execution, accumulate_gradients, apply_gradients, make_optimizer

LOADER_GOAL, CUDA_GOAL = 2.0, 2.0
NUM_SUBNETS = 4
CIFAR_SIZE = (50_000, 32, 32, 3)
LOSS_TOLERANCE = {"f32": 1e-3, "bf16": 0.1}  # relative; both ways of a step start from the same weights
ALL = dict.fromkeys(("kernel_sizes", "expand_ratios", "depths", "width_multipliers"), "all")
# Operators whose own time is counted to a group, by a part of their name; the first that fits.
GROUPS = {
    "convolution backward": ("convolution_backward", "conv_depthwise2d_backward", "dgrad", "wgrad"),
    "convolution forward": ("conv", "winograd", "implicit_gemm", "fprop"),
    "batch norm": ("batch_norm", "bn_fw", "bn_bw"),
    "activation": ("hardswish", "hardsigmoid", "relu", "threshold", "clamp"),
}


@dataclass(frozen=True)
class Case:
    """Which step is timed, and how the trainer's side of it is set up."""

    space: str
    resolution: int
    num_train: int
    num_gap: int
    num_classes: int
    device: str = "cpu"
    precision: str = "f32"
    compile: bool = False

    @property
    def name(self) -> str:
        return f"{self.space}_{self.resolution}px" + ("" if self.device == "cpu" else f"_{self.device}")

    @property
    def num_images(self) -> int:
        return self.num_train + self.num_gap

    def config(self, seed: int) -> TrainConfig:
        phase = {"name": "all", "steps": 1_000_000, "base_lr": 1e-3, "num_subnets": NUM_SUBNETS}
        return TrainConfig.from_json(
            {
                "space": self.space,
                "phases": [{**phase, **ALL, "resolutions": [self.resolution]}],
                "batch_size": self.num_train,
                "gap_batch_size": self.num_gap,
                "optimizer": {"clip_norm": 5.0},
                "seed": seed,
                "device": self.device,
                "precision": self.precision,
                "compile": self.compile,
            }
        )


CPU_CASES = (Case("mbv3", 224, 12, 4, 1000), Case("mbv3-32", 32, 48, 16, 10))
CUDA_CASE = Case("mbv3", 224, 96, 32, 1000, "cuda", "bf16", compile=True)

Step = Callable[[StepPlan, Batch], float]
"""Trains on a batch and returns the mean loss of its sub-networks."""


def network_of(case: Case, seed: int) -> Supernet:
    torch.manual_seed(seed)
    return Supernet(SearchSpace.load(case.space), case.num_classes).to(case.device).train()


def trainer_step(case: Case, seed: int) -> tuple[Step, Callable[[StepPlan, Batch], float], Callable[[StepPlan], None]]:
    """The step as the trainer runs it, and its two halves: gradients, and the update."""
    config, network = case.config(seed), network_of(case, seed)
    network.activation_checkpointing = config.activation_checkpointing
    if config.compile:
        network.compile_recurring()
    execution = Execution.of(network, World(), config.precision, config.num_micro_batches, config.channels_last)
    optimizer = make_optimizer(network, config.optimizer)

    def gradients(plan: StepPlan, batch: Batch) -> float:
        optimizer.zero_grad(set_to_none=True)
        losses = accumulate_gradients(network, batch, plan, None, True, config.objective, execution)
        return losses["all"]["loss"] or 0.0

    def update(plan: StepPlan) -> None:
        apply_gradients(network, optimizer, plan.lr, config.optimizer.clip_norm, execution.scaler)

    def step(plan: StepPlan, batch: Batch) -> float:
        loss = gradients(plan, batch)
        update(plan)
        return loss

    return step, gradients, update


def plain_step(case: Case, seed: int) -> Step:
    """The same weights, sub-networks and losses, in the fewest words."""
    config, network = case.config(seed), network_of(case, seed)
    optimizer, weights = make_optimizer(network, config.optimizer), config.objective
    smoothing = weights.label_smoothing

    def step(plan: StepPlan, batch: Batch) -> float:
        n, images, losses = batch.num_train, batch.images_nchw.contiguous(), []
        optimizer.zero_grad()
        teacher = None
        for _, architecture in plan.subnets:
            network.set_active_subnet(architecture)
            logits = network(images)
            train = F.cross_entropy(logits[:n], batch.labels[:n], label_smoothing=smoothing)
            gap = F.cross_entropy(logits[n:], batch.labels[n:], label_smoothing=smoothing)
            loss = train + weights.gap_weight * (gap - train).abs()
            if teacher is not None:
                loss = loss + weights.distillation_weight * F.cross_entropy(logits[:n], teacher)
            loss.backward()  # type: ignore[no-untyped-call]
            if teacher is None:
                teacher = logits[:n].detach().softmax(1)
            losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(network.parameters(), config.optimizer.clip_norm or float("inf"))
        for group in optimizer.param_groups:
            group["lr"] = plan.lr
        optimizer.step()
        return statistics.fmean(losses)

    return step


def random_batch(case: Case, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(case.num_images, 3, case.resolution, case.resolution, generator=generator)
    labels = torch.randint(case.num_classes, (case.num_images,), generator=generator)
    return Batch(images.to(case.device), labels.to(case.device), case.num_train)


def plans_of(case: Case, seed: int) -> list[StepPlan]:
    """Some steps of a schedule, whose random sub-networks differ."""
    schedule = Schedule(case.config(seed), SearchSpace.load(case.space), num_train=case.num_train)
    return list(itertools.islice(schedule.plans(0), 32))


def seconds(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(case: Case, seed: int, repeats: int) -> dict[str, Any]:
    """Medians of both ways of a step, measured in turns, and where the time of the trainer's goes.

    Raises:
        SystemExit: they do not compute the same loss.
    """
    ours, gradients, update = trainer_step(case, seed)
    plain = plain_step(case, seed)
    batch, plans = random_batch(case, seed), plans_of(case, seed)
    for _ in range(2):  # compiles and fills the caches; the second loss tells whether the updates were alike, too
        losses = ours(plans[0], batch), plain(plans[0], batch)
        if not math.isclose(*losses, rel_tol=LOSS_TOLERANCE[case.precision]):
            raise SystemExit(f"{case.name}: losses of {losses[0]} and {losses[1]}, so these are not the same step")
    times: dict[str, list[float]] = {"trainer": [], "plain": []}
    for repeat in range(repeats):
        plan = plans[1 + repeat % (len(plans) - 1)]
        turns = [("trainer", ours), ("plain", plain)]
        for name, step in turns if repeat % 2 else reversed(turns):
            times[name].append(seconds(functools.partial(step, plan, batch), case.device))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "case": dataclasses.asdict(case),
        "losses": list(losses),
        "step_s": medians,
        "images_per_s": {name: case.num_images / value for name, value in medians.items()},
        "speedup": statistics.median(p / t for p, t in zip(times["plain"], times["trainer"], strict=True)),
        "profile": where_time_goes(gradients, update, plans[1], batch, case.device),
    }


def where_time_goes(
    gradients: Callable[[StepPlan, Batch], float],
    update: Callable[[StepPlan], None],
    plan: StepPlan,
    batch: Batch,
    device: str,
) -> dict[str, Any]:
    """Shares of the operators' own time in one step, by group, and the ten that take most."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    shares: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    halves: tuple[tuple[str | None, Callable[[], object]], ...] = (
        (None, lambda: gradients(plan, batch)),
        ("optimiser", lambda: update(plan)),
    )
    for group, half in halves:
        with profile(activities=activities) as found:
            half()
        for event in found.key_averages():
            if event.device_type != DeviceType.CPU:
                continue  # a kernel, whose time stands at the operator that started it
            microseconds = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
            shares[group or group_of(event.key)] += microseconds
            operators[event.key] += microseconds
    total = sum(shares.values()) or 1
    return {
        "clock": "GPU" if device == "cuda" else "CPU",
        "shares": {name: value / total for name, value in shares.most_common()},
        "operators": {name: value / total for name, value in operators.most_common(10)},
    }


def group_of(operator: str) -> str:
    fitting = (group for group, parts in GROUPS.items() if any(part in operator.lower() for part in parts))
    return next(fitting, "rest")


def loading(case: Case, seed: int, num_steps: int, size: tuple[int, ...]) -> dict[str, Any]:
    """How fast batches of a set in memory come on their own, and how long a training loop waits for them."""
    rng = np.random.default_rng(seed)
    labels = np.arange(size[0]) % case.num_classes
    names = tuple(str(i) for i in range(case.num_classes))
    source = ArraySource("random", names, labels, rng.integers(0, 256, size, dtype=np.uint8))
    augment = {"rotation_deg": 10.0, "shift": 0.1, "scale": 0.1, "flip": True}
    config = DataConfig.model_validate({"augment": augment})
    data = ImageData(source, make_splits(source, config.splits, seed), config, inspect_sample(source))
    loader, step = case.config(seed).loader, trainer_step(case, seed)[0]
    device = torch.device(case.device)

    wanted = [(i, case.resolution) for i in range(4 * num_steps)]
    batches = training_batches(data, loader, wanted, device=device)
    next(batches)  # copies the set and draws the first epoch's order
    alone = seconds(lambda: [None for _ in batches], case.device) / (len(wanted) - 1)

    waits, steps = [], []
    batches = training_batches(data, loader, wanted[: num_steps + 1], device=device)
    for plan in itertools.islice(itertools.cycle(plans_of(case, seed)), num_steps + 1):
        start = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - start)
        steps.append(seconds(functools.partial(step, plan, batch), case.device))
    wait, train = statistics.median(waits[1:]), statistics.median(steps[1:])
    return {
        "images": list(size),
        "case": dataclasses.asdict(case),
        "loader_images_per_s": case.num_images / alone,
        "step_images_per_s": case.num_images / train,
        "loader_over_step": train / alone,
        "waiting_share": wait / (wait + train),
    }


def print_row(row: dict[str, Any], name: str) -> None:
    rates = row["images_per_s"]
    print(f"{name:<22}{rates['trainer']:>12.1f}{rates['plain']:>12.1f}{row['speedup']:>10.2f}")
    shares = ", ".join(f"{group} {share:.0%}" for group, share in row["profile"]["shares"].items())
    print(f"  {row['profile']['clock']} time: {shares}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats and images; nothing is written")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch on the CPU")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    cases, cuda_case, repeats = list(CPU_CASES), CUDA_CASE, 15
    if options.quick:
        cases[0] = dataclasses.replace(cases[0], num_train=3, num_gap=1)
        cuda_case, repeats = dataclasses.replace(cuda_case, num_train=12, num_gap=4), 3

    print(f"one step: {NUM_SUBNETS} sub-networks, {options.threads} threads; images per second\n")
    print(f"{'step':<22}{'trainer':>12}{'plain':>12}{'speed-up':>10}")
    figures, rows = {}, []
    for case in cases:
        rows.append(row := compare(case, options.seed, repeats))
        print_row(row, case.name)
        figures[f"{case.name}_images_per_s"] = Figure(row["images_per_s"]["trainer"])
        figures[f"{case.name}_speedup"] = Figure(row["speedup"], 1.0)

    size = (2_000, *CIFAR_SIZE[1:]) if options.quick else CIFAR_SIZE
    loaded = loading(cases[1], options.seed, 2 * repeats, size)
    print(
        f"\nloading {size[0]:,} images of {size[1]} px: {loaded['loader_images_per_s']:.0f} images/s alone, "
        f"{loaded['loader_over_step']:.1f} times what a step takes; it waits {loaded['waiting_share']:.1%} of the time"
    )
    figures["loader_over_step"] = Figure(loaded["loader_over_step"], LOADER_GOAL)
    figures["waiting_share"] = Figure(loaded["waiting_share"], lower_is_better=True)

    notes = ["cuda: eager f32 NCHW with PyTorch's defaults (TF32 inside convolutions) against bf16, NHWC, compiled"]
    if torch.cuda.is_available():
        rows.append(row := compare(cuda_case, options.seed, repeats))
        print_row(row, cuda_case.name)
        figures["cuda_images_per_s"] = Figure(row["images_per_s"]["trainer"])
        figures["cuda_speedup"] = Figure(row["speedup"], CUDA_GOAL)
    else:
        notes.append("cuda: no GPU here, not measured")
        figures["cuda_speedup"] = Figure(None)
    finish(
        "training_throughput",
        figures,
        options.quick,
        {
            "seed": options.seed,
            "threads": options.threads,
            "repeats": repeats,
            "rows": rows,
            "loading": loaded,
            "notes": notes,
        },
        machine_kind(torch.cuda.get_device_name() if torch.cuda.is_available() else None),
    )


if __name__ == "__main__":
    main()
