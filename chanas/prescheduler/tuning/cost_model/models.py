"""The cost models by name, and the one that knows nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.extensions import installed, load
from chanas.core.statistics import FloatArray
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, unknown_name
from chanas.measuring.fleet import Compute
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.history import CostModel, History

if TYPE_CHECKING:
    from chanas.prescheduler.tuning.offline.models import OfflineModel

COST_MODELS = ("gp", "random")
ENTRY_POINTS = "chanas.cost_models"
"""The group of entry points in which installed packages name cost models: callables `(History, seed)`."""


class RandomModel:
    """Predicts random numbers, the same for a seed, whatever was measured: the baseline of real models."""

    def __init__(self, history: History, seed: int) -> None:
        self.history = history
        self._rng = np.random.default_rng(seed)

    def observe(self, space: ScheduleSpace[Any], records: Sequence[TuningRecord]) -> None:
        """Learns nothing."""

    def predict(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
        """Standard normal means, standard deviations of one."""
        return self._rng.standard_normal(len(points)), np.ones(len(points))

    def predict_from_prior(self, space: ScheduleSpace[Any], points: Sequence[Point]) -> FloatArray | None:
        """Return None: nothing is predicted."""
        return None


def check_name(name: str) -> None:
    """
    Raises:
        ConfigError: there is no cost model of this name, one that has to be trained comes without its file, or the file
            is of another one.
        CheckpointError: the file cannot be read.
    """
    if name not in COST_MODELS and name not in installed(ENTRY_POINTS):
        _trained(name)


def cost_model(name: str, target: HardwareTarget, seed: int, compute: Compute | None = None) -> CostModel:
    """A new cost model: `gp`, `random`, one that an installed package names, or one of `chanas records train` with its
    file, `attention:model.safetensors`.

    What takes long is handed to `compute`, if there is one.

    Raises:
        ConfigError: as `check_name`.
        CheckpointError: the file cannot be read.
    """
    from chanas.prescheduler.tuning.cost_model.gaussian_process import GaussianProcessModel
    from chanas.prescheduler.tuning.cost_model.solving import elsewhere

    history = History(target)
    if name == "random":
        return RandomModel(history, seed)
    solve = None if compute is None else elsewhere(compute)
    if name == "gp":
        return GaussianProcessModel(history, solve)
    if (found := installed(ENTRY_POINTS).get(name)) is not None:
        model: CostModel = load(found)(history, seed)
        return model
    trained = _trained(name)
    from chanas.prescheduler.tuning.cost_model.pretrained import PretrainedModel

    return PretrainedModel(history, trained, solve)


def _trained(name: str) -> OfflineModel:
    from chanas.prescheduler.tuning.offline.models import MODELS, load_model

    kind, _, file = name.partition(":")
    if kind in COST_MODELS and file:
        raise ConfigError(f"cost model '{kind}' learns while it tunes; it takes no file of a trained one")
    if kind not in MODELS:
        raise ConfigError(unknown_name("cost model", kind, (*COST_MODELS, *installed(ENTRY_POINTS), *MODELS)))
    if not file:
        raise ConfigError(f"cost model '{kind}' has to be trained: name its file with --pretrained")
    model = load_model(Path(file))
    if model.kind.model != kind:
        raise ConfigError(f"expected a cost model '{kind}' in {file}, got '{model.kind.model}'")
    return model
