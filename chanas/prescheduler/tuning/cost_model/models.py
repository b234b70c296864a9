"""The cost models by name."""

from __future__ import annotations

from collections.abc import Callable

from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, unknown_name
from chanas.prescheduler.tuning.cost_model.base import CostModel


def cost_model(name: str, target: HardwareTarget, seed: int) -> CostModel:
    """A new cost model by name.

    Raises:
        ConfigError: the name is unknown.
    """
    from chanas.prescheduler.tuning.cost_model.gaussian_process import GaussianProcessModel
    from chanas.prescheduler.tuning.cost_model.random_model import RandomModel

    known: dict[str, Callable[[], CostModel]] = {
        "gp": lambda: GaussianProcessModel(target),
        "random": lambda: RandomModel(seed),
    }
    if name not in known:
        raise ConfigError(unknown_name("cost model", name, known))
    return known[name]()
