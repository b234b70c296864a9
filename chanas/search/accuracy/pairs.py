"""A Gaussian process over sums of choices and all pairs of them. Few architectures suffice it, as it learns how much
single blocks, stages, positions and the whole network matter before it tells one block from another.

Its kernel is k = L + c·L² with L(x, x') = Σ_g a_g (x - centre)ᵀ S_g (x' - centre), one S_g for each group of sums
(`encoding.feature_groups`): L² holds the product of any two sums. So the mean is a polynomial of second degree in the
features, and takes as long after a thousand architectures as after ten.

Notation: N training rows, F features, Q query rows, G groups.
    x  float32[N, F]  zeros and ones      y  float64[N]  any unit; predictions come back in the same
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chanas.core.arrays import FloatArray
from chanas.search.accuracy.encoding import Features

# Standard deviations, in units of that of the labels, that are likely before anything is seen: of each group, of the
# noise and of the pairs; each may be e times as large or small. Labels tell the rest, if there are enough of them.
_GROUP, _NOISE, _PAIRS = 0.3, 0.2, 0.1
# Within these the covariance is far from singular, even of rows that are equal.
_SMALLEST, _SMALLEST_NOISE, _LARGEST = 1e-3, 1e-2, 3.0
# More rows than these change the scales little, and take the cube of their number in time.
_MAX_SCALE_ROWS = 300
# Exact algebra of these takes seconds and 0.3 GB; random ones of a longer table say almost as much as all of it.
_MAX_ROWS = 3000
_MAX_STEPS = 60


@dataclass(frozen=True)
class PairProcess:
    """A fitted process: y ≈ offset + q·weights + qᵀ·products·q of a centred query q.

    centre    float64[F]     mean of the training features
    weights   float64[F]
    products  float64[F, F]  symmetric
    metric    float64[F, F]  Σ_g a_g S_g
    rows      float64[N, F]  centred training rows times the metric
    factor    float64[N, N]  lower Cholesky factor of the training rows' covariance, in units of `scale`²
    share     c, the weight of the pairs    noise  variance of the labels, in units of `scale`²
    """

    centre: FloatArray
    weights: FloatArray
    products: FloatArray
    metric: FloatArray
    rows: FloatArray
    factor: FloatArray
    offset: float
    scale: float
    share: float
    noise: float

    def mean(self, x: Features) -> FloatArray:
        """float64[Q] predictions."""
        centred = x - self.centre
        out: FloatArray = self.offset + ((centred @ self.products + self.weights) * centred).sum(axis=1)
        return out

    def spread(self, x: Features) -> FloatArray:
        """float64[Q]: standard deviation of the prediction's error, label noise included."""
        from scipy.linalg import solve_triangular

        centred = x - self.centre
        cross = _with_pairs(centred @ self.rows.T, self.share)
        prior = _with_pairs(((centred @ self.metric) * centred).sum(axis=1), self.share)
        solved = solve_triangular(self.factor, cross.T, lower=True)
        out: FloatArray = self.scale * np.sqrt(np.maximum(prior - (solved**2).sum(axis=0), 0.0) + self.noise)
        return out


def _with_pairs(linear: FloatArray, share: float) -> FloatArray:
    """Covariances from those of the sums alone."""
    return linear + share * linear**2


def misfit(log_scales: FloatArray, kernels: FloatArray, z: FloatArray) -> tuple[float, FloatArray]:
    """Negative log posterior of the scales, without constants, and its gradient float64[G + 2].

    Args:
        log_scales: float64[G + 2] logarithms of the standard deviations of the groups, the noise and the pairs.
        kernels: float64[G, N, N] of the groups.
        z: float64[N] labels of mean 0 and variance 1.
    """
    squares = np.exp(2.0 * log_scales)
    variances, noise, share = squares[:-2], squares[-2], squares[-1]
    linear = np.tensordot(variances, kernels, 1)
    covariance = _with_pairs(linear, share)
    covariance[np.diag_indices_from(covariance)] += noise
    factor = np.linalg.cholesky(covariance)
    inverse = np.linalg.inv(covariance)
    dual = inverse @ z
    from_prior = log_scales - _prior(len(kernels))
    value = 0.5 * float(z @ dual) + float(np.log(np.diag(factor)).sum()) + 0.5 * float(from_prior @ from_prior)
    slope = inverse - np.outer(dual, dual)
    by_group = variances * np.tensordot(kernels, slope * (1.0 + 2.0 * share * linear), 2)
    others = [noise * np.trace(slope), share * np.vdot(slope, linear**2)]
    return value, np.concatenate([by_group, others]) + from_prior


def _prior(num_groups: int) -> FloatArray:
    """float64[G + 2]: the likeliest logarithms of the scales before anything is seen."""
    out: FloatArray = np.log([_GROUP] * num_groups + [_NOISE, _PAIRS])
    return out


def fit_pairs(x: Features, y: FloatArray, groups: FloatArray, seed: int) -> tuple[PairProcess, FloatArray]:
    """The process with the likeliest scales, and its leave-one-out residuals float64[N] (dual coefficient over the
    diagonal of the inverse covariance).

    Args:
        groups: float64[G, F, F], S_g of each group.
        seed: of the rows that are learnt from, where there are more than enough; the others have no residual.
    """
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)
    kept = np.sort(rng.permutation(len(y))[:_MAX_ROWS])
    x, y = x[kept], y[kept]
    centre, offset, scale = x.mean(axis=0, dtype=np.float64), float(y.mean()), float(y.std()) or 1.0
    centred, z = x - centre, (y - offset) / scale
    # each group has a mean variance of one; one that does not vary here keeps the scale that it would have elsewhere
    sizes = np.array([((centred @ group) * centred).sum() / len(y) for group in groups])
    unit_groups = groups / np.where(sizes > 0.0, sizes, 1.0)[:, None, None]
    some = np.sort(rng.permutation(len(y))[:_MAX_SCALE_ROWS])
    kernels = centred[some] @ unit_groups @ centred[some].T
    bounds = [(_SMALLEST, _LARGEST)] * len(groups) + [(_SMALLEST_NOISE, _LARGEST), (_SMALLEST, _LARGEST)]
    found = minimize(
        misfit,
        _prior(len(groups)),
        (kernels, z[some]),
        method="L-BFGS-B",
        jac=True,
        bounds=np.log(bounds),
        options={"maxiter": _MAX_STEPS},
    )
    squares = np.exp(2.0 * found.x)
    noise, share = float(squares[-2]), float(squares[-1])
    metric = np.tensordot(squares[:-2], unit_groups, 1)
    rows = centred @ metric
    covariance = _with_pairs(rows @ centred.T, share)
    covariance[np.diag_indices_from(covariance)] += noise
    factor = np.linalg.cholesky(covariance).astype(np.float64, copy=False)
    inverse_factor = np.linalg.inv(factor)
    dual = inverse_factor.T @ (inverse_factor @ z)
    left_out: FloatArray = scale * dual / (inverse_factor**2).sum(axis=0)
    weights, products = scale * rows.T @ dual, scale * share * (rows.T * dual) @ rows
    return PairProcess(centre, weights, products, metric, rows, factor, offset, scale, share, noise), left_out
