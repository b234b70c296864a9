"""The contract of cost models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chanas.compiler.space import ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.history import CostModel, Prior
from chanas.testing.spaces import LARGE, SIMILAR, TARGET, at_random, failure, sample


def predictions(model: CostModel, space: ScheduleSpace[Any] = LARGE, num: int = 30) -> tuple[list[float], list[float]]:
    """Means and deviations that a model predicts of some points, which are checked to be sound."""
    mean, deviation = model.predict(space, sample(space, num, seed=9))
    assert mean.shape == deviation.shape == (num,)
    assert mean.dtype == deviation.dtype == np.float64
    assert np.all(np.isfinite(mean))
    assert np.all(np.isfinite(deviation))
    assert np.all(deviation >= 0.0)
    return mean.tolist(), deviation.tolist()


def measured(space: ScheduleSpace[Any], num: int, seed: int = 0) -> list[TuningRecord]:
    """Records that follow no rule."""
    return [at_random(point) for point in sample(space, num, seed)]


def failed(space: ScheduleSpace[Any], num: int, seed: int = 1) -> list[TuningRecord]:
    """Records of points that do not run."""
    return [failure(point) for point in sample(space, num, seed)]


class CostModelContract:
    """Tests that every `CostModel` passes. Inherit it, and make the model."""

    knows_priors = True
    """True if `predict_from_prior` says something where there are another device's records."""

    def model(self, target: HardwareTarget, seed: int) -> CostModel:
        """A new cost model with an empty history of a device."""
        raise NotImplementedError

    def new(self, seed: int = 3) -> CostModel:
        """A new cost model."""
        return self.model(TARGET, seed)

    @pytest.mark.parametrize("num_points", [1, 40])
    @pytest.mark.parametrize("num_records", [0, 1, 5, 6, 60])
    def test_predictions_are_finite_whatever_was_observed(self, num_records: int, num_points: int) -> None:
        model = self.new()
        model.observe(LARGE, measured(LARGE, num_records))
        predictions(model, LARGE, num_points)
        predictions(model, SIMILAR, num_points)

    def test_equal_seconds_are_no_trouble(self) -> None:
        model = self.new()
        model.observe(LARGE, [TuningRecord(point, 1e-6, 0.0) for point in sample(LARGE, 20)])
        predictions(model)

    def test_seed_and_records_determine_a_model(self) -> None:
        first, again = self.new(), self.new()
        for model in (first, again):
            model.observe(LARGE, measured(LARGE, 20))
            model.observe(SIMILAR, measured(SIMILAR, 10))
        assert predictions(first) == predictions(again)
        for model in (first, again):
            model.observe(SIMILAR, measured(SIMILAR, 30, seed=4))
        assert predictions(first, SIMILAR) == predictions(again, SIMILAR)

    def test_nothing_is_learned_from_failures(self) -> None:
        with_failures, without = self.new(), self.new()
        without.observe(LARGE, measured(LARGE, 20))
        with_failures.observe(LARGE, failed(LARGE, 10))
        records = [*failed(LARGE, 5, seed=2), *measured(LARGE, 20), *failed(LARGE, 5, seed=3)]
        with_failures.observe(LARGE, records)
        assert predictions(with_failures) == predictions(without)

    def test_no_records_change_nothing(self) -> None:
        told, untold = self.new(), self.new()
        told.observe(LARGE, [])
        assert predictions(told) == predictions(untold)

    def test_another_devices_records_say_nothing_once_they_are_dropped(self) -> None:
        model, untold = self.new(), self.new()
        records = sorted(measured(LARGE, 20), key=lambda record: record.seconds or 0.0)
        seconds = np.array([record.seconds for record in records])
        model.history.add_elsewhere(LARGE, Prior(tuple((r.point,) for r in records), seconds, TARGET))
        forecast = model.predict_from_prior(LARGE, sample(LARGE, 30, seed=9))
        assert (forecast is not None) == self.knows_priors
        assert forecast is None or (forecast.shape == (30,) and np.ptp(forecast) > 0.0)
        model.history.drop_elsewhere(LARGE)
        assert model.predict_from_prior(LARGE, sample(LARGE, 30)) is None
        assert predictions(model) == predictions(untold)
