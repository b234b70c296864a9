"""A small synthetic run directory with the files of every stage."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chanas.core.arch import Architecture, SearchSpace
from chanas.files.run import RunDirectory
from chanas.files.writing import write_json

KEY = "r24-w1-k3e3.k5e6-k3e3-k5e3.k3e6.k3e3-k3e6-k5e6.k3e3"


def _result() -> dict[str, Any]:
    levels = [i / 20 for i in range(21)]

    def sub_space(key: str, start_s: float, score: float) -> dict[str, Any]:
        quantiles = [start_s * (1 + level) for level in levels]
        return {
            "key": key,
            "feasible_fraction": 0.5,
            "score": score,
            "latency_quantiles_s": quantiles,
            "top1_quantiles": [score + level / 100 for level in levels],
        }

    def finalist(key: str, predicted_s: float, measured_s: float | None, error: str | None = None) -> dict[str, Any]:
        measured = {"latency_s": measured_s, "top1_holdout": None if error else 0.96}
        return {
            "key": key,
            "predicted": {"latency_s": predicted_s, "top1": 0.961},
            "measured": measured,
            "error": error,
        }

    return {
        "schema": 1,
        "budget_s": 1e-3,
        "winner": KEY,
        "accuracy_range": {"best": 0.96, "fastest": 0.96, "num_images": 75},
        "space": {"name": "mbv3-32", "digest": "0123"},
        "finalists": [
            finalist(KEY, 9e-4, 9.3e-4),
            finalist(KEY + ".k3e3", 9.2e-4, 1.1e-3),
            finalist("r24-w1-broken", 9.1e-4, None, "LLVM <crashed> & burnt"),
        ],
        "division": {
            "levels": levels,
            "rule": "accuracy",
            "choices": {"paper": "r24-w1", "accuracy": "r32-w1", "all": None},
            "sub_spaces": [sub_space(f"r{r}-w1", 3e-5 * r, r / 40) for r in (24, 28, 32)],
        },
        "predictor": {
            "kind": "mlp",
            "num_training": 120,
            "learning_curve": [{"num_evaluations": n, "error_points": 20.0 / n} for n in (36, 56, 76)],
            "cross_validation": {
                kind: {"rmse_points": 0.3, "kendall_tau": 0.8, "top_decile_recall": 0.5, "num_architectures": 120}
                for kind in ("mlp",)
            },
        },
        "evolution": {"generation": [0, 10, 20], "best": [0.94, 0.95, 0.96], "mean": [0.93, 0.94, 0.94]},
        "seconds": {"learning": 30.0, "searching": 2.0, "proving": 10.0},
        "evaluated": {"latency_s": [1e-3, 1.2e-3], "top1": [0.91, 0.93]},
        "cloud": {"latency_s": [1e-3 + 1e-5 * i for i in range(40)], "top1": [0.9 + 0.001 * i for i in range(40)]},
        "pareto": [{"key": KEY, "latency_s": 5e-4 + 1e-4 * i, "top1": 0.92 + 0.005 * i} for i in range(9)],
    }


def _front() -> dict[str, Any]:
    """Three measured points, one of them worse than another, and one that failed."""

    def point(number: int, latency_s: float | None, top1: float, dominated: bool = False) -> dict[str, Any]:
        measured = None if latency_s is None else {"latency_s": latency_s, "spread_s": 1e-7, "top1": top1}
        predicted = {"latency_s": 5e-4 * number, "top1": top1}
        key = f"{KEY}.k3e{number}"
        return {"key": key, "predicted": predicted, "measured": measured, "error": None, "dominated": dominated}

    points = [point(1, 5.1e-4, 0.93), point(2, 9.8e-4, 0.96), point(3, 1.6e-3, 0.95, True), point(4, None, 0.9)]
    return {"schema": 1, "target": "cpu", "error_points": 0.3, "points": points, "front": _result()["pareto"]}


def _ablation() -> dict[str, Any]:
    """The tuned table's search and that of another, whose winner is another network."""
    points = _front()["points"]
    ranking = {"kendall_tau": 0.74, "sub_spaces": {"r24-w1": 0.6}, "slowdown": 12.3, "num_architectures": 1000}
    others = {"winner": KEY + ".k3e3", "winner_changed": True, "points_lost": 0.42, "ranking": ranking}
    tuned = {"winner": KEY, "winner_changed": None, "points_lost": None, "ranking": None}
    finalists = _result()["finalists"]
    return {
        "schema": 1,
        "budget_s": 1e-3,
        "tables": {"tuned": {"text": "tuned"}, "untuned": {"text": "untuned TVM"}},
        "searched": {
            "untuned": {**others, "finalists": finalists, "front": points[1:]},
            "tuned": {**tuned, "finalists": finalists, "front": points},
        },
    }


