"""chanas/bundle/places.py: bundles are found by their run, named after their budgets, and never lost."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.bundle import places
from chanas.bundle.codesign import write_bundle
from chanas.bundle.document import read_document
from chanas.bundle.places import bundle_at, check_name, default_name, place_of_earlier, point_to
from chanas.errors import CheckpointError, ConfigError
from chanas.files.run import RunDirectory

from ..compiler.workbench import HOST


def document_of(key: str = "a", latency_s: float = 2e-3, schedule: int = 1) -> dict[str, Any]:
    return {
        "space": {},
        "architecture": {"key": key},
        "class_names": [],
        "preprocess": None,
        "constraints": {},
        "targets": [
            {
                "target": HOST.to_json(),
                "constraints": {"latency_s": latency_s},
                "measured": {"latency_s": 3.02e-5},
                "schedules": [["block", [["operator", [schedule]]]]],
            }
        ],
    }


def put(run: RunDirectory, path: Path, **facts: Any) -> str:
    """Leave a bundle as a search does; returns what was told."""
    module = run.root.parent / "module.so"
    module.write_bytes(b"code")
    weights = {"a": np.ones(2, np.float32)}
    draft = run.root.parent / "draft"
    write_bundle(draft, document_of(**facts), weights, [module])
    kept, told = place_of_earlier(path, read_document(draft / "codesign.json", dict))
    write_bundle(path, document_of(**facts), weights, [module], kept)
    return told + point_to(run, path)


def key_of(folder: Path) -> str:
    key: str = json.loads((folder / "codesign.json").read_text())["architecture"]["key"]
    return key


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


@pytest.mark.parametrize(
    ("budgets_s", "constraints", "name"),
    [
        ({"cpu": 2e-3}, {}, "2ms"),
        ({"cpu-2t": 1.5e-4}, {}, "cpu-2t-150us"),
        ({"cpu": 5e-3, "cpu-2t": 4e-3}, {}, "cpu-5ms+cpu-2t-4ms"),
        ({"cpu": 2e-3}, {"macs": 3e8, "peak_memory_bytes": 8e6}, "2ms-macs-300M-peak-memory-8MB"),
        ({"cpu": 2.17e-3}, {"top1": 0.95}, "accuracy-0.95"),
        ({"cpu@pi4": 2.17e-3}, {"top1": 0.95, "params": 5e6}, "cpu@pi4-accuracy-0.95-params-5M"),
    ],
)
def test_a_bundle_is_called_after_what_was_asked_for(
    budgets_s: dict[str, float], constraints: dict[str, float], name: str
) -> None:
    assert default_name(budgets_s, constraints) == name
    check_name(name)


def test_one_of_several_bundles_has_its_target_in_its_name() -> None:
    assert default_name({"cpu": 5e-3}, {}, with_target=True) == "cpu-5ms"


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "a\nb"])
def test_a_name_that_is_no_folders_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected a name"):
        check_name(name)


def test_a_run_stands_for_its_newest_bundle(run: RunDirectory) -> None:
    first, second = run.bundles / "2ms", run.bundles / "1ms"
    put(run, first)
    put(run, second, key="b", latency_s=1e-3)
    assert bundle_at(run.root) == run.bundle
    assert bundle_at(first) == first
    assert (key_of(run.bundle), key_of(first)) == ("b", "a")
    moved = run.root.rename(run.root.parent / "moved")
    assert key_of(bundle_at(moved)) == "b"  # the link is relative


def test_another_network_of_the_same_name_is_kept(run: RunDirectory) -> None:
    place = run.bundles / "2ms"
    put(run, place)
    told = put(run, place, key="b")
    assert str(run.bundles / "2ms.1") in told
    put(run, place, key="b", schedule=2)  # the same architecture as another program
    assert [key_of(run.bundles / name) for name in ("2ms", "2ms.1", "2ms.2")] == ["b", "a", "b"]
    assert key_of(run.bundle) == "b"


def test_the_same_network_is_replaced_and_its_latency_then_told(run: RunDirectory) -> None:
    place = run.bundles / "2ms"
    put(run, place)
    assert "30.2 us then" in put(run, place)
    assert [p.name for p in run.bundles.iterdir()] == ["2ms"]


def test_the_folder_of_an_earlier_version_becomes_one_of_the_bundles(run: RunDirectory) -> None:
    module = run.root.parent / "module.so"
    module.write_bytes(b"code")
    write_bundle(run.bundle, document_of(latency_s=1.5e-4), None, [module])
    assert bundle_at(run.root) == run.bundle
    told = put(run, run.bundles / "2ms", key="b")
    assert str(run.bundles / "150us") in told
    assert (key_of(run.bundles / "150us"), key_of(run.bundle)) == ("a", "b")


def test_a_damaged_folder_is_kept_too(run: RunDirectory) -> None:
    run.bundle.mkdir(parents=True)
    (run.bundle / "mine.txt").write_text("notes")
    put(run, run.bundles / "2ms")
    assert (run.bundles / "earlier" / "mine.txt").read_text() == "notes"


def test_a_file_system_without_links_gets_copies(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(places.Path, "symlink_to", refuse)
    put(run, run.bundles / "2ms")
    put(run, run.bundles / "1ms", key="b", latency_s=1e-3)
    assert not run.bundle.is_symlink()
    assert key_of(bundle_at(run.root)) == "b"
    assert sorted(p.name for p in run.bundles.iterdir()) == ["1ms", "2ms"]  # the copy of 2ms is no third one
    assert not [p for p in run.root.iterdir() if p.name.startswith(".")]


def test_what_has_no_bundle_is_named(run: RunDirectory, tmp_path: Path) -> None:
    def message(place: Path) -> str:
        with pytest.raises(CheckpointError) as caught:
            bundle_at(place)
        return str(caught.value)

    assert "does not exist" in message(tmp_path / "none")
    file = tmp_path / "file"
    file.touch()
    assert "is a file" in message(file)
    assert "none" in message(tmp_path)
    run.luts.mkdir(parents=True)
    assert "has no bundle yet" in message(run.root)
    put(run, run.bundles / "cpu-5ms")
    run.bundle.unlink()
    assert str(run.bundles / "cpu-5ms") in message(run.root)
    (tmp_path / "tuned.json").touch()
    assert "`chanas tune` made, no bundle" in message(tmp_path)
