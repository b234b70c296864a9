"""chanas/compiler/cpu/mending.py: convolutions by tiles and by phases give NaN and infinity where PyTorch
gives them, and finite numbers everywhere else."""

from __future__ import annotations

import numpy as np
import pytest
from fast_cases import fast

from chanas.compiler.backends import schedule_space
from chanas.compiler.cases import ReferenceCase, operator_case, relative_error
from chanas.core.target import HardwareTarget
from chanas.operators.precision import FLOAT32
from chanas.operators.workload import Workload

from ..workbench import device, in_a_network

# Channels of outputs fill their vectors: what only fills one up is NaN where what it is computed from is.
WORKLOADS = [
    Workload("winograd2", 9, 24, 32, 3, 1, "hswish", residual=True),
    Workload("winograd2", 10, 7, 16, 5, 1, "sigmoid", kernel_width=3, padding=(0, 0, 0, 0)),
    Workload("winograd", 11, 16, 32, 3, 1, "relu", residual=True, residual_first=True),
    Workload("winograd", 13, 5, 16, 7, 2, "hswish"),
    Workload("winograd", 9, 16, 16, 5, 1, "none", kernel_width=1),
    Workload("winograd", 8, 16, 16, 1, 1, "relu6", kernel_width=3),
    Workload("upconv", 6, 7, 16, 3, 2, "relu", column_stride=2, padding=(1, 1, 0, 0)),
    Workload("upconv", 5, 16, 32, 5, 3, "hswish", column_stride=2, residual=True),
    Workload("upconv", 4, 8, 16, 2, 3, "none", column_stride=3),
    Workload("upconv", 5, 8, 16, 4, 2, "leaky0.1", column_stride=2),
]
ODD = {"nan": (np.nan,), "several": (np.nan, np.inf, -np.inf, np.nan), "infinity": (np.inf,), "minus": (-np.inf,)}


def is_right(workload: Workload, target: HardwareTarget, rng: np.random.Generator, *cases: ReferenceCase) -> bool:
    """True if an operator of a network gives what PyTorch gives for each case, at a point."""
    (point,) = schedule_space(workload, target).sample(1, rng)
    found = in_a_network(workload, point, target, *cases)
    return all(
        relative_error(f, case.expected) < FLOAT32.operator_tolerance for f, case in zip(found, cases, strict=True)
    )


CASES = [(workload, lanes) for lanes in (16, 4) for workload in WORKLOADS]


@pytest.mark.parametrize(("workload", "lanes"), fast(CASES, [0, 2, 3, 6, 7, 8, 11]))
def test_odd_numbers_reach_the_windows_that_read_them(workload: Workload, lanes: int, rng: np.random.Generator) -> None:
    target = device(lanes)
    assert is_right(workload, target, rng, *(operator_case(workload, target, odd) for odd in ODD.values()))


def test_they_do_so_on_two_threads(rng: np.random.Generator) -> None:
    target, workload = device(num_threads=2), WORKLOADS[2]
    assert is_right(workload, target, rng, operator_case(workload, target, ODD["several"]))


def test_a_column_that_no_window_reads_is_not_read(rng: np.random.Generator) -> None:
    """Seven taps of stride 2 are two phases of four, the last of which is zero."""
    target, workload = device(), Workload("winograd", 14, 16, 16, 7, 2, "relu", padding=(0, 0, 0, 0))
    case = operator_case(workload, target)
    case.arguments[0].reshape(-1, 14, 14, target.vector_lanes)[:, :, -1] = np.nan
    assert is_right(workload, target, rng, case)


def test_a_map_of_finite_numbers_is_right(rng: np.random.Generator) -> None:
    assert is_right(WORKLOADS[0], device(), rng, operator_case(WORKLOADS[0], device()))
