"""Any of optuna's samplers as a tuner: `optuna:TPESampler`. Each coordinate is a whole number, the place of its option:
options are ordered, and all samplers know numbers, not all know categories."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.compiler.space import Point, ScheduleSpace
from chanas.errors import ConfigError
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.plain_tuners import Tried

# Suggestions in a row that are no new point, before one is drawn at random.
_MAX_ATTEMPTS = 16


class OptunaTuner(Tried):
    """Asks a sampler of optuna, and tells it log seconds; points that are illegal or were tried are failures to it.

    Raises:
        ConfigError: optuna is not installed, or has no such sampler that a seed is enough for.
    """

    def __init__(self, space: ScheduleSpace[Any], kept: Sequence[TuningRecord], seed: int, sampler: str) -> None:
        made = make_sampler(sampler, seed % (1 << 32))
        self._optuna = importlib.import_module("optuna")
        self._study = self._optuna.create_study(sampler=made, direction="minimize")
        whole = self._optuna.distributions.IntDistribution
        self._parameters = {c.name: whole(0, len(c.options) - 1) for c in space.coordinates}
        self._open: dict[Point, Any] = {}
        super().__init__(space, kept, seed)
        self._points = self.drawn()

    def ask(self, num: int) -> list[Point]:
        """Points that the sampler suggests, and points at random where it suggests no new one."""
        found: list[Point] = []
        for _ in range(min(max(0, num), self.space.num_points - len(self.asked))):
            found += self._suggested() or self.new(1, self._points)
        return found

    def _suggested(self) -> list[Point]:
        for _ in range(_MAX_ATTEMPTS):
            trial = self._study.ask(self._parameters)
            groups = {c.name: c.options[trial.params[c.name]] for c in self.space.coordinates}
            if self.space.legal(groups) and (point := self.space.encode(groups)) not in self.asked:
                self.asked.add(point)
                self._open[point] = trial
                return [point]
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        return []

    def tell(self, records: Sequence[TuningRecord]) -> None:
        """Take in measured points, failures and those that others suggested included."""
        super().tell(records)
        states = self._optuna.trial.TrialState
        for record in (r for r in records if self.space.contains(r.point)):  # it knows no others
            value = None if record.seconds is None else float(np.log(record.seconds))
            state = states.FAIL if value is None else states.COMPLETE
            if (trial := self._open.pop(record.point, None)) is not None:
                self._study.tell(trial, value, state=state)
                continue
            groups = self.space.groups(record.point)
            params = {c.name: c.options.index(groups[c.name]) for c in self.space.coordinates}
            known = self._optuna.trial.create_trial(
                params=params, distributions=self._parameters, value=value, state=state
            )
            self._study.add_trial(known)


def make_sampler(name: str, seed: int) -> Any:
    """A sampler of optuna by the name of its class.

    Raises:
        ConfigError: optuna is not installed, or has no such sampler that a seed is enough for.
    """
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise ConfigError("optuna is not installed; install it with `pip install 'chanas[optuna]'`") from error
    samplers: dict[str, Any] = {
        n: c for n in optuna.samplers.__all__ if inspect.isclass(c := getattr(optuna.samplers, n))
    }
    usable = {n: c for n, c in samplers.items() if n != "BaseSampler" and _needs_only_a_seed(c)}
    if name not in usable:
        raise ConfigError(f"expected a sampler of optuna, one of {', '.join(sorted(usable))}, got '{name}'")
    takes_seed = "seed" in inspect.signature(usable[name]).parameters
    make = functools.partial(usable[name], **({"seed": seed} if takes_seed else {}))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:  # what a sampler imports shows when it is asked
        optuna.create_study(sampler=make()).optimize(lambda trial: trial.suggest_int("x", 0, 1), n_trials=2)
    except ImportError as error:
        raise ConfigError(f"optuna's {name} needs {error.name}; install it with `pip install {error.name}`") from error
    return make()


def _needs_only_a_seed(sampler: type) -> bool:
    parameters = inspect.signature(sampler).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
