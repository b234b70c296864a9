"""benchmarks/tune_convergence.py: its figures, and in which order networks are tuned."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from chanas.errors import ModelError


@pytest.fixture
def convergence(load: Any, common: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, on a kind of machine of its own."""
    module: ModuleType = load("tune_convergence")
    monkeypatch.setattr(common, "machine_kind", lambda: "some-kind")
    return module


def row(network: str, short_ms: float, long_ms: float) -> dict[str, Any]:
    return {"network": network, "short": {"median_s": short_ms * 1e-3}, "long": {"median_s": long_ms * 1e-3}}


def test_the_worst_network_is_what_counts(convergence: ModuleType) -> None:
    rows = [row("resnet18", 10.2, 10.0), row("vgg16", 9.9, 10.0)]
    figures = convergence.figures_of(rows, ["resnet18", "vgg16"])
    assert figures["vgg16_short_over_long"].value == pytest.approx(0.99)
    assert figures["worst_short_over_long"].value == pytest.approx(1.02)
    assert figures["worst_short_over_long"].met
    assert not convergence.figures_of([row("vgg16", 11, 10)], ["vgg16"])["worst_short_over_long"].met


def test_there_is_no_worst_network_unless_all_were_measured(convergence: ModuleType) -> None:
    rows = [row("resnet18", 10, 10), {"network": "vgg16", "error": "no such network"}]
    figures = convergence.figures_of(rows, ["resnet18", "vgg16"])
    assert figures["resnet18_short_over_long"].value == pytest.approx(1)
    assert figures["worst_short_over_long"].value is None
    assert not figures["worst_short_over_long"].met


def test_every_network_is_tuned_for_minutes_before_one_is_tuned_on(
    convergence: ModuleType, common: ModuleType, tmp_path: Path
) -> None:
    done: list[tuple[str, str]] = []

    def tune(name: str, run: Path, options: Any) -> None:
        done.append(("short", name))

    def measure(name: str, run: Path, options: Any, num_trials: int) -> dict[str, Any]:
        done.append(("on", name))
        if name == "broken":
            raise ModelError("no such network")
        return row(name, 2, 1)

    arguments = ["--networks", "resnet18", "broken", "--run", str(tmp_path), "--continue-trials", "50"]
    convergence.main(arguments, tune, measure)
    assert done == [("short", "resnet18"), ("short", "broken"), ("on", "resnet18"), ("on", "broken")]
    content = common.read_result("tune_convergence", "some-kind")
    assert (content["minutes"], content["continue_trials"]) == (10, 50)
    assert content["networks"] == [row("resnet18", 2, 1), {"network": "broken", "error": "no such network"}]


def test_networks_are_tuned_where_the_comparison_with_runtimes_does(convergence: ModuleType, load: Any) -> None:
    options, run, num_trials = convergence.parse_options(["--threads", "2"])
    other, other_run, _ = load("tune_models").parse_options(["--threads", "2"])
    assert (run / options.run_name, options.networks) == (other_run / other.run_name, other.networks)
    assert num_trials == 10_000


@pytest.mark.slow
def test_a_quick_run_times_both_networks(convergence: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    convergence.main(["--quick"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["worst_short_over_long"]["value"] > 0
