"""Seconds of blocks on a new device from those on known ones: a Gaussian process over logarithms of their ratios.

Notation: N blocks, O operators, n blocks measured on the new device.
    s    float64[N]     log seconds on the first known device: the table's, or, of blocks that it lacks, by `complete`
    y    float64[n]     log seconds measured on the new device
    W    float64[N, O]  shares of a block's time by operator (`shares.Parts`)
    C    float64[N, 25] shares by family and kind of cost
    φ_o  features of an operator, logarithms of its costs and shapes, standardised
    ψ_b  features of a block: the sums of its costs, its shapes, s, and FLOPs per second on the known device
    z_j  float64[N]     log ratio of the j-th further known device to the first, centred

y − s = r + noise, and r is normal around the median of what was measured, with covariance
    K = ½²                                a device is faster or slower
      + f² W (same family) Wᵀ             in its families of operators,
      + c² C Cᵀ                           in arithmetic, in memory, in starting an operator,
      + m² W (same family · M(φ/l)) Wᵀ    in operators of some size or shape,
      + o² W Wᵀ                           in a single operator, which several blocks have (how well it was tuned),
      + b² M(ψ/k)                         in blocks of some kind,
      + a² Σ_j z_j z_jᵀ                   and where other known devices are faster or slower than the first.
M is Matérn's kernel with ν = 5/2. That log(Σ t_o e^ρ_o) is about log Σ t_o + Σ W_o ρ_o makes operators add up. Scales
and the noise are the most probable ones under log-normal priors, whose centres are what full tables of two processors,
two dtypes and two numbers of threads said.

Something else may have run while a block was timed. A measurement that lies more than three standard deviations from
what all others say of it (its leave-one-out residual, from the inverse of K) is left out of the fit of the scales, and
the square of that residual is added to its noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chanas.core.arrays import BoolArray, FloatArray, IntArray
from chanas.core.blocks import BlockConfig
from chanas.core.latency import LatencyLUT
from chanas.core.statistics import distances, matern
from chanas.errors import LUTError
from chanas.operators.workload import Workload
from chanas.prescheduler.tables.transfer.shares import Parts, costs, take_apart

_LEVEL = 0.5
# Centres of the scales f, c, m, l, o, b, k, a and the noise, and the deviations of their logarithms.
_CENTRES = np.log([0.2, 0.3, 0.08, 3.0, 0.06, 0.15, 8.0, 0.3, 0.03])
_SPREADS = np.array([0.7, 0.7, 0.7, 0.3, 0.7, 0.7, 0.4, 0.7, 0.4])
_FARTHEST = 4.0
# Blocks that scales are fitted to at most: a fit is cubic in them.
_MAX_FITTED = 120
# Deviations by which the others contradict a measurement that counts for little, rounds of finding these, and the share
# of them from which on nobody knows who is right.
_CONTRADICTED, _ROUNDS, _MOST_CONTRADICTED = 3.0, 3, 0.5

# A distance, in lengths, at which the kernel is zero: what is infinitely far apart has none.
_NEVER = 1e3

Indices = Sequence[int] | IntArray


@dataclass(frozen=True)
class Prior:
    """Knowledge of N blocks before one of them is measured on the new device.

    log_seconds        float64[N]     s
    known              bool[N]        whether the first table has the block
    parts              W and C
    operator_distance  float64[O, O]  between features φ, infinite between families
    block_distance     float64[N, N]  between features ψ
    others             float64[N, J]  z
    """

    log_seconds: FloatArray
    known: BoolArray
    parts: Parts
    operator_distance: FloatArray
    block_distance: FloatArray
    others: FloatArray

    def select(self, rows: Indices) -> Prior:
        """Only these of the blocks, and the operators in them."""
        chosen = np.asarray(rows, dtype=np.int64)
        shares = self.parts.of_operator[chosen]
        used = np.flatnonzero(shares.any(axis=0))
        parts = Parts(
            tuple(self.parts.operators[i] for i in used),
            self.parts.families[used],
            shares[:, used],
            self.parts.of_cost[chosen],
            self.parts.seconds[chosen],
        )
        return Prior(
            self.log_seconds[chosen],
            self.known[chosen],
            parts,
            self.operator_distance[np.ix_(used, used)],
            self.block_distance[np.ix_(chosen, chosen)],
            self.others[chosen],
        )

    def covariance(self, scales: FloatArray) -> FloatArray:
        """float64[N, N]: K at the logarithms of the scales float64[9]; the last, the noise, is not in it."""
        f, c, m, length, o, b, reach, a = np.exp(scales[:-1])
        w = self.parts.of_operator
        between = m**2 * matern(np.minimum(self.operator_distance / length, _NEVER))
        between += f**2 * np.isfinite(self.operator_distance) + o**2 * np.eye(len(between))
        out: FloatArray = _LEVEL**2 + w @ between @ w.T + c**2 * self.parts.of_cost @ self.parts.of_cost.T
        out += b**2 * matern(self.block_distance / reach) + a**2 * self.others @ self.others.T
        return out


@dataclass(frozen=True)
class Predicted:
    """Seconds of N blocks on the new device, n of which were measured.

    log_seconds  float64[N]
    deviations   float64[N]  the standard deviation of each, noise included
    surprises    float64[n]  by how many standard deviations a measurement lies above what all others say of it
    """

    log_seconds: FloatArray
    deviations: FloatArray
    surprises: FloatArray


def prior_of(blocks: Sequence[BlockConfig], sources: Sequence[LatencyLUT]) -> Prior:
    """Combine what tables of known devices say of `blocks`; ratios are to the first of them.

    Raises:
        LUTError: a table has none of the blocks.
    """
    tables = [{b.key: t.rows[b.key].median_s for b in blocks if b.key in t.rows} for t in sources]
    for source, seconds in zip(sources, tables, strict=True):
        if not seconds:
            raise LUTError(f"the table of target '{source.header.target.name}' has none of the {len(blocks)} blocks")
    completed = [complete(blocks, seconds) for seconds in tables]
    ratios = [log_seconds - completed[0] for log_seconds in completed[1:]]
    others = np.column_stack([r - r.mean() for r in ratios]) if ratios else np.zeros((len(blocks), 0))
    return _prior(blocks, tables[0], completed[0], others)


def complete(blocks: Sequence[BlockConfig], seconds: dict[str, float]) -> FloatArray:
    """float64[N]: log seconds of all blocks on the device of a table that has some: the table's own, and of the others
    what its rows say of blocks alike."""
    parts = take_apart(blocks, seconds)
    known = np.array([b.key in seconds for b in blocks])
    rough = np.log(parts.seconds)
    if known.all():
        return np.log([seconds[b.key] for b in blocks])
    there = [i for i, is_known in enumerate(known) if is_known]
    measured = np.log([seconds[blocks[i].key] for i in there])
    out = predict(_prior(blocks, seconds, rough, np.zeros((len(blocks), 0))), there, measured).log_seconds
    out[there] = measured
    return out


def choose(prior: Prior, num: int, measured: Indices = ()) -> list[int]:
    """The blocks to measure, at most `num` of those that the first table has: one after the other the one whose
    measurement takes most from the sum of all blocks' variances, after those that are measured already.

    Scales are the priors' centres, so that what is chosen does not hang on what was measured."""
    covariance, noise = prior.covariance(_CENTRES), float(np.exp(2.0 * _CENTRES[-1]))
    barred = ~prior.known
    chosen: list[int] = []

    def learn(i: int) -> None:
        covariance[...] -= np.outer(covariance[:, i], covariance[i]) / (covariance[i, i] + noise)
        barred[i] = True

    for i in measured:
        learn(i)
    while len(chosen) < num and not barred.all():
        gain = (covariance**2).sum(axis=0) / (np.diag(covariance) + noise)
        gain[barred] = -np.inf
        chosen.append(int(gain.argmax()))
        learn(chosen[-1])
    return chosen


