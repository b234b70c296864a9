"""chanas/devices/peak.py: a rate to judge kernels by, and a process that is as it was afterwards."""

from __future__ import annotations

import math
import os

from chanas.devices.peak import peak_gflops, shares_of_peak


def test_the_peak_is_a_rate_and_the_process_keeps_its_cores() -> None:
    cores = os.sched_getaffinity(0)
    assert 0.0 < peak_gflops(1) < math.inf
    assert os.sched_getaffinity(0) == cores


def test_shares_are_of_the_peak_or_of_what_is_higher() -> None:
    assert shares_of_peak([50.0, 100.0], 200.0) == [0.25, 0.5]
    assert shares_of_peak([50.0, 400.0], 200.0) == [0.125, 1.0]
    assert shares_of_peak([50.0, 400.0], None) == [None, None]
