"""benchmarks/accuracy_predictor.py: what is learnt is fair, and the figures are what they are called."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from chanas.core.arch import SearchSpace
from chanas.core.genome import decode, encode, sample

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("accuracy_predictor")
    for name in ("accuracy_predictor", "common", "labels"):
        sys.modules.pop(name, None)


@pytest.fixture
def labels(script: ModuleType) -> ModuleType:
    return sys.modules["labels"]


@pytest.mark.parametrize("kind", ["additive", "saturating", "interacting"])
def test_synthetic_accuracies_lie_where_a_supernets_do(kind: str, labels: ModuleType) -> None:
    space = SearchSpace.load("mbv3")
    top1 = labels.synthetic(space, seed=3)[kind]
    ends = top1(encode(space, [space.smallest, space.largest]))
    many = top1(sample(space, 2000, np.random.default_rng(0)))
    assert ends[0] < many.mean() < ends[1]
    assert many.min() > 0.5
    assert many.max() < 0.85
    assert 0.005 < many.std() < 0.05


def test_only_the_additive_one_is_a_sum_over_choices(labels: ModuleType) -> None:
    space = SearchSpace.load("mbv3-32")
    genomes = sample(space, 600, np.random.default_rng(0))
    from chanas.search.accuracy.encoding import features

    x = np.c_[features(space, genomes), np.ones(len(genomes))]
    for name, top1 in labels.synthetic(space, seed=1).items():
        y = top1(genomes)
        left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
        assert (left.std() < 1e-6 * y.std()) == (name == "additive"), name


def test_labels_have_the_noise_and_the_truth_has_not(labels: ModuleType) -> None:
    space = SearchSpace.load("mbv3")
    drawn = labels.draw("some", labels.synthetic(space, 0)["additive"], space, 1500, 0.004, seed=2)
    assert len(np.unique(drawn.genomes, axis=0)) == 1500
    assert np.std(drawn.labels - drawn.truth) == pytest.approx(0.004, rel=0.1)


def test_nobody_is_judged_on_what_was_taught(script: ModuleType, labels: ModuleType) -> None:
    """Labels that are pure noise cannot be predicted: whoever had seen the answers would be better than that."""
    space = SearchSpace.load("mbv3-32")
    genomes = labels.draw("some", labels.synthetic(space, 0)["additive"], space, 400, 0.0, seed=2).genomes
    noise = 0.5 + 0.1 * np.random.default_rng(0).normal(size=len(genomes)).clip(-3, 3)
    rows = list(script.judged(labels.Accuracies("noise", space, genomes, noise, noise), 200, 200, ("ridge",), seed=0))
    assert [(r.kind, r.num) for r in rows] == [("ridge", 200)]
    assert rows[0].rmse_points > 9.0


def row(script: ModuleType, kind: str, rmse: float, num: int = 50, seed: int = 0, case: str = "a") -> Any:
    return script.Row(case, num, seed, kind, rmse, 0.5, 0.25, 0.1)


def test_the_goal_is_the_worst_mean_ratio(script: ModuleType) -> None:
    rows = [
        *(row(script, "ridge", 1.0, num, seed) for num in (50, 1000) for seed in (0, 1)),
        *(row(script, "pairs", rmse, 50, seed) for seed, rmse in enumerate((1.21, 1.0))),
        *(row(script, "pairs", 0.5, 1000, seed) for seed in (0, 1)),
    ]
    figures = script.figures_of(rows)
    assert figures["largest_mean_ratio_to_ridge"].value == pytest.approx(1.1)
    assert figures["largest_mean_ratio_to_ridge"].met is False
    assert figures["largest_single_ratio_to_ridge"].value == pytest.approx(1.21)
    assert figures["mean_ratio_to_ridge_50"].value == pytest.approx(1.1)
    assert figures["mean_ratio_to_ridge_1000"].value == pytest.approx(0.5)
    assert figures["ridge_rmse_points"].value == pytest.approx(1.0)
    assert figures["pairs_top_decile_recall"].value == pytest.approx(0.25)
    assert script.figures_of([r for r in rows if r.num == 1000])["largest_mean_ratio_to_ridge"].met is True


def test_a_quick_run_prints_every_kind_and_writes_nothing(
    script: ModuleType, common: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "QUICK_SIZES", (50,))
    monkeypatch.setattr(script, "NOISE_POINTS", (0.1,))
    script.main(["--quick", "--space", "mbv3-32"])
    lines = capsys.readouterr().out.splitlines()
    figures = json.loads(lines[-1])
    assert {f"{kind.replace('-', '_')}_rmse_points" for kind in script.KINDS} <= set(figures)
    assert figures["largest_mean_ratio_to_ridge"]["goal"] == 1.0
    assert not common.RESULTS.exists()


def test_an_absent_block_has_columns_of_its_own(script: ModuleType) -> None:
    space = SearchSpace.load("mbv3-32")
    genomes = sample(space, 20, np.random.default_rng(0))
    x = script.with_absent(space, genomes)
    choices = 2 + space.num_stages + 2 * space.num_stages * space.max_depth
    assert (x.sum(axis=1) == choices).all()


def test_the_interval_holds_the_mean_of_most_draws(script: ModuleType) -> None:
    rng = np.random.default_rng(0)
    found = [script.interval(np.exp(0.1 + 0.2 * rng.normal(size=20))) for _ in range(400)]
    inside = np.mean([low < np.exp(0.1) < high for _, low, high in found])
    assert inside == pytest.approx(0.95, abs=0.03)


def test_a_table_is_judged_against_the_ridge_that_knows_absent_blocks(
    script: ModuleType, common: ModuleType, labels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = SearchSpace.load("mbv3-32")
    drawn = labels.draw("some", labels.synthetic(space, 0)["interacting"], space, 120, 0.001, seed=2)
    rows = [f"{a.key},{top1}" for a, top1 in zip(decode(space, drawn.genomes), drawn.labels, strict=True)]
    table = tmp_path / "my_table.csv"
    table.write_text("\n".join(["architecture,top1", *rows]), encoding="utf-8")
    monkeypatch.setattr(script, "TABLE_SIZES", (30, 50, 5000))
    monkeypatch.setattr(script, "TABLE_KINDS", (script.ABSENT, "pairs"))
    script.main(["--data", str(table), "--space", "mbv3-32", "--seeds", "2"])
    (path,) = common.RESULTS.iterdir()
    assert path.name.startswith("accuracy_predictor-my-table-")
    text = path.read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    result = json.loads(text)
    assert {(r["num"], r["seed"], r["kind"]) for r in result["rows"]} == {
        (num, seed, kind) for num in (30, 50) for seed in (0, 1) for kind in ("ridge-absent", "pairs")
    }
    figures = {name: figure["value"] for name, figure in result["figures"].items()}
    assert figures["pairs_ratio_to_ridge_30_low"] < figures["pairs_ratio_to_ridge_30"]
    assert figures["largest_pairs_ratio_to_ridge"] == max(figures[f"pairs_ratio_to_ridge_{n}"] for n in (30, 50))
