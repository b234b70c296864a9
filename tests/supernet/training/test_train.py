"""Training leaves a checkpoint that can be trusted: resumed, interrupted, rolled back or refused."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fast_cases import fast

from chanas.core.arch import SearchSpace
from chanas.errors import ChanasError, CheckpointError, RunBusyError
from chanas.files.run import RunDirectory
from chanas.interrupts import Interrupted
from chanas.supernet.data.images import load_data
from chanas.supernet.data.loader import training_batches
from chanas.supernet.data.splits import save_splits
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.training import step as training_step
from chanas.supernet.training import train
from chanas.supernet.training.checkpoint import (
    checkpoint_path,
    kept_checkpoints,
    metrics_path,
    read_checkpoint,
    read_header,
    splits_path,
)
from chanas.supernet.training.evaluate import SupernetEvaluator, read_supernet
from chanas.supernet.training.metrics import read_metrics
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.train import Start, TrainSummary, train_supernet

MakeConfig = Callable[..., TrainConfig]
Go = Callable[..., TrainSummary]


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it, nothing is written after it."""


@pytest.fixture(scope="module")
def go(tiny_space: SearchSpace, make_config: MakeConfig) -> Go:
    """Train in a run directory: the tiny space, unless another is given, with a config, or with the default one and
    changes of it."""

    def start(
        run: RunDirectory,
        *,
        space: SearchSpace = tiny_space,
        config: TrainConfig | None = None,
        resume: bool = False,
        overwrite: bool = False,
        **changes: Any,
    ) -> TrainSummary:
        config = config or make_config(**changes)
        return train_supernet(run, space, config, progress=False, resume=resume, overwrite=overwrite)

    return start


def before_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], Any]) -> None:
    """Let `action` happen when `step` (from 0) is about to be computed, the first time it is."""
    original, fired = training_step.accumulate_gradients, []

    def wrapped(network: Any, batch: Any, plan: Any, *rest: Any) -> Any:
        if plan.step == step and not fired:
            fired.append(step)
            action()
        return original(network, batch, plan, *rest)

    monkeypatch.setattr(train, "accumulate_gradients", wrapped)


def kill() -> None:
    raise Killed


def diverge() -> None:
    raise training_step.NonFiniteError("loss nan")


def tensors(run: RunDirectory) -> dict[str, torch.Tensor]:
    return read_checkpoint(run).tensors


def assert_same_result(run: RunDirectory, other: RunDirectory) -> None:
    ours, theirs = tensors(run), tensors(other)
    assert set(ours) == set(theirs)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    volatile = {"images_per_s", "wall_s"}
    rows = [[{k: v for k, v in row.items() if k not in volatile} for row in read_metrics(r)] for r in (run, other)]
    assert rows[0] == rows[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, go: Go) -> RunDirectory:
    """An uninterrupted sandwich run."""
    run = RunDirectory(tmp_path_factory.mktemp("whole"))
    go(run)
    return run


@pytest.fixture(scope="module")
def whole_progressive(tmp_path_factory: pytest.TempPathFactory, progressive: TrainConfig, go: Go) -> RunDirectory:
    """An uninterrupted progressive run."""
    run = RunDirectory(tmp_path_factory.mktemp("whole_progressive"))
    go(run, config=progressive)
    return run


@pytest.fixture
def copy(whole: RunDirectory, run: RunDirectory) -> RunDirectory:
    """The uninterrupted sandwich run, free to be changed."""
    shutil.copytree(whole.root, run.root)
    return run


