"""The loss of accuracy by blocks in other dtypes than float32: a cost of each place and dtype, summed.

A network's top-1 in several dtypes is taken to be that in float32 less the sum of its blocks' costs, which are never
negative: rounding gains nothing that a search should look for. They are learnt from the same networks evaluated with
numbers rounded, on the same images.

Notation: N architectures, Q dtypes, F = (Q − 1) · (P + 4) places of blocks in each dtype but float32, of which the
first P are slots of stages (`chanas.core.genome`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import GenomeLayout, Genomes

_PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_FOLDS = 8


@dataclass(frozen=True)
class DtypeLosses:
    """Costs of blocks in other dtypes than float32.

    costs           float64[F], shares of images that are no longer right
    error           root mean square of the loss of networks that were left out, less what is predicted
    mean            mean loss of all networks that were evaluated
    num_evaluations networks that it was learnt from
    """

    space: SearchSpace
    costs: FloatArray
    error: float
    mean: float
    num_evaluations: int

    def of(self, genomes: Genomes) -> FloatArray:
        """float64[N]: what the dtypes of architectures int16[N, L] cost."""
        out: FloatArray = _places(self.space, genomes) @ self.costs
        return out

    @property
    def by_place(self) -> FloatArray:
        """float64[Q, P + 4]: costs of blocks in order: stem, first block, slots, head, classifier."""
        costs = self.costs.reshape(len(self.space.dtypes) - 1, -1)
        ordered = np.concatenate([costs[:, -4:-2], costs[:, :-4], costs[:, -2:]], axis=1)
        found: FloatArray = np.concatenate([np.zeros_like(ordered[:1]), ordered])
        return found

    def to_json(self) -> dict[str, Any]:
        """Figures for results: in points, and those of each dtype in order of slots, then stem, first block, head and
        classifier."""
        by_dtype = zip(self.space.dtypes[1:], self.costs.reshape(len(self.space.dtypes) - 1, -1), strict=True)
        return {
            "num_evaluations": self.num_evaluations,
            "mean_points": 100.0 * self.mean,
            "error_points": 100.0 * self.error,
            "costs_points": {dtype: (100.0 * costs).tolist() for dtype, costs in by_dtype},
        }


def _places(space: SearchSpace, genomes: Genomes) -> FloatArray:
    """float64[N, F]: one where a block is in a dtype."""
    dtypes = genomes[:, GenomeLayout(space).plain_length :]
    found: FloatArray = np.concatenate([dtypes == q for q in range(1, len(space.dtypes))], axis=1).astype(np.float64)
    return found


def fit_losses(space: SearchSpace, genomes: Genomes, losses: FloatArray, seed: int = 0) -> DtypeLosses:
    """Costs from architectures int16[N, L] and the top-1 that each lost, float64[N]: non-negative least squares, the
    more strongly held near their mean the better this predicts what is left out."""
    x = _places(space, genomes)
    order = np.random.default_rng(seed).permutation(len(x))
    folds = np.array_split(order, min(_FOLDS, len(x)))

    def left_out_error(penalty: float) -> float:
        residuals = []
        for fold in folds:
            kept = np.setdiff1d(order, fold)
            residuals.append(losses[fold] - x[fold] @ _fit(x[kept], losses[kept], penalty))
        return float(np.sqrt(np.mean(np.concatenate(residuals) ** 2)))

    errors = {penalty: left_out_error(penalty) for penalty in _PENALTIES}
    penalty = min(errors, key=errors.__getitem__)
    return DtypeLosses(space, _fit(x, losses, penalty), errors[penalty], float(losses.mean()), len(losses))


def _fit(x: FloatArray, losses: FloatArray, penalty: float) -> FloatArray:
    """float64[F] non-negative costs, held near what one costs on average."""
    from scipy.optimize import nnls

    each = max(0.0, float(losses.sum() / max(x.sum(), 1.0)))
    held = np.sqrt(penalty) * np.eye(x.shape[1])
    costs, _ = nnls(np.concatenate([x, held]), np.concatenate([losses, np.full(x.shape[1], np.sqrt(penalty) * each)]))
    found: FloatArray = costs
    return found
