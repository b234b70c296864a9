"""tools/golden.py: what is kept is compared by name, and what differs is printed."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from tool_modules import load_tool


@pytest.fixture
def golden(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool with its fastest part alone."""
    module = load_tool("golden")
    monkeypatch.setattr(module, "PARTS", (module.files,))
    return module


def test_the_same_code_has_the_same_digests(
    golden: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert golden.main(["write", str(tmp_path / "golden.json")]) == 0
    assert golden.main(["compare", str(tmp_path / "golden.json")]) == 0
    assert capsys.readouterr().out == ""


def test_what_differs_is_said_by_name(golden: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "golden.json"
    golden.main(["write", str(file)])
    kept = json.loads(file.read_text())
    was = kept.pop("schema")
    file.write_text(json.dumps({**kept, "workload gone": "0"}))
    assert golden.main(["compare", str(file)]) == 1
    assert capsys.readouterr().out.splitlines() == ["workload gone: 0 -> not there", f"schema: not there -> {was}"]


def test_every_operator_that_is_listed_has_programs(golden: ModuleType) -> None:
    keys = {workload.key for _, _, workload in golden.cases()}
    assert set(golden.GENERAL) <= keys
