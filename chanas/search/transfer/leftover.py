"""Regression on the features of architectures of what a mixture of known devices leaves over on a new one.

Notation: N networks, F features, D known devices, n networks measured on the new device.
    φ    float64[N, F]  features, centred, each times its scale ψ
    b_f                 coefficient of feature f on a known device
    r    float64[n]     log latencies that were measured, less what the mixture says; cut at three deviations

    r = φ·w + noise,   w ~ N(0, τ² I),   noise ~ N(0, σ² I)
    ψ_f² = ½ B_f² / Σ (B_f s_f)² + ½ / (F s_f²),   B_f² = mean of b_f² over known devices

with s_f the feature's standard deviation: a coefficient is off in proportion to its size, as where every block of a
kind takes half as long again, or by as much as any other. The mean square of φ·w over networks is τ² on average. τ and
σ are not known. Each pair is weighted by its evidence,
    log p(r | τ, σ) = -½ rᵀ C⁻¹ r - ½ log |C|,   C = τ² φφᵀ + σ² I,
and all are averaged. τ = 0, nothing is left over, is one of them, and few measurements hardly tell it from the others:
then little is added. With φφᵀ = U Λ Uᵀ of the measured networks, all pairs are had for one decomposition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chanas.core.arrays import FloatArray, IntArray

# τ, as shares of a latency, and σ, in units of the mixture's noise: which took for noise what features explain.
_LEFT_OVER = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
_NOISES = (0.5, 1.0, 2.0, 4.0)
# The mixture was fitted to what it leaves over: its noise is no less than this.
_LEAST_NOISE = 0.02
# Where outliers are cut: deviations, and a share of a latency; what a deviation is to a median of sizes.
_CUT, _LEAST_CUT, _DEVIATION_OF_MEDIAN = 3.0, 0.01, 1.4826


class Leftover(NamedTuple):
    """Addition to log latencies of the N networks, float64[N], and its variance float64[N]."""

    values: FloatArray
    variances: FloatArray


def scales(coefficients: FloatArray, spread: FloatArray) -> FloatArray:
    """ψ float64[F] from coefficients float64[F, D] on known devices and deviations float64[F] of the features; zero
    where a feature is the same in all networks."""
    varied = spread > 0.0
    out = np.zeros(len(spread))
    own = np.sqrt((coefficients[varied] ** 2).mean(axis=1))
    total = float(((own * spread[varied]) ** 2).sum())
    alike = 1.0 / (max(1, int(varied.sum())) * spread[varied] ** 2)
    out[varied] = np.sqrt(0.5 * (own**2 / total if total > 0.0 else alike) + 0.5 * alike)
    return out


def regress(phi: FloatArray, chosen: IntArray, left: FloatArray, noise: float) -> Leftover:
    """Regress what is left over.

    Args:
        phi: φ float64[N, F].
        chosen: the networks int[n] that were measured.
        left: float64[n] of log latencies, what is left over of these.
        noise: standard deviation of a measurement, as a share of the latency, as the mixture estimates it.
    """
    most = _CUT * _DEVIATION_OF_MEDIAN * float(np.median(np.abs(left))) + _LEAST_CUT
    x = phi[chosen]
    values, vectors = np.linalg.eigh(x @ x.T)
    turned = vectors.T @ np.clip(left, -most, most)
    tau2 = np.repeat(np.square(_LEFT_OVER), len(_NOISES))[:, None]
    sigma2 = np.tile(np.square(_NOISES), len(_LEFT_OVER))[:, None] * max(noise, _LEAST_NOISE) ** 2
    variances = tau2 * np.maximum(values, 0.0) + sigma2
    evidence = -0.5 * (turned**2 / variances + np.log(variances)).sum(axis=1)
    share = np.exp(evidence - evidence.max())
    share /= share.sum()

    # In the directions of U: the mean of w, and by how much less than τ² each is in doubt.
    each = tau2 * turned / variances
    known = share @ (tau2**2 / variances)
    mean = share @ each
    apart = (each - mean).T @ (share[:, None] * (each - mean))
    cross = phi @ (x.T @ vectors)
    variance = float(share @ tau2[:, 0]) * np.einsum("nf,nf->n", phi, phi) - cross**2 @ known
    variance += np.einsum("nk,nk->n", cross @ apart, cross)
    return Leftover(cross @ mean, np.maximum(variance, 0.0))
