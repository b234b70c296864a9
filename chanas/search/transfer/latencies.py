"""Latencies on a new device as a mixture of those on known devices.

Notation: N networks, F features, D known devices, n networks measured on the new device.
    x  float64[N, F]  features          y_d  float64[N]     log latencies measured on known device d
    z  float64[N, D]  log latencies on known devices without the noise of measuring, each column centred
    t  float64[n]     log latencies measured on the new device
    u_j               the j-th unit vector; ū the mean of all D

**Known devices** (`fit_known`). y_d = x·b + e, where few of the errors e are large: something else ran, a clock rate
fell. b is a ridge by iteratively reweighted least squares with the weights of a Cauchy distribution,
    w = 1 / (1 + (e / 1.5 s)²),   s = 1.2 · median |e| + 0.002,
and z_d is the centred x·b: what thousands of networks say of the parts of one counts, not its single measurement. Where
features leave out something that takes time on all devices, their errors agree: to x·b is added what the errors on the
other known devices say of e (least squares, errors cut at three deviations). Noise of one device predicts no other's.
Fewer than three networks for each feature are too few to tell noise from what networks are: z_d is then y_d itself.

**The new device** (`adapt`). log latency = a + z·c, and t = that + e, with e of Student's distribution with ν = 2 and
scale σ. The level a may be anything. c is near one known device, or near the mean of all, and from there goes towards
others:
    c = u + B v,   v ~ N(0, s² I),   B = I - u·1ᵀ,   u one of u_1 … u_D, ū:
weights that sum to one, since all known devices agree about how much longer a large network takes. A last centre stands
for a device unlike all of them: c = v. Which centre, s and σ hold is not known. Each triple is a hypothesis h; with
b = (v, a) it has a most probable b_h (reweighted least squares, w = (ν + 1) / (ν + (e/σ)²)), where the posterior is
about normal with precision H_h = (Aᵀ W A + P) / σ², A = (z B, 1) of the measured networks and P the prior's precision
in units of 1/σ². The logarithm of its evidence is Laplace's,
    log p(t | h) = Σ_i log p(e_i | σ) + log p(v_h | s) - ½ log |H_h|,
with the expected curvature AᵀWA/σ² in place of the exact one, which heavy tails may make negative. All hypotheses are
alike before the first measurement and are averaged by their evidence afterwards. Since each of them is linear in z,
the average is one vector of weights and one covariance matrix, whose spread between hypotheses counts as doubt.

**What is left over** of t is regressed on the features (`leftover`): a device of a kind of its own has parts that take
longer on it than any mixture says. The more measurements there are, the more it learns of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chanas.core.arrays import FloatArray, IntArray
from chanas.errors import LUTError
from chanas.search.transfer.leftover import regress, scales

# Networks for each feature from which on a regression knows better than a measurement.
_NETWORKS_PER_FEATURE = 3
# Features that vary less are the same in all networks.
_LEAST_SPREAD = 1e-9
# In units of one network's weight, on standardised columns.
_RIDGE = 3.0
_MAX_ROUNDS_KNOWN, _ROUNDS_NEW = 30, 8
# Log latencies that move by less than this from one round to the next have converged.
_STILL = 1e-5
_DEGREES_OF_FREEDOM = 2.0
# Errors of known devices beyond this many deviations are outliers; what a deviation is to a median of sizes.
_CUT, _DEVIATION_OF_MEDIAN = 3.0, 1.4826
# Where devices are copies of one another, their covariance cannot be inverted: added to it, as a share of its trace.
_LEAST_SHARE = 1e-6
# Hypotheses, as shares of a latency: how far a device is from its nearest one, and by how much a measurement is off.
_DISTANCES = (0.03, 0.1, 0.3, 0.6)
_NOISES = (0.01, 0.03, 0.08)


@dataclass(frozen=True)
class KnownDevices:
    """Networks on known devices, without the noise of measuring.

    fitted        float64[N, D]      log latencies that the features explain; those measured, of few networks
    errors        float64[N, D]      what they leave of those measured, cut; zero of networks that were not measured
    coefficients  float64[F + 1, D]  of the features, and a constant
    features      float64[N, F]
    centre        float64[F]         means of the features of the networks that were measured
    spread        float64[F]         their standard deviations; zero: the same in all
    """

    fitted: FloatArray
    errors: FloatArray
    coefficients: FloatArray
    features: FloatArray
    centre: FloatArray
    spread: FloatArray

    @functools.cached_property
    def log_latencies(self) -> FloatArray:
        """float64[N, D]: fitted, and what the devices agree about besides."""
        return self.fitted + _shared(self.errors)

    @functools.cached_property
    def parts(self) -> FloatArray:
        """float64[N, F]: features in the scales that their coefficients on a new device may be off by."""
        out: FloatArray = (self.features - self.centre) * scales(self.coefficients[:-1], self.spread)
        return out

    def select(self, columns: Sequence[int]) -> KnownDevices:
        """Only these of the known devices: nothing of the others is left."""
        own = list(columns)
        return dataclasses.replace(
            self, fitted=self.fitted[:, own], errors=self.errors[:, own], coefficients=self.coefficients[:, own]
        )

    def on(self, features: FloatArray) -> KnownDevices:
        """The same devices with other networks, by their features float64[Q, F]; none of them was measured there."""
        fitted = _with_ones(features) @ self.coefficients
        return dataclasses.replace(self, fitted=fitted, errors=np.zeros_like(fitted), features=features)


@dataclass(frozen=True)
class AdaptedDevice:
    """Latencies of the N networks on the new device.

    log_latencies  float64[N]  expected logarithm of seconds (or of the unit that was measured in)
    deviations     float64[N]  standard deviation of it: doubt about the weights and about what they leave over, and the
                               scale of a measurement's noise
    weights        float64[D]  share that each known device has in the prediction, without what they leave over
    noise          scale of a measurement's noise, as a share of the latency
    """

    log_latencies: FloatArray
    deviations: FloatArray
    weights: FloatArray
    noise: float


def fit_known(features: FloatArray, log_latencies: FloatArray) -> KnownDevices:
    """Known devices from features float64[N, F] of networks and their log latencies float64[N, D] there.

    Raises:
        LUTError: the shapes do not fit, or a number is not finite.
    """
    features, measured = np.asarray(features, dtype=np.float64), np.asarray(log_latencies, dtype=np.float64)
    if features.ndim != 2 or measured.ndim != 2 or len(features) != len(measured) or 0 in measured.shape:
        raise LUTError(
            "expected features [networks, columns] and log latencies [networks, devices] of the same networks, "
            f"got {features.shape} and {measured.shape}"
        )
    if not (np.isfinite(features).all() and np.isfinite(measured).all()):
        raise LUTError("expected finite features and log latencies; leave networks out that failed")
    centre, spread = features.mean(axis=0), features.std(axis=0)
    varied = spread > _LEAST_SPREAD
    x = _with_ones((features[:, varied] - centre[varied]) / spread[varied])
    fitted = np.column_stack([_robust_ridge(x, y) for y in measured.T])
    coefficients = np.zeros((features.shape[1] + 1, measured.shape[1]))
    coefficients[:-1][varied] = fitted[:-1] / spread[varied, None]
    coefficients[-1] = fitted[-1] - centre @ coefficients[:-1]
    if not tells_noise(features):
        return KnownDevices(
            measured, np.zeros_like(measured), coefficients, features, centre, np.where(varied, spread, 0.0)
        )
    fitted = _with_ones(features) @ coefficients
    errors = measured - fitted
    most = _CUT * _DEVIATION_OF_MEDIAN * np.median(np.abs(errors), axis=0)
    errors = np.clip(errors, -most, most)
    return KnownDevices(
        fitted, errors - errors.mean(axis=0), coefficients, features, centre, np.where(varied, spread, 0.0)
    )


def tells_noise(features: FloatArray) -> bool:
    """True of so many networks that their features, float64[N, F], tell more of one than its own measurement does."""
    return len(features) >= _NETWORKS_PER_FEATURE * int((features.std(axis=0) > _LEAST_SPREAD).sum())


def _shared(errors: FloatArray) -> FloatArray:
    """float64[N, D]: of each column of `errors` what the others explain, by least squares."""
    out = np.zeros_like(errors)
    covariance = errors.T @ errors / max(1, len(errors))
    least = _LEAST_SHARE * float(np.trace(covariance))
    for d in range(errors.shape[1] if least > 0.0 else 0):
        others = np.arange(errors.shape[1]) != d
        own = covariance[np.ix_(others, others)] + least * np.eye(int(others.sum()))
        out[:, d] = errors[:, others] @ np.linalg.solve(own, covariance[others, d])
    return out


def _with_ones(x: FloatArray) -> FloatArray:
    """float64[N, F + 1] from float64[N, F]: a last column for the constant."""
    return np.hstack([x, np.ones((len(x), 1))])


def _robust_ridge(x: FloatArray, y: FloatArray) -> FloatArray:
    """float64[F]: coefficients of `y` float64[N] by x float64[N, F], whose last column is the constant."""
    penalty = np.full(x.shape[1], _RIDGE)
    penalty[-1] = 0.0
    weight, fitted = np.ones(len(y)), np.full(len(y), np.inf)
    for _ in range(_MAX_ROUNDS_KNOWN):
        weighted = x.T * weight
        coefficients = np.asarray(np.linalg.solve(weighted @ x + np.diag(penalty), weighted @ y), dtype=np.float64)
        before, fitted = fitted, x @ coefficients
        if np.abs(fitted - before).max() < _STILL:
            break
        error = np.abs(y - fitted)
        scale = 1.2 * float(np.median(error)) + 0.002
        weight = 1.0 / (1.0 + (error / (1.5 * scale)) ** 2)
    return coefficients


def adapt(known: KnownDevices, indices: Sequence[int] | IntArray, measured: FloatArray) -> AdaptedDevice:
    """Latencies on a new device from log latencies `measured` float64[n] there, of the networks `indices` int[n] of
    those in `known`. Networks that were measured on no known device come in by `known.on(features)`.

    Raises:
        LUTError: nothing was measured, a number is not finite, or a network is not among the known ones.
    """
    chosen, target = np.asarray(indices, dtype=np.int64), np.asarray(measured, dtype=np.float64)
    num_networks, num_devices = known.log_latencies.shape
    if chosen.ndim != 1 or chosen.shape != target.shape or len(chosen) == 0 or not np.isfinite(target).all():
        raise LUTError(
            "expected a finite log latency for each of at least one network, "
            f"got {target.shape} for networks {chosen.shape}"
        )
    if chosen.min() < 0 or chosen.max() >= num_networks:
        raise LUTError(f"expected networks 0 … {num_networks - 1}, got {chosen.min()} … {chosen.max()}")
    z = _with_ones(known.log_latencies - known.log_latencies.mean(axis=0))
    centres, bases = _centres(num_devices)
    designs = z[chosen] @ bases
    hypotheses = _posteriors(designs, target - centres @ z[chosen].T)

    share = np.exp(hypotheses.log_evidence - hypotheses.log_evidence.max())
    share /= share.sum()
    basis = bases[:, None, None]
    each = centres[:, None, None] + (basis @ hypotheses.mean[..., None])[..., 0]
    mean = np.einsum("jsq,jsqk->k", share, each)
    apart = each - mean
    doubt = np.einsum("jsq,jsqk,jsql->kl", share, apart, apart)
    doubt += np.einsum("jsq,jsqkl->kl", share, basis @ hypotheses.covariance @ np.swapaxes(basis, -1, -2))
    noise2 = float(share.sum(axis=(0, 1)) @ np.square(_NOISES))
    fitted = z @ mean
    rest = regress(known.parts, chosen, target - fitted[chosen], float(np.sqrt(noise2)))
    variance = np.maximum(np.einsum("nk,nk->n", z @ doubt, z), 0.0) + rest.variances + noise2
    return AdaptedDevice(fitted + rest.values, np.sqrt(variance), mean[:-1], float(np.sqrt(noise2)))


def _centres(num_devices: int) -> tuple[FloatArray, FloatArray]:
    """Centres of the weights, float64[J, K], and the ways that these may go from there, float64[J, K, K]: J = D + 2
    centres of K = D + 1 weights, the last of which is the level.

    A device's own column of its B is zero, and a column of zeros adds nothing to the evidence: what it takes from
    log p(v | s), ½ log |H| gives back.
    """
    size = num_devices + 1
    centres = np.zeros((num_devices + 2, size))
    centres[:-2, :-1] = np.eye(num_devices)
    centres[-2, :-1] = 1.0 / num_devices
    bases = np.eye(size) - centres[:, :, None] * np.append(np.ones(num_devices), 0.0)
    return centres, bases


class _Posteriors(NamedTuple):
    """By centre, distance and noise: mean float64[J, S, Q, K], covariance [J, S, Q, K, K], log evidence [J, S, Q]."""

    mean: FloatArray
    covariance: FloatArray
    log_evidence: FloatArray


def _posteriors(designs: FloatArray, targets: FloatArray) -> _Posteriors:
    """Every hypothesis at once, from A float64[J, n, K] and what the centre leaves to explain, float64[J, n]."""
    distance, noise = np.asarray(_DISTANCES)[:, None], np.asarray(_NOISES)
    size, nu = designs.shape[2], _DEGREES_OF_FREEDOM
    precision = np.zeros((*np.broadcast_shapes(distance.shape, noise.shape), size))
    precision[..., :-1] = ((noise / distance) ** 2)[..., None]
    prior = precision[..., None] * np.eye(size)
    a, at, left = designs[:, None, None], np.swapaxes(designs, 1, 2)[:, None, None], targets[:, None, None]
    weight = np.ones((*a.shape[:1], *prior.shape[:2], designs.shape[1]))
    for _ in range(_ROUNDS_NEW):
        weighted = at * weight[..., None, :]
        mean = np.asarray(np.linalg.solve(weighted @ a + prior, weighted @ left[..., None]), dtype=np.float64)
        error2 = ((left - (a @ mean)[..., 0]) / noise[:, None]) ** 2
        weight = (nu + 1.0) / (nu + error2)
    curvature = (at * weight[..., None, :]) @ a + prior
    v = mean[..., :-1, 0]
    fit = -0.5 * (nu + 1.0) * np.log1p(error2 / nu).sum(axis=-1) - designs.shape[1] * np.log(noise)
    likely = -0.5 * (v**2).sum(axis=-1) / distance**2 - (size - 1) * np.log(distance)
    volume = size * np.log(noise) - 0.5 * np.linalg.slogdet(curvature)[1]
    covariance = np.linalg.inv(curvature) * (noise**2)[:, None, None]
    return _Posteriors(mean[..., 0], covariance, fit + likely + volume)
