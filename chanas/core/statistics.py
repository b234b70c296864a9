"""Statistics that several parts share: samples, a kernel, distances, expected improvement, a fit, rank correlations."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from chanas.core.arrays import FloatArray, IntArray


def spread(num: int, most: int) -> IntArray:
    """The places of at most so many of `num` things, evenly from the first to the last."""
    return np.linspace(0, num - 1, min(num, most)).round().astype(np.int64)


def distances(a: FloatArray, b: FloatArray) -> FloatArray:
    """float64[N, M]: Euclidean ones between points float64[N, F] and float64[M, F]."""
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - (2.0 * a) @ b.T
    out: FloatArray = np.sqrt(np.maximum(squares, 0.0))
    return out


def matern(distance: FloatArray) -> FloatArray:
    """Matérn's kernel with ν = 5/2 at distances in units of its length (Rasmussen and Williams, 2006, eq. 4.17)."""
    scaled = math.sqrt(5.0) * distance
    out: FloatArray = (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled)
    return out


def expected_improvement(best: float, mean: FloatArray, deviation: FloatArray) -> FloatArray:
    """float64[N]: E[max(0, best − y)] for normal y (Mockus, 1975; Jones, Schonlau and Welch, 1998, equation 15)."""
    gain = best - mean
    z = gain / np.maximum(deviation, 1e-12)
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    below = np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in z.tolist()])
    improvement: FloatArray = np.maximum(gain * below + deviation * density, 0.0)
    return improvement


def relative_fit(design: FloatArray, truth: FloatArray) -> FloatArray:
    """float64[T] non-negative coefficients of the terms float64[N, T], least squares of the *relative* error."""
    from scipy.optimize import nnls

    relative = design / truth[:, None]
    size = np.abs(relative).max(axis=0)
    size[size == 0.0] = 1.0  # no row has anything of it
    out: FloatArray = nnls(relative / size, np.ones(len(truth)))[0] / size
    return out


def kendall_tau(a: npt.ArrayLike, b: npt.ArrayLike) -> float | None:
    """Kendall's τ-b of two float[N], -1 to 1, or None when one side has no order at all."""
    from scipy.stats import kendalltau

    return float(kendalltau(a, b).statistic) if _have_orders(a, b) else None


def spearman(a: FloatArray, b: FloatArray) -> float | None:
    """Spearman's rank correlation over what is finite in both of two float64[N], or None as above."""
    from scipy.stats import spearmanr

    both = np.isfinite(a) & np.isfinite(b)
    return float(spearmanr(a[both], b[both]).statistic) if _have_orders(a[both], b[both]) else None


def _have_orders(*values: npt.ArrayLike) -> bool:
    return all(len(np.unique(own)) > 1 for own in values)


def tau_beyond_noise(predicted: FloatArray, seconds: FloatArray, noise: float) -> float | None:
    """Kendall's τ of a prediction, float64[N], over the pairs whose seconds differ by more than `noise`, as a share.

    None if there is no such pair or the prediction is the same for all.
    """
    far = np.triu(np.abs(np.log(seconds)[:, None] - np.log(seconds)[None, :]) > noise, k=1)
    if not far.any() or np.ptp(predicted) == 0.0:
        return None
    signs = np.sign(predicted[:, None] - predicted[None, :]) * np.sign(seconds[:, None] - seconds[None, :])
    return float(signs[far].mean())
