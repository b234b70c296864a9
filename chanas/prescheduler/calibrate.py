"""How far the sum of blocks is from whole networks, and the small correction that closes most of the gap.

Random architectures are compiled whole and measured; seconds ≈ start + scale · Σ blocks + boundary · (number of blocks)
is fitted with non-negative terms, and the error is that of networks left out of the fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chanas import genome
from chanas.arch import Architecture, SearchSpace, SubSpace
from chanas.errors import MeasureError
from chanas.genome import FloatArray
from chanas.latency import Calibration, LatencyLUT
from chanas.prescheduler.networks import NetworkJob, compile_networks
from chanas.prescheduler.pool import OpenPool
from chanas.prescheduler.reference import random_network
from chanas.scratch import scratch_folder
from chanas.target import HardwareTarget

MIN_NETWORKS = 6


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
) -> FloatArray:
    """float64[N] seconds of whole networks with random weights (NaN where one could not be measured)."""
    with scratch_folder() as scratch:
        jobs = []
        for i, architecture in enumerate(architectures):
            blocks = architecture.blocks(space, num_classes)
            network = random_network(blocks, seed=i, batch=target.batch)
            jobs.append(NetworkJob(blocks, *network, scratch / f"network{i}.so"))
        outcomes = compile_networks(lut, target, jobs, progress, open_pool)
    return np.array([np.nan if o.seconds is None else o.seconds for o in outcomes])


def terms(lut: LatencyLUT, space: SearchSpace, num_classes: int, architectures: Sequence[Architecture]) -> FloatArray:
    """float64[N, 3]: one, the uncorrected sum of the table in seconds, the number of blocks."""
    blocks = [a.blocks(space, num_classes) for a in architectures]
    return np.array([[1.0, sum(lut.rows[b.key].median_s for b in group), len(group)] for group in blocks])


def fit(design: FloatArray, measured_s: FloatArray) -> FloatArray:
    """float64[3] non-negative start, scale and boundary, least squares of the *relative* error."""
    from scipy.optimize import nnls

    weighted = design / measured_s[:, None]
    size = np.abs(weighted).max(axis=0)
    solution, _ = nnls(weighted / size, np.ones(len(measured_s)))
    coefficients: FloatArray = solution / size
    return coefficients


def left_out_predictions(design: FloatArray, measured_s: FloatArray) -> FloatArray:
    """float64[N]: each network predicted by a fit on all others."""
    everyone = np.arange(len(measured_s))
    return np.array([design[i] @ fit(design[everyone != i], measured_s[everyone != i]) for i in everyone])


def calibrate(
    lut: LatencyLUT,
    space: SearchSpace,
    target: HardwareTarget,
    num_classes: int,
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
    from scipy.stats import kendalltau

    architectures = draw_architectures(space, num_networks, seed, sub_spaces)
    measured_s = measure_networks(lut, space, target, num_classes, architectures, progress, open_pool)
    works = np.isfinite(measured_s)
    if works.sum() < MIN_NETWORKS:
        raise MeasureError(
            f"calibration needs {MIN_NETWORKS} measured networks, got {int(works.sum())} of {len(architectures)}"
        )
    design = terms(lut, space, num_classes, [a for a, ok in zip(architectures, works, strict=True) if ok])
    measured_s = measured_s[works]
    start_s, scale, boundary_s = fit(design, measured_s).tolist()
    error = left_out_predictions(design, measured_s) / measured_s - 1.0
    raw_error = design[:, 1] / measured_s - 1.0
    tau = kendalltau(design @ np.array([start_s, scale, boundary_s]), measured_s).statistic
    return Calibration(
        start_s=start_s,
        scale=scale,
        boundary_s=boundary_s,
        num_networks=len(measured_s),
        mape=float(np.abs(error).mean()),
        worst=float(np.abs(error).max()),
        kendall_tau=float(np.nan_to_num(tau)),  # not a number when all predictions are alike
        uncorrected_mape=float(np.abs(raw_error).mean()),
    )
