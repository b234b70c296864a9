"""benchmarks/compilers.py: figures by number of threads, what a second run goes on with, and the figure."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest


@pytest.fixture
def compilers(load: Any, common: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, on a kind of machine of its own."""
    module: ModuleType = load("compilers")
    for name, value in (("machine_kind", lambda: "some-kind"), ("result_path", common.result_path)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(common, "machine_kind", lambda: "some-kind")
    return module


def row(network: str, **ms: float) -> dict[str, Any]:
    names = {"own": "chanas", "eager": "PyTorch eager", "untuned": "TVM untuned", "openvino": "OpenVINO"}
    return {
        "network": network,
        "contenders": {names[short]: {"median_s": value * 1e-3} for short, value in ms.items()},
        "notes": {"LiteRT": "not installed"},
    }


def measured(compilers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Invented results of two networks; those that were asked for."""
    asked: list[tuple[str, int]] = []

    def measure(name: str, _run: object, options: Any) -> dict[str, Any]:
        asked.append((name, options.threads))
        assert options.untuned
        assert options.metaschedule
        if name == "vgg16" and options.threads == 2:
            return row(name, own=2, eager=8, untuned=200)
        return row(name, own=1, eager=4 if name == "vgg16" else 9, untuned=100, openvino=2)

    monkeypatch.setattr(compilers, "measure", measure)
    return asked


ARGUMENTS = ["--networks", "vgg16", "squeezenet1_1", "--trials", "4"]


def test_figures_are_means_over_all_networks_by_threads(
    compilers: ModuleType, common: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = measured(compilers, monkeypatch)
    compilers.main(ARGUMENTS)
    assert asked == [(name, num) for num in (1, 2) for name in ("vgg16", "squeezenet1_1")]
    content = common.read_result("compilers", "some-kind")
    figures = {name: figure["value"] for name, figure in content["figures"].items()}
    assert figures["eager_1t"] == pytest.approx(6)
    assert figures["untuned_2t"] == pytest.approx(100)
    assert figures["openvino_1t"] == pytest.approx(2)
    assert figures["openvino_2t"] is None
    assert figures["metaschedule_1t"] is None
    assert [r["threads"] for r in content["rows"]] == [1, 1, 2, 2]
    drawing = ElementTree.parse(common.result_path("compilers", "some-kind", ".svg")).getroot()
    assert drawing.tag.endswith("svg")


def test_a_second_run_of_the_same_settings_measures_what_is_missing(
    compilers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = measured(compilers, monkeypatch)
    compilers.main([*ARGUMENTS, "--threads", "1"])
    compilers.main(ARGUMENTS)
    assert [num for _, num in asked] == [1, 1, 2, 2]
    compilers.main([*ARGUMENTS[:-1], "5", "--threads", "1"])
    assert len(asked) == 6


def test_a_network_that_fails_is_told_and_leaves_no_figure(
    compilers: ModuleType, common: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from chanas.errors import ModelError

    def fail(*_: object) -> None:
        raise ModelError("it cannot be opened")

    monkeypatch.setattr(compilers, "measure", fail)
    compilers.main([*ARGUMENTS, "--threads", "1"])
    assert "vgg16, 1 thread(s): it cannot be opened" in capsys.readouterr().out
    assert common.read_result("compilers", "some-kind")["figures"]["eager_1t"]["value"] is None
    assert compilers.kept_rows({"trials": 4}) == {}
