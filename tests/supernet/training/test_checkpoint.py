"""A checkpoint is whole or refused, and its JSON cannot belong to other weights."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from chanas.errors import ChanasError, CheckpointError, StageOrderError
from chanas.files.run import RunDirectory
from chanas.supernet.training import checkpoint
from chanas.supernet.training.checkpoint import (
    checkpoint_path,
    clear,
    good_path,
    kept_checkpoints,
    mark_good,
    metrics_path,
    newest_whole,
    read_checkpoint,
    read_header,
    write_checkpoint,
)

HEADER = {
    "space": {},
    "space_digest": "0",
    "config": {},
    "class_names": ["a", "b"],
    "num_classes": 2,
    "step": 7,
    "done": False,
    "splits_digest": "1",
}
TENSORS = {"supernet.w": torch.arange(6.0).view(2, 3), "momentum.w": torch.ones(2, 3)}


def save(run: RunDirectory, step: int, keep: int = 3) -> None:
    write_checkpoint(run, {**HEADER, "step": step}, TENSORS, keep)


def files(run: RunDirectory) -> list[str]:
    return sorted(str(p.relative_to(run.supernet)) for p in run.supernet.rglob("*") if p.is_file())


def names(run: RunDirectory) -> list[str]:
    return [path.name for path in kept_checkpoints(run)]


def step_of(path: Path) -> int:
    return int(read_checkpoint(RunDirectory(path.parent), path).header["step"])


def damage(path: Path) -> None:
    """Flip a bit of the weights, in all names of the file, as a bad block would."""
    with open(path, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        byte = file.read(1)
        file.seek(-3, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))


def test_a_checkpoint_comes_back(run: RunDirectory) -> None:
    write_checkpoint(run, HEADER, TENSORS)
    found = read_checkpoint(run)
    assert found.header["step"] == 7
    assert torch.equal(found.part("supernet")["w"], TENSORS["supernet.w"])
    assert set(found.part("momentum")) == {"w"}
    assert found.part("teacher") == {}


def test_the_json_beside_it_says_the_same(run: RunDirectory) -> None:
    write_checkpoint(run, HEADER, TENSORS)
    assert json.loads((run.supernet / "checkpoint.json").read_text()) == read_header(run)


def test_a_stale_json_beside_it_does_no_harm(run: RunDirectory) -> None:
    write_checkpoint(run, HEADER, TENSORS)
    stale = (run.supernet / "checkpoint.json").read_text()
    write_checkpoint(run, {**HEADER, "step": 9}, TENSORS)
    (run.supernet / "checkpoint.json").write_text(stale)
    assert read_checkpoint(run).header["step"] == 9


def test_no_checkpoint_names_the_command_to_run(run: RunDirectory) -> None:
    assert read_header(run) is None
    with pytest.raises(StageOrderError, match="does not exist; run `chanas train-supernet` first"):
        read_checkpoint(run)


@given(cut=st.floats(0, 1, exclude_max=True))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_a_truncated_checkpoint_is_refused_in_one_line(run: RunDirectory, cut: float) -> None:
    write_checkpoint(run, HEADER, TENSORS)
    whole = checkpoint_path(run).read_bytes()
    checkpoint_path(run).write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(CheckpointError, match="cut short or damaged") as caught:
        read_checkpoint(run)
    assert "\n" not in str(caught.value)


def test_a_flipped_bit_in_the_weights_is_noticed(run: RunDirectory) -> None:
    write_checkpoint(run, HEADER, TENSORS)
    data = bytearray(checkpoint_path(run).read_bytes())
    data[-3] ^= 1
    checkpoint_path(run).write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="checksum"):
        read_checkpoint(run)


def test_another_schema_is_refused(run: RunDirectory) -> None:
    write_checkpoint(run, HEADER, TENSORS)
    path = checkpoint_path(run)
    path.write_bytes(path.read_bytes().replace(b'\\"schema\\": 1', b'\\"schema\\": 9'))
    with pytest.raises(CheckpointError, match="has schema 9, this version reads 1"):
        read_header(run)


def test_a_failed_write_leaves_the_old_checkpoint_whole(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(run, HEADER, TENSORS)

    def full(*_: object, **_options: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(ChanasError, match="No space left on device"):
            write_checkpoint(run, {**HEADER, "step": 8}, TENSORS)
    assert read_checkpoint(run).header["step"] == 7
    assert files(run) == ["checkpoint.json", "checkpoint.safetensors", "checkpoints/step-00000007.safetensors"]


@pytest.mark.skipif(os.name != "posix", reason="limits on file sizes are POSIX")
def test_a_file_that_may_not_grow_leaves_the_last_checkpoint_whole(run: RunDirectory) -> None:
    import resource

    write_checkpoint(run, HEADER, TENSORS)
    mark_good(run)
    before = files(run)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))  # Python ignores the signal, so the write itself fails
    try:
        with pytest.raises(ChanasError, match=r"checkpoint\.safetensors: .*File too large") as it:
            write_checkpoint(run, {**HEADER, "step": 8}, {"supernet.w": torch.zeros(64, 1 << 10)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(it.value)
    assert newest_whole(run)[0].header["step"] == 7
    assert files(run) == before


# ---- kept ones ------------------------------------------------------------------------------------------------------
def test_the_last_few_are_kept_newest_first(run: RunDirectory) -> None:
    assert kept_checkpoints(run) == []
    for step in (8, 9, 100, 1000):
        save(run, step, keep=3)
    assert names(run) == ["step-00001000.safetensors", "step-00000100.safetensors", "step-00000009.safetensors"]
    assert [read_checkpoint(run, path).header["step"] for path in kept_checkpoints(run)] == [1000, 100, 9]
    header = read_header(run, kept_checkpoints(run)[1])
    assert header is not None
    assert header["step"] == 100


def test_the_newest_takes_no_space_twice(run: RunDirectory) -> None:
    save(run, 1)
    mark_good(run)
    assert kept_checkpoints(run)[0].samefile(checkpoint_path(run))
    assert good_path(run).samefile(checkpoint_path(run))


def test_a_file_system_without_hard_links_gets_copies(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    save(run, 1)
    save(run, 2)
    mark_good(run)
    assert not kept_checkpoints(run)[0].samefile(checkpoint_path(run))
    assert [step_of(path) for path in (*kept_checkpoints(run), good_path(run))] == [2, 1, 2]


def test_fewer_are_kept_when_fewer_are_asked_for(run: RunDirectory) -> None:
    for step, keep, expected in ((1, 3, [1]), (2, 3, [2, 1]), (3, 1, [3]), (4, 0, []), (5, 0, [])):
        save(run, step, keep)
        assert [step_of(path) for path in kept_checkpoints(run)] == expected
        assert step_of(checkpoint_path(run)) == step


def test_a_step_written_again_replaces_the_one_kept_of_it(run: RunDirectory) -> None:
    save(run, 1)
    write_checkpoint(run, {**HEADER, "step": 1, "done": True}, TENSORS)
    assert len(kept_checkpoints(run)) == 1
    assert read_checkpoint(run, kept_checkpoints(run)[0]).header["done"]


def test_kept_ones_of_later_steps_go_after_a_rollback(run: RunDirectory) -> None:
    for step in (1, 2, 3):
        save(run, step)
    save(run, 2)
    assert [step_of(path) for path in kept_checkpoints(run)] == [2, 1]


def test_the_good_one_outlives_those_kept_by_step(run: RunDirectory) -> None:
    save(run, 1)
    mark_good(run)
    for step in (2, 3, 4):
        save(run, step, keep=1)
    assert step_of(good_path(run)) == 1
    mark_good(run)
    assert step_of(good_path(run)) == 4


def test_nothing_is_good_before_there_is_a_checkpoint(run: RunDirectory) -> None:
    with pytest.raises(StageOrderError, match="run `chanas train-supernet` first"):
        mark_good(run)
    assert not run.root.exists()


def test_files_of_other_names_are_left_alone(run: RunDirectory) -> None:
    save(run, 1)
    mine = run.supernet / "checkpoints" / "step-of-mine.safetensors"
    mine.write_bytes(b"")
    save(run, 2, keep=1)
    clear(run)
    assert files(run) == ["checkpoints/step-of-mine.safetensors"]


def test_a_cleared_run_has_no_checkpoint_and_keeps_the_rest(run: RunDirectory) -> None:
    clear(run)
    save(run, 1)
    save(run, 2)
    mark_good(run)
    metrics_path(run).write_text("{}\n")
    clear(run)
    assert files(run) == ["metrics.jsonl"]
    assert not (run.supernet / "checkpoints").exists()
    with pytest.raises(StageOrderError):
        newest_whole(run)


# ---- damage ---------------------------------------------------------------------------------------------------------
def test_the_newest_is_taken_while_it_is_whole(run: RunDirectory) -> None:
    save(run, 1)
    save(run, 2)
    found, path = newest_whole(run)
    assert (found.header["step"], path) == (2, checkpoint_path(run))


def test_a_damaged_newest_one_falls_back_to_the_newest_whole_one(run: RunDirectory) -> None:
    for step in (1, 2, 3):
        save(run, step)
    damage(checkpoint_path(run))
    found, path = newest_whole(run)
    assert (found.header["step"], path.name) == (2, "step-00000002.safetensors")
    damage(path)
    assert newest_whole(run)[0].header["step"] == 1


def test_a_lost_newest_one_falls_back_too(run: RunDirectory) -> None:
    save(run, 1)
    checkpoint_path(run).unlink()
    assert newest_whole(run)[1] == kept_checkpoints(run)[0]


def test_the_good_one_is_the_last_resort(run: RunDirectory) -> None:
    save(run, 1, keep=0)
    mark_good(run)
    save(run, 2, keep=1)
    damage(checkpoint_path(run))
    assert newest_whole(run)[1] == good_path(run)


def test_when_none_is_whole_all_that_were_tried_are_named(run: RunDirectory) -> None:
    save(run, 1)
    mark_good(run)
    damage(checkpoint_path(run))  # and with it the other names of the same bytes
    with pytest.raises(CheckpointError, match="all 3") as caught:
        newest_whole(run)
    for name in ("checkpoint.safetensors", "checkpoints/step-00000001.safetensors", "checkpoints/good.safetensors"):
        assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_damaged_checkpoint_alone_says_what_is_wrong_with_it(run: RunDirectory) -> None:
    save(run, 1, keep=0)
    damage(checkpoint_path(run))
    with pytest.raises(CheckpointError, match="its checksum does not fit"):
        newest_whole(run)


def test_another_schema_is_no_damage_to_fall_back_from(run: RunDirectory) -> None:
    save(run, 1)
    save(run, 2)
    path = checkpoint_path(run)
    path.write_bytes(path.read_bytes().replace(b'\\"schema\\": 1', b'\\"schema\\": 9'))
    with pytest.raises(CheckpointError, match="has schema 9"):
        newest_whole(run)


# ---- kills ----------------------------------------------------------------------------------------------------------
KilledRuns = Callable[[Callable[[RunDirectory], None]], Iterator[RunDirectory]]


class Killed(BaseException):
    """Nothing that could be caught: from here on the process does nothing more to any file."""


def kill_after(patch: pytest.MonkeyPatch, num_calls: int) -> list[str]:
    """Let `num_calls` calls that change files through, and none after these; returns the names of those made."""
    made: list[str] = []

    def mortal(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Any:
            if len(made) == num_calls:
                raise Killed
            made.append(name)
            return call(*args, **kwargs)

        return inner

    for name in ("replace", "link", "unlink", "chmod", "fsync", "mkdir", "rmdir"):
        patch.setattr(os, name, mortal(name, getattr(os, name)))
    patch.setattr("tempfile.mkstemp", mortal("mkstemp", tempfile.mkstemp))
    return made


@pytest.fixture
def killed(tmp_path: Path) -> KilledRuns:
    """Runs with steps 2 and 3 kept and 1 good, in each of which an action was killed at another moment."""
    template = RunDirectory(tmp_path / "template")
    save(template, 1)
    mark_good(template)
    save(template, 2)
    save(template, 3, keep=2)

    def runs(action: Callable[[RunDirectory], None]) -> Iterator[RunDirectory]:
        for num_calls in range(100):
            run = RunDirectory(tmp_path / f"{num_calls}")
            shutil.copytree(template.root, run.root, copy_function=os.link)
            with pytest.MonkeyPatch.context() as patch:
                made = kill_after(patch, num_calls)
                try:
                    action(run)
                except Killed:
                    pass
                else:
                    assert num_calls == len(made) > 2
                    return
            yield run

    return runs


def test_a_killed_write_leaves_as_many_whole_ones_as_before(killed: KilledRuns) -> None:
    newest = set()
    for run in killed(lambda run: save(run, 4, keep=2)):
        found = newest_whole(run)[0].header["step"]
        newest.add(found)
        assert {step_of(path) for path in kept_checkpoints(run)} | {found} >= ({2, 3} if found == 3 else {3, 4})
        assert step_of(good_path(run)) == 1
    assert newest == {3, 4}


def test_a_kill_while_one_is_marked_good_leaves_the_good_one_before_it(killed: KilledRuns) -> None:
    for run in killed(mark_good):
        assert step_of(good_path(run)) in {1, 3}


def test_a_killed_clear_never_leaves_an_old_one_as_the_newest(killed: KilledRuns) -> None:
    for run in killed(clear):
        if checkpoint_path(run).exists():
            assert newest_whole(run)[0].header["step"] == 3
        else:
            assert not kept_checkpoints(run)
            assert not good_path(run).exists()


def test_the_next_write_removes_what_a_kill_left_half_written(killed: KilledRuns) -> None:
    temporaries = 0
    for run in killed(lambda run: save(run, 4)):
        temporaries += sum(name.endswith(".tmp") for name in files(run))
        save(run, 5)
        assert not [name for name in files(run) if name.endswith(".tmp")]
    assert temporaries > 2
