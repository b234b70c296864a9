"""chanas/search/accuracy/losses.py: costs of dtypes, learnt from noisy evaluations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import GenomeLayout, Genomes, plain, sample, with_random_dtypes
from chanas.search.accuracy.losses import DtypeLosses, fit_losses
from chanas.search.accuracy.predictor import AccuracyPredictor


@pytest.fixture(scope="module")
def space(demo_space: SearchSpace) -> SearchSpace:
    return demo_space.with_dtypes(("float32", "int8"))


@pytest.fixture
def rows(space: SearchSpace, rng: np.random.Generator) -> Genomes:
    return with_random_dtypes(space, sample(space, 400, rng), rng)


def true_losses(space: SearchSpace, rows: Genomes) -> FloatArray:
    """One place costs two points, all others a tenth of one."""
    dtypes = rows[:, GenomeLayout(space).plain_length :] == 1
    costs = np.full(dtypes.shape[1], 1e-3)
    costs[-4] = 2e-2  # the stem
    found: FloatArray = dtypes @ costs
    return found


def test_the_place_that_costs_most_is_found_in_noise(
    space: SearchSpace, rows: Genomes, rng: np.random.Generator
) -> None:
    found = fit_losses(space, rows, true_losses(space, rows) + rng.normal(0, 5e-3, len(rows)))
    assert found.costs.argmax() == len(found.costs) - 4
    assert found.costs[-4] == pytest.approx(2e-2, rel=0.2)
    assert 4e-3 < found.error < 7e-3


def test_without_noise_what_is_left_out_is_told_exactly(space: SearchSpace, rows: Genomes) -> None:
    truth = true_losses(space, rows)
    found = fit_losses(space, rows[:300], truth[:300])
    np.testing.assert_allclose(found.of(rows[300:]), truth[300:], atol=2e-3)


def test_costs_are_never_negative(space: SearchSpace, rows: Genomes, rng: np.random.Generator) -> None:
    found = fit_losses(space, rows, rng.normal(-5e-3, 5e-3, len(rows)))
    assert (found.costs >= 0).all()
    assert (found.of(rows) >= 0).all()


def test_float32_costs_nothing(space: SearchSpace, rows: Genomes) -> None:
    found = fit_losses(space, rows, true_losses(space, rows))
    assert not found.of(plain(space, rows)).any()


def test_each_of_several_dtypes_has_costs_of_its_own(demo_space: SearchSpace, rng: np.random.Generator) -> None:
    space = demo_space.with_dtypes(("float32", "bfloat16", "int8"))
    rows = with_random_dtypes(space, sample(space, 400, rng), rng)
    dtypes = rows[:, GenomeLayout(space).plain_length :]
    found = fit_losses(space, rows, 3e-3 * (dtypes == 2).sum(axis=1))
    in_bfloat16, in_int8 = found.costs.reshape(2, -1)
    assert in_bfloat16.max() < 1e-3 < 2e-3 < in_int8.min()
    assert list(found.to_json()["costs_points"]) == ["bfloat16", "int8"]


def test_a_predictor_takes_them_off(space: SearchSpace, rows: Genomes) -> None:
    predictor = AccuracyPredictor(space, "ridge").fit(plain(space, rows), np.linspace(0.6, 0.9, len(rows)))
    in_float32, spread = predictor.predict(rows)
    np.testing.assert_allclose(in_float32, predictor.predict(plain(space, rows))[0])
    losses: DtypeLosses = fit_losses(space, rows, true_losses(space, rows))
    predictor.losses = dataclasses.replace(losses, error=0.03)
    top1, wider = predictor.predict(rows)
    np.testing.assert_allclose(top1, in_float32 - losses.of(rows))
    np.testing.assert_allclose(wider, np.hypot(spread, 0.03))
