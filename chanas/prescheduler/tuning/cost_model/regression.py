"""Exact Gaussian process regression on records of several groups, each with an unknown offset of its own.

Notation: N records, M points that are asked about, F features (standardised by the caller); y = log seconds.

    y = g(x) + offset of the group + noise

The kernel of g is s² κ(r) within a group and ρ s² κ(r) between two, r² = Σ_f (x_f − x'_f)² / l_f², with a length l_f
for each feature; κ is Matérn's with ν = 5/2 (`core/statistics`). So groups are alike as far
as ρ says. Records of another device are groups of their own, and their kernel with those of this device is δ times as
large besides: a coregionalisation by workload and by device (Bonilla, Chai and Williams, 2007; for searches: Swersky,
Snoek and Adams, 2013), in which the records themselves tell what another device is worth. Offsets are normal with a
deviation of _OFFSET. Lengths, s, the noise, ρ and δ are those of the largest posterior density, with log-normal priors
(ρ, δ: logit-normal): a few dozen records cannot tell two dozen lengths, and features that say nothing must fade instead
of being fitted to noise. The prior of the lengths grows with the root of F (Hvarfner, Hellsten and Nardi, 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from chanas.core.arrays import FloatArray, IntArray
from chanas.core.statistics import distances, matern

_OFFSET = 0.5
# Mean and deviation of the logarithms: lengths relative to the root of F, s², and the variance of the noise.
_LENGTH_PRIOR = (0.0, 1.0)
_SIGNAL_PRIOR = (math.log(0.3), 1.0)
_NOISE_PRIOR = (math.log(0.03**2), 2.0)
# Of log(ρ / (1 − ρ)) and log(δ / (1 − δ)).
_GROUP_PRIOR, _DEVICE_PRIOR = (2.0, 1.0), (2.0, 1.0)
_MAX_ITERATIONS = 40
_JITTER = 1e-8


@dataclass(frozen=True)
class Parameters:
    """Logarithms: float64[F] of the lengths, of s², of the noise's variance; logits of ρ and δ."""

    log_lengths: FloatArray
    log_signal: float
    log_noise: float
    logit_group: float
    logit_device: float

    @classmethod
    def prior(cls, num_features: int) -> Parameters:
        """The parameters at which the priors have their peak."""
        length = _LENGTH_PRIOR[0] + 0.5 * math.log(num_features)
        return cls(np.full(num_features, length), _SIGNAL_PRIOR[0], _NOISE_PRIOR[0], _GROUP_PRIOR[0], _DEVICE_PRIOR[0])

    def to_array(self) -> FloatArray:
        return np.array(
            [
                *self.log_lengths,
                self.log_signal,
                self.log_noise,
                self.logit_group,
                self.logit_device,
            ]
        )

    @classmethod
    def from_array(cls, values: FloatArray) -> Parameters:
        return cls(values[:-4].copy(), *values[-4:].tolist())

    @property
    def group_correlation(self) -> float:
        """The correlation of two groups, ρ."""
        return 1.0 / (1.0 + math.exp(-self.logit_group))

    @property
    def device_correlation(self) -> float:
        """The correlation of two devices, δ."""
        return 1.0 / (1.0 + math.exp(-self.logit_device))


def _same(labels: IntArray) -> FloatArray:
    """float64[N, N]: 1 where two are equal, 0 elsewhere."""
    same: FloatArray = (labels[:, None] == labels[None, :]).astype(np.float64)
    return same


