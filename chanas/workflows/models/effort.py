"""The effort that tuning a finished network takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chanas.errors import ConfigError

if TYPE_CHECKING:
    from chanas.core.target import HardwareTarget
    from chanas.files.run import RunDirectory
    from chanas.prescheduler.program import ModelSettings

DEFAULT_TRIALS = 32
_BASE_TRIALS, _MOST_TRIALS = 8, 4096
"""Trials of each operator before the rest goes where it is worth most, and the most where only the time is limited."""


@dataclass(frozen=True)
class Effort:
    """The effort of tuning.

    trials      schedule points per operator on average, kept ones included; None: the default, or as many as fit in
                `minutes`
    minutes     the time that opening, tuning, building and comparing take together
    cost_model  gp, random, or attention:FILE (`cost_model.models`)
    warm_start  another run, a file of records, or another target of the run, whose records the tuning begins with
    early_stop  make no more trials of an operator where nothing better than noise is expected of them
    tune_share  the fewest operators that make up so much of all operations are tuned; the others take over a schedule
    """

    trials: int | None = None
    minutes: float | None = None
    cost_model: str = "gp"
    warm_start: str | None = None
    early_stop: bool = True
    tune_share: float = 1.0

    @property
    def most_trials(self) -> int:
        """Schedule points per operator."""
        if self.trials is not None:
            return self.trials
        return DEFAULT_TRIALS if self.minutes is None else _MOST_TRIALS

    def settings(self, run: RunDirectory, target: HardwareTarget, seed: int) -> ModelSettings:
        """The settings of the operators' tuning, without a deadline.

        Raises:
            ConfigError: a number is none that can be meant, or the cost model is unknown.
            ChanasError: there is nothing to begin with at `warm_start`.
        """
        from chanas.prescheduler.program import ModelSettings
        from chanas.prescheduler.tuning.cost_model.models import check_name
        from chanas.prescheduler.tuning.share import check_share
        from chanas.prescheduler.tuning.tuner import TuneConfig
        from chanas.prescheduler.tuning.warm_start import open_warm_start

        check_name(self.cost_model)
        check_share(self.tune_share)
        if self.trials is not None and self.trials < 1:
            raise ConfigError(f"expected at least 1 trial per operator, got {self.trials}")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ConfigError(f"expected a number of minutes above 0, got {self.minutes:g}")
        num_trials = self.most_trials
        base = min(_BASE_TRIALS, num_trials)
        config = TuneConfig(num_trials=num_trials, shared=True, num_base=base, early_stop=self.early_stop)
        warm_start = None if self.warm_start is None else open_warm_start(self.warm_start, run, target)
        return ModelSettings(config, math.inf, self.cost_model, seed, warm_start, self.tune_share)


DEFAULT_EFFORT = Effort()
