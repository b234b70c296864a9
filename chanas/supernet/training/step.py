"""One training step: every sub-network of the plan forward and backward on the step's batch, then one update."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from chanas.supernet.data.loader import Batch
from chanas.supernet.elastic.distributed import World
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.training.objective import LossTerms, objective
from chanas.supernet.training.phases import ObjectiveConfig, OptimizerConfig, Precision, StepPlan

Terms = dict[str, float | None]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


class NonFiniteError(ArithmeticError):
    """A loss or a gradient overflowed; the weights were not touched."""


@dataclass(frozen=True)
class Execution:
    """The execution of a step (devices, precision, micro-batches); the plan and the objective define the result."""

    world: World = World()  # noqa: RUF009 (frozen)
    parallel: DistributedDataParallel | None = None
    """The supernet as the processes share it; None for one process."""
    precision: Precision = "f32"
    num_micro_batches: int = 1
    """Parts that this process's images go through the network in, one after another. BN, and the direction of the gap
    term, see one part at a time."""
    channels_last: bool = True
    scaler: torch.amp.GradScaler | None = None
    """Keeps small gradients above zero in f16."""

    @classmethod
    def of(
        cls, network: Supernet, world: World, precision: Precision, num_micro_batches: int, channels_last: bool
    ) -> Execution:
        """Prepare a network that lies on its device; with several processes all take over rank 0's weights."""
        device = next(network.parameters()).device
        parallel = None
        if world.size > 1:
            devices = [device] if device.type == "cuda" else None
            # BN statistics are the ranks' own business; the option that says so changed its name
            names = inspect.signature(DistributedDataParallel).parameters
            option = next(o for o in ("forward_sync_buffers", "broadcast_buffers") if o in names)
            parallel = DistributedDataParallel(network, device_ids=devices, **{option: False})  # type: ignore[arg-type]
        scaler = torch.amp.GradScaler(device.type) if precision == "f16" else None
        return cls(world, parallel, precision, num_micro_batches, channels_last, scaler)

    @contextlib.contextmanager
    def computing(self, device: torch.device) -> Iterator[None]:
        """Forward passes inside are in the reduced precision."""
        with torch.autocast(device.type, dtype=DTYPES.get(self.precision), enabled=self.precision in DTYPES):
            yield


