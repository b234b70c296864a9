"""chanas/workflows/sweeps/facts.py: figures from the files that commands leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chanas.workflows.sweeps.facts import collect

SEARCHED = {"points_lost": 1.5, "winner": "r32", "winner_changed": True, "front": []}
FILES: list[tuple[str, Any, dict[str, Any]]] = [
    (
        "net/tuned.json",
        {
            "measured": {"latency_s": 0.1},
            "trials": {"new": 3, "failed": 1},
            "seconds": {"tune": 9.5},
            "operators": [{}],
        },
        {
            "network.latency_s": 0.1,
            "network.num_new_trials": 3,
            "network.num_failed_trials": 1,
            "network.seconds.tune": 9.5,
        },
    ),
    (
        "luts/cpu.json",
        {"header": {"built_in_s": 60.0, "seed": 0}, "rows": {"a": {}, "b": {}}, "calibration": {"mape": 0.01}},
        {"table.num_blocks": 2, "table.built_in_s": 60.0, "table.mape": 0.01},
    ),
    ("luts/cpu.json", {"header": {}, "rows": {}, "calibration": None}, {"table.num_blocks": 0}),
    (
        "search/result.json",
        {"winner": "r32", "predictor": {"error_points": 0.5, "kind": "mlp"}, "seconds": {"proving": 3.0}, "pareto": []},
        {"search.winner": "r32", "search.error_points": 0.5, "search.seconds.proving": 3.0},
    ),
    (
        "search/pareto.json",
        {"points": [{"dominated": True}, {"dominated": False}, {"error": "no"}], "num_evaluations": 9},
        {"front.num_points": 1, "front.num_evaluations": 9},
    ),
    (
        "bundle/codesign.json",
        {
            "num_macs": 9,
            "measured": {"top1_holdout": 0.9},
            "predicted": {"top1": 0.8},
            "targets": [{"measured": {"latency_s": 0.1}, "predicted": {"latency_s": 0.2}, "peak_memory_bytes": 7}, {}],
        },
        {
            "bundle.num_macs": 9,
            "bundle.top1_holdout": 0.9,
            "bundle.predicted.top1": 0.8,
            "bundle.predicted.latency_s": 0.2,
            "bundle.latency_s": 0.1,
            "bundle.peak_memory_bytes": 7,
        },
    ),
    (
        "ablation/result.json",
        {"budget_s": 0.1, "searched": {"untuned": SEARCHED}},
        {
            "ablation.budget_s": 0.1,
            "ablation.untuned.points_lost": 1.5,
            "ablation.untuned.winner": "r32",
            "ablation.untuned.winner_changed": True,
        },
    ),
]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(("name", "content", "facts"), FILES, ids=[name for name, _, _ in FILES])
def test_a_file_has_its_figures_and_a_damaged_one_none(
    tmp_path: Path, name: str, content: Any, facts: dict[str, Any]
) -> None:
    write(tmp_path / name, json.dumps(content))
    assert collect(tmp_path) == facts
    for damaged in (json.dumps(content)[:-1], "[]", "3"):
        write(tmp_path / name, damaged)
        assert collect(tmp_path) == {}


def test_training_has_the_last_value_of_each_number(tmp_path: Path) -> None:
    lines = [{"kind": "training", "step": 1, "train_loss": 2.0}, {"kind": "evaluation", "step": 1, "top1_largest": 0.5}]
    lines += [{"kind": "training", "step": 2, "train_loss": 1.0, "by_size": {"largest": {}}}]
    write(tmp_path / "supernet" / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert collect(tmp_path) == {"supernet.step": 2, "supernet.train_loss": 1.0, "supernet.top1_largest": 0.5}


def test_several_files_of_a_kind_are_told_apart(tmp_path: Path) -> None:
    for name in ("cpu", "cpu-2t"):
        write(tmp_path / "luts" / f"{name}.json", '{"rows": {}}')
    for name in ("a", "b"):
        write(tmp_path / "finetuned" / name / "inherited" / "supernet" / "metrics.jsonl", '{"top1_only": 0.5}\n')
    assert set(collect(tmp_path)) == {
        *("table.cpu.num_blocks", "table.cpu-2t.num_blocks"),
        *("finetuned.a.top1_only", "finetuned.b.top1_only"),
    }


def test_lines_of_json_that_a_command_prints(tmp_path: Path) -> None:
    write(tmp_path / "sweep-stdout.log", 'a line\n{"holds": true, "blocks": {"num": 3, "list": [1]}}\n')
    assert collect(tmp_path) == {"printed.holds": True, "printed.blocks.num": 3}
    write(tmp_path / "sweep-stdout.log", '{"request": "largest", "top1": 0.5}\n{"top1": 0.25}\n')
    assert collect(tmp_path) == {
        "printed.largest.request": "largest",
        "printed.largest.top1": 0.5,
        "printed.1.top1": 0.25,
    }
