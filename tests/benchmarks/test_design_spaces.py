"""benchmarks/design_spaces.py: spaces of a row grow, none is empty, and figures are ratios to the first of a row."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from chanas.compiler.backends import schedule_space
from chanas.compiler.knobs import read_knobs
from chanas.devices.host import load_target
from chanas.operators.workload import Workload

ODD = Workload("pointwise", 55, 64, 16, epilogue="relu")
"""Of SqueezeNet: few tiles divide its 3,025 pixels."""


@pytest.fixture
def design_spaces(load: Any) -> ModuleType:
    module: ModuleType = load("design_spaces")
    return module


def test_each_space_of_a_row_holds_the_one_before(design_spaces: ModuleType, tmp_path: Path) -> None:
    own = schedule_space(ODD, load_target("cpu"))
    for spaces in design_spaces.ROWS.values():
        sizes = []
        for _, knobs in spaces:
            file = tmp_path / "knobs.yaml"
            file.write_text(yaml.safe_dump(knobs))
            space = read_knobs(file).apply(own) if knobs else own
            assert space.num_points > 0
            sizes.append(space.num_combinations)
        assert sizes == sorted(set(sizes))


def test_figures_are_ratios_to_the_first_space_of_the_row(design_spaces: ModuleType) -> None:
    def row(name: str, budget: str, *latency_s: float) -> dict[str, Any]:
        return {"row": "knobs", "space": name, "budget": budget, "latency_s": list(latency_s)}

    found = design_spaces.figures_of(
        [row("own", "kept", 1.0, 2.0), row("no rules", "kept", 2.0, 4.0), row("no rules", "grown", 0.5, 1.0)]
    )
    assert {name: figure.value for name, figure in found.items()} == {
        "knobs_no_rules_kept_latency_ratio": pytest.approx(2.0),
        "knobs_no_rules_grown_latency_ratio": pytest.approx(0.5),
    }
