"""The long computations of a cost model, as a pure function: records and points in, parameters and a prediction
out. So it can be computed by any machine, and all that goes there and back is text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from threadpoolctl import threadpool_limits

from chanas.core.arrays import FloatArray, IntArray
from chanas.core.codec import fields_to_json, from_json, to_json
from chanas.measuring.fleet import Compute
from chanas.prescheduler.tuning.cost_model.regression import Parameters, Regression, fit

Json = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """Records that a process is made of: N of them with F features, which are standardised.

    x           float64[N, F]
    y           float64[N], log seconds without the mean of their workload
    groups      int64[N], 0 for the asked workload
    devices     int64[N]
    parameters  those so far; None before the first fit
    is_due      they are fitted, beginning with those so far
    """

    x: FloatArray
    y: FloatArray
    groups: IntArray
    devices: IntArray
    parameters: Parameters | None
    is_due: bool

    def with_parameters(self, parameters: Parameters) -> Problem:
        """The same records, where nothing is to be fitted."""
        return replace(self, parameters=parameters, is_due=False)


@dataclass(frozen=True)
class Prediction:
    """float64[M] of the mean and the standard deviation of log seconds, by the process with these parameters."""

    parameters: Parameters
    mean: FloatArray
    deviation: FloatArray


class Solver:
    """Predicts on this machine; the process is kept for as long as the same problem is asked about."""

    def __init__(self) -> None:
        self._asked: Problem | None = None
        self._regression: Regression | None = None

    def __call__(self, problem: Problem, x: FloatArray) -> tuple[Problem, Prediction]:
        """The problem as it is to be asked about again, with its parameters, and a prediction for x, float64[M, F]."""
        with threadpool_limits(1):
            if self._asked is not problem or self._regression is None:
                if problem.is_due:
                    found = fit(problem.x, problem.y, problem.groups, problem.parameters, problem.devices)
                    problem = problem.with_parameters(found)
                assert problem.parameters is not None
                self._regression = Regression(problem.x, problem.y, problem.groups, problem.parameters, problem.devices)
                self._asked = problem
            assert problem.parameters is not None
            return problem, Prediction(problem.parameters, *self._regression.predict(x, 0))


Solve = Callable[[Problem, FloatArray], tuple[Problem, Prediction]]
"""The problem as it is to be asked about again, and a prediction: as `Solver`."""


def answer(question: Json) -> Json:
    """Predict, on whatever machine: the inverse of what `elsewhere` asks."""
    _, found = Solver()(from_json(Problem, question["problem"]), from_json(FloatArray, question["x"]))
    return fields_to_json(found)


def elsewhere(compute: Compute) -> Solve:
    """A solver that has `answer` computed by another machine."""

    def solve(problem: Problem, x: FloatArray) -> tuple[Problem, Prediction]:
        found = compute({"problem": to_json(problem), "x": to_json(x)})
        prediction: Prediction = from_json(Prediction, found)
        return problem.with_parameters(prediction.parameters), prediction

    return solve
