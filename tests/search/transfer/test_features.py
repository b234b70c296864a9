"""Features of architectures for latencies."""

from __future__ import annotations

import numpy as np

from chanas.core.arch import SearchSpace
from chanas.core.genome import GenomeLayout, decode, sample
from chanas.search.transfer.features import block_columns, latency_features, log_costs, resolutions


def test_each_block_has_one_column_and_absent_ones_have_none(rng: np.random.Generator) -> None:
    space = SearchSpace.load("mbv3")
    genomes = sample(space, 50, rng)
    by_slot = block_columns(space, genomes).reshape(50, -1, 9).sum(axis=2)
    np.testing.assert_array_equal(by_slot, GenomeLayout(space).active(genomes))


def test_the_sums_are_those_of_the_architectures(rng: np.random.Generator) -> None:
    space = SearchSpace.load("mbv3")
    genomes = sample(space, 20, rng)
    found, architectures = log_costs(space, genomes), decode(space, genomes)
    np.testing.assert_allclose(np.exp(found[:, 0]), [a.resolution for a in architectures])
    np.testing.assert_allclose(np.exp(found[:, 1]), [a.width_multiplier for a in architectures])
    np.testing.assert_allclose(np.expm1(found[:, 2]), [a.num_macs(space) for a in architectures])
    np.testing.assert_allclose(np.expm1(found[:, 5]), [a.num_params(space) for a in architectures])


def test_blocks_whose_cost_is_a_parabola_in_the_resolution_are_linear(rng: np.random.Generator) -> None:
    space = SearchSpace.load("mbv3")
    genomes = sample(space, 1000, rng)
    blocks, r = block_columns(space, genomes), resolutions(space, genomes) / 224
    cost = sum(blocks @ rng.random(blocks.shape[1]) * r**power for power in range(3))
    x = np.hstack([latency_features(space, genomes), np.ones((1000, 1))])
    assert x.shape[1] < 700
    np.testing.assert_allclose(x @ np.linalg.lstsq(x, cost, rcond=None)[0], cost, rtol=1e-6)
