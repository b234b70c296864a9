"""chanas/prescheduler/tuning/cost_model/models.py: every cost model keeps the contract, and is found by its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError
from chanas.prescheduler.tuning.cost_model.history import CostModel
from chanas.prescheduler.tuning.cost_model.models import cost_model, load_pretrained
from chanas.prescheduler.tuning.offline.models import Kind, OfflineModel, save_model
from chanas.prescheduler.tuning.offline.networks import arrays_of, make_network
from chanas.prescheduler.tuning.offline.primitives import NUM_VALUES, SLOTS
from chanas.testing import CostModelContract

from ....compiler.workbench import device

NAMES = ("gp", "xgb", "lgbm", "mlp", "forest", "attention", "trained mlp")
HERE = device()


def trained(model: str, folder: Path) -> str:
    """The file of an offline model that nothing was taught."""
    file = folder / "model.safetensors"
    scale = np.full((len(SLOTS), NUM_VALUES), 2.0, dtype=np.float32)
    kind = Kind(model=model)
    save_model(OfflineModel(kind, scale, scale, arrays_of(make_network(kind.model, seed=0))), file)
    return str(file)


@pytest.mark.parametrize("name", NAMES)
class TestCostModels(CostModelContract):
    @pytest.fixture(autouse=True)
    def named(self, name: str, tmp_path: Path) -> None:
        offline = {"attention": "attention", "trained mlp": "mlp"}.get(name)
        self.pretrained = None if offline is None else load_pretrained(trained(offline, tmp_path))
        self.name = name if offline is None else "gp"
        self.knows_priors = self.name == "gp"

    def model(self, target: HardwareTarget, seed: int) -> CostModel:
        return cost_model(self.name, target, seed, pretrained=self.pretrained)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"^unknown cost model 'tree'; known: forest, gp, lgbm, mlp, xgb$"):
        cost_model("tree", HERE, seed=0)
