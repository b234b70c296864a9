"""A Gaussian process on the points of a finite space, told of one measurement after the other.

Notation: N points, F features, n measured points, R slopes.
    x  float64[N, F]  features       m  float64[N]  log seconds that are expected before anything is measured
    y  log seconds of a measured point, about zero for one that is neither fast nor slow
    h  float64[R, N]  slopes: what m may be wrong by in proportion to, each centred

    y = m(x) + g(x) + noise,   g ~ GP(0, s² k),   noise ~ N(0, s² η²),   s² ~ inverse gamma(a, b)
    k(x, x') = κ(x, x') + ω² + τ² Σ_r h_r(x) h_r(x'),   ω² = Ω² / E s²,   τ² = T² / E s²

κ is Matérn's kernel with ν = 5/2 of |x − x'| / l or, at l = 0, one where both are the same point: then what a point
differs by from m says nothing about any other, and the order of unmeasured points stays that of m and the slopes.
Ω leaves the level open, and T by how much the differences that m expects are to be stretched. Neither scales with s:
how close y comes to m point by point says nothing about them. s is not known: with s² integrated out, what is said
about the next point is Student's distribution with 2a degrees of freedom (Shah, Wilson and Ghahramani, 2014). For a
measured point i with residual e = y − mean_i and variance v = var_i + η²,
    a ← a + ½,   b ← b + ½ e²/v,
and its density under what was believed before adds up to the evidence of the process. The first measurement says
nothing but the level: it changes neither a, b nor the evidence, as when Ω is infinite.

With L the Cholesky factor of the measured points' covariances (and η² on its diagonal) and u = L⁻¹ (y − m), a
measurement costs O(n²). What is said about all points,
    mean = m + Vᵀ u,   var = k(x, x) − Σ V²,   V = L⁻¹ k(measured, all), float64[n, N],
is brought up to date when it is asked for, in O(n N) for each measurement since the last time: of hundreds of
processes on 100,000 points few are ever asked.
"""

from __future__ import annotations

import math

import numpy as np

from chanas.core.genome import FloatArray

# Shape of the prior of s²: two measurements' worth.
_SHAPE = 2.0
# Ω, in log seconds (any level), and T, as a share of the differences that are expected.
_LEVEL, _STRETCH = 10.0, 0.25
_LEAST_VARIANCE = 1e-9


class Distances:
    """Distances |x − x'| of measured points to all, float64[n, N], kept once for all processes."""

    def __init__(self, x: FloatArray) -> None:
        """Begin without measured points; x is float64[N, F]."""
        self._x = np.ascontiguousarray(x)
        self._rows: FloatArray = np.zeros((16, len(x)))
        self.measured: list[int] = []

    def row(self, index: int) -> FloatArray:
        """float64[N]: of one point to all."""
        out: FloatArray = np.zeros(len(self._x))
        for column in self._x.T:  # a column at a time: no second copy of all features
            out += (column - column[index]) ** 2
        return np.sqrt(out)

    def add(self, index: int, row: FloatArray) -> None:
        """Take in a measured point, with its `row`."""
        if len(self.measured) == len(self._rows):
            self._rows = np.vstack([self._rows, np.zeros_like(self._rows)])
        self._rows[len(self.measured)] = row
        self.measured.append(index)

    def with_measured(self, length: float) -> FloatArray:
        """float64[n]: κ of the last measured point with each."""
        if length == 0.0:
            return np.equal(self.measured, self.measured[-1]).astype(np.float64)
        return _matern(self._rows[len(self.measured) - 1, self.measured] / length)

    def with_all(self, length: float, begin: int) -> FloatArray:
        """float64[n − begin, N]: κ of the measured points from the `begin`-th on with all."""
        if length > 0.0:
            return _matern(self._rows[begin : len(self.measured)] / length)
        own: FloatArray = np.zeros((len(self.measured) - begin, self._rows.shape[1]))
        own[np.arange(len(own)), self.measured[begin:]] = 1.0
        return own

    def spread(self, length: float, coefficients: FloatArray) -> FloatArray:
        """float64[N]: the sum of `coefficients` float64[n] times κ of each measured point with all."""
        if length > 0.0:
            return coefficients @ self.with_all(length, 0)
        out: FloatArray = np.zeros(self._rows.shape[1])
        out[self.measured] = coefficients
        return out


def _matern(distance: FloatArray) -> FloatArray:
    """Matérn's kernel with ν = 5/2 of distances in units of the length."""
    r = math.sqrt(5.0) * distance
    out: FloatArray = (1.0 + r + r**2 / 3.0) * np.exp(-r)
    return out


