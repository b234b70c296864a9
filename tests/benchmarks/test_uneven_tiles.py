"""benchmarks/uneven_tiles.py: a space whose tiles all divide their loops, and what has no figure."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from chanas.compiler.knobs import changed_spaces
from chanas.devices.host import load_target


@pytest.fixture
def uneven_tiles(load: Any) -> ModuleType:
    module: ModuleType = load("uneven_tiles")
    return module


def test_tiles_of_the_other_space_divide_their_loops(uneven_tiles: ModuleType, tmp_path: Path) -> None:
    target, file = load_target("cpu"), tmp_path / "knobs.yaml"
    for workload in uneven_tiles.OPERATORS:
        file.write_text(yaml.safe_dump(uneven_tiles.tiles_that_divide(workload, target)))
        [space] = changed_spaces([workload], target, file)
        tiled = [c for c in space.coordinates if c.cuts_last]
        assert tiled
        assert all(outer * inner == c.extent for c in tiled for outer, inner in c.options)


def test_an_operator_of_which_nothing_works_has_no_figure(uneven_tiles: ModuleType) -> None:
    assert uneven_tiles.ratio({"seconds": {"own": 1.0, "even": 2.0}}) == 2.0
    assert uneven_tiles.ratio({"seconds": {"own": 1.0, "even": None}}) is None
