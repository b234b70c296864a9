"""The cost models by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chanas.core.extensions import installed, load
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, unknown_name
from chanas.measuring.fleet import Compute
from chanas.prescheduler.tuning.cost_model.history import CostModel, History
from chanas.prescheduler.tuning.cost_model.regressors import LEARNERS, RegressorModel, library

if TYPE_CHECKING:
    from chanas.prescheduler.tuning.offline.models import OfflineModel

ENTRY_POINTS = "chanas.cost_models"
"""The group of entry points in which installed packages name cost models: callables `(History, seed)`."""


def cost_models() -> tuple[str, ...]:
    """All cost models that learn while they tune, those of installed packages last."""
    return ("gp", *LEARNERS, *installed(ENTRY_POINTS))


def check_cost_model(name: str) -> None:
    """
    Raises:
        ConfigError: the library of this cost model is not installed.
    """
    if name in LEARNERS:
        library(LEARNERS[name])


def cost_model(
    name: str,
    target: HardwareTarget,
    seed: int,
    compute: Compute | None = None,
    pretrained: OfflineModel | None = None,
) -> CostModel:
    """A new cost model: `gp` (a Gaussian process, of what a trained model leaves over if there is one), one of
    `regressors.LEARNERS`, or one that an installed package names.

    What takes long is handed to `compute`, if there is one.

    Raises:
        ConfigError: there is none of this name, or its library is not installed.
    """
    from chanas.prescheduler.tuning.cost_model.gaussian_process import GaussianProcessModel
    from chanas.prescheduler.tuning.cost_model.solving import elsewhere

    history = History(target)
    if name == "gp":
        solve = None if compute is None else elsewhere(compute)
        if pretrained is None:
            return GaussianProcessModel(history, solve)
        from chanas.prescheduler.tuning.cost_model.pretrained import PretrainedModel

        return PretrainedModel(history, pretrained, solve)
    if name in LEARNERS:
        return RegressorModel(history, LEARNERS[name], seed)
    if (found := installed(ENTRY_POINTS).get(name)) is not None:
        model: CostModel = load(found)(history, seed)
        return model
    raise ConfigError(unknown_name("cost model", name, cost_models()))


def load_pretrained(file: str) -> OfflineModel:
    """A model of `chanas records train`.

    Raises:
        CheckpointError: the file cannot be read.
    """
    from chanas.prescheduler.tuning.offline.models import load_model

    return load_model(Path(file))
