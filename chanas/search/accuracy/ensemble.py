"""The perceptrons of the accuracy predictor (paper, section 3.6) as plain arrays, and their blend with a ridge.

Notation: M members, F features, Q query rows, H₁, H₂, … hidden sizes.
The members' first layers lie side by side, [F, M·H₁], so a population passes all of them in one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chanas.core.genome import FloatArray
from chanas.search.accuracy.encoding import Features
from chanas.search.accuracy.regression import FloatArray32, Ridge

# Synthetic accuracies of 50 to 200 architectures: with two standard errors, some fits came out up to 0.4 % worse than
# their ridge, and with one 1.9 %. benchmarks/accuracy_predictor.py judges what three come to.
_CAUTION = 3.0


@dataclass(frozen=True)
class Ensemble:
    """M perceptrons with ReLU and one output each.

    first   float32[F, M·H₁]
    hidden  float32[M, Hᵢ, Hᵢ₊₁] for each further layer; the last has one column
    biases  float32[M·H₁], then float32[M, 1, Hᵢ₊₁] for each further layer
    """

    first: FloatArray32
    hidden: tuple[FloatArray32, ...]
    biases: tuple[FloatArray32, ...]

    @property
    def num_members(self) -> int:
        return len(self.hidden[0])

    def __call__(self, x: Features) -> FloatArray32:
        """float32[M, Q]: each member's output."""
        out = x @ self.first
        out += self.biases[0]
        np.maximum(out, 0.0, out=out)
        size = self.first.shape[1] // self.num_members
        by_member = out.reshape(len(x), self.num_members, size).transpose(1, 0, 2)
        for i, (weight, bias) in enumerate(zip(self.hidden, self.biases[1:], strict=True)):
            by_member = by_member @ weight
            by_member += bias
            if i + 1 < len(self.hidden):
                np.maximum(by_member, 0.0, out=by_member)
        return by_member[:, :, 0]


@dataclass(frozen=True)
class Blend:
    """(1 - share) · ridge + share · (offset + scale · mean of an ensemble); both were taught the same accuracies.

    `share` in [0, 1] is what the ensemble proved to be worth on rows that it had not seen: 0 is the ridge alone, 1 the
    perceptrons alone. `offset` and `scale` are the origin and the unit of the ensemble's outputs; `noise` is the
    standard deviation of what both leave unexplained.
    """

    ridge: Ridge
    ensemble: Ensemble
    share: float
    offset: float
    scale: float
    noise: float

    def mean(self, x: Features) -> FloatArray:
        """float64[Q] predictions."""
        linear = self.ridge.mean(x)
        return linear if self.share == 0.0 else self._blend(linear, self.members(x))

    def members(self, x: Features) -> FloatArray32:
        """float32[M, Q]: each member's prediction."""
        out: FloatArray32 = self.offset + self.scale * self.ensemble(x)
        return out

    def _blend(self, linear: FloatArray, members: FloatArray32) -> FloatArray:
        out: FloatArray = linear + self.share * (members.mean(axis=0) - linear)
        return out

    def spread(self, x: Features) -> FloatArray:
        """float64[Q]: standard deviation of the error; leverage, disagreement of the members and label noise."""
        return self.mean_spread(x)[1]

    def mean_spread(self, x: Features) -> tuple[FloatArray, FloatArray]:
        """`mean` and `spread` with one pass through the ensemble."""
        mean, variance = self.ridge.mean(x), self.noise**2 * (1.0 + self.ridge.leverage(x))
        if self.share != 0.0:
            members = self.members(x)
            mean, variance = self._blend(mean, members), variance + self.share**2 * members.var(axis=0)
        return mean, np.sqrt(variance)


def worth(residual: FloatArray, correction: FloatArray) -> float:
    """The share in [0, 1] of `correction` float64[N] that explains `residual` float64[N] of the same unseen rows.

    Least squares through the origin, less _CAUTION standard errors: a correction that may be chance counts for nothing,
    so the corrected prediction does no worse than the plain one.
    """
    energy = float(correction @ correction)
    if energy <= 0.0 or len(residual) < 3:
        return 0.0
    slope = float(correction @ residual) / energy
    left = residual - slope * correction
    standard_error = float(np.sqrt(left @ left / (len(residual) - 1) / energy))
    return float(np.clip(slope - _CAUTION * standard_error, 0.0, 1.0))
