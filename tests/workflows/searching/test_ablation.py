"""chanas/workflows/searching/ablation.py from end to end: blocks of a tiny space with default schedules, networks with
tuned ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chanas.commands.main import app
from chanas.core.arch import Architecture
from chanas.core.latency import LatencyLUT
from chanas.core.task import Limits
from chanas.core.usage import Usage
from chanas.errors import ConfigError, InfeasibleError, StageOrderError
from chanas.files.run import RunDirectory
from chanas.files.writing import read_json, write_json
from chanas.measuring.messages import Outcome
from chanas.prescheduler.tables import defaults
from chanas.prescheduler.tables.networks import NetworkJob
from chanas.search.config import SearchConfig
from chanas.search.evolution.evolution import EvolutionConfig
from chanas.search.target import SearchTarget
from chanas.workflows.searching import ablation
from chanas.workflows.searching.ablation import Comparison, ablate, repeated
from chanas.workflows.searching.sources import AccuracyFile, AccuracySource, Prover, TableSource, open_source

from ...compiler.workbench import CHOICES, HOST, NUM_CLASSES, random_lut
from ...tables import save_accuracies, save_space

FAST = SearchConfig(
    predictor="ridge",
    num_samples=20,
    num_finalists=1,
    pareto_generations=3,
    evolution=EvolutionConfig(population=8, generations=3),
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run directory that has a latency table, a space file, and a table of accuracies."""
    folder = tmp_path_factory.mktemp("ablation")
    save_space(CHOICES, folder / "space.yaml")
    lut = random_lut(CHOICES, CHOICES.all_blocks(NUM_CLASSES), HOST)
    for i, (key, row) in enumerate(lut.rows.items()):  # a hundred times what they take, so that budgets hold
        lut.rows[key] = dataclasses.replace(row, median_s=1e-3 * (1 + i / 100))
    lut.save(RunDirectory(folder / "run").lut(HOST.name))
    save_accuracies(CHOICES, folder / "accuracies.csv", NUM_CLASSES)
    return folder


def run_on(prepared: Path, **changes: Any) -> ablation.AblationResult:
    compared = {key: changes.pop(key) for key in ("schedules", "num_points") if key in changes}
    settings: dict[str, Any] = {
        "comparison": Comparison(**{"num_points": 2, **compared}),
        "source": accuracies(prepared),
    }
    settings |= {"config": FAST, "progress": False, **changes}
    return ablate(RunDirectory(prepared / "run"), **settings)


def accuracies(prepared: Path) -> AccuracySource:
    file = AccuracyFile(prepared / "accuracies.csv", prepared / "space.yaml")
    return open_source(RunDirectory(prepared / "run"), file)


@pytest.fixture(scope="module")
def result(prepared: Path) -> ablation.AblationResult:
    return run_on(prepared, schedules=("pytorch",))


def test_both_searches_are_measured_and_kept(prepared: Path, result: ablation.AblationResult) -> None:
    document = read_json(result.path, "result")
    assert set(document["searched"]) == {"tuned", "pytorch"}
    for name, side in document["searched"].items():
        assert side["winner"] is not None, name
        assert all(p["measured"]["latency_s"] > 0 for p in side["front"])
    lut = LatencyLUT.load(prepared / "run" / "ablation" / "cpu-pytorch.json")
    assert set(lut.rows) == {b.key for b in CHOICES.all_blocks(NUM_CLASSES)}
    assert -1.0 <= document["searched"]["pytorch"]["ranking"]["kendall_tau"] <= 1.0
    assert document["tables"]["pytorch"]["compiler"] == lut.header.compiler
    assert document["space"]["digest"] == CHOICES.digest
    text = "\n".join(result.lines())
    assert "PyTorch eager" in text
    assert str(result.path) in text