def _networks(kernel_size: int) -> list[str]:
    """Keys of networks with kernels of one size, of all lengths that the space has, of several expand ratios."""
    space = SearchSpace.load("mbv3-32")
    return [
        Architecture(24, 1.0, (((kernel_size, e),) * d,) * space.num_stages).key
        for e in space.expand_ratios
        for d in space.depths
    ]


TARGETS = {"cpu": 3, "gpu <0>": 5}
"""The kernel size of all networks as good as the winner, by target."""


def _targets() -> dict[str, Any]:
    """Two targets with networks, of which one is not here, and one that failed."""

    def target(name: str, **more: Any) -> dict[str, Any]:
        entry = {
            "target": name,
            "device": f"A <{name}> device",
            "budget_s": 1e-3,
            "elsewhere": "",
            "covered": ["r24-w1"],
        }
        return {**entry, "winner": None, "bundle": None, "error": None, **more}

    won = {"judged_by": "test", "top1": 0.97, "predicted_s": 9e-4}
    cpu = {"winner": _networks(3)[0], "bundle": "bundles/cpu", "measured_s": 9.1e-4, **won}
    gpu = {"winner": _networks(5)[0], "measured_s": None, "elsewhere": "it is <far> away", **won}

    def cost(network: str, target: str, predicted_s: float, measured_s: float | None) -> dict[str, Any]:
        return {"network": network, "target": target, "predicted_s": predicted_s, "measured_s": measured_s}

    first, second = TARGETS
    return {
        "schema": 1,
        "complete": True,
        "space": SearchSpace.load("mbv3-32").to_json(),
        "num_classes": 10,
        "error_points": 0.31,
        "targets": [target("cpu", **cpu), target(second, **gpu), target("lost", error="no <network> is that fast")],
        "cross": [
            *(cost(first, first, 9e-4, 9.1e-4), cost(first, second, 5e-4, None)),
            *(cost(second, first, 1.8e-3, 1.82e-3), cost(second, second, 4e-4, None)),
        ],
    }


def _bundle() -> dict[str, Any]:
    space = SearchSpace.load("mbv3-32")
    blocks = Architecture.from_key(KEY).blocks(space, 10)
    operators = [{"block": b.key, "operators": [[f"conv1x1 <{i % 3}>", [0]]]} for i, b in enumerate(blocks)]
    part = {
        "target": {"name": "cpu", "device": "A <fast> & quiet CPU", "num_threads": 1, "fingerprint": "feed"},
        "constraints": {"latency_s": 1e-3},
        "predicted": {"latency_s": 9e-4},
        "measured": {
            "latency_s": 9.3e-4,
            "spread_s": 1e-6,
            "top1_test": 0.97,
            "num_test_images": 360,
            "pytorch_eager_latency_s": 2.79e-3,
        },
        "hashes": {"lut": "beef"},
        "blocks": [
            {
                "key": b.key,
                "latency_s": 3.3e-4 if i == 5 else 2e-5,
                "schedule": ["depthwise: tiles of 2 × 7 pixels", "pointwise: tiles of 7 pixels"],
                "gflops": 61.25,
                "share_of_peak": 0.52,
                "default_latency_s": 3e-5,
            }
            for i, b in enumerate(blocks)
        ],
        "schedules": operators,
    }
    return {
        "schema": 3,
        "architecture": {"key": KEY, "genome": []},
        "space": space.to_json(),
        "class_names": [str(i) for i in range(10)],
        "targets": [part],
        "predicted": {"top1": 0.961},
        "measured": {"top1_holdout": 0.96},
        "num_macs": 5_000_000,
        "num_params": 250_000,
        "seeds": {"search": 7},
        "versions": {"chanas": "0.1.0"},
        "hashes": {"search_space": "0123"},
    }


