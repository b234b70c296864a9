"""The scripts of `benchmarks/`, imported as modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
OWN = tuple(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of the benchmarks' folder, and forgets it afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in OWN:
        sys.modules.pop(name, None)


@pytest.fixture
def common(load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """`common`, with its results in a temporary folder."""
    module: ModuleType = load("common")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return module
