from __future__ import annotations

import pytest

from chanas.errors import ConfigError
from chanas.scheduler.resources import Resource


def test_units_are_given_until_all_are_taken() -> None:
    devices = Resource("device", 2)
    for unit in (0, 1):
        assert devices.unit_for() == unit
        devices.occupy(unit)
    assert devices.unit_for() is None
    assert devices.num_free == 0
    devices.release(0)
    assert devices.unit_for() == 0


def test_a_lost_unit_is_not_given_until_it_is_restored() -> None:
    devices = Resource("device", 1)
    devices.lose(0)
    assert (devices.num_units, devices.unit_for()) == (0, None)
    devices.restore(0)
    assert (devices.num_units, devices.unit_for()) == (1, 0)


def test_a_unit_to_avoid_is_given_only_where_it_is_the_last() -> None:
    devices = Resource("device", 2)
    assert devices.unit_for(avoid={0}) == 1
    devices.occupy(1)
    assert devices.unit_for(avoid={0}) is None
    devices.lose(1)
    assert devices.unit_for(avoid={0}) == 0


def test_a_shared_unit_is_the_one_with_the_fewest_stages() -> None:
    devices = Resource("device", 2)
    for expected in (0, 1, 0):
        unit = devices.unit_for(shared=True)
        assert unit == expected
        devices.occupy(unit)


def test_a_resource_has_units() -> None:
    with pytest.raises(ConfigError, match="got 0"):
        Resource("host", 0)
