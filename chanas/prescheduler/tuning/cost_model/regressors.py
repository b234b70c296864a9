"""Cost models by regressors of well-known libraries: boosted trees of XGBoost and LightGBM, forests and networks of
scikit-learn.

Each is an ensemble of a few regressors, learnt from all records of the family on this device, of each workload centred
log seconds: the mean of the ensemble is the prediction, the spread of its members the deviation.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.arrays import FloatArray
from chanas.errors import ConfigError
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.history import History, features

# Records of the asked workload from which on it is asked what they have in common; the same as the Gaussian process.
_MIN_RECORDS = 6


@dataclass(frozen=True)
class Learner:
    """A library's regressor: `make` gets the library's module and a seed, and gives an object with `fit` and `predict`.

    members  regressors of an ensemble, each learnt from another sample with replacement; 1 where `spread` tells of the
             members of one
    spread   predictions of the members of a regressor, float64[M, N]
    """

    module: str
    package: str
    make: Callable[[Any, int], Any]
    members: int = 4
    spread: Callable[[Any, FloatArray], FloatArray] | None = None


def _xgb(module: Any, seed: int) -> Any:
    how = {"n_estimators": 60, "max_depth": 5, "learning_rate": 0.2, "n_jobs": 1, "verbosity": 0}
    return module.XGBRegressor(random_state=seed, **how)


def _lgbm(module: Any, seed: int) -> Any:
    how = {"n_estimators": 60, "num_leaves": 16, "min_child_samples": 3, "learning_rate": 0.2, "n_jobs": 1}
    return module.LGBMRegressor(random_state=seed, verbosity=-1, **how)


def _network(module: Any, seed: int) -> Any:
    how = {"hidden_layer_sizes": (32, 32), "solver": "lbfgs", "alpha": 1e-2, "max_iter": 80}
    scaled = importlib.import_module("sklearn.preprocessing").StandardScaler()
    network = module.MLPRegressor(random_state=seed, **how)
    return importlib.import_module("sklearn.pipeline").make_pipeline(scaled, network)


def _forest(module: Any, seed: int) -> Any:
    how = {"n_estimators": 64, "min_samples_leaf": 2, "max_features": 0.5, "n_jobs": 1}
    return module.RandomForestRegressor(random_state=seed, **how)


def _trees(forest: Any, x: FloatArray) -> FloatArray:
    return np.array([tree.predict(x) for tree in forest.estimators_])


LEARNERS = {
    "xgb": Learner("xgboost", "chanas[boost]", _xgb),
    "lgbm": Learner("lightgbm", "chanas[boost]", _lgbm),
    "mlp": Learner("sklearn.neural_network", "chanas", _network),
    "forest": Learner("sklearn.ensemble", "chanas", _forest, 1, _trees),
}


def library(learner: Learner) -> Any:
    """The module of a learner's library.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(learner.module)
    except ImportError as error:
        missing = learner.module.partition(".")[0]
        remedy = f"install it with `pip install '{learner.package}'`"
        raise ConfigError(f"{missing} is not installed; {remedy}") from error


class RegressorModel:
    """A cost model by an ensemble of one of `LEARNERS`.

    Raises:
        ConfigError: its library is not installed.
    """

    def __init__(self, history: History, learner: Learner, seed: int) -> None:
        self.history, self._learner, self._seed, self._module = history, learner, seed, library(learner)
        self._fitted: list[Any] = []
        self._fitted_on = -1

    def observe(self, space: ScheduleSpace[Any], records: Sequence[TuningRecord]) -> None:
        """Add valid records; the regressors are learnt anew when they are next asked."""
        valid = [r for r in records if r.seconds is not None]
        if valid:
            self.history.add(space, valid)

    def predict(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of centred log seconds; zero and one while there are too few records."""
        if self.history.num(self.history.here) < _MIN_RECORDS:
            return np.zeros(len(points)), np.ones(len(points))
        if self._fitted_on != self.history.version:
            self._fit()
        x = features(space, points, self.history.target)
        each = np.array([regressor.predict(x) for regressor in self._fitted], dtype=np.float64)
        if self._learner.spread is not None:
            each = self._learner.spread(self._fitted[0], x)
        return each.mean(axis=0), each.std(axis=0)

    def _fit(self) -> None:
        known = [self.history.known[place] for place in self.history.here]
        x = np.vstack([k.x for k in known])
        y = np.concatenate([np.log(k.seconds) - np.log(k.seconds).mean() for k in known])
        rng, num = np.random.default_rng(self._seed), self._learner.members
        drawn = [rng.integers(len(y), size=len(y)) if num > 1 else np.arange(len(y)) for _ in range(num)]
        regressors = [self._learner.make(self._module, self._seed + i) for i in range(num)]
        limits = importlib.import_module("threadpoolctl").threadpool_limits(
            1
        )  # several threads take five times as long
        with limits, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a network that is stopped before it has converged will do
            self._fitted = [regressor.fit(x[rows], y[rows]) for regressor, rows in zip(regressors, drawn, strict=True)]
        self._fitted_on = self.history.version

    def predict_from_prior(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> FloatArray | None:
        """Return None: records of another device are not asked."""
        return None
