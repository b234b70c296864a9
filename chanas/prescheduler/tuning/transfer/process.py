"""A Gaussian process on the points of a finite space, told of one measurement after the other.

Notation: N points, F features, n measured points.
    x  float64[N, F]  features       m  float64[N]  log seconds that are expected before anything is measured
    y  log seconds of a measured point, about zero for one that is neither fast nor slow

    y = m(x) + g(x) + noise,   g ~ GP(0, s² k),   noise ~ N(0, s² η²),   s² ~ inverse gamma(a, b)
    k(x, x') = κ(|x − x'| / l) + ω² + τ² (m(x) − m̄)(m(x') − m̄)

κ is Matérn's kernel with ν = 5/2; ω² leaves the level open, and τ² by how much the differences that m expects are to be
stretched. How large differences are is not known either: with s² integrated out, what is said about the next point is
Student's distribution with 2a degrees of freedom (Shah, Wilson and Ghahramani, 2014). For a measured point i with
residual e = y − mean_i and variance v = var_i + η²,
    a ← a + ½,   b ← b + ½ e²/v,
and, with the row r = (k_i − V_i·ᵀ V) / √v of the Cholesky factor's half-solved covariances V, float64[n, N],
    mean ← mean + r e/√v,   var ← var − r².
So a measurement costs O(n N), and its density under what was believed before sums up to the evidence of the process.
"""

from __future__ import annotations

import math

import numpy as np

from chanas.core.genome import FloatArray

# The prior of s²: two measurements' worth of differences by a factor of about two.
_SHAPE, _RATE = 2.0, 0.6
_LEVEL = 1.0
_STRETCH = 0.3
_LEAST_VARIANCE = 1e-9


def matern_row(x: FloatArray, index: int) -> FloatArray:
    """float64[N]: κ of one point with all; x is float64[N, F] in units of the lengths."""
    r = math.sqrt(5.0) * np.sqrt(((x - x[index]) ** 2).sum(axis=1))
    row: FloatArray = (1.0 + r + r**2 / 3.0) * np.exp(-r)
    return row


class FiniteProcess:
    """The process given the measurements so far.

    mean      float64[N] of log seconds
    variance  float64[N] of g in units of s²
    evidence  logarithm of the density of all measurements
    """

    def __init__(self, expected: FloatArray, noise: float, evidence: float = 0.0) -> None:
        """Begin with `expected` log seconds float64[N]; `noise` is η, `evidence` the logarithm of a prior."""
        self._slope = expected - expected.mean()
        self._noise = noise**2
        self.mean = expected.copy()
        self.variance: FloatArray = 1.0 + _LEVEL**2 + (_STRETCH * self._slope) ** 2
        self.evidence = evidence
        self._shape, self._rate = _SHAPE, _RATE
        self._rows: FloatArray = np.zeros((16, len(expected)))
        self._num = 0

    @property
    def deviation(self) -> float:
        """Standard deviation of log seconds where the variance is one."""
        return math.sqrt(self._rate / (self._shape - 1.0))

    def observe(self, index: int, y: float, kernel: FloatArray) -> None:
        """Take in one measurement. `kernel` is float64[N], κ of its point with all (`matern_row`)."""
        residual, variance = y - self.mean[index], self.variance[index] + self._noise
        square, half = residual**2 / variance, self._shape + 0.5
        self.evidence += math.lgamma(half) - math.lgamma(self._shape)
        self.evidence -= 0.5 * math.log(2.0 * math.pi * self._rate * variance)
        self.evidence -= half * math.log1p(square / (2.0 * self._rate))
        self._shape, self._rate = half, self._rate + 0.5 * square
        rows = self._rows[: self._num]
        row = kernel + _LEVEL**2 + _STRETCH**2 * self._slope[index] * self._slope
        row = (row - rows[:, index] @ rows) / math.sqrt(variance)
        if self._num == len(self._rows):
            self._rows = np.vstack([self._rows, np.zeros_like(self._rows)])
        self._rows[self._num] = row
        self._num += 1
        self.mean = self.mean + row * (residual / math.sqrt(variance))
        self.variance = np.maximum(self.variance - row**2, _LEAST_VARIANCE)

    def expected_improvement(self, best: float) -> FloatArray:
        """float64[N]: E[max(0, best − y)], y being taken for normal with the mean and variance of its distribution."""
        from scipy.special import ndtr

        deviation = self.deviation * np.sqrt(self.variance)
        z = (best - self.mean) / deviation
        gain: FloatArray = deviation * (z * ndtr(z) + np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi))
        return gain
