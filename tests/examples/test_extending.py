"""examples/extending and docs/extending.md: a cost model of another package keeps the contract and is found by name."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError
from chanas.prescheduler.tuning.cost_model.history import CostModel
from chanas.prescheduler.tuning.cost_model.models import check_name, cost_model
from chanas.prescheduler.tuning.tuner import OperatorTuner
from chanas.testing import CostModelContract
from chanas.testing.spaces import LARGE, TARGET, smooth
from chanas.testing.tuners import explore

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "extending"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's package, as an installer leaves it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["chanas.cost_models"]
    lines = ["[chanas.cost_models]", *(f"{name} = {place}" for name, place in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(EXAMPLE), *sys.path])


class TestNearestModel(CostModelContract):
    knows_priors = False

    def model(self, target: HardwareTarget, seed: int) -> CostModel:
        return cost_model("nearest", target, seed)


def test_the_installed_model_has_a_name_and_others_have_none() -> None:
    check_name("nearest")
    with pytest.raises(ConfigError, match=r"^unknown cost model 'farthest'; known: .*nearest"):
        check_name("farthest")


def test_a_tuner_finds_good_points_with_it() -> None:
    tuner = OperatorTuner(LARGE, cost_model("nearest", TARGET, 0), 32, [], 0)
    explore(tuner)
    assert tuner.best_s is not None
    assert tuner.best_s <= np.quantile([smooth(point).seconds for point in LARGE.points], 0.02)
