"""Training metrics as JSON lines, one row per logged step or evaluation."""

from __future__ import annotations

import json
from typing import Any

from chanas.run import RunDirectory, replacing
from chanas.supernet.checkpoint import metrics_path


def append_metrics(run: RunDirectory, row: dict[str, Any]) -> None:
    """Add one row to `metrics.jsonl`."""
    with open(metrics_path(run), "a") as file:
        file.write(json.dumps(row, allow_nan=False) + "\n")


def read_metrics(run: RunDirectory) -> list[dict[str, Any]]:
    """The rows written so far; a line that a kill cut short is left out. Empty when there are none."""
    path, rows = metrics_path(run), []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def cut_metrics(run: RunDirectory, step: int) -> None:
    """Drop the rows of steps after `step`: those steps are about to be done again."""
    kept = [row for row in read_metrics(run) if row["step"] <= step and row.get("phase") != "end"]
    with replacing(metrics_path(run)) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