def test_default_tables_are_measured_once(
    prepared: Path, result: ablation.AblationResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Instant(Prover):
        def measure(self, target: SearchTarget, jobs: Mapping[Architecture, NetworkJob]) -> dict[Architecture, Outcome]:
            return {a: Outcome(1e-5, 0.0, None) for a in jobs}

    class OfInstants(TableSource):
        def prover(self, targets: Sequence[SearchTarget], scratch: Path, progress: bool = True) -> Prover:
            return Instant(self, targets, scratch, progress)

    def never(*_: Any) -> Any:
        raise AssertionError("measured again")

    kind = defaults.KINDS["pytorch"]
    monkeypatch.setitem(defaults.KINDS, "pytorch", dataclasses.replace(kind, measure=never))
    opened = accuracies(prepared)
    assert opened.table is not None
    source = OfInstants(opened.run, opened.task, opened.table)
    found = run_on(prepared, schedules=("pytorch",), source=source).ablation
    assert [s.name for s in found.others] == ["pytorch"]


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        (
            {"schedules": ("tflite",)},
            ConfigError,
            "unknown kind of default schedules 'tflite'; known: pytorch, untuned",
        ),
        ({"schedules": ()}, ConfigError, "each kind of default schedules once, of untuned, pytorch, got none"),
        ({"schedules": ("untuned", "untuned")}, ConfigError, "got untuned, untuned"),
        ({"num_points": 1}, ConfigError, "at least 2 points"),
        ({"latency_s": 1e-9}, InfeasibleError, "the smallest reachable is"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_measured(
    changes: dict[str, Any], error: type[Exception], says: str, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "default_table", None)
    with pytest.raises(error, match=says):
        run_on(prepared, **changes)


def test_what_is_missing_is_named(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(StageOrderError, match="train-supernet"):
        ablate(RunDirectory(tmp_path))
    with pytest.raises(StageOrderError, match="no latency table of target 'cpu'"):
        open_source(RunDirectory(tmp_path), AccuracyFile(prepared / "accuracies.csv"))


def test_the_command_prints_what_was_found(
    prepared: Path, result: ablation.AblationResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(ablation, "ablate", lambda run, **options: asked.update(options) or result)
    arguments = ["ablate", "--latency", "2ms", "--schedules", "pytorch", "--run", str(prepared / "run")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert (asked["latency_s"], asked["comparison"].schedules) == (2e-3, ["pytorch"])
    assert done.output.splitlines() == "\n".join(result.lines()).splitlines()


STORED = {
    "target": "cpu-2t-bf16",
    "constraints": [
        {"name": "latency", "limit": 2e-3, "unit": "s"},
        {"name": "parameters", "limit": 5e6, "unit": "parameters"},
        {"name": "peak memory", "limit": 8e6, "unit": "B"},
    ],
    "config": {"rule": "paper", "covered_only": True, "num_evaluations": 96},
}
NOTHING = dict.fromkeys(
    ("target", "threads", "dtype", "batch", "macs", "params", "peak_memory", "rule", "covered_only")
)


@pytest.fixture
def searched(tmp_path: Path) -> RunDirectory:
    """A run that holds the result of a search, as far as it is repeated."""
    run = RunDirectory(tmp_path)
    write_json(run.search / "result.json", STORED)
    return run


def test_the_search_that_the_run_holds_is_repeated(searched: RunDirectory) -> None:
    usage, limits, settings = repeated(searched, NOTHING)
    assert usage == Usage("cpu", threads=2, dtype="bf16")
    assert limits == Limits(params=5e6, peak_memory=8e6)
    assert SearchConfig.parse(settings) == SearchConfig(rule="paper", covered_only=True)


def test_a_search_among_dtypes_is_not_repeated(searched: RunDirectory) -> None:
    config: dict[str, Any] = STORED["config"]  # type: ignore[assignment]
    write_json(searched.search / "result.json", {**STORED, "config": {**config, "dtypes": ["f32", "int8"]}})
    with pytest.raises(ConfigError, match=r"chose among dtypes \(f32, int8\), .* search again without --dtypes"):
        repeated(searched, NOTHING)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"threads": 1}, "with threads 2, got 1"),
        ({"dtype": "f32"}, "with dtype bf16, got f32"),
        ({"macs": 3e8}, r"with macs unlimited, got 3e\+08"),
        ({"params": 6e6}, r"with params 5e\+06, got 6e\+06"),
        ({"covered_only": False}, "with covered only True, got False"),
        ({"rule": "all"}, "with rule paper, got all"),
    ],
)
def test_what_differs_from_the_search_is_refused(asked: dict[str, Any], named: str, searched: RunDirectory) -> None:
    with pytest.raises(ConfigError, match=named):
        repeated(searched, NOTHING | asked)


def test_what_is_asked_for_holds_where_it_is_the_same_or_nothing_was_searched(
    searched: RunDirectory, tmp_path: Path
) -> None:
    same = {"threads": 2, "dtype": "bf16", "params": 5e6, "covered_only": True}
    assert repeated(searched, NOTHING | same) == repeated(searched, NOTHING)
    empty = RunDirectory(tmp_path / "empty")
    usage, limits, settings = repeated(empty, NOTHING | {"threads": 2, "macs": 3e8, "covered_only": True})
    assert (usage, limits, settings) == (Usage("cpu", threads=2), Limits(macs=3e8), {"covered_only": True})


def test_a_search_on_a_device_elsewhere_is_not_repeated_here(searched: RunDirectory) -> None:
    write_json(searched.search / "result.json", STORED | {"target": "cpu@pi4"})
    with pytest.raises(ConfigError, match="cpu@pi4, a device elsewhere"):
        repeated(searched, NOTHING)
