"""Metrics are rows of JSON, and steps that are done again are not told twice."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from chanas.errors import ChanasError, ConfigError
from chanas.files.run import RunDirectory
from chanas.supernet.training.checkpoint import metrics_path
from chanas.supernet.training.metrics import Log, append_metrics, cut_metrics, read_metrics, scalars, tensorboard_path


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
        file.write('{"step": "four"}\n{"step": 5, "lo')
    assert cut_metrics(run, 3) == 2
    assert cut_metrics(run, 3) == 0
    assert [row["step"] for row in read_metrics(run)] == [1, 2, 3]
    append_metrics(run, {"step": 4})
    assert len(metrics_path(run).read_text().splitlines()) == 4


def test_a_row_that_cannot_be_written_is_one_line(run: RunDirectory) -> None:
    with pytest.raises(ChanasError, match=r"cannot write .*metrics\.jsonl: No such file"):
        append_metrics(run, {"step": 1})


def test_every_number_of_a_row_has_a_tag() -> None:
    by_size = {"smallest": {"train_loss": 3.0, "gap_loss": None}}
    row = {"kind": "training", "step": 7, "phase": "all", "lr": 0.1, "train_loss": 2.0, "gap": None, "by_size": by_size}
    assert dict(scalars(row)) == {"training/lr": 0.1, "training/train_loss": 2.0, "training/smallest/train_loss": 3.0}
    assert dict(scalars({"kind": "evaluation", "step": 7, "phase": "end", "top1_largest": 0.5})) == {
        "evaluation/top1_largest": 0.5
    }


def test_a_log_writes_json_lines_alone_unless_asked(run: RunDirectory) -> None:
    run.supernet.mkdir(parents=True)
    with Log(run) as log:
        for step in (1, 2, 3):
            log.append(training(step))
        log.cut(2)
        log.append(training(3))
    assert [row["step"] for row in read_metrics(run)] == [1, 2, 3]
    assert [path.name for path in run.supernet.iterdir()] == ["metrics.jsonl"]


def test_without_the_package_the_error_says_what_to_install(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it could not be imported
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"pip install 'tensorboard>=2\.16'") as caught:
        Log(run, tensorboard=True)
    assert "\n" not in str(caught.value)
    assert not run.root.exists()


def test_tensorboard_shows_the_rows(run: RunDirectory) -> None:
    pytest.importorskip("tensorboard")
    run.supernet.mkdir(parents=True)
    with Log(run, tensorboard=True) as log:
        log.append({**training(1), "by_size": {"smallest": {"train_loss": 4.0}}})
        log.append(training(2))
        log.append({"kind": "evaluation", "step": 2, "phase": "all", "top1_largest": 0.5})
    assert shown(run) == {
        "training/train_loss": [(1, 1.0), (2, 0.5)],
        "training/smallest/train_loss": [(1, 4.0)],
        "evaluation/top1_largest": [(2, 0.5)],
    }
    assert len(read_metrics(run)) == 3


def test_tensorboard_forgets_steps_that_are_done_again(run: RunDirectory) -> None:
    pytest.importorskip("tensorboard")
    run.supernet.mkdir(parents=True)
    with Log(run, tensorboard=True) as log:
        for step in (1, 2, 3, 4):
            log.append(training(step))
        log.cut(2)  # rolled back
        log.append({**training(3), "train_loss": 9.0})
    with Log(run, tensorboard=True) as log:  # resumed from an earlier checkpoint
        log.cut(1)
        log.append({**training(2), "train_loss": 8.0})
    assert shown(run) == {"training/train_loss": [(1, 1.0), (2, 8.0)]}


def test_tensorboard_forgets_a_run_that_was_overwritten(run: RunDirectory) -> None:
    pytest.importorskip("tensorboard")
    run.supernet.mkdir(parents=True)
    for loss in (1.0, 2.0):
        metrics_path(run).unlink(missing_ok=True)
        with Log(run, tensorboard=True) as log:
            log.append({**training(5), "train_loss": loss})
    assert shown(run) == {"training/train_loss": [(5, 2.0)]}


def training(step: int) -> dict[str, Any]:
    return {"kind": "training", "step": step, "phase": "all", "train_loss": 1 / step}


def shown(run: RunDirectory) -> dict[str, list[tuple[int, float]]]:
    """Step and value of what TensorBoard finds, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tensorboard_path(run))).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