def test_a_run_leaves_checkpoint_splits_and_metrics(run: RunDirectory, tiny_space: SearchSpace, go: Go) -> None:
    summary = go(run)
    assert (summary.num_steps, summary.resumed_from, summary.num_rollbacks) == (6, 0, 0)
    assert 0 <= summary.top1_smallest <= 1
    header = read_header(run)
    assert header is not None
    assert (header["step"], header["done"], header["num_classes"]) == (6, True, 10)
    assert header["space"] == tiny_space.to_json()
    assert header["class_names"] == list("0123456789")
    assert json.loads(splits_path(run).read_text())["num_images"] == 1797
    rows = read_metrics(run)
    assert [row["step"] for row in rows if row["kind"] == "training"] == [1, 2, 3, 4, 5, 6]
    assert rows[-1] == {
        "kind": "evaluation",
        "step": 6,
        "phase": "end",
        "top1_largest": summary.top1_largest,
        "top1_smallest": summary.top1_smallest,
        "wall_s": max(row["wall_s"] for row in rows),
    }
    assert rows[-1]["wall_s"] > 0
    names = ("lr", "loss", "train_loss", "gap_loss", "generalization_gap", "distillation", "images_per_s")
    for row in rows[:-1]:
        assert all(math.isfinite(row[name]) for name in names)
        assert set(row["by_size"]) == {"largest", "smallest", "random"}
        assert row["generalization_gap"] == pytest.approx(row["gap_loss"] - row["train_loss"])


def test_the_seed_alone_decides_the_result(run: RunDirectory, whole: RunDirectory, go: Go) -> None:
    torch.manual_seed(99)
    go(run)
    assert_same_result(run, whole)


