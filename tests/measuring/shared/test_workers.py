"""chanas/measuring/shared/workers.py: which cores are slots of the host, and which are devices."""

from __future__ import annotations

import os

import pytest

from chanas.devices.cores import split_cores
from chanas.errors import ConfigError
from chanas.measuring.shared.workers import open_kinds
from chanas.scheduler.jobs import DEVICE, HOST

from ...compiler.workbench import HOST as TARGET

CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_cores_that_are_no_device_do_the_host_work_and_this_process_keeps_to_them() -> None:
    with open_kinds(TARGET, [CORES[1:2]], {}) as kinds:
        workers = kinds[""]
        assert [slot.core for slot in workers.slots] == [*CORES[:1], *CORES[2:]]
        assert CORES[1] not in os.sched_getaffinity(0)
        assert {r.name: r.num_units for r in workers.resources()} == {HOST: len(CORES) - 1, DEVICE: 1}
    assert sorted(os.sched_getaffinity(0)) == CORES


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_where_devices_have_all_cores_they_are_the_slots() -> None:
    with open_kinds(TARGET, [[core] for core in CORES], {}) as kinds:
        workers = kinds[""]
        assert [(slot.core, slot.device) for slot in workers.slots] == [*zip(CORES, workers.devices, strict=True)]
        assert [(r.name, r.num_units) for r in workers.resources()] == [(HOST, len(CORES))]
        assert workers.overlap


def test_one_core_that_times_leaves_the_others_to_the_host() -> None:
    with open_kinds(TARGET, [split_cores(TARGET.num_threads)[0]], {}) as kinds:
        workers = kinds[""]
        assert [slot.core for slot in workers.slots] == (CORES[1:] or CORES)
        assert workers.overlap == (len(CORES) > 1)


def test_a_core_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"got 9999$"), open_kinds(TARGET, [[9999]], {}):
        pass
