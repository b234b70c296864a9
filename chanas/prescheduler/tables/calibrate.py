"""The difference between sums of blocks and whole networks, and a small correction that closes most of the gap.

Random architectures are compiled whole and measured; seconds ≈ start + scale · Σ blocks + boundary · (number of blocks)
is fitted with non-negative terms, and the error is that of networks left out of the fit. On a processor whose cache
holds the weights of small networks and not those of large ones, a fourth term is for the weights that no longer fit
(`chanas.core.latency.CacheMisses`); it is taken where networks left out of the fit are predicted better with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chanas.compiler.backends import backend_of
from chanas.compiler.cases import random_network
from chanas.core import genome
from chanas.core.arch import Architecture, SearchSpace, SubSpace
from chanas.core.arrays import FloatArray
from chanas.core.effort import MIN_NETWORKS
from chanas.core.latency import CacheMisses, Calibration, LatencyLUT
from chanas.core.statistics import kendall_tau, relative_fit
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.errors import MeasureError
from chanas.files.scratch import scratch_folder
from chanas.measuring.fleet import OpenPool
from chanas.measuring.messages import Outcome
from chanas.prescheduler.tables.networks import NetworkJob, compile_networks

# Shares of the L2 cache that may be left to weights, beside activations, code, and whoever shares the cache.
_KNEES = (0.25, 0.5, 0.75, 1.0)
# The fourth term must earn its place: by this share of the error, and this much of it.
_WORTH, _WORTH_ERROR = 0.8, 0.005
# Rows were timed with weights that come from further away, which is a part of their seconds. A fit in which it is more
# than this share is of networks that were timed while the machine did something else, and foretells small ones below 0.
_MOST_OF_ROWS = 0.8


def draw_architectures(
    space: SearchSpace, num: int, seed: int, sub_spaces: Sequence[SubSpace] | None = None
) -> list[Architecture]:
    """Random architectures spread evenly over the sub-spaces (all by default), no two alike."""
    rng = np.random.default_rng(seed)
    found: dict[str, Architecture] = {}
    drawn_from = list(sub_spaces or space.sub_spaces)
    order = rng.permutation(len(drawn_from))
    for i in range(50 * num):
        if len(found) >= num:
            break
        sub_space = drawn_from[order[i % len(order)]]
        architecture = genome.decode(space, genome.sample(space, 1, rng, sub_space))[0]
        found[architecture.key] = architecture
    return list(found.values())


def measure_networks(
    lut: LatencyLUT,
    space: SearchSpace,
    target: HardwareTarget,
    num_classes: int,
    architectures: Sequence[Architecture],
    progress: bool = True,
    open_pool: OpenPool | None = None,
) -> list[Outcome]:
    """Seconds of whole networks with random weights, or why there are none, in order."""
    with scratch_folder() as scratch:
        jobs = []
        for i, architecture in enumerate(architectures):
            blocks = architecture.blocks(space, num_classes)
            network = random_network(blocks, seed=i, batch=target.batch)
            jobs.append(NetworkJob(blocks, *network, scratch / f"network{i}.so"))
        return compile_networks(lut, target, jobs, progress, open_pool)


def terms(lut: LatencyLUT, space: SearchSpace, num_classes: int, architectures: Sequence[Architecture]) -> FloatArray:
    """float64[N, 3]: one, the uncorrected sum of the table in seconds, the number of blocks."""
    blocks = [a.blocks(space, num_classes) for a in architectures]
    return np.array([[1.0, sum(lut.rows[b.key].median_s for b in group), len(group)] for group in blocks])


def weight_bytes(
    lut: LatencyLUT, space: SearchSpace, num_classes: int, architectures: Sequence[Architecture]
) -> FloatArray:
    """float64[N]: bytes of the weights of whole networks in the table's dtype."""
    return np.array([float(sum(lut.weight_bytes(b) for b in a.blocks(space, num_classes))) for a in architectures])


@dataclass(frozen=True)
class Fit:
    """Coefficients of the terms float64[3], and of a fourth one where there is one."""

    coefficients: FloatArray
    misses: CacheMisses | None

    def predict(self, design: FloatArray, weight_bytes: FloatArray) -> FloatArray:
        """float64[N] seconds of networks with the terms float64[N, 3] and `weight_bytes` float64[N]."""
        seconds: FloatArray = design @ self.coefficients
        return seconds if self.misses is None else seconds + self.misses.seconds(weight_bytes)


