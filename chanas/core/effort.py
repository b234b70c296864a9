"""The effort of tuning: one class for what every tuning has in common, and one for each kind of thing that is tuned.

Names of fields are those of options and of the keys of job files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from chanas.errors import ConfigError

MIN_NETWORKS = 6
"""Whole networks that a calibration needs."""
MIN_MEASURED = 5
"""Measured blocks from which others can be predicted."""
# Trials of each operator where the time is the only limit.
_UNLIMITED = 4096


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The effort of tuning operators.

    trials      schedule points per operator on average, kept ones included; None: the default
    tune_share  the fewest operators that make up this share of all operations are tuned; the others take over schedules
    early_stop  make no more trials of an operator where no improvement above the noise is expected
    tuner       gp, ga, optuna:TPESampler, ... (`prescheduler/tuning/tuners`)
    pretrained  a file of `chanas records train`, whose model orders points before anything is measured; for gp
    warm_start  another run, a file of records, or another target of the run, whose records the tuning begins with

    Raises:
        ConfigError: a number is out of its range.
    """

    trials: int | None = None
    tune_share: float = 1.0
    early_stop: bool = True
    tuner: str = "gp"
    pretrained: str | None = None
    warm_start: str | None = None
    seed: int = 0

    default_trials: ClassVar[int] = 16
    least_trials: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < self.least_trials:
            least = f"at least {self.least_trials} trial" if self.least_trials else "0 or more trials"
            raise ConfigError(f"expected {least} per operator, got {self.trials}")
        if not 0.0 < self.tune_share <= 1.0:
            raise ConfigError(f"expected --tune-share above 0 and at most 1, got {self.tune_share:g}")

    @property
    def num_trials(self) -> int:
        """Schedule points per operator on average."""
        return self.default_trials if self.trials is None else self.trials

    @property
    def first_trials(self) -> int:
        """Trials of each operator before the others go to those that promise most."""
        return self.num_trials // 2


@dataclass(frozen=True, kw_only=True)
class TableEffort(Effort):
    """The effort of making a latency table.

    sub_spaces  keys such as r224-w1; all where there are none
    calibrate   whole networks that the table is calibrated with; 0 for none
    """

    sub_spaces: tuple[str, ...] = ()
    calibrate: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.calibrate:
            check_num_networks(self.calibrate)


@dataclass(frozen=True, kw_only=True)
class AdaptEffort(TableEffort):
    """The effort of making a table from those of other devices, which are what its tuning begins with.

    trials   of an operator where the first table's schedules are for other vectors, registers or another dtype, and
             twice as many where a block is slower than all others say; 0: nothing is tuned
    measure  blocks that are measured, those that a table of the run has already among them
    """

    measure: int = 60

    default_trials: ClassVar[int] = 6
    least_trials: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.measure < MIN_MEASURED:
            raise ConfigError(f"expected at least {MIN_MEASURED} blocks to measure, got {self.measure}")

    @property
    def first_trials(self) -> int:
        return 3


@dataclass(frozen=True, kw_only=True)
class NetworkEffort(Effort):
    """The effort of tuning a finished network.

    minutes  the time that opening, tuning, building and comparing take together; without `trials` it is the only limit
    """

    minutes: float | None = None

    default_trials: ClassVar[int] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ConfigError(f"expected a number of minutes above 0, got {self.minutes:g}")

    @property
    def num_trials(self) -> int:
        return _UNLIMITED if self.trials is None and self.minutes is not None else super().num_trials

    @property
    def first_trials(self) -> int:
        return 8


def check_num_networks(num_networks: int) -> None:
    """Raise ConfigError where a table can't be calibrated with so few networks."""
    if num_networks < MIN_NETWORKS:
        raise ConfigError(f"expected at least {MIN_NETWORKS} networks to calibrate with, got {num_networks}")
