"""Distribute the next trials: to the workloads that networks spend their time in and that can still be made faster.

Notation: A sampled architectures, W workloads. Improvements are on log seconds, so 0.01 stands for about one percent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chanas.core import genome
from chanas.core.arch import SubSpace
from chanas.core.arrays import FloatArray, IntArray
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.operators.steps import device_workloads
from chanas.operators.workload import Workload

NUM_ARCHITECTURES = 256

TRIAL_S = 0.06
"""About the seconds of a trial on two idle cores of an AMD EPYC, everything included."""


def occurrences(
    task: Task,
    target: HardwareTarget,
    workloads: Sequence[Workload],
    sub_spaces: Sequence[SubSpace] | None = None,
    num: int = NUM_ARCHITECTURES,
    seed: int = 0,
) -> FloatArray:
    """float64[A, W]: how often each workload occurs in random architectures, as many of each sub-space, on a target.

    A is `num`, rounded up to a multiple of the number of sub-spaces (by default all of the space).
    """
    rng = np.random.default_rng(seed)
    drawn_from = list(sub_spaces or task.space.sub_spaces)
    each = -(-num // len(drawn_from))
    column = {w: i for i, w in enumerate(workloads)}
    rows = []
    for sub_space in drawn_from:
        for architecture in genome.decode(task.space, genome.sample(task.space, each, rng, sub_space)):
            blocks = architecture.blocks(task.space, task.num_classes)
            found = [column[w] for b in blocks for w in device_workloads(b, target) if w in column]
            rows.append(np.bincount(found, minlength=len(column)))
    return np.array(rows, dtype=np.float64)


def latency_shares(seconds: FloatArray, counts: FloatArray) -> FloatArray:
    """float64[W]: each workload's share of an architecture's seconds, on average over the architectures.

    Args:
        seconds: float64[W], not negative.
        counts: float64[A, W] as `occurrences` gives them; architectures whose seconds are zero are left out.
    """
    cost = counts * seconds
    total = cost.sum(axis=1, keepdims=True)
    known = total[:, 0] > 0.0
    if not known.any():
        return np.zeros(len(seconds))
    shares: FloatArray = (cost[known] / total[known]).mean(axis=0)
    return shares


def claims(shares: FloatArray, improvements: FloatArray, noises: FloatArray) -> FloatArray:
    """float64[W]: what each workload's next trials are worth; zero where the improvement is under the noise.

    Args:
        shares: of the latency.
        improvements: the largest one expected of an untried point; infinite for a workload that nothing works for yet.
        noises: of the best measurement, as a share of its seconds.

    A workload that nothing works for yet claims as much as the strongest of the others: without it there is no table.
    """
    unknown = np.isinf(improvements)
    worth = shares * np.where(unknown | (improvements < noises), 0.0, improvements)
    strongest = worth.max(initial=0.0)
    result: FloatArray = np.where(unknown, strongest if strongest > 0.0 else 1.0, worth)
    return result


def hand_out(num: int, weights: FloatArray, room: IntArray) -> IntArray:
    """int64[W]: `num` trials in proportion to `weights`, by largest remainders, none beyond a workload's `room`.

    What has no room goes to the others; less than `num` are handed out only where all that have a weight are full.
    """
    granted = np.zeros(len(weights), dtype=np.int64)
    while True:
        open_ = (weights > 0.0) & (granted < room)
        left = min(num - int(granted.sum()), int((room - granted)[open_].sum()))
        if left <= 0:
            return granted
        scaled = np.where(open_, weights / weights[open_].max(), 0.0)
        ideal = left * scaled / scaled.sum()
        part = np.floor(ideal).astype(np.int64)
        remainder = np.where(open_, ideal - part, -1.0)
        part[np.argsort(-remainder, kind="stable")[: left - int(part.sum())]] += 1
        granted += np.minimum(np.where(open_, part, 0), room - granted)
