"""benchmarks/cuda_networks.py: what does not need a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from chanas.core.target import HardwareTarget, gpu_in_dtype, in_batches
from chanas.devices import host
from chanas.devices.target_files import describe_target
from chanas.errors import MeasureError
from chanas.measuring.messages import Outcome


def used(dtype: str, batch: int) -> HardwareTarget:
    return in_batches(gpu_in_dtype(describe_target("h100"), dtype), batch)


def test_contenders_take_turns_and_medians_count(load: Any) -> None:
    asked: list[tuple[str, bool]] = []
    each = {"ours": 1e-3, "theirs": 3e-3}

    def seconds(calls: Sequence[Any], cold: bool) -> float:
        asked.append((calls[0], cold))
        return len(calls) * each[calls[0]] * (2.0 if cold else 1.0)

    rows = load("cuda_networks").in_turns(seconds, {name: name for name in each}, 3, 0.01)
    assert [(row.name, row.warm_s, row.cold_s) for row in rows] == [
        ("ours", pytest.approx(1e-3), pytest.approx(2e-3)),
        ("theirs", pytest.approx(3e-3), pytest.approx(6e-3)),
    ]
    assert asked[-4:] == [("ours", False), ("ours", True), ("theirs", False), ("theirs", True)]
    assert rows[1].line(rows[0]).endswith("3.00x")


def test_the_error_of_a_table_is_that_of_what_could_be_measured(load: Any) -> None:
    mean_error = load("cuda_networks").mean_error
    failed = Outcome(None, None, "crash")
    percent, rows = mean_error([1.1, 5.0, 1.8], [Outcome(1.0, 0.0, None), failed, Outcome(2.0, 0.0, None)])
    assert percent == pytest.approx(10.0)
    assert rows == [{"predicted_s": 1.1, "measured_s": 1.0}, {"predicted_s": 1.8, "measured_s": 2.0}]
    with pytest.raises(MeasureError, match="none of the networks could be measured"):
        mean_error([1.0], [failed])


def test_what_was_not_measured_is_missing_and_its_goal_not_met(load: Any) -> None:
    figures = load("cuda_networks").missing_figures()
    assert figures["eager_f32_batch1"].goal == 1.6
    assert figures["torch_compile_f32_batch1"].goal == 1.2
    assert figures["eager_f16_batch32"].goal == 1.6
    assert "torch_compile_f16_batch32" not in figures
    assert not any(figure.met for figure in figures.values())


def test_what_was_measured_is_kept_when_the_rest_is_cut_off(load: Any, common: ModuleType) -> None:
    networks = load("cuda_networks")
    results = networks.Results(networks.missing_figures(), {"f32_batch32": {"rows": []}}, False, "nvidia-h100")
    results.take("f32_batch32", [networks.Row("chanas", 1e-3, 2e-3), networks.Row("eager", 2e-3, 3e-3)])
    written = json.loads((common.RESULTS / "cuda_networks-nvidia-h100.json").read_text())
    assert written["figures"]["eager_f32_batch32"] == {"value": 2.0, "goal": 1.6, "met": True}
    assert written["figures"]["eager_f16_batch1"]["value"] is None
    assert len(written["f32_batch32"]["rows"]) == 2


def test_what_fails_costs_its_own_figures_alone(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    networks = load("cuda_networks")
    asked: list[str] = []

    def compiled(_folder: Path, target: HardwareTarget, *_: Any) -> Any:
        asked.append(target.name)
        if target.dtype == "float16":
            raise MeasureError("wrong by 3")
        return object(), {"num_launches": 40}

    def compare(_job: Any, target: HardwareTarget, _module: Any, rounds: int, min_s: float, name: str = "eager") -> Any:
        return [networks.Row("chanas", 1e-3, 2e-3), networks.Row(name, 2e-3, 3e-3)]

    monkeypatch.setattr(networks, "load_target", lambda _name, _threads=1, dtype="f32", batch=1: used(dtype, batch))
    monkeypatch.setattr(networks, "compiled", compiled)
    monkeypatch.setattr(networks, "compare", compare)
    load("subjects")
    monkeypatch.setattr(sys.modules["subjects"], "mobilenet_v3_large", lambda _seed: None)
    with pytest.raises(
        SystemExit, match=r"^cuda_networks: error: f16_batch1: wrong by 3; f16_batch32: wrong by 3; table: "
    ):
        networks.main(["--quick", "--dtypes", "f16,f32", "--run", str(tmp_path)])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(asked) == 4
    assert figures["eager_f32_batch32"]["value"] == figures["torch_compile_f32_batch1"]["value"] == 2.0
    assert figures["eager_f16_batch1"]["value"] is figures["lut_mape_percent"]["value"] is None


def test_without_a_gpu_it_ends_in_one_line(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "find_gpu", lambda: None)
    with pytest.raises(SystemExit, match=r"^cuda_networks: error: no NVIDIA GPU was found on this machine; "):
        load("cuda_networks").main(["--quick"])
