"""chanas/search/evolution/dtypes.py: dtypes of blocks by shortest paths."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.blocks import BlockConfig
from chanas.core.genome import BlockTable, Genomes, decode, encode, plain, sample
from chanas.core.latency import LatencyTable
from chanas.search.evolution.constraints import Constraint
from chanas.search.evolution.dtypes import DtypeChoice

NUM_CLASSES = 10


@pytest.fixture(scope="module")
def space(tiny_space: SearchSpace) -> SearchSpace:
    return tiny_space.with_dtypes(("float32", "int8"))


@pytest.fixture(scope="module")
def table(space: SearchSpace) -> BlockTable:
    """Random seconds of each block in each dtype; conversions take a tenth as long."""
    rng, seconds = np.random.default_rng(3), dict[BlockConfig, float]()

    def cost(block: BlockConfig) -> float:
        return seconds.setdefault(block, (0.1 if block.converts else 1.0) * float(rng.uniform(0.5, 1.5)))

    return BlockTable(space, NUM_CLASSES, cost)


@pytest.fixture(scope="module")
def losses(space: SearchSpace) -> FloatArray:
    """Costs of accuracy of each place, none in float32."""
    num = space.num_stages * space.max_depth + 4
    return np.stack([np.zeros(num), np.random.default_rng(4).uniform(0, 0.01, num)])


def every_choice(architecture: Architecture) -> Iterator[Architecture]:
    for dtypes in itertools.product(("float32", "int8"), repeat=sum(architecture.depths) + 4):
        yield dataclasses.replace(architecture, dtypes=dtypes)


def limit_of(table: BlockTable, share: float, rows: Genomes) -> Constraint:
    """A limit between the fastest and the slowest choice of dtypes of an architecture."""
    seconds = table.of(rows)
    return Constraint("latency", float((1 - share) * seconds.min() + share * seconds.max()), LatencyTable(table), "s")


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4, 0.7])
def test_the_least_loss_inside_a_limit_is_nearly_found(
    space: SearchSpace, table: BlockTable, losses: FloatArray, share: float
) -> None:
    gaps = []
    for architecture in decode(space, plain(space, sample(space, 12, np.random.default_rng(5)))):
        every = encode(space, list(every_choice(architecture)))
        limit = limit_of(table, share, every)
        choice = DtypeChoice(space, losses, [limit])
        (found,) = choice.within(encode(space, [architecture]))
        assert table.of(found[None]) <= limit.limit
        best = choice._loss(every[table.of(every) <= limit.limit]).min()
        gaps.append(choice._loss(found[None])[0] - best)
    assert min(gaps) >= -1e-12
    assert np.mean(gaps) < 0.2 * losses.sum()
    assert np.median(gaps) < 0.05 * losses.sum()


def test_where_nothing_is_inside_the_fastest_is_chosen(
    space: SearchSpace, table: BlockTable, losses: FloatArray
) -> None:
    for architecture in decode(space, plain(space, sample(space, 12, np.random.default_rng(6)))):
        every = encode(space, list(every_choice(architecture)))
        limit = limit_of(table, -0.1, every)
        (found,) = DtypeChoice(space, losses, [limit]).within(encode(space, [architecture]))
        assert table.of(found[None])[0] == pytest.approx(table.of(every).min())


def test_with_room_for_it_all_stays_in_float32(space: SearchSpace, table: BlockTable, losses: FloatArray) -> None:
    rows = plain(space, sample(space, 20, np.random.default_rng(7)))
    limit = Constraint("latency", 1e3, LatencyTable(table), "s")
    np.testing.assert_array_equal(DtypeChoice(space, losses, [limit]).within(rows), rows)


def test_random_prices_keep_the_architectures(space: SearchSpace, table: BlockTable, losses: FloatArray) -> None:
    rng = np.random.default_rng(8)
    rows = sample(space, 50, rng)
    limit = Constraint("latency", 1e3, LatencyTable(table), "s")
    found = DtypeChoice(space, losses, [limit]).along(rows, rng)
    np.testing.assert_array_equal(plain(space, found), plain(space, rows))
    assert len({a.dtypes for a in decode(space, found)}) > 10
