"""The cost models by name."""

from __future__ import annotations

from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, unknown_name
from chanas.prescheduler.tuning.cost_model.base import CostModel

COST_MODELS = ("gp", "random")


def check_name(name: str) -> None:
    """Raise ConfigError where there is no cost model of this name."""
    if name not in COST_MODELS:
        raise ConfigError(unknown_name("cost model", name, COST_MODELS))


def cost_model(name: str, target: HardwareTarget, seed: int) -> CostModel:
    """A new cost model by name.

    Raises:
        ConfigError: the name is unknown.
    """
    check_name(name)
    from chanas.prescheduler.tuning.cost_model.gaussian_process import GaussianProcessModel
    from chanas.prescheduler.tuning.cost_model.random_model import RandomModel

    return GaussianProcessModel(target) if name == "gp" else RandomModel(seed)
