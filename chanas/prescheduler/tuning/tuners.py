"""The tuners by name: with a cost model, without one, of optuna, and of installed packages.

An installed package names tuners by entry points of the group `chanas.tuners`: callables of a space, the records that
there are, and a seed; those of `chanas.cost_models` are what `Evolution` goes by (`cost_model.models`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.compiler.cases import case_seed
from chanas.compiler.knobs import read_knobs
from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.effort import DEFAULT_SEARCH, Effort, Search
from chanas.core.extensions import installed, load
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, unknown_name
from chanas.measuring.fleet import Compute
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.history import CostModel, Prior
from chanas.prescheduler.tuning.cost_model.models import check_cost_model, cost_model, cost_models, load_pretrained
from chanas.prescheduler.tuning.evolution import Evolution
from chanas.prescheduler.tuning.optuna_tuner import OptunaTuner, make_sampler
from chanas.prescheduler.tuning.plain_tuners import ExhaustiveTuner, GeneticTuner, GridTuner, RandomTuner
from chanas.prescheduler.tuning.tuner import Tuner

if TYPE_CHECKING:
    from chanas.prescheduler.tuning.offline.models import OfflineModel

Make = Callable[[ScheduleSpace[Any], Sequence[TuningRecord], int], Tuner]
ENTRY_POINTS = "chanas.tuners"
_OPTUNA = "optuna:"
PLAIN: dict[str, Make] = {
    "ga": GeneticTuner,
    "random": RandomTuner,
    "grid": GridTuner,
    "exhaustive": ExhaustiveTuner,
}
"""Tuners without a cost model."""


def tuner_names() -> tuple[str, ...]:
    """All tuners that there are, those of installed packages last."""
    return (*cost_models(), *PLAIN, f"{_OPTUNA}SAMPLER", *installed(ENTRY_POINTS))


def check_tuner(name: str, pretrained: str | None = None) -> None:
    """
    Raises:
        ConfigError: there is no tuner of this name, its library is not installed, or a trained model is given to
            another tuner than `gp`.
        CheckpointError: the file of the trained model cannot be read.
    """
    Tuners(name, pretrained)


def check_effort(effort: Effort) -> None:
    """
    Raises:
        ConfigError: as `check_tuner`, or as `read_knobs`.
        CheckpointError: as `check_tuner`.
    """
    check_tuner(effort.tuner, effort.pretrained)
    if effort.knobs is not None:
        read_knobs(Path(effort.knobs))


class Tuners:
    """Makes the tuners of many operators; those of a family share a cost model.

    Raises:
        ConfigError, CheckpointError: as `check_tuner`.
    """

    def __init__(
        self, name: str, pretrained: str | None = None, seed: int = 0, search: Search = DEFAULT_SEARCH
    ) -> None:
        self.name, self._seed, self._search = name, seed, search
        self._models: dict[str, CostModel] = {}
        self._pretrained: OfflineModel | None = None
        self._make = PLAIN.get(name)
        if name.startswith(_OPTUNA):
            sampler = name.removeprefix(_OPTUNA)
            make_sampler(sampler, 0)
            self._make = lambda space, kept, seed: OptunaTuner(space, kept, seed, sampler)
        elif name in installed(ENTRY_POINTS):
            self._make = load(installed(ENTRY_POINTS)[name])
        elif self._make is None:
            if name not in cost_models():
                raise ConfigError(unknown_name("tuner", name, tuner_names()))
            check_cost_model(name)
        if pretrained is not None:
            if name != "gp":
                raise ConfigError(f"expected --tuner gp with --pretrained, got {name}")
            self._pretrained = load_pretrained(pretrained)

    def suggested(self, prior: Prior | None) -> list[Point]:
        """The best points of another device's records, which are tried before a tuner is asked that has no cost model
        to ask these records by."""
        if prior is None or self._make is None:
            return []
        return [point for points in prior.points[: self._search.num_initial] for point in points[:1]]

    def make(
        self,
        space: ScheduleSpace[Any],
        kept: Sequence[TuningRecord],
        target: HardwareTarget,
        prior: Prior | None = None,
        compute: Compute | None = None,
    ) -> Tuner:
        """The tuner of an operator.

        Args:
            kept: records of it that there are.
            prior: another device's records of it, for tuners with a cost model.
            compute: does on another processor what takes a cost model long.
        """
        workload = space.workload
        seed = (self._seed << 32) + case_seed(workload.key)
        if self._make is not None:
            return self._make(space, kept, seed)
        if workload.op not in self._models:
            self._models[workload.op] = cost_model(self.name, target, self._seed, compute, self._pretrained)
        return Evolution(space, self._models[workload.op], kept, seed, prior, self._search)
