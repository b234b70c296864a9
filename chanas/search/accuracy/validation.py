"""The quality of a predictor on architectures that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import Genomes
from chanas.core.statistics import kendall_tau
from chanas.errors import ConfigError
from chanas.search.accuracy.predictor import DEFAULT_HIDDEN, MIN_TRAINING, AccuracyPredictor


@dataclass(frozen=True)
class CrossValidation:
    """Figures of a predictor on left-out rows.

    rmse_points        root mean square error in points (hundredths of top-1)
    kendall_tau        rank correlation, -1 to 1; None when all values are equal
    top_decile_recall  share of the true best tenth that is also in the predicted best tenth
    num_architectures  evaluated architectures that were used
    """

    rmse_points: float
    kendall_tau: float | None
    top_decile_recall: float
    num_architectures: int

    def to_json(self) -> dict[str, Any]:
        return {
            "rmse_points": self.rmse_points,
            "kendall_tau": self.kendall_tau,
            "top_decile_recall": self.top_decile_recall,
            "num_architectures": self.num_architectures,
        }


def top_decile_recall(truth: FloatArray, predicted: FloatArray) -> float:
    """Share of the true best tenth (rounded up) that the prediction also puts into its best tenth."""
    k = math.ceil(len(truth) / 10)
    best = set(np.argsort(-truth, kind="stable")[:k].tolist())
    return len(best.intersection(np.argsort(-predicted, kind="stable")[:k].tolist())) / k


def cross_validate(
    space: SearchSpace,
    genomes: Genomes,
    top1: npt.ArrayLike,
    kind: str,
    *,
    num_folds: int = 5,
    hidden: Sequence[int] = DEFAULT_HIDDEN,
    num_members: int = 5,
    seed: int = 0,
) -> CrossValidation:
    """The quality of a kind of predictor on folds of canonical genomes int16[N, L] with top-1 float[N] in [0, 1], each
    predicted by a fit to the others.

    Raises:
        ConfigError: there are too few rows to learn from once a fold is left out.
    """
    y = np.asarray(top1, dtype=np.float64)
    if num_folds < 2 or len(y) - math.ceil(len(y) / num_folds) < MIN_TRAINING:
        raise ConfigError(
            f"expected at least {MIN_TRAINING} architectures outside each of {num_folds} folds, got {len(y)} in all; "
            "evaluate more"
        )
    fold = np.random.default_rng(seed).permutation(len(y)) % num_folds
    predicted = np.zeros(len(y))
    for f in range(num_folds):
        predictor = AccuracyPredictor(space, kind, hidden, num_members, seed)
        predicted[fold == f] = predictor.fit(genomes[fold != f], y[fold != f]).predict(genomes[fold == f])[0]
    rmse = float(np.sqrt(np.mean((predicted - y) ** 2)))
    return CrossValidation(100.0 * rmse, kendall_tau(y, predicted), top_decile_recall(y, predicted), len(y))
