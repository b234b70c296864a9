"""The cost models by name."""

from __future__ import annotations

from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, unknown_name
from chanas.prescheduler.measuring.local.pool import Compute
from chanas.prescheduler.tuning.cost_model.base import CostModel

COST_MODELS = ("gp", "random")


def check_name(name: str) -> None:
    """Raise ConfigError where there is no cost model of this name."""
    if name not in COST_MODELS:
        raise ConfigError(unknown_name("cost model", name, COST_MODELS))


def cost_model(name: str, target: HardwareTarget, seed: int, compute: Compute | None = None) -> CostModel:
    """A new cost model by name; what takes long is handed to `compute`, if there is one.

    Raises:
        ConfigError: the name is unknown.
    """
    check_name(name)
    from chanas.prescheduler.tuning.cost_model.gaussian_process import GaussianProcessModel
    from chanas.prescheduler.tuning.cost_model.random_model import RandomModel
    from chanas.prescheduler.tuning.cost_model.solving import elsewhere

    if name == "random":
        return RandomModel(seed)
    return GaussianProcessModel(target, None if compute is None else elsewhere(compute))
