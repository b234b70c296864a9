"""One training step: every sub-network of the plan forward and backward on the step's batch, then one update."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from chanas.supernet.loader import Batch
from chanas.supernet.network import Supernet
from chanas.supernet.objective import ObjectiveConfig, objective
from chanas.supernet.phases import OptimizerConfig, StepPlan

Terms = dict[str, float | None]


class NonFiniteError(ArithmeticError):
    """A loss or a gradient overflowed; the weights were not touched."""


def make_optimizer(network: nn.Module, config: OptimizerConfig) -> torch.optim.SGD:
    """SGD over all parameters; those of one dimension (BN and biases) are spared weight decay."""
    parameters = list(network.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(groups, lr=0.0, momentum=config.momentum, nesterov=True)


def accumulate_gradients(
    network: Supernet, batch: Batch, plan: StepPlan, teacher: nn.Module | None, in_place: bool, config: ObjectiveConfig
) -> dict[str, Terms]:
    """Add the gradients of every sub-network of `plan` up (as once-for-all and BigNAS do), and return their losses.

    Train and gap images go through a sub-network together, so that both losses are taken under the same BN statistics.

    Args:
        network: in train mode; its active sub-network changes.
        batch: train images, then gap images.
        plan: the sub-networks.
        teacher: a frozen largest network, or None.
        in_place: the first sub-network of the plan teaches the others (sandwich rule).
        config: the weights of the terms.

    Returns:
        The mean terms under "all", and the mean of each size class under its name.

    Raises:
        NonFiniteError: a loss is infinite or not a number.
    """
    n = batch.num_train
    images = batch.images_nchw.contiguous(memory_format=torch.channels_last)
    train_labels, gap_labels = batch.labels[:n], batch.labels[n:]
    teacher_logits: Tensor | None = None
    if teacher is not None:
        with torch.no_grad():
            teacher_logits = teacher(images[:n])
    rows: defaultdict[str, list[Terms]] = defaultdict(list)
    for position, (size_class, architecture) in enumerate(plan.subnets):
        network.set_active_subnet(architecture)
        logits = network(images)
        gap_logits = logits[n:] if len(gap_labels) else None
        terms = objective(logits[:n], train_labels, gap_logits, gap_labels, teacher_logits, config)
        row = terms.to_floats()
        if not math.isfinite(row["loss"] or 0.0):
            raise NonFiniteError(f"loss {row['loss']} at step {plan.step} in {architecture.key}")
        terms.total.backward()  # type: ignore[no-untyped-call]
        rows["all"].append(row)
        rows[size_class].append(row)
        if in_place and position == 0:
            teacher_logits = logits[:n].detach()
    return {name: mean_terms(group) for name, group in rows.items()}


def apply_gradients(network: nn.Module, optimizer: torch.optim.SGD, lr: float, clip_norm: float | None) -> None:
    """One update, with the norm of the whole gradient cut to `clip_norm`.

    Raises:
        NonFiniteError: a gradient is infinite or not a number; the weights were not touched.
    """
    norm = nn.utils.clip_grad_norm_(network.parameters(), clip_norm or math.inf)
    if not bool(torch.isfinite(norm)):
        raise NonFiniteError(f"gradient norm {float(norm)}")
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()


def mean_terms(rows: Sequence[Terms]) -> Terms:
    """The mean of each term over the rows that have it."""
    out: Terms = {}
    for name in rows[0]:
        values = [v for row in rows if (v := row[name]) is not None]
        out[name] = math.fsum(values) / len(values) if values else None
    return out