class FiniteProcess:
    """The process given the measurements so far.

    evidence  logarithm of the density of all measurements
    length    l, in units of the distances
    """

    def __init__(  # the model's quantities, by name
        self,
        expected: FloatArray,
        distances: Distances,
        length: float,
        noise: float,
        *,
        difference: float,
        slopes: FloatArray,
        evidence: float = 0.0,
    ) -> None:
        """Begin before any measurement.

        Args:
            expected: m, float64[N].
            distances: of the points that are measured, which is told of each before this is.
            length: l.
            noise: η, as a share of s.
            difference: root of the expectation of s², in log seconds.
            slopes: h, float64[R, N].
            evidence: logarithm of a prior.
        """
        self._expected, self._slopes, self._distances = expected, slopes, distances
        self.length, self._noise = length, noise**2
        self._level, self._stretch = (_LEVEL / difference) ** 2, (_STRETCH / difference) ** 2
        self.evidence = evidence
        self._shape, self._rate = _SHAPE, difference**2 * (_SHAPE - 1.0)
        self._factor: FloatArray = np.zeros((16, 16))
        self._solved: FloatArray = np.zeros(16)
        self._num = 0
        # Of all points, as of the first `_num_rows` measurements; nothing before somebody asks.
        self._rows: FloatArray | None = None
        self._mean, self._variance = expected, np.zeros(0)
        self._num_rows = 0

    @property
    def deviation(self) -> float:
        """Standard deviation of log seconds where the variance is one."""
        return math.sqrt(self._rate / (self._shape - 1.0))

    @property
    def mean(self) -> FloatArray:
        """float64[N] of log seconds."""
        self._catch_up()
        return self._mean

    @property
    def variance(self) -> FloatArray:
        """float64[N] of g, in units of s²."""
        self._catch_up()
        return self._variance

    def observe(self, index: int, y: float) -> None:
        """Take in one measurement, that of the point which `distances` was told of last."""
        from scipy.linalg import solve_triangular

        num, measured = self._num, self._distances.measured
        if num == len(self._solved):
            self._solved = np.concatenate([self._solved, np.zeros(num)])
            self._factor = np.pad(self._factor, (0, num))
        covariance = self._distances.with_measured(self.length)
        covariance += self._level + self._stretch * (self._slopes[:, index] @ self._slopes[:, measured])
        row = covariance[:0]
        if num:
            row = solve_triangular(self._factor[:num, :num], covariance[:num], lower=True, check_finite=False)
        residual = y - float(self._expected[index]) - float(row @ self._solved[:num])
        variance = max(float(covariance[num] - row @ row), _LEAST_VARIANCE) + self._noise
        if num:
            self._weigh(residual**2 / variance, variance)
        self._factor[num, :num], self._factor[num, num] = row, math.sqrt(variance)
        self._solved[num] = residual / math.sqrt(variance)
        self._num += 1

    def coefficients(self) -> FloatArray:
        """float64[n]: α = L⁻ᵀ u, with which mean = m + k(all, measured) α."""
        from scipy.linalg import solve_triangular

        num = self._num
        if not num:
            return self._solved[:0]
        factor = self._factor[:num, :num]
        out: FloatArray = solve_triangular(factor, self._solved[:num], lower=True, trans="T", check_finite=False)
        return out

    def trend(self, coefficients: FloatArray) -> FloatArray:
        """float64[N]: the mean for its `coefficients`, without what κ adds."""
        steep = self._stretch * (self._slopes[:, self._distances.measured] @ coefficients)
        out: FloatArray = self._expected + steep @ self._slopes + self._level * coefficients.sum()
        return out

    def _weigh(self, square: float, variance: float) -> None:
        """Take in e²/v and v: evidence, and what is known of s²."""
        half = self._shape + 0.5
        self.evidence += math.lgamma(half) - math.lgamma(self._shape)
        self.evidence -= 0.5 * math.log(2.0 * math.pi * self._rate * variance)
        self.evidence -= half * math.log1p(square / (2.0 * self._rate))
        self._shape, self._rate = half, self._rate + 0.5 * square

    def _catch_up(self) -> None:
        """Bring what is said about all points up to date."""
        from scipy.linalg import solve_triangular

        if self._rows is None:
            self._rows = np.zeros((16, len(self._expected)))
            self._variance = 1.0 + self._level + self._stretch * (self._slopes**2).sum(axis=0)
        begin, end = self._num_rows, self._num
        if begin == end:
            return
        while end > len(self._rows):
            self._rows = np.vstack([self._rows, np.zeros_like(self._rows)])
        rows = self._distances.with_all(self.length, begin) + self._level
        rows += (self._stretch * self._slopes[:, self._distances.measured[begin:]].T) @ self._slopes
        if begin:
            rows -= self._factor[begin:end, :begin] @ self._rows[:begin]
        rows = solve_triangular(self._factor[begin:end, begin:end], rows, lower=True, check_finite=False)
        self._rows[begin:end] = rows
        self._num_rows = end
        self._mean = self._mean + self._solved[begin:end] @ rows
        self._variance = np.maximum(self._variance - (rows**2).sum(axis=0), _LEAST_VARIANCE)

    def expected_improvement(self, best: float) -> FloatArray:
        """float64[N]: E[max(0, best − y)], y being taken for normal with the mean and variance of its distribution.

        Noise counts: a configuration's own share of its time, which no other has, is there to be gained.
        """
        from scipy.special import ndtr

        deviation = self.deviation * np.sqrt(self.variance + self._noise)
        z = (best - self.mean) / deviation
        gain: FloatArray = deviation * (z * ndtr(z) + np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi))
        return gain
