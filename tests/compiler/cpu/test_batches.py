"""chanas/compiler/cpu/batches.py: a kernel over several images gives each what PyTorch gives it, and
nothing of one image reaches another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fast_cases import fast

from chanas.compiler.backends import schedule_space
from chanas.compiler.cases import operator_case, relative_error
from chanas.compiler.space import Point
from chanas.core.target import HardwareTarget
from chanas.operators.precision import FLOAT32
from chanas.operators.workload import Workload

from ..workbench import DEVICES, HOST, Workbench, device, in_a_network

IMAGES = 3
FAMILIES = {
    "conv": Workload("conv", 11, 3, 24, 3, 2, "hswish", batch=IMAGES),
    "blockconv": Workload("blockconv", 7, 20, 40, 3, 1, "relu", residual=True, batch=IMAGES, input_width=5),
    "groups that fill vectors": Workload("blockconv", 6, 32, 64, 3, 2, "relu", groups=2, batch=IMAGES),
    "groupconv": Workload("groupconv", 6, 18, 18, 3, 1, "relu", groups=3, batch=IMAGES, padding=(0, 1, 1, 0)),
    "winograd": Workload("winograd", 9, 20, 32, 3, 1, "relu", residual=True, residual_first=True, batch=IMAGES),
    "winograd2": Workload("winograd2", 9, 20, 32, 3, 1, "hswish", residual=True, batch=IMAGES),
    "upconv": Workload("upconv", 5, 20, 32, 3, 2, "relu", batch=IMAGES, padding=(1, 1, 0, 0)),
    "pointwise": Workload("pointwise", 5, 24, 40, 1, 1, "swish", scaled=True, residual=True, batch=IMAGES),
    "prologue": Workload("pointwise", 5, 24, 40, 1, 1, "relu", scaled=True, prologue="hswish", batch=IMAGES),
    "one pixel": Workload("pointwise", 1, 24, 40, 1, 1, "hsigmoid", batch=IMAGES),
    "depthwise": Workload("depthwise", 8, 24, 24, 5, 2, "relu6", batch=IMAGES, dilation=(2, 1)),
    "pool": Workload("pool", 5, 24, 24, batch=IMAGES, input_width=3),
}
each_family = pytest.mark.parametrize("workload", FAMILIES.values(), ids=FAMILIES)


def middle_point(workload: Workload, target: HardwareTarget) -> Point:
    return schedule_space(workload, target).middle


@each_family
def test_each_image_has_its_own_output(workload: Workload) -> None:
    case = operator_case(workload, HOST)
    (found,) = in_a_network(workload, middle_point(workload, HOST), HOST, case)
    first, *others = np.split(case.expected, IMAGES)
    assert all(relative_error(other, first) > 0.1 for other in others)
    assert relative_error(found, case.expected) < FLOAT32.operator_tolerance


@each_family
def test_numbers_of_one_image_do_not_reach_another(workload: Workload) -> None:
    case = operator_case(workload, HOST)
    spoilt = [a.copy() for a in case.arguments]
    for position, argument in enumerate(spoilt):
        if position not in case.weights:
            np.split(argument, IMAGES)[1][:] = np.nan
    others = replace(case, arguments=tuple(spoilt))
    clean, found = in_a_network(workload, middle_point(workload, HOST), HOST, case, others)
    for i, (before, after) in enumerate(zip(np.split(clean, IMAGES), np.split(found, IMAGES), strict=True)):
        if i == 1:
            assert np.isnan(after).any()
        else:
            np.testing.assert_array_equal(after, before)


def has_kernel(workload: Workload, target: HardwareTarget) -> bool:
    fill_vectors = workload.outputs_per_group % target.vector_lanes == 0
    return workload.groups == 1 or fill_vectors == (workload.op == "blockconv")


DEVICE_CASES = [(w, name) for w in FAMILIES.values() for name, target in DEVICES.items() if has_kernel(w, target)]


@pytest.mark.parametrize(("workload", "name"), fast(DEVICE_CASES, range(2, len(DEVICE_CASES), 11)))
def test_operators_that_are_tuned_are_right_on_any_device(workbench: Workbench, workload: Workload, name: str) -> None:
    target = DEVICES[name]
    (outcome,) = workbench.run([workbench.candidate(workload, middle_point(workload, target), target)])
    assert outcome.error is None


@pytest.mark.parametrize("op", ["winograd", "winograd2", "upconv"])
def test_odd_numbers_of_each_image_reach_the_windows_that_read_them(op: str) -> None:
    # channels that fill their vectors: what only fills one up is NaN where what it is computed from is
    workload, target = replace(FAMILIES[op], in_channels=16), device(num_threads=2)
    case = operator_case(workload, target, (np.nan, np.inf, -np.inf, np.nan))
    (found,) = in_a_network(workload, middle_point(workload, target), target, case)
    assert np.isnan(case.expected).any()
    assert relative_error(found, case.expected) < FLOAT32.operator_tolerance


def test_records_name_more_images_than_one() -> None:
    assert FAMILIES["pool"].key == "pool-5x3px-24x24-k1s1-none-float32-b3"
    assert replace(FAMILIES["pool"], batch=1).key == "pool-5x3px-24x24-k1s1-none-float32"
