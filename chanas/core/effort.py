"""The effort of tuning: one class for what every tuning has in common, one for each kind of thing that is tuned, and
the constants of the exploration.

Names of fields are those of options, of keys of job files, and of files for `--config`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from chanas.core.target import LAYOUTS
from chanas.errors import ConfigError, unknown_name

MIN_NETWORKS = 6
"""Whole networks that a calibration needs."""
MIN_MEASURED = 5
"""Measured blocks from which others can be predicted."""
# Trials of each operator where the time is the only limit.
_UNLIMITED = 4096
BY_GAIN, NEVER = "gain", "no"
NOTHING = "no"
"""The warm start of a tuning that begins with nothing, not even with the schedules that come with chanas."""
PRESETS: dict[str, dict[str, Any]] = {
    "none": {"trials": 0},
    "quick": {"trials": 8},
    "full": {"trials": 128, "early_stopping": NEVER},
}
"""Settings by the words of `--effort`: no trials at all, the schedules that are known or likely; few, of which those
that come with chanas are first; and many."""


def _require(holds: bool, name: str, expected: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"expected {name} {expected}, got {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """Constants of the exploration of one operator.

    num_initial      size of the initial set H (paper, section 3.5)
    batch_size       the top k: points measured between two questions to the tuner
    num_children     children bred and scored for each batch
    num_drawn        untried points drawn at random and scored beside the children: of most operators' spaces all that
                     are left
    gamma            γ of the probability exp(−γ (E* − E_p) / E*) that a point becomes a parent
    crossover_share  share of the children that have two parents; the others are mutated
    exploration      standard deviations subtracted from the predicted log seconds when children are ranked
    random_share     share of a batch that is drawn at random, so that no part of the space is out of reach
    spread_share     share of the initial set that is spread over the ranking that a prior predicts, to judge it
    min_tau          a prior whose forecast of the first points correlates less than this with their seconds (Kendall)
                     is dropped
    timeout_s        seconds after which building a candidate counts as failed; its timing has 20 s more
    """

    num_initial: int = 4
    batch_size: int = 4
    num_children: int = 48
    num_drawn: int = 512
    gamma: float = 8.0
    crossover_share: float = 0.3
    exploration: float = 0.5
    random_share: float = 0.1
    spread_share: float = 0.5
    min_tau: float = 0.0
    timeout_s: float = 20.0

    def __post_init__(self) -> None:
        """
        Raises:
            ConfigError: a number is out of its range.
        """
        for name in ("num_initial", "batch_size"):
            _require(getattr(self, name) >= 1, f"search.{name}", "at least 1", getattr(self, name))
        for name in ("num_children", "num_drawn", "gamma", "exploration"):
            _require(0 <= getattr(self, name) < math.inf, f"search.{name}", "0 or more", getattr(self, name))
        for name in ("crossover_share", "random_share", "spread_share"):
            _require(0.0 <= getattr(self, name) <= 1.0, f"search.{name}", "between 0 and 1", getattr(self, name))
        _require(-1.0 <= self.min_tau <= 1.0, "search.min_tau", "between -1 and 1", self.min_tau)
        _require(0.0 < self.timeout_s < math.inf, "search.timeout_s", "seconds above 0", self.timeout_s)


DEFAULT_SEARCH = Search()


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The effort of tuning operators.

    trials          schedule points per operator on average, kept ones included; null: 16
    tune_share      the fewest operators that make up this share of all operations are tuned; the others take over
                    schedules
    early_stopping  no more trials of an operator: gain: where no improvement above the noise is expected; N: after so
                    many without a better point; no: as long as there are trials
    tuner           gp, ga, optuna:TPESampler, ... (`prescheduler/tuning/tuners`)
    pretrained      a file of `chanas records train`, whose model orders points before anything is measured; for gp
    warm_start      another run, a file of records or schedules, or another target of the run, which the tuning begins
                    with; null: the schedules that come with chanas; no: nothing
    seed            seed of every random choice
    knobs           a YAML file with other candidates and knobs of schedule spaces
    search          constants of the exploration

    Raises:
        ConfigError: a number is out of its range.
    """

    trials: int | None = None
    tune_share: float = 1.0
    early_stopping: int | str = BY_GAIN
    tuner: str = "gp"
    pretrained: str | None = None
    warm_start: str | None = None
    seed: int = 0
    knobs: str | None = None
    search: Search = DEFAULT_SEARCH

    default_trials: ClassVar[int] = 16
    least_trials: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < self.least_trials:
            least = f"at least {self.least_trials} trial" if self.least_trials else "0 or more trials"
            raise ConfigError(f"expected {least} per operator, got {self.trials}")
        if not 0.0 < self.tune_share <= 1.0:
            raise ConfigError(f"expected --tune-share above 0 and at most 1, got {self.tune_share:g}")
        if self.early_stopping not in (BY_GAIN, NEVER):
            text = str(self.early_stopping)
            if not re.fullmatch(r"[1-9]\d{0,8}", text):
                raise ConfigError(f"expected --early-stopping gain, no, or a number of trials above 0, got {text}")
            object.__setattr__(self, "early_stopping", int(text))

    @property
    def num_trials(self) -> int:
        """Schedule points per operator on average."""
        return self.default_trials if self.trials is None else self.trials

    @property
    def first_trials(self) -> int:
        """Trials of each operator before the others go to those that promise most."""
        return self.num_trials // 2

    @property
    def stops_by_gain(self) -> bool:
        """True if an operator of which no improvement above the noise is expected is not tried further."""
        return self.early_stopping == BY_GAIN

    @property
    def patience(self) -> int | None:
        """Trials of an operator without a better point after which there are no more; None: however many."""
        return self.early_stopping if isinstance(self.early_stopping, int) else None

    @classmethod
    def of(cls, settings: Mapping[str, Any], source: str) -> Self:
        """The effort with these settings by name, those of the exploration under `search`; errors name the `source`.

        Raises:
            ConfigError: a name is unknown, or a value of another type or out of its range.
        """
        found = _checked(cls, settings, source)
        if "search" in found and not isinstance(found["search"], Search):
            changes = _checked(Search, found["search"], f"{source}: search")
            found["search"] = dataclasses.replace(cls().search, **changes)
        return cls(**found)

    def settings(self) -> dict[str, Any]:
        """All settings by name, as `of` takes them."""
        return dataclasses.asdict(self)


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

    trials   of an operator (null: 6) where the first table's schedules are for other vectors, registers or another
             dtype, and twice as many where a block is slower than all others say; 0: nothing is tuned
    measure  blocks that are measured, those that a table of the run has already among them
    """

    measure: int = 60
    search: Search = Search(num_initial=3)

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

    trials   schedule points per operator on average, kept ones included; null: 32; 0: nothing is tuned, schedules are
             those of the records, of the warm start, or likely ones
    minutes  the time that opening, tuning, building and comparing take together; without `trials` it is the only limit
    layouts  channels of a block that operators' maps may be in, such as 8,16,32: each operator is tuned in each of
             them; null: the device's own, as many as its vectors have lanes, which are always among them
    calibration  with dtype int8: a folder of pictures, from which the ranges of a network's values are known; null: a
             network that is quantised already has them in its file
    max_error  with dtype int8: the largest squared error of the outputs as a part of their squares, on these pictures;
             operators stay out of int8 for it where that costs least time
    """

    minutes: float | None = None
    layouts: int | str | None = None
    calibration: str | None = None
    max_error: float = 0.01

    default_trials: ClassVar[int] = 32
    least_trials: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ConfigError(f"expected a number of minutes above 0, got {self.minutes:g}")
        if not self.max_error > 0:
            raise ConfigError(f"expected --max-error above 0, got {self.max_error:g}")
        for name in () if self.layouts is None else str(self.layouts).split(","):
            if name.strip() not in map(str, LAYOUTS):
                raise ConfigError(unknown_name("layout", name.strip(), map(str, LAYOUTS)))

    @property
    def all_layouts(self) -> tuple[int, ...]:
        """Channels of a block of each named layout, in order."""
        return () if self.layouts is None else tuple(sorted({int(name) for name in str(self.layouts).split(",")}))

    @property
    def num_trials(self) -> int:
        return _UNLIMITED if self.trials is None and self.minutes is not None else super().num_trials

    @property
    def first_trials(self) -> int:
        return min(8, self.num_trials)


def check_num_networks(num_networks: int) -> None:
    """Raise ConfigError where a table can't be calibrated with so few networks."""
    if num_networks < MIN_NETWORKS:
        raise ConfigError(f"expected at least {MIN_NETWORKS} networks to calibrate with, got {num_networks}")


_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "None": (type(None),),
    "tuple[str, ...]": (list, tuple),
    "Search": (dict, Search),
}


def _checked(kind: type[Any], settings: object, source: str) -> dict[str, Any]:
    """Settings whose names are fields of a dataclass and whose values are of the fields' types."""
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{source}: expected a mapping of settings, got {type(settings).__name__}")
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    found = {}
    for name, value in settings.items():
        if name not in fields:
            raise ConfigError(f"{source}: {unknown_name('setting', str(name), fields)}")
        types = tuple(t for part in fields[name].split(" | ") for t in _TYPES[part])
        if not isinstance(value, types) or isinstance(value, bool):
            raise ConfigError(f"{source}: expected {name} of type {fields[name]}, got {value!r}"[:300])
        found[name] = tuple(value) if isinstance(value, list) else value
    return found
