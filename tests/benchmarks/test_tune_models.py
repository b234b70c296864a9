"""benchmarks/tune_models.py: which figures rows give, where results lie, what a second run goes on with."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from chanas.errors import ModelError


@pytest.fixture
def tune_models(load: Any, common: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, on a kind of machine of its own."""
    module: ModuleType = load("tune_models")
    for name, value in (("machine_kind", lambda: "some-kind"), ("result_path", common.result_path)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(common, "machine_kind", lambda: "some-kind")
    return module


def row(tune_models: ModuleType, network: str, **ms: float) -> Any:
    names = {"own": "chanas", "last": "PyTorch eager, channels last", **tune_models.ALL_PEERS}
    contenders = {names[short]: {"median_s": value * 1e-3} for short, value in ms.items()}
    return tune_models.Row(network, {"network": network, "contenders": contenders})


def options(tune_models: ModuleType, *arguments: str) -> Any:
    return tune_models.parse_options(arguments)[0]


def test_the_better_runtime_is_the_one_that_is_beaten(tune_models: ModuleType) -> None:
    rows = {
        "resnet18": row(tune_models, "resnet18", own=2, eager=8, last=6, onnxruntime=4, openvino=5),
        "vgg16": row(tune_models, "vgg16", own=1, eager=12, last=20, onnxruntime=9, openvino=8),
        "mobilenet_v2": row(tune_models, "mobilenet_v2", own=1, eager=5, onnxruntime=2, openvino=3, metaschedule=6),
    }
    figures = tune_models.figures_of(rows, list(rows))
    assert figures["rest_vs_best_runtime"].value == pytest.approx((2 * 8) ** 0.5)
    assert figures["rest_vs_eager"].value == pytest.approx((3 * 12) ** 0.5)
    assert figures["mobile_vs_best_runtime"].value == pytest.approx(2)
    assert figures["mobile_vs_openvino"].value == pytest.approx(3)
    assert figures["mobile_vs_metaschedule"].value == pytest.approx(6)
    assert figures["rest_vs_metaschedule"].value is None
    assert figures["least_vs_best_runtime"].value == pytest.approx(2)
    assert figures["least_vs_best_runtime"].met is None


def test_litert_is_a_runtime_where_it_ran(tune_models: ModuleType) -> None:
    with_it = row(tune_models, "resnet18", own=2, onnxruntime=4, openvino=5, litert=3)
    without = row(tune_models, "vgg16", own=2, onnxruntime=4, openvino=5)
    assert [r.ratio_to_best() for r in (with_it, without)] == [pytest.approx(1.5), pytest.approx(2)]


def test_the_largest_share_without_a_schedule_is_told_once_all_are_known(tune_models: ModuleType) -> None:
    shares = {"resnet18": 0.02, "vgg16": 0.07}
    rows = {name: tune_models.Row(name, {"network": name, "without_schedule": s}) for name, s in shares.items()}
    figure = tune_models.figures_of(rows, list(rows))["most_without_schedule"]
    assert (figure.value, figure.met) == (0.07, False)
    assert tune_models.figures_of(rows, [*rows, "resnet50"])["most_without_schedule"].value is None


def test_a_peer_or_a_network_that_is_missing_leaves_no_figure(tune_models: ModuleType) -> None:
    rows = {
        "resnet18": row(tune_models, "resnet18", own=2, eager=8, onnxruntime=4),
        "mnasnet1_0": row(tune_models, "mnasnet1_0", eager=8, onnxruntime=4, openvino=4),
    }
    figures = tune_models.figures_of(rows, ["resnet18", "mnasnet1_0"])
    assert figures["rest_vs_onnxruntime"].value == pytest.approx(2)
    assert figures["rest_vs_best_runtime"].value is None
    assert figures["mobile_vs_eager"].value is None
    assert figures["least_vs_eager"].value is None
    assert tune_models.figures_of(rows, ["resnet18", "resnet50"])["rest_vs_onnxruntime"].value is None


def test_networks_with_depthwise_convolutions_and_those_from_elsewhere_are_groups(tune_models: ModuleType) -> None:
    groups = tune_models.groups_of(tune_models.NETWORKS)
    assert groups["rest"] == ["resnet18", "resnet50", "squeezenet1_1", "inception_v3", "vgg16"]
    assert len(groups["mobile"]) == 5
    assert groups["other"] == ["bert_tiny", "detector"]
    assert list(tune_models.groups_of(["vgg16"])) == ["rest"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((), "tune_models"),
        (("--threads", "2"), "tune_models-2t"),
        (("--networks", "vgg16", "resnet18", "--threads", "2"), "tune_models-vgg16-resnet18-2t"),
    ],
)
def test_results_are_named_by_networks_and_threads(
    tune_models: ModuleType, arguments: tuple[str, ...], name: str
) -> None:
    assert options(tune_models, *arguments).result_name() == name