def _objective(
    values: FloatArray, x: FloatArray, y: FloatArray, same_group: FloatArray, same_device: FloatArray, start: FloatArray
) -> tuple[float, FloatArray]:
    """Minus the log posterior density of the parameters up to a constant, and its gradient."""
    from scipy.linalg import cho_factor, cho_solve

    parameters = Parameters.from_array(values)
    lengths = np.exp(parameters.log_lengths)
    signal, noise = math.exp(parameters.log_signal), math.exp(parameters.log_noise)
    a = x / lengths
    r = distances(a, a)
    rho, delta = parameters.group_correlation, parameters.device_correlation
    by_group = rho + (1.0 - rho) * same_group
    by_device = delta + (1.0 - delta) * same_device
    trust = by_group * by_device
    plain = signal * matern(r)
    shared = plain * trust
    covariance = shared + _OFFSET**2 * same_group * same_device
    covariance[np.diag_indices_from(covariance)] += noise + _JITTER
    factor = cho_factor(covariance, lower=True)
    alpha = cho_solve(factor, y)
    loss = 0.5 * float(y @ alpha) + float(np.log(np.diag(factor[0])).sum())
    inner = cho_solve(factor, np.eye(len(y))) - np.outer(alpha, alpha)
    scaled = math.sqrt(5.0) * r
    slope = (
        inner * trust * (signal * (5.0 / 3.0) * (1.0 + scaled) * np.exp(-scaled))
    )  # d k / d log l_f = slope' * difference²
    by_length = slope.sum(1) @ a**2 - np.einsum("nf,nf->f", a, slope @ a)
    by_signal, by_noise = float((inner * shared).sum()), noise * float(np.trace(inner))
    by_rho = rho * (1.0 - rho) * float((inner * plain * by_device * (1.0 - same_group)).sum())
    by_delta = delta * (1.0 - delta) * float((inner * plain * by_group * (1.0 - same_device)).sum())
    gradient = np.array([*by_length, 0.5 * by_signal, 0.5 * by_noise, 0.5 * by_rho, 0.5 * by_delta])
    others = [prior[1] for prior in (_SIGNAL_PRIOR, _NOISE_PRIOR, _GROUP_PRIOR, _DEVICE_PRIOR)]
    deviations = np.array([_LENGTH_PRIOR[1]] * x.shape[1] + others)
    away = (values - start) / deviations
    return loss + 0.5 * float(away @ away), gradient + away / deviations


def fit(
    x: FloatArray,
    y: FloatArray,
    groups: IntArray,
    start: Parameters | None = None,
    devices: IntArray | None = None,
) -> Parameters:
    """The parameters of the largest posterior density, from those of an earlier fit where there are any.

    Args:
        x: float64[N, F].
        y: float64[N], near zero on average.
        groups: int64[N], equal for records of one group.
        start: where to begin.
        devices: int64[N], equal for records of one device; all of one when left out.
    """
    from scipy.optimize import minimize

    prior = Parameters.prior(x.shape[1]).to_array()
    same_device = _same(np.zeros_like(groups) if devices is None else devices)
    bounds = [(p - 5.0, p + 5.0) for p in prior]
    found = minimize(
        _objective,
        prior if start is None else start.to_array(),
        args=(x, y, _same(groups), same_device, prior),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": _MAX_ITERATIONS},
    )
    return Parameters.from_array(found.x)


class Regression:
    """The process given N records: `predict` tells of g plus the offset of one group on device 0."""

    def __init__(
        self, x: FloatArray, y: FloatArray, groups: IntArray, parameters: Parameters, devices: IntArray | None = None
    ) -> None:
        from scipy.linalg import cholesky, solve_triangular

        self._x, self._groups, self._parameters = x, groups, parameters
        self._devices = np.zeros_like(groups) if devices is None else devices
        self._lengths = np.exp(parameters.log_lengths)
        self._signal = math.exp(parameters.log_signal)
        same_group, same_device = _same(groups), _same(self._devices)
        trust = parameters.group_correlation + (1.0 - parameters.group_correlation) * same_group
        trust *= parameters.device_correlation + (1.0 - parameters.device_correlation) * same_device
        offsets = _OFFSET**2 * same_group * same_device
        covariance = self._signal * matern(distances(x / self._lengths, x / self._lengths)) * trust + offsets
        covariance[np.diag_indices_from(covariance)] += math.exp(parameters.log_noise) + _JITTER
        self._lower = cholesky(covariance, lower=True)
        self._half = solve_triangular(self._lower, y, lower=True)

    def predict(self, x: FloatArray, group: int) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation, float64[M] each.

        The offset of a group without records is left out: it is the same for all points.
        """
        from scipy.linalg import solve_triangular

        cross = self._signal * matern(distances(self._x / self._lengths, x / self._lengths))
        same_group = (self._groups == group).astype(np.float64)[:, None]
        here = (self._devices == 0).astype(np.float64)[:, None]
        rho, delta, variance = self._parameters.group_correlation, self._parameters.device_correlation, self._signal
        cross *= (rho + (1.0 - rho) * same_group) * (delta + (1.0 - delta) * here)
        known = same_group * here
        if known.any():
            cross += _OFFSET**2 * known
            variance += _OFFSET**2
        half = solve_triangular(self._lower, cross, lower=True)
        mean: FloatArray = half.T @ self._half
        return mean, np.sqrt(np.maximum(variance - (half**2).sum(0), 1e-12))