def best_fit(design: FloatArray, weight_bytes: FloatArray, measured_s: FloatArray, l2_bytes: int) -> Fit:
    """The fit with or without a term for weights that don't fit into the cache, whichever predicts networks better
    that are left out of it; without one where `l2_bytes` is 0."""
    plain_error = _left_out_error(design, measured_s)
    chosen, chosen_error = None, _WORTH * plain_error
    for share in _KNEES if l2_bytes and plain_error > _WORTH_ERROR else ():
        misses = CacheMisses(0.0, share * l2_bytes, float(weight_bytes.mean()))
        missed = misses.missed_bytes(weight_bytes)
        if not missed.any():
            continue
        extended = np.column_stack([design, missed])
        error = _left_out_error(extended, measured_s)
        if error < min(chosen_error, plain_error - _WORTH_ERROR):
            *coefficients, s_per_byte = relative_fit(extended, measured_s)
            misses = dataclasses.replace(misses, s_per_byte=float(s_per_byte))
            if (misses.seconds_in_rows(weight_bytes) > _MOST_OF_ROWS * design[:, 1]).any():
                continue
            chosen, chosen_error = Fit(np.array(coefficients), misses), error
    return chosen or Fit(relative_fit(design, measured_s), None)


def _left_out_error(design: FloatArray, measured_s: FloatArray) -> float:
    """Mean relative error of networks that are left out of the fit, one at a time."""
    everyone = np.arange(len(measured_s))
    predicted = [design[i] @ relative_fit(design[everyone != i], measured_s[everyone != i]) for i in everyone]
    return float(np.abs(predicted / measured_s - 1.0).mean())


def left_out_predictions(
    design: FloatArray, weight_bytes: FloatArray, measured_s: FloatArray, l2_bytes: int
) -> FloatArray:
    """float64[N]: each network predicted by a fit on all others, which chooses its terms without it."""
    everyone = np.arange(len(measured_s))
    predicted = np.empty(len(measured_s))
    for i in everyone:
        others = everyone != i
        found = best_fit(design[others], weight_bytes[others], measured_s[others], l2_bytes)
        predicted[i] = found.predict(design[i : i + 1], weight_bytes[i : i + 1])[0]
    return predicted


def calibrate(
    lut: LatencyLUT,
    task: Task,
    target: HardwareTarget,
    *,
    num_networks: int,
    sub_spaces: Sequence[SubSpace] | None = None,
    seed: int = 0,
    progress: bool = True,
    open_pool: OpenPool | None = None,
) -> Calibration:
    """Measure `num_networks` random networks and fit the correction; the caller stores it in the table.

    Raises:
        MeasureError: fewer than six networks could be measured.
    """
    space, num_classes = task.space, task.num_classes
    architectures = draw_architectures(space, num_networks, seed, sub_spaces)
    outcomes = measure_networks(lut, space, target, num_classes, architectures, progress, open_pool)
    works = np.array([o.seconds is not None for o in outcomes])
    if works.sum() < MIN_NETWORKS:
        raise MeasureError(
            f"calibration needs {MIN_NETWORKS} measured networks, got {int(works.sum())} of {len(architectures)}"
        )
    measured = [a for a, ok in zip(architectures, works, strict=True) if ok]
    design, weights = terms(lut, space, num_classes, measured), weight_bytes(lut, space, num_classes, measured)
    measured_s = np.array([o.seconds for o in outcomes if o.seconds is not None])
    l2_bytes = target.l2_bytes if backend_of(target).keeps_caches else 0
    found = best_fit(design, weights, measured_s, l2_bytes)
    start_s, scale, boundary_s = found.coefficients.tolist()
    error = left_out_predictions(design, weights, measured_s, l2_bytes) / measured_s - 1.0
    raw_error = design[:, 1] / measured_s - 1.0
    return Calibration(
        start_s=start_s,
        scale=scale,
        boundary_s=boundary_s,
        num_networks=len(measured_s),
        mape=float(np.abs(error).mean()),
        worst=float(np.abs(error).max()),
        kendall_tau=kendall_tau(found.predict(design, weights), measured_s) or 0.0,
        uncorrected_mape=float(np.abs(raw_error).mean()),
        misses=found.misses,
        disagreement=max((o.disagreement for o in outcomes if o.disagreement is not None), default=None),
    )