def test_ten_minutes_are_the_default_unless_trials_are_given(tune_models: ModuleType) -> None:
    assert options(tune_models).effort == "10min"
    assert options(tune_models, "--trials", "64").effort == "64trials"
    assert options(tune_models, "--trials", "64", "--minutes", "2").effort == "2min-64trials"


def run(tune_models: ModuleType, monkeypatch: pytest.MonkeyPatch, path: Path, *arguments: str) -> list[str]:
    """Run the script with networks that are measured at once, and a broken one; the names of those that it measured."""
    measured: list[str] = []

    def measure(name: str, run: Path, options: Any) -> dict[str, Any]:
        measured.append(name)
        if name == "broken":
            raise ModelError("no such network")
        if name == "killed":
            raise KeyboardInterrupt
        return dict(row(tune_models, name, own=1, eager=2, onnxruntime=3, openvino=4).content)

    monkeypatch.setattr(tune_models, "measure", measure)
    tune_models.main(["--run", str(path), *arguments])
    return measured


def test_a_run_that_is_killed_keeps_what_it_has_and_goes_on(
    tune_models: ModuleType, common: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("--networks", "resnet18", "killed", "vgg16")
    with pytest.raises(KeyboardInterrupt):
        run(tune_models, monkeypatch, tmp_path, *names)
    (path,) = common.RESULTS.iterdir()
    assert path.name == "tune_models-resnet18-killed-vgg16-some-kind.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    assert [r["network"] for r in content["networks"]] == ["resnet18"]
    assert content["figures"]["rest_vs_eager"]["value"] is None
    kept = tune_models.kept_rows(options(tune_models, *names))
    assert list(kept) == ["resnet18"]
    assert tune_models.kept_rows(options(tune_models, *names, "--minutes", "5")) == {}
    assert tune_models.kept_rows(options(tune_models, *names, "--threads", "2")) == {}
    assert tune_models.kept_rows(options(tune_models, *names, "--metaschedule")) == {}


def test_the_second_run_measures_what_failed_and_nothing_else(
    tune_models: ModuleType, common: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("--networks", "resnet18", "broken")
    assert run(tune_models, monkeypatch, tmp_path, *names) == ["resnet18", "broken"]
    assert run(tune_models, monkeypatch, tmp_path, *names) == ["broken"]
    assert run(tune_models, monkeypatch, tmp_path, *names, "--again") == ["resnet18", "broken"]
    content = common.read_result("tune_models-resnet18-broken", "some-kind")
    assert content["networks"][1] == {"network": "broken", "error": "no such network"}


def test_a_quick_run_writes_nothing_and_prints_its_figures_last(
    tune_models: ModuleType,
    common: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(tune_models, monkeypatch, tmp_path, "--quick") == ["squeezenet1_1"]
    assert not common.RESULTS.exists()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rest_vs_best_runtime"]["value"] == pytest.approx(3)


def test_a_folder_without_tuned_networks_is_refused(tune_models: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        tune_models.parse_options(["--from", str(tmp_path)])


@pytest.mark.slow
def test_tuned_folders_are_timed_as_they_are(
    tune_models: ModuleType, tuned_onnx_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = options(tune_models, "--quick", "--from", str(tuned_onnx_folder.parent))
    assert chosen.networks == ("net", "other")
    first, second = (tune_models.measure(name, Path(), chosen) for name in chosen.networks)
    assert {"chanas", "PyTorch eager"} <= set(first["contenders"])
    assert "chanas" in second["contenders"]
    assert second["notes"]["PyTorch eager"] == "the network comes from an ONNX file"
    for content in (first, second):
        assert content["relative_error"] < 1e-3
        assert content["measured"]["latency_s"] > 0