def make_optimizer(network: nn.Module, config: OptimizerConfig) -> torch.optim.SGD:
    """SGD over all parameters; those of one dimension (BN and biases) are spared weight decay."""
    parameters = list(network.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(groups, lr=0.0, momentum=config.momentum, nesterov=True)


def accumulate_gradients(
    network: Supernet,
    batch: Batch,
    plan: StepPlan,
    teacher: nn.Module | None,
    in_place: bool,
    config: ObjectiveConfig,
    execution: Execution = Execution(),
) -> dict[str, Terms]:
    """Add the gradients of every sub-network of `plan` up (as once-for-all and BigNAS do), and return their losses.

    Train and gap images go through a sub-network together, so that both losses are taken under the same BN statistics.
    With several processes, gradients are the mean over all of them when this returns, and so are the losses.

    Args:
        network: in train mode; its active sub-network changes.
        batch: this process's train images, then its gap images, on the network's device.
        plan: the sub-networks.
        teacher: a frozen largest network, or None.
        in_place: the first sub-network of the plan teaches the others (sandwich rule).
        config: the weights of the terms.
        execution: precision, micro-batches, processes.

    Returns:
        The mean terms under "all", and the mean of each size class under its name.

    Raises:
        NonFiniteError: a loss is infinite or not a number (on any process: it is raised on all of them).
    """
    parts = micro_batches(batch, execution)
    device = batch.images_nchw.device
    teacher_logits: list[Tensor | None] = [None] * len(parts)
    if teacher is not None:
        with torch.no_grad(), execution.computing(device):
            teacher_logits = [teacher(part.images_nchw[: part.num_train]).float() for part in parts]
    found: list[list[LossTerms]] = []
    used: set[nn.Parameter] = set()
    for position, (size_class, architecture) in enumerate(plan.subnets):
        network.set_active_subnet(architecture, recurs=size_class != "random")
        used.update(network.active_parameters())
        logits_of_parts = []
        found.append([])
        for i, part in enumerate(parts):
            last = position == len(plan.subnets) - 1 and i == len(parts) - 1
            with _reducing(execution, last), execution.computing(device):
                logits = (execution.parallel or network)(part.images_nchw).float()
            terms = _terms(logits, part, teacher_logits[i], config, execution.world)
            total = terms.total / len(parts)
            if execution.parallel is not None and last:
                total = total + _tie(network)
            if execution.scaler is not None:
                total = execution.scaler.scale(total)
            with _reducing(execution, last):
                total.backward()  # type: ignore[no-untyped-call]
            found[-1].append(terms)
            logits_of_parts.append(logits[: part.num_train].detach())
        if in_place and position == 0:
            teacher_logits = list(logits_of_parts)
    if execution.parallel is not None:
        for parameter in network.parameters():
            if parameter not in used:  # as with one process: no gradient, so no weight decay either
                parameter.grad = None
    return _logged(found, plan, execution.world)


def micro_batches(batch: Batch, execution: Execution) -> list[Batch]:
    """The images of a process in parts of equal size, each with its share of train and of gap images."""
    n, count = batch.num_train, execution.num_micro_batches
    layout = torch.channels_last if execution.channels_last else torch.contiguous_format
    if count == 1:
        return [Batch(batch.images_nchw.contiguous(memory_format=layout), batch.labels, n)]
    images, labels = batch.images_nchw, batch.labels
    rows = zip(
        images[:n].chunk(count),
        images[n:].chunk(count) if len(labels) > n else [images[n:]] * count,
        labels[:n].chunk(count),
        labels[n:].chunk(count) if len(labels) > n else [labels[n:]] * count,
        strict=True,
    )
    return [
        Batch(torch.cat([x, gap_x]).contiguous(memory_format=layout), torch.cat([y, gap_y]), len(y))
        for x, gap_x, y, gap_y in rows
    ]


def _terms(
    logits: Tensor, part: Batch, teacher_logits: Tensor | None, config: ObjectiveConfig, world: World
) -> LossTerms:
    n = part.num_train
    gap_labels = part.labels[n:]
    gap_logits = logits[n:] if len(gap_labels) else None
    return objective(logits[:n], part.labels[:n], gap_logits, gap_labels, teacher_logits, config, world.mean)


@contextlib.contextmanager
def _reducing(execution: Execution, last: bool) -> Iterator[None]:
    """Gradients stay in their process until the last backward pass of a step, which averages the sums."""
    if execution.parallel is None or last:
        yield
    else:
        with execution.parallel.no_sync():
            yield


def _tie(network: nn.Module) -> Tensor:
    """Zero, but made of every parameter: DistributedDataParallel averages what the last backward pass reaches, and
    earlier sub-networks of the step reached others."""
    return torch.stack([p.sum() for p in network.parameters()]).sum() * 0.0


def _logged(found: Sequence[Sequence[LossTerms]], plan: StepPlan, world: World) -> dict[str, Terms]:
    """Transfer all numbers of a step from the device at once."""
    numbers = world.mean(torch.stack([torch.stack([t.stacked() for t in terms]).mean(0) for terms in found])).tolist()
    rows: defaultdict[str, list[Terms]] = defaultdict(list)
    for (size_class, architecture), terms, stacked in zip(plan.subnets, found, numbers, strict=True):
        row = terms[0].to_floats(stacked)
        if not math.isfinite(stacked[0]):
            raise NonFiniteError(f"loss {row['loss']} at step {plan.step} in {architecture.key}")
        rows["all"].append(row)
        rows[size_class].append(row)
    return {name: mean_terms(group) for name, group in rows.items()}


def apply_gradients(
    network: nn.Module,
    optimizer: torch.optim.SGD,
    lr: float,
    clip_norm: float | None,
    scaler: torch.amp.GradScaler | None = None,
) -> bool:
    """Update the weights, with the norm of the whole gradient cut to `clip_norm`.

    Returns:
        Whether there was an update: a scaler skips a step whose scaled gradients overflowed, and scales less after it.

    Raises:
        NonFiniteError: a gradient is infinite or not a number (without a scaler); the weights were not touched.
    """
    if scaler is not None:
        scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(network.parameters(), clip_norm or math.inf)
    finite = bool(torch.isfinite(norm))
    if not finite and scaler is None:
        raise NonFiniteError(f"gradient norm {float(norm)}")
    for group in optimizer.param_groups:
        group["lr"] = lr
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    return finite


def mean_terms(rows: Sequence[Terms]) -> Terms:
    """The mean of each term over the rows that have it."""
    out: Terms = {}
    for name in rows[0]:
        values = [v for row in rows if (v := row[name]) is not None]
        out[name] = math.fsum(values) / len(values) if values else None
    return out