def _records(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute(
        "CREATE TABLE records (device TEXT, workload TEXT, point TEXT, seconds REAL, error TEXT, created REAL)"
    )
    for workload in range(7):
        for trial in range(5 + workload):
            seconds = None if trial == 2 else 1e-5 * (1 + math.exp(-trial))
            row = (
                "feed/1t/tvm-0.27",
                f"conv1x1 <{workload}>",
                f"[{trial}]",
                seconds,
                "slow" if seconds is None else None,
                float(trial),
            )
            database.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", row)
    database.commit()
    database.close()


def _metrics(path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for step in range(0, 100, 10):
        losses = {"loss": 2.0 - step / 100, "train_loss": 1.9 - step / 100, "gap_loss": None, "distillation": 0.1}
        rows.append({"kind": "training", "step": step, "phase": "kernel", "lr": 0.1, "images_per_s": 900.0, **losses})
        rows[-1]["wall_s"] = 2.5 * step
        if step % 30 == 0:
            rows.append(
                {"kind": "evaluation", "step": step, "phase": "kernel", "top1_largest": 0.9, "top1_smallest": 0.8}
            )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def key() -> str:
    return KEY


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunDirectory]:
    """A run directory with the given stages; by default all but `targets`, the searches for several."""

    def make(*stages: str) -> RunDirectory:
        run = RunDirectory(tmp_path / "a <run> & more")
        run.root.mkdir()
        wanted = stages or ("supernet", "records", "luts", "search", "front", "bundle", "ablation")
        if "supernet" in wanted:
            write_json(run.supernet / "checkpoint.json", {"step": 100, "phase": "kernel", "space_digest": "0123"})
            _metrics(run.supernet / "metrics.jsonl")
        if "records" in wanted:
            _records(run.records)
        if "luts" in wanted:
            header = {
                "target": {"device": "A <fast> & quiet CPU"},
                "created": "2025-01-01T00:00:00Z",
                "compiler": "0.27",
                "built_in_s": 600.0,
                "timing_s": 300.0,
            }
            fit = {"start_s": 2e-6, "scale": 1.01, "boundary_s": 1e-7, "num_networks": 12, "uncorrected_mape": 0.04}
            fit |= {"mape": 0.02, "worst": 0.05, "kendall_tau": 0.97}
            table = {"schema": 1, "header": header, "calibration": fit, "rows": {"a": {}, "b": {}}}
            write_json(run.lut("cpu"), table)
        if "search" in wanted:
            write_json(run.search / "result.json", _result())
        if "front" in wanted:
            write_json(run.search / "pareto.json", _front())
        if "ablation" in wanted:
            write_json(run.root / "ablation" / "result.json", _ablation())
        if "targets" in wanted:
            write_json(run.per_target, _targets())
            for name, kernel_size in TARGETS.items():
                keys = _networks(kernel_size)
                write_json(run.target_result(name), {**_result(), "winner": keys[0], "alike": keys})
            write_json(run.bundles / "cpu" / "codesign.json", _bundle())
        if "bundle" in wanted:
            write_json(run.bundle / "codesign.json", _bundle())
        return run

    return make
