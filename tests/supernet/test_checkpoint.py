"""A checkpoint is whole or refused, and its JSON cannot belong to other weights."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chanas.errors import ChanasError, CheckpointError, StageOrderError
from chanas.run import RunDirectory
from chanas.supernet.checkpoint import checkpoint_path, read_checkpoint, read_header, write_checkpoint

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

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_bytes", full)
        with pytest.raises(ChanasError, match="No space left on device"):
            write_checkpoint(run, {**HEADER, "step": 8}, TENSORS)
    assert read_checkpoint(run).header["step"] == 7
    assert sorted(p.name for p in run.supernet.iterdir()) == ["checkpoint.json", "checkpoint.safetensors"]
