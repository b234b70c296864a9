"""Gradient-boosted trees as cost models, by XGBoost or LightGBM (extra `boost`), with TenSet's settings.

A record's score is the sum of its rows' (TenSet's pack-sum loss). Trees read no sequences: one of primitives is a
single row in which every primitive has a place.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.core.arrays import Array, FloatArray, IntArray
from chanas.errors import ConfigError
from chanas.prescheduler.tuning.offline.dataset import Dataset
from chanas.prescheduler.tuning.offline.judging import held_out
from chanas.prescheduler.tuning.offline.primitives import Rows

PACKAGES = {"xgb": "xgboost", "lgbm": "lightgbm"}
_ARRAY = "booster"
_ROUNDS, _MORE_ROUNDS, _PATIENCE = 300, 30, 50
_XGB = {
    "max_depth": 6,
    "gamma": 0.003,
    "min_child_weight": 2,
    "eta": 0.2,
    "base_score": 0.0,
    "verbosity": 0,
    "nthread": 1,
    "disable_default_eval_metric": 1,
}
_LGBM = {
    "num_leaves": 72,
    "learning_rate": 0.1632,
    "feature_fraction": 0.84375,
    "bagging_fraction": 0.89435,
    "bagging_freq": 4,
    "min_sum_hessian_in_leaf": 4.0,
    "verbosity": -1,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
}


def library_of(name: str) -> Any:
    """The library of a model.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(PACKAGES[name])
    except ImportError as error:
        raise ConfigError(f"cost model '{name}' needs {PACKAGES[name]}: pip install 'chanas[boost]'") from error


class _Part:
    """Rows of records with the square loss of their sums."""

    def __init__(self, data: Dataset) -> None:
        self.values, self.owners = data.primitives.values, data.primitives.owners
        self.label, self.num_records = data.label, len(data)

    def residuals(self, score: FloatArray) -> FloatArray:
        """float64[N] of each record, from scores of rows float64[R]."""
        return _sums(self.owners, score, self.num_records) - self.label.astype(np.float64)

    def slopes(self, score: FloatArray) -> tuple[FloatArray, FloatArray]:
        """First and second derivative by each row's score, float64[R]."""
        return self.residuals(score)[self.owners], np.ones(len(score))

    def rmse(self, score: FloatArray) -> float:
        return float(np.sqrt((self.residuals(score) ** 2).mean()))


@dataclass(frozen=True)
class BoosterLearner:
    """The `Learner` of trees; what they learned is one array, the bytes of the library's own text form.

    Raises:
        ConfigError: the library is not installed.
    """

    name: str

    def __post_init__(self) -> None:
        library_of(self.name)

    def fit(self, data: Dataset, seed: int, start: Mapping[str, Array] | None, progress: bool) -> dict[str, Array]:
        """Teach trees, or add some to those of `start`."""
        learning, judging = (_Part(data.of(chosen)) for chosen in held_out(len(data), seed))
        fit = _fit_xgb if self.name == "xgb" else _fit_lgbm
        content = fit(
            library_of(self.name), learning, judging, seed, None if start is None else start[_ARRAY].tobytes()
        )
        return {_ARRAY: np.frombuffer(content, dtype=np.uint8)}

    def load(self, arrays: Mapping[str, Array]) -> Callable[[Rows], FloatArray]:
        """Scores float64[N] of normalised rows: the sums of the rows' scores."""
        library, content = library_of(self.name), arrays[_ARRAY].tobytes()
        if self.name == "lgbm":
            trees = library.Booster(model_str=content.decode())
        else:
            trees = library.Booster()
            trees.load_model(bytearray(content))

        def scores(rows: Rows) -> FloatArray:
            values = rows.values
            if self.name == "xgb":
                by_row = trees.predict(library.DMatrix(values), output_margin=True)
            else:
                by_row = trees.predict(values, raw_score=True)
            return _sums(rows.owners, by_row, len(rows))

        return scores


def _fit_xgb(library: Any, learning: _Part, judging: _Part, seed: int, start: bytes | None) -> bytes:
    parts = [library.DMatrix(part.values, np.zeros(len(part.values))) for part in (learning, judging)]
    model = None
    if start is not None:
        model = library.Booster()
        model.load_model(bytearray(start))

    def metric(score: FloatArray, matrix: Any) -> tuple[str, float]:
        return "rmse", (judging if matrix is parts[1] else learning).rmse(score)

    booster = library.train(
        _XGB | {"seed": seed},
        parts[0],
        _ROUNDS if start is None else _MORE_ROUNDS,
        evals=[(parts[1], "judging")],
        obj=lambda score, _: learning.slopes(score),
        custom_metric=metric,
        early_stopping_rounds=_PATIENCE,
        verbose_eval=False,
        xgb_model=model,
    )
    best = booster[: booster.best_iteration + 1]
    return bytes(best.save_raw("json"))


def _fit_lgbm(library: Any, learning: _Part, judging: _Part, seed: int, start: bytes | None) -> bytes:
    train = library.Dataset(learning.values, np.zeros(len(learning.values)), free_raw_data=False)
    valid = library.Dataset(judging.values, np.zeros(len(judging.values)), train, free_raw_data=False)
    booster = library.train(
        _LGBM | {"seed": seed, "objective": lambda score, _: learning.slopes(score), "metric": "none"},
        train,
        _ROUNDS if start is None else _MORE_ROUNDS,
        valid_sets=[valid],
        feval=lambda score, _: ("rmse", judging.rmse(score), False),
        callbacks=[library.early_stopping(_PATIENCE, verbose=False)],
        init_model=None if start is None else library.Booster(model_str=start.decode()),
    )
    return bytes(booster.model_to_string(num_iteration=booster.best_iteration or -1).encode())


def _sums(owners: IntArray, score: FloatArray, num: int) -> FloatArray:
    """float64[N]: the sums of the rows' scores."""
    sums: FloatArray = np.bincount(owners, weights=score, minlength=num).astype(np.float64)
    return sums