def fit_scales(prior: Prior, indices: Indices, log_seconds: FloatArray) -> FloatArray:
    """float64[9]: logarithms of the most probable scales, from log seconds y of the blocks `indices`, of every second
    one, third one … where they are many."""
    from scipy.linalg import solve_triangular
    from scipy.optimize import minimize

    every = -(-len(indices) // _MAX_FITTED)
    chosen, y = np.asarray(indices, dtype=np.int64)[::every], log_seconds[::every]
    some = prior.select(chosen)
    ratios = y - some.log_seconds
    ratios = ratios - np.median(ratios)

    def improbability(scales: FloatArray) -> float:
        covariance = some.covariance(scales) + np.exp(2.0 * scales[-1]) * np.eye(len(ratios))
        root = np.linalg.cholesky(covariance)
        white = solve_triangular(root, ratios, lower=True)
        away = (scales - _CENTRES) / _SPREADS
        return float(0.5 * white @ white + np.log(np.diag(root)).sum() + 0.5 * away @ away)

    bounds = [(c - _FARTHEST * s, c + _FARTHEST * s) for c, s in zip(_CENTRES, _SPREADS, strict=True)]
    found = minimize(improbability, _CENTRES, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30})
    return np.asarray(found.x, dtype=np.float64)


def predict(prior: Prior, indices: Indices, log_seconds: FloatArray) -> Predicted:
    """Seconds of all blocks on the new device, from log seconds y of the blocks `indices` there.

    Raises:
        LUTError: nothing was measured, or a number is not finite.
    """
    chosen, y = np.asarray(indices, dtype=np.int64), np.asarray(log_seconds, dtype=np.float64)
    if not len(chosen) or chosen.shape != y.shape or not np.isfinite(y).all():
        raise LUTError(f"expected finite seconds of at least one block, got {y.shape} for blocks {chosen.shape}")
    ratios, trusted, excess = y - prior.log_seconds[chosen], np.ones(len(y), dtype=np.bool_), np.zeros(len(y))
    for _ in range(_ROUNDS):
        scales = fit_scales(prior, chosen[trusted], y[trusted])
        covariance, noise = prior.covariance(scales), float(np.exp(2.0 * scales[-1]))
        level = float(np.median(ratios[trusted]))
        among = covariance[np.ix_(chosen, chosen)] + noise * np.eye(len(chosen))
        precision = np.linalg.inv(among + np.diag(excess))
        left_out = precision @ (ratios - level) / np.diag(precision)
        surprises = left_out / np.sqrt(1.0 / np.diag(precision) - excess)
        contradicted = np.abs(surprises) > _CONTRADICTED
        if contradicted.mean() > _MOST_CONTRADICTED or (contradicted != trusted).all():
            break
        trusted, excess = ~contradicted, np.where(contradicted, left_out**2, 0.0)
    to_measured = covariance[:, chosen]
    gain = to_measured @ np.linalg.inv(among + np.diag(excess))
    mean = prior.log_seconds + level + gain @ (ratios - level)
    variance = np.diag(covariance) - (gain * to_measured).sum(axis=1)
    return Predicted(mean, np.sqrt(np.maximum(variance, 0.0) + noise), surprises)


