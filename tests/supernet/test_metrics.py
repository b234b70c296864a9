"""Metrics are rows of JSON, and steps that are done again are not told twice."""

from __future__ import annotations

from chanas.run import RunDirectory
from chanas.supernet.checkpoint import metrics_path
from chanas.supernet.metrics import append_metrics, cut_metrics, read_metrics


def test_rows_come_back_in_order(run: RunDirectory) -> None:
    assert read_metrics(run) == []
    run.supernet.mkdir(parents=True)
    append_metrics(run, {"step": 1, "loss": 0.5})
    append_metrics(run, {"step": 2, "loss": None})
    assert read_metrics(run) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": None}]


def test_rows_after_a_step_and_a_half_written_one_are_cut(run: RunDirectory) -> None:
    run.supernet.mkdir(parents=True)
    for step in range(1, 5):
        append_metrics(run, {"step": step})
    with open(metrics_path(run), "a") as file:
        file.write('{"step": 5, "lo')
    cut_metrics(run, 3)
    assert [row["step"] for row in read_metrics(run)] == [1, 2, 3]
    append_metrics(run, {"step": 4})
    assert len(metrics_path(run).read_text().splitlines()) == 4
