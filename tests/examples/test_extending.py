"""examples/extending and docs/extending.md: parts of another package keep their contracts and are found by name."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from chanas.compiler import families
from chanas.compiler.backends import schedule_space
from chanas.compiler.cpu.families import FAMILIES as CPU_FAMILIES
from chanas.compiler.space import ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError
from chanas.measuring.runner import Runner
from chanas.measuring.worker import process as worker_process
from chanas.models.folding import simplify
from chanas.models.lowering import lower
from chanas.models.reading.reader import read_graph
from chanas.models.sources.torch_models import opened_program
from chanas.operators.layout import Layout
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.history import CostModel
from chanas.prescheduler.tuning.cost_model.models import cost_model
from chanas.prescheduler.tuning.tuner import Tuner
from chanas.prescheduler.tuning.tuners import Tuners, check_tuner
from chanas.testing import CostModelContract, FamilyContract, LayoutContract, RunnerContract, TunerContract
from chanas.testing.runners import Run
from chanas.testing.spaces import LARGE, TARGET, smooth
from chanas.testing.tuners import explore

from ..compiler.workbench import HOST, device

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "extending"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example's package, as an installer leaves it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    places = [str(tmp_path), str(EXAMPLE)]
    monkeypatch.setattr(sys, "path", [*places, *sys.path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*places, os.environ.get("PYTHONPATH", "")]))  # of workers
    monkeypatch.setattr(worker_process, "subprocess", subprocess)  # workers that look for packages themselves
    vars(CPU_FAMILIES).pop("added", None)
    yield
    vars(CPU_FAMILIES).pop("added", None)


class TestNearestModel(CostModelContract):
    knows_priors = False

    def model(self, target: HardwareTarget, seed: int) -> CostModel:
        return cost_model("nearest", target, seed)


class TestDescentTuner(TunerContract):
    def tuner(self, space: ScheduleSpace[Any], kept: Sequence[TuningRecord], seed: int) -> Tuner:
        return Tuners("descent", seed=seed).make(space, kept, TARGET)


@pytest.mark.parametrize("name", ["nearest", "descent"])
def test_an_installed_tuner_has_a_name_and_finds_good_points(name: str) -> None:
    check_tuner(name)
    points = explore(Tuners(name).make(LARGE, [], TARGET), num_trials=32)
    best_s = min(smooth(point).seconds or 0.0 for point in points)
    assert best_s <= np.quantile([smooth(point).seconds for point in LARGE.points], 0.02)


def test_a_tuner_that_is_not_installed_is_unknown() -> None:
    with pytest.raises(ConfigError, match=r"^unknown tuner 'farthest'; known: .*descent.*nearest"):
        check_tuner("farthest")


# ---- layouts and runners ---------------------------------------------------------------------------------------------
class TestChannelsLast(LayoutContract):
    @property
    def layout(self) -> Layout:
        from rows_layout import ChannelsLast

        return ChannelsLast()


class TestNotingRunner(RunnerContract):
    @contextlib.contextmanager
    def opened(self) -> Iterator[Run]:
        from noting_runner import NotingRunner

        log: list[tuple[str, float]] = []
        runner: Runner = NotingRunner(sorted(os.sched_getaffinity(0))[:1], log)
        try:
            yield runner.call
        finally:
            runner.close()
        assert len(log) >= 2
        assert {seconds > 0.0 for _, seconds in log} == {True}


# ---- families --------------------------------------------------------------------------------------------------------
CONV = Workload("columnconv", 9, 24, 40, 3, 2, "hswish")


class TestColumnConv(FamilyContract):
    cases = (
        (CONV, HOST),
        (replace(CONV, input_size=13, in_channels=8, kernel_size=5, stride=1), device(num_threads=2)),
        (replace(CONV, out_channels=24, epilogue="relu"), device(8)),
    )


def test_a_finished_network_may_have_it_where_it_has_a_convolution_in_channel_blocks() -> None:
    def choices(*layers: nn.Module) -> list[list[str]]:
        network = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *layers).eval()
        opened = opened_program("net", torch.export.export(network, (torch.zeros(1, 3, 9, 9),)), {})
        program = lower(simplify(read_graph(opened.proto, opened.inputs)), HOST)
        return [[w.op for w in operation.choices] for operation in program.tuned]

    blockconv = ["blockconv", "winograd", "winograd2", "columnconv"]
    assert choices(nn.Conv2d(32, 24, 3, padding=1)) == [["conv"], blockconv]
    assert choices(nn.Conv2d(32, 24, 1)) == [["conv"], ["pointwise"]]
    assert choices(nn.Conv2d(32, 24, 3, dilation=2)) == [["conv"], ["blockconv"]]  # it takes no dilation


def said_of(monkeypatch: pytest.MonkeyPatch, name: str, made: object) -> str:
    """What is said of an installed family."""
    monkeypatch.setattr("column_conv.FAMILIES", made)
    planted = EntryPoint(name, "column_conv:FAMILIES", "chanas.families")
    monkeypatch.setattr(families, "installed", lambda group: {name: planted})
    vars(CPU_FAMILIES).pop("added", None)
    with pytest.raises(ConfigError) as error:
        schedule_space(CONV, HOST)
    return str(error.value)


@pytest.mark.parametrize("name", ["blockconv", "column-conv", "Column", "conv22"])
def test_a_family_has_a_name_that_keys_of_records_can_have(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    said = said_of(monkeypatch, name, {})
    assert said == f"expected a new name of small letters and a digit at most for family '{name}'"


def test_a_family_computes_what_any_may_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    family = replace(CPU_FAMILIES["blockconv", "float32"], computes="depthwise")
    said = said_of(monkeypatch, "mine", {("llvm", "float32"): family})
    assert said == "expected family 'mine' to compute blockconv or pointwise, or nothing else's"


def test_a_package_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("mine", "column_conv:NOTHING", "chanas.families")
    monkeypatch.setattr(families, "installed", lambda group: {"mine": broken})
    vars(CPU_FAMILIES).pop("added", None)
    with pytest.raises(ConfigError, match=r"^families 'mine' of a package does not load \(AttributeError: .*NOTHING"):
        schedule_space(CONV, HOST)