@pytest.mark.parametrize("step", fast([1, 4, 5], [2]))
def test_a_killed_sandwich_run_resumes_to_the_same_bits(
    run: RunDirectory, whole: RunDirectory, step: int, go: Go
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        before_step(patch, step, kill)
        with pytest.raises(Killed):
            go(run)
    summary = go(run, resume=True)
    assert summary.resumed_from == (0 if step < 4 else 4)
    assert_same_result(run, whole)


@pytest.mark.parametrize("step", fast([2, 3, 4], [1, 2]))
def test_a_killed_progressive_run_resumes_to_the_same_bits(
    run: RunDirectory, whole_progressive: RunDirectory, progressive: TrainConfig, step: int, go: Go
) -> None:
    """Killed on entering the kernel phase, inside it (with a teacher by then), and on entering the expand phase."""
    with pytest.MonkeyPatch.context() as patch:
        before_step(patch, step, kill)
        with pytest.raises(Killed):
            go(run, config=progressive)
    assert go(run, config=progressive, resume=True).resumed_from == step
    assert_same_result(run, whole_progressive)
    assert any(name.startswith("teacher.") for name in tensors(run))


@pytest.mark.usefixtures("default_signals")
def test_ctrl_c_checkpoints_the_finished_step_first(run: RunDirectory, whole: RunDirectory, go: Go) -> None:
    with pytest.MonkeyPatch.context() as patch:
        before_step(patch, 2, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            go(run)
    header = read_header(run)
    assert header is not None
    assert (header["step"], header["done"]) == (3, False)
    go(run, resume=True)
    assert_same_result(run, whole)


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_cluster_and_a_lost_terminal_end_a_training_as_ctrl_c_does(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, go: Go, number: signal.Signals
) -> None:
    before_step(monkeypatch, 1, lambda: signal.raise_signal(number))
    with pytest.raises(Interrupted) as caught:
        go(run)
    assert caught.value.number is number
    assert read_checkpoint(run).header["step"] == 2


@pytest.mark.usefixtures("default_signals")
def test_a_long_step_is_given_up_and_done_again(
    run: RunDirectory, whole: RunDirectory, monkeypatch: pytest.MonkeyPatch, go: Go
) -> None:
    def hang() -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(30)

    monkeypatch.setattr(train, "GIVE_UP_STEP_S", 0.01)
    with monkeypatch.context() as patch:
        before_step(patch, 2, hang)
        with pytest.raises(Interrupted):
            go(run)
    assert read_checkpoint(run).header["step"] == 2
    go(run)
    assert_same_result(run, whole)


@pytest.mark.usefixtures("default_signals")
def test_a_signal_does_not_wait_for_images(run: RunDirectory, monkeypatch: pytest.MonkeyPatch, go: Go) -> None:
    def batches(*arguments: Any, **options: Any) -> Iterator[Any]:
        yield next(training_batches(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        time.sleep(30)

    monkeypatch.setattr(train, "training_batches", batches)
    with pytest.raises(Interrupted):
        go(run)
    assert read_checkpoint(run).header["step"] == 1


@pytest.mark.usefixtures("default_signals")
def test_an_interrupted_evaluation_is_made_up_for(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, make_config: MakeConfig, go: Go
) -> None:
    config, other = make_config(evaluate_every=2), RunDirectory(run.root / "other")
    go(other, config=config)

    def interrupted(*_: Any) -> float:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(train, "top1", interrupted)
        with pytest.raises(Interrupted):
            go(run, config=config)
    assert read_checkpoint(run).header["step"] == 2
    go(run, config=config)
    assert_same_result(run, other)


def test_a_second_training_of_a_run_is_refused(run: RunDirectory, monkeypatch: pytest.MonkeyPatch, go: Go) -> None:
    second: list[str] = []

    def train_too() -> None:
        with pytest.raises(RunBusyError) as caught:
            go(run, overwrite=True)
        second.append(str(caught.value))

    before_step(monkeypatch, 1, train_too)
    assert go(run).num_steps == 6
    assert f"pid {os.getpid()}" in second[0]


def test_a_finished_run_resumes_to_itself(copy: RunDirectory, whole: RunDirectory, go: Go) -> None:
    assert go(copy, resume=True).resumed_from == 6
    assert_same_result(copy, whole)


def test_seconds_of_training_are_summed_over_processes(copy: RunDirectory, go: Go) -> None:
    rows = [{**row, "wall_s": 1000.0 + row["step"]} for row in read_metrics(copy)]
    metrics_path(copy).write_text("".join(json.dumps(row) + "\n" for row in rows))
    go(copy, resume=True)
    assert read_metrics(copy)[-1]["wall_s"] >= 1006.0


def test_damaged_lines_of_the_metrics_are_counted(
    copy: RunDirectory, go: Go, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = read_metrics(copy)
    with open(metrics_path(copy), "a") as file:
        file.write('no row\n{"step": 6, "lo')
    go(copy, resume=True)
    assert "metrics.jsonl: 2 lines are damaged" in capsys.readouterr().err
    assert read_metrics(copy)[: len(whole) - 1] == whole[:-1]
    go(copy, resume=True)
    assert "damaged" not in capsys.readouterr().err


def test_a_finished_run_is_not_overwritten_unasked(copy: RunDirectory, whole: RunDirectory, go: Go) -> None:
    with pytest.raises(CheckpointError, match="--overwrite"):
        go(copy, seed=1)
    assert_same_result(copy, whole)
    go(copy, seed=1, overwrite=True)
    stem = "supernet.stem.conv.conv.weight"
    assert not torch.equal(tensors(copy)[stem], tensors(whole)[stem])
    assert len(read_metrics(copy)) == len(read_metrics(whole))


def test_the_same_settings_continue_an_unfinished_run(
    run: RunDirectory, whole: RunDirectory, monkeypatch: pytest.MonkeyPatch, go: Go
) -> None:
    with monkeypatch.context() as patch:
        before_step(patch, 5, kill)
        with pytest.raises(Killed):
            go(run)
    with pytest.raises(CheckpointError, match=r"4 of 6 steps with another .*\(optimizer.momentum: 0.9, not 0.5\)"):
        go(run, optimizer={"momentum": 0.5})
    assert go(run).resumed_from == 4
    assert_same_result(run, whole)


def test_a_finished_run_is_left_as_it_is(copy: RunDirectory, go: Go) -> None:
    before = checkpoint_path(copy).stat().st_mtime_ns
    assert go(copy).resumed_from == 6
    assert checkpoint_path(copy).stat().st_mtime_ns == before


def test_other_weights_to_begin_with_are_no_continuation(
    run: RunDirectory, whole: RunDirectory, tiny_space: SearchSpace, make_config: MakeConfig
) -> None:
    started = [Start(inherited=read_supernet(read_checkpoint(whole)))]
    started.append(Start(inherited=Supernet(tiny_space, 10)))
    train_supernet(run, tiny_space, make_config(), progress=False, start=started[0])
    assert train_supernet(run, tiny_space, make_config(), progress=False, start=started[0]).resumed_from == 6
    assert train_supernet(run, tiny_space, make_config(), progress=False, resume=True).resumed_from == 6
    for start in (started[1], Start()):
        with pytest.raises(CheckpointError, match="other weights"):
            train_supernet(run, tiny_space, make_config(), progress=False, start=start)


def test_another_space_or_config_is_not_resumed(copy: RunDirectory, tiny_space: SearchSpace, go: Go) -> None:
    with pytest.raises(CheckpointError, match="space"):
        go(copy, space=dataclasses.replace(tiny_space, head_width=40), resume=True)
    with pytest.raises(CheckpointError, match="batch_size, seed"):
        go(copy, batch_size=16, seed=2, resume=True)
    go(copy, checkpoint_every=1, log_every=3, resume=True)


def test_splits_of_another_run_are_not_resumed_with(copy: RunDirectory, make_config: MakeConfig, go: Go) -> None:
    config = make_config()
    save_splits(splits_path(copy), load_data(config.data, seed=1).splits)
    with pytest.raises(CheckpointError, match="splits"):
        go(copy, config=config, resume=True)


def test_a_diverging_step_rolls_back_with_half_the_learning_rate(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], go: Go
) -> None:
    before_step(monkeypatch, 5, diverge)
    summary = go(run)
    assert summary.num_rollbacks == 1
    assert "loss nan: back to step 4 with 0.5 of the learning rate" in capsys.readouterr().err
    header = read_header(run)
    assert header is not None
    assert (header["lr_scale"], header["step"]) == (0.5, 6)
    assert [row["step"] for row in read_metrics(run)] == [1, 2, 3, 4, 5, 6, 6]


def test_a_run_that_keeps_diverging_gives_up_and_keeps_the_last_good_checkpoint(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, go: Go
) -> None:
    original = training_step.accumulate_gradients

    def diverging(network: Any, batch: Any, plan: Any, *rest: Any) -> Any:
        if plan.step == 5:
            diverge()
        return original(network, batch, plan, *rest)

    monkeypatch.setattr(train, "accumulate_gradients", diverging)
    with pytest.raises(ChanasError, match="3 rollbacks"):
        go(run)
    assert read_checkpoint(run).header["step"] == 4


def test_an_image_folder_trains(run: RunDirectory, image_folder: Any, go: Go) -> None:
    data = {"dataset": "imagefolder", "root": str(image_folder), "augment": {"flip": True}}
    go(run, data=data)
    header = read_header(run)
    assert header is not None
    assert header["class_names"] == ["dark", "light"]


@pytest.mark.parametrize("changes", fast([{"ema_decay": 0.5}, {"precision": "f16"}, {"precision": "bf16"}], [0, 1]))
def test_a_killed_run_with_more_state_resumes_to_the_same_bits(
    tmp_path: Any, make_config: MakeConfig, changes: dict[str, Any], go: Go
) -> None:
    whole, run, config = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "run"), make_config(**changes)
    go(whole, config=config)
    with pytest.MonkeyPatch.context() as patch:
        before_step(patch, 5, kill)
        with pytest.raises(Killed):
            go(run, config=config)
    assert go(run, config=config, resume=True).resumed_from == 4
    assert_same_result(run, whole)


def test_the_moving_average_is_what_is_judged_and_loaded(run: RunDirectory, tiny_space: SearchSpace, go: Go) -> None:
    summary = go(run, ema_decay=0.5)
    saved = read_checkpoint(run)
    name = "stem.conv.conv.weight"
    assert not torch.equal(saved.part("ema")[name], saved.part("supernet")[name])
    evaluator = SupernetEvaluator.load(run)
    static = evaluator.extract(tiny_space.largest)
    assert torch.equal(static.blocks[0].conv.conv.weight, saved.part("ema")[name])
    assert evaluator.top1(tiny_space.largest) == summary.top1_largest


def collapse_at(monkeypatch: pytest.MonkeyPatch, accuracies: dict[int, float]) -> None:
    """Let the accuracy of all sub-networks be 0.9, but for one judged when `accuracies` says otherwise."""
    asked: list[int] = []

    def top1(*rest: Any) -> float:
        asked.append(1)
        return accuracies.get(len(asked), 0.9)

    monkeypatch.setattr(train, "top1", top1)


def test_a_collapse_rolls_back_to_the_last_state_that_passed(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], go: Go
) -> None:
    """Evaluations at 2 and 4 judge the largest and the smallest; the fourth is the smallest at 4."""
    collapse_at(monkeypatch, {4: 0.1})
    summary = go(run, evaluate_every=2, checkpoint_every=1)
    assert summary.num_rollbacks == 1
    said = capsys.readouterr().err
    assert "collapsed from 90.0% to 10.0% (guessing: 1" in said
    assert "at step 4: back to step 2 with 0.5 of the learning rate (rollback 1)" in said
    rows = read_metrics(run)
    assert [row["step"] for row in rows if row["kind"] == "training"] == [1, 2, 3, 4, 5, 6]
    assert [row["lr"] for row in rows if row["kind"] == "training"][2] < 0.5 * 0.05
    assert [row["step"] for row in rows if row["kind"] == "evaluation"] == [2, 4, 6]


def test_a_network_that_never_learned_is_no_collapse(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, go: Go
) -> None:
    collapse_at(monkeypatch, dict.fromkeys(range(1, 100), 0.1))
    assert go(run, evaluate_every=2).num_rollbacks == 0


def test_a_sub_network_that_no_phase_trained_cannot_collapse(
    run: RunDirectory, progressive: TrainConfig, monkeypatch: pytest.MonkeyPatch, go: Go
) -> None:
    """Five evaluations of two networks each; the last is of the smallest of the space, which these phases leave out."""
    collapse_at(monkeypatch, {12: 0.1})
    summary = go(run, config=progressive.changed(evaluate_every=1))
    assert (summary.num_rollbacks, summary.top1_smallest) == (0, 0.1)


def test_a_run_that_keeps_collapsing_gives_up(run: RunDirectory, monkeypatch: pytest.MonkeyPatch, go: Go) -> None:
    collapse_at(monkeypatch, dict.fromkeys(range(3, 100), 0.1))
    with pytest.raises(ChanasError, match=r"3 rollbacks .*smallest"):
        go(run, evaluate_every=2)
    assert read_checkpoint(run).header["step"] == 2


def test_a_damaged_newest_checkpoint_costs_only_the_steps_since_the_one_before(
    run: RunDirectory, whole: RunDirectory, capsys: pytest.CaptureFixture[str], go: Go
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        before_step(patch, 5, kill)
        with pytest.raises(Killed):
            go(run)
    newest = checkpoint_path(run)
    content = newest.read_bytes()
    newest.unlink()  # the kept ones share its blocks
    kept_checkpoints(run)[0].unlink()
    newest.write_bytes(content[: len(content) // 2])
    assert go(run, resume=True).resumed_from == 0
    assert "is damaged; going on from" in capsys.readouterr().err
    assert_same_result(run, whole)


def test_a_checkpoint_is_written_when_the_clock_says_so(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, go: Go
) -> None:
    before_step(monkeypatch, 2, kill)
    with pytest.raises(Killed):
        go(run, checkpoint_every=1000, checkpoint_minutes=1e-9)
    assert read_checkpoint(run).header["step"] == 2
