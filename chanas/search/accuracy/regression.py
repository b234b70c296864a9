"""Ridge regression, in closed form.

Notation: N training rows, F features, Q query rows.
    x  float32[N, F]  zeros and ones      y  float64[N]  any unit; predictions come back in the same
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chanas.core.arrays import Float32Array, FloatArray
from chanas.search.accuracy.encoding import Features

# Strengths of the ridge tried, from almost none to almost everything shrunk, in units of one training row's weight.
_RIDGE_STRENGTHS = np.logspace(-2, 3, 26)


@dataclass(frozen=True)
class Ridge:
    """y ≈ x·weights + offset, with the posterior of Bayesian linear regression for the spread.

    weights     float32[F]
    centre      float32[F]     mean of the training features
    covariance  float32[F, F]  (XᵀX + αI)⁻¹ of the centred features: leverage of a query is q·covariance·q
    noise       standard deviation of the labels about the line, set so that the spread of left-out rows is their error
    """

    weights: Float32Array
    centre: Float32Array
    covariance: Float32Array
    offset: float
    noise: float
    strength: float

    def mean(self, x: Features) -> FloatArray:
        """float64[Q] predictions."""
        out: FloatArray = (x @ self.weights).astype(np.float64) + self.offset
        return out

    def leverage(self, x: Features) -> FloatArray:
        """float64[Q]: how far each query lies from what was seen, 0 at the centre of the training rows."""
        centred = x - self.centre
        out: FloatArray = np.einsum("qf,qf->q", centred @ self.covariance, centred).astype(np.float64)
        return np.maximum(out, 0.0)

    def spread(self, x: Features) -> FloatArray:
        """float64[Q]: standard deviation of the prediction's error, label noise included."""
        return self.noise * np.sqrt(1.0 + self.leverage(x))


def fit_ridge(x: Features, y: FloatArray) -> tuple[Ridge, FloatArray]:
    """Ridge whose strength has the least leave-one-out error, and its leave-one-out residuals float64[N].

    All strengths share one singular value decomposition; leaving a row out is e_i / (1 - H_ii) (Allen's PRESS).
    """
    centre, offset = x.mean(axis=0, dtype=np.float64), float(y.mean())
    u, s, vt = np.linalg.svd(x - centre, full_matrices=False)
    uy = u.T @ (y - offset)
    best: tuple[float, float, FloatArray, FloatArray] | None = None
    for strength in _RIDGE_STRENGTHS:
        shrink = s**2 / (s**2 + strength)
        residual = (y - offset) - u @ (shrink * uy)
        hat = np.minimum((u**2) @ shrink + 1.0 / len(y), 1.0 - 1e-6)
        left_out = residual / (1.0 - hat)
        error = float(np.mean(left_out**2))
        if best is None or error < best[0]:
            best = (error, float(strength), left_out, hat)
    assert best is not None
    error, alpha, left_out, hat = best
    weights = vt.T @ (s / (s**2 + alpha) * uy)
    # directions never seen keep their prior variance 1/α
    covariance = (vt.T * (1.0 / (s**2 + alpha) - 1.0 / alpha)) @ vt + np.eye(x.shape[1]) / alpha
    # a left-out row has leverage h / (1 - h), so its error's variance is noise² / (1 - h)
    noise = float(np.sqrt(error / np.mean(1.0 / (1.0 - hat))))
    ridge = Ridge(
        weights.astype(np.float32),
        centre.astype(np.float32),
        covariance.astype(np.float32),
        offset - float(centre @ weights),
        noise,
        alpha,
    )
    return ridge, left_out
