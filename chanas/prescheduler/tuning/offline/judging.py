"""Records to learn from and to be judged by, and the figures of those who judge.

Parts of a data set: fewer tasks, by how often their FLOPs occur (Verma et al., 2024); and splits (Zheng et al., 2021).
All are the same for the same seed. Figures are TenSet's: means over tasks, weighted by their records. Scores are higher
for faster records; labels are 1 for the fastest. Tasks with one record say nothing and do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chanas.core.arrays import Float32Array, FloatArray, IntArray
from chanas.errors import DataError
from chanas.prescheduler.tuning.offline.dataset import Dataset

TRAINING_SHARE = 0.9
_HELD_OUT = 0.1
SAMPLED_SHARE = 0.5
"""Share of the records; the paper keeps 47 % of a processor's and 57 % of a GPU's."""
MIN_RECORDS = 4
"""Tasks with fewer records say little of their order, and are left out of samples."""


class Split(NamedTuple):
    """Places of records, int64 each: to learn from, and to be judged by."""

    train: IntArray
    test: IntArray


def sample_by_flops(
    data: Dataset, share: float = SAMPLED_SHARE, min_records: int = MIN_RECORDS, seed: int = 0
) -> IntArray:
    """The records, in order, of some tasks that are drawn without replacement, each with a probability in proportion to
    the number of tasks that have as many FLOPs, until `share` of all records is reached.

    Raises:
        DataError: all tasks have fewer than `min_records`.
    """
    counts = data.counts()
    occurrences = Counter(task.num_flops for task in data.tasks)
    weights = np.array([occurrences[task.num_flops] for task in data.tasks], dtype=np.float64)
    # The largest of log weight + Gumbel noise are such a sample (Efraimidis and Spirakis, 2006).
    drawn = np.log(weights) + np.random.default_rng(seed).gumbel(size=len(weights))
    order = [int(t) for t in np.argsort(-drawn, kind="stable") if counts[t] >= min_records]
    if not order:
        raise DataError(f"expected tasks of at least {min_records} records, the largest has {counts.max()}")
    before = np.cumsum(counts[order]) - counts[order]
    chosen = np.array(order)[before < share * len(data)]
    return np.flatnonzero(np.isin(data.task, chosen)).astype(np.int64)


def within_task(data: Dataset, share: float, rng: np.random.Generator) -> Split:
    """A share of each task's records to learn from, rounded up, and the others."""
    train = np.zeros(len(data), dtype=bool)
    for task in np.unique(data.task):
        here = np.flatnonzero(data.task == task)
        train[rng.permutation(here)[: int(np.ceil(share * len(here)))]] = True
    return _split(train)


def by_task(data: Dataset, share: float, rng: np.random.Generator) -> Split:
    """Whole tasks, in random order, until so many records are there to learn from."""
    return _split(_first(data.task, rng.permutation(np.unique(data.task)), share))


def by_target(data: Dataset, share: float, rng: np.random.Generator) -> Split:
    """Whole devices, the last one first, until so many records are there to learn from; one is left to be judged by.

    Raises:
        DataError: there is a single device.
    """
    device = np.array([task.device for task in data.tasks], dtype=np.int64)[data.task]
    devices = np.unique(device)[::-1]
    if len(devices) < 2:
        raise DataError("split by_target needs records of two devices at least, got one; take by_task or within_task")
    return _split(_first(device, devices, share) & (device != devices[-1]))


_Splitter = Callable[[Dataset, float, np.random.Generator], Split]
SPLITS: dict[str, _Splitter] = {"within_task": within_task, "by_task": by_task, "by_target": by_target}


def split(data: Dataset, name: str, seed: int = 0, share: float = TRAINING_SHARE) -> Split:
    """One of `SPLITS`.

    Raises:
        DataError: one part would be empty: there is a single task or device, say.
    """
    parts = SPLITS[name](data, share, np.random.default_rng(seed))
    if min(map(len, parts)) == 0:
        raise DataError(f"split {name} leaves no records to {'learn from' if not len(parts.train) else 'be judged by'}")
    return parts


def held_out(num: int, seed: int) -> tuple[IntArray, IntArray]:
    """Places of records to learn from, and of those that tell when to stop; of fewer than 20, all are both."""
    order = np.random.default_rng(seed).permutation(num).astype(np.int64)
    cut = int(num * _HELD_OUT)
    return (order, order) if num < 20 else (order[cut:], order[:cut])


def _first(group: IntArray, order: IntArray, share: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """bool[N]: records of the first groups in order, without the one that would leave nothing."""
    counts = np.array([np.count_nonzero(group == g) for g in order])
    before = np.cumsum(counts) - counts
    chosen = order[(before < share * len(group)) & (np.arange(len(order)) < max(1, len(order) - 1))]
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.isin(group, chosen)
    return found


def _split(train: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Split:
    return Split(np.flatnonzero(train).astype(np.int64), np.flatnonzero(~train).astype(np.int64))


# ---- figures --------------------------------------------------------------------------------------------------------
CLEAR = 1.1
"""Pairs are clear whose latencies are apart by more than this factor: timings repeat to a few percent."""


@dataclass(frozen=True)
class Metrics:
    """rmse               root of the mean square of score − label, for scores that stand for labels; in [0, 1]
    pairwise_accuracy  share of pairs of a task that are in the right order
    clear_accuracy     the same of the clear pairs of all tasks together (`CLEAR`); None: there is none
    top1, top5         the best label among the so many records with the highest scores, over the task's best here
    """

    rmse: float
    pairwise_accuracy: float
    clear_accuracy: float | None
    top1: float
    top5: float
    num_records: int
    num_tasks: int


def pairwise_accuracy(score: FloatArray, label: Float32Array) -> float:
    """Σ_{i<j} [(s_i > s_j) = (y_i > y_j)] over all pairs; of at least two records, float[N] each."""
    upper = np.triu_indices(len(score), k=1)
    right = (score[:, None] > score[None, :]) == (label[:, None] > label[None, :])
    return float(right[upper].mean())


def clear_pairs(score: FloatArray, label: Float32Array) -> tuple[int, int]:
    """Clear pairs that are in the right order, and all clear pairs; float[N] each."""
    first, second = np.nonzero(label[:, None] > np.float32(CLEAR) * label[None, :])
    return int((score[first] > score[second]).sum()), len(first)


def peak_at(num: int, score: FloatArray, label: Float32Array) -> float:
    """The best label among the `num` records with the highest scores, over the best of all; float[N] each."""
    chosen = np.argsort(-score, kind="stable")[:num]
    return float(label[chosen].max() / label.max())


def judge(score: FloatArray, label: Float32Array, task: IntArray) -> Metrics:
    """All figures. float64[N], float32[N], int64[N].

    Raises:
        DataError: no task has two records.
    """
    figures, weights, clear = [], [], np.zeros(2, dtype=np.int64)
    for one in np.unique(task):
        here = task == one
        s, y = score[here], label[here]
        if len(s) < 2:
            continue
        figures.append([float(((s - y) ** 2).mean()), pairwise_accuracy(s, y), peak_at(1, s, y), peak_at(5, s, y)])
        weights.append(len(s))
        clear += clear_pairs(s, y)
    if not figures:
        raise DataError("expected tasks of at least two records to be judged by, got none")
    square, pairs, top1, top5 = np.average(np.array(figures), axis=0, weights=weights).tolist()
    right, num_clear = clear.tolist()
    of_clear = right / num_clear if num_clear else None
    return Metrics(float(np.sqrt(square)), pairs, of_clear, top1, top5, sum(weights), len(weights))
