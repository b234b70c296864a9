"""chanas/prescheduler/tuning/cost_model/models.py: every cost model keeps the contract, and is found by its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError
from chanas.operators.workload import Workload
from chanas.prescheduler.tuning.cost_model.history import CostModel
from chanas.prescheduler.tuning.cost_model.models import cost_model
from chanas.prescheduler.tuning.offline.models import Kind, OfflineModel, save_model
from chanas.prescheduler.tuning.offline.networks import arrays_of, make_network
from chanas.prescheduler.tuning.offline.primitives import NUM_VALUES, SLOTS
from chanas.testing import CostModelContract

from ....compiler.workbench import device

NAMES = ("gp", "random", "attention", "mlp")
HERE = device()
SPACE = schedule_space(Workload("pointwise", 14, 96, 96, epilogue="relu"), HERE)
OTHER = schedule_space(Workload("pointwise", 8, 48, 192), HERE)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each model's name, of one that has to be trained with its file."""
    if request.param in ("gp", "random"):
        return str(request.param)
    kind, file = Kind(model=request.param), tmp_path / "model.safetensors"
    scale = np.full((len(SLOTS), NUM_VALUES), 2.0, dtype=np.float32)
    save_model(OfflineModel(kind, scale, scale, arrays_of(make_network(kind.model, seed=0))), file)
    return f"{request.param}:{file}"


class TestCostModels(CostModelContract):
    @pytest.fixture(autouse=True)
    def named(self, name: str) -> None:
        self.name, self.knows_priors = name, name != "random"

    def model(self, target: HardwareTarget, seed: int) -> CostModel:
        return cost_model(self.name, target, seed)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"^unknown cost model 'tree'; known: attention, gp, lgbm, mlp, random, xgb$"):
        cost_model("tree", HERE, seed=0)


@pytest.mark.parametrize(
    ("asked", "message"),
    [("mlp", "name its file with --pretrained"), ("gp:model.safetensors", "it takes no file of a trained one")],
)
def test_a_file_is_for_models_that_are_trained(asked: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cost_model(asked, HERE, seed=0)


def test_a_file_of_another_model_is_refused(name: str) -> None:
    kind, _, file = name.partition(":")
    if not file:
        pytest.skip("has no file")
    other = {"mlp": "attention", "attention": "mlp"}[kind]
    with pytest.raises(ConfigError, match=f"expected a cost model '{other}' in .*, got '{kind}'"):
        cost_model(f"{other}:{file}", HERE, seed=0)