def _prior(blocks: Sequence[BlockConfig], seconds: dict[str, float], s: FloatArray, others: FloatArray) -> Prior:
    """The prior whose first table has `seconds` by block, and s for all of them."""
    parts = take_apart(blocks, seconds)
    operators = _distances(np.array([_operator_features(w) for w in parts.operators]))
    operators[parts.families[:, None] != parts.families] = np.inf
    sums = (parts.of_operator > 0.0) @ np.array([costs(w) for w in parts.operators])
    features = np.array([_shape_features(b) for b in blocks])
    totals = np.log2(np.maximum(sums, 1.0))
    of_blocks = np.column_stack([totals, features, s, totals[:, 0] - s / np.log(2.0)])
    known = np.array([b.key in seconds for b in blocks])
    return Prior(s, known, parts, operators, _distances(of_blocks), others)


def _operator_features(workload: Workload) -> list[float]:
    shape = workload.in_channels, workload.out_channels, workload.input_size, workload.kernel_size
    logarithms = np.log2(np.maximum([*costs(workload)[:-1], *shape], 1.0))
    return [*logarithms, workload.stride - 1.0, float(workload.scaled), float(workload.residual)]


def _shape_features(block: BlockConfig) -> list[float]:
    shape = block.input_size, block.in_channels, block.mid_channels, block.out_channels
    logarithms = np.log2(np.maximum(shape, 1.0))
    return [*logarithms, block.kernel_size, block.stride, float(block.use_se), float(block.residual)]


def _distances(features: FloatArray) -> FloatArray:
    """float64[K, K] from features float64[K, F], each column standardised first."""
    spread = features.std(axis=0)
    x = (features - features.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0)
    return distances(x, x)
