"""The cost models by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, unknown_name
from chanas.measuring.fleet import Compute
from chanas.prescheduler.tuning.cost_model.base import CostModel

if TYPE_CHECKING:
    from chanas.prescheduler.tuning.offline.models import OfflineModel

COST_MODELS = ("gp", "random")


def check_name(name: str) -> None:
    """
    Raises:
        ConfigError: there is no cost model of this name, one that has to be trained comes without its file, or the file
            is of another one.
        CheckpointError: the file cannot be read.
    """
    if name not in COST_MODELS:
        _trained(name)


def cost_model(name: str, target: HardwareTarget, seed: int, compute: Compute | None = None) -> CostModel:
    """A new cost model: `gp`, `random`, or one of `chanas records train` with its file, `attention:model.safetensors`.

    What takes long is handed to `compute`, if there is one.

    Raises:
        ConfigError: as `check_name`.
        CheckpointError: the file cannot be read.
    """
    from chanas.prescheduler.tuning.cost_model.gaussian_process import GaussianProcessModel
    from chanas.prescheduler.tuning.cost_model.random_model import RandomModel
    from chanas.prescheduler.tuning.cost_model.solving import elsewhere

    if name == "random":
        return RandomModel(seed)
    solve = None if compute is None else elsewhere(compute)
    if name == "gp":
        return GaussianProcessModel(target, solve)
    trained = _trained(name)
    from chanas.prescheduler.tuning.cost_model.pretrained import PretrainedModel

    return PretrainedModel(target, trained, solve)


def _trained(name: str) -> OfflineModel:
    from chanas.prescheduler.tuning.offline.models import MODELS, load_model

    kind, _, file = name.partition(":")
    if kind in COST_MODELS and file:
        raise ConfigError(f"cost model '{kind}' learns while it tunes; it takes no file of a trained one")
    if kind not in MODELS:
        raise ConfigError(unknown_name("cost model", kind, (*COST_MODELS, *MODELS)))
    if not file:
        raise ConfigError(f"cost model '{kind}' has to be trained: name its file with --pretrained")
    model = load_model(Path(file))
    if model.kind.model != kind:
        raise ConfigError(f"expected a cost model '{kind}' in {file}, got '{model.kind.model}'")
    return model
