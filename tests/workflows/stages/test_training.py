"""chanas/workflows/stages/training.py: what options change in a training config."""

from __future__ import annotations

import pytest

from chanas.errors import ConfigError
from chanas.supernet.training.phases import TrainConfig
from chanas.workflows.stages.training import Changes


def test_the_gap_weight_changes_and_nothing_else_of_the_objective() -> None:
    config = TrainConfig.load("digits")
    changed = Changes(gap_weight=0.0, seed=3).made_to(config)
    assert (changed.objective.gap_weight, changed.seed) == (0.0, 3)
    assert changed.changed(objective=config.objective.model_dump(), seed=config.seed) == config
    with pytest.raises(ConfigError, match="gap_weight"):
        Changes(gap_weight=-1.0).made_to(config)
