"""Figures that a cost model is judged by, as TenSet defines them: means over tasks, weighted by their records.

Scores are higher for faster records; labels are 1 for the fastest. Tasks with one record say nothing and do not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chanas.errors import DataError
from chanas.prescheduler.tuning.offline.dataset import FloatArray
from chanas.prescheduler.tuning.offline.primitives import Float32Array, Int64Array

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


def judge(score: FloatArray, label: Float32Array, task: Int64Array) -> Metrics:
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
