"""chanas/prescheduler/tables/defaults.py: tables of default schedules are measured once, and go on where they were
stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from chanas.core.blocks import BlockConfig
from chanas.core.latency import LatencyLUT
from chanas.core.task import Task
from chanas.errors import ChanasError, MeasureError
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import Outcome
from chanas.prescheduler.tables import defaults
from chanas.prescheduler.tables.defaults import KINDS, Kind, default_table

from ...compiler.workbench import HOST, NANO, NUM_CLASSES, SyntheticPool

BLOCKS = NANO.all_blocks(NUM_CLASSES)


class Invented:
    """A kind whose blocks take a millisecond each; some fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.fails: set[str] = set()
        monkeypatch.setitem(KINDS, "invented", Kind("invented", lambda: "nobody 1.0", self.measure))

    def measure(self, blocks: Sequence[BlockConfig], *_: Any) -> Generator[tuple[BlockConfig, Outcome], None, None]:
        for block in blocks:
            self.asked.append(block.key)
            failed = block.key in self.fails
            yield block, Outcome(None, None, "timeout") if failed else Outcome(1e-3, 1e-6, None)


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> Invented:
    return Invented(monkeypatch)


def table(path: Path, kind: str = "invented", **changes: Any) -> LatencyLUT:
    task = Task(changes.pop("space", NANO), NUM_CLASSES, changes.pop("left_out", ()))
    return default_table(path, kind, task, HOST, progress=False, **changes)


@pytest.mark.parametrize("kind", ["untuned", "pytorch"])
def test_every_block_is_measured(kind: str, tmp_path: Path, shared_pool: WorkerPool) -> None:
    lut = table(tmp_path / "cpu.json", kind)
    assert set(lut.rows) == {b.key for b in BLOCKS}
    assert all(row.median_s > 0 and row.schedules == () for row in lut.rows.values())
    assert LatencyLUT.load(tmp_path / "cpu.json") == lut
    assert lut.header.compiler == KINDS[kind].maker()
    assert lut.calibration is None


def test_what_is_there_is_not_measured_again(tmp_path: Path, invented: Invented) -> None:
    first = table(tmp_path / "cpu.json")
    assert len(invented.asked) == len(BLOCKS)
    assert table(tmp_path / "cpu.json").rows == first.rows
    assert len(invented.asked) == len(BLOCKS)


def test_sub_spaces_that_are_left_out_are_not_measured(tmp_path: Path, invented: Invented) -> None:
    home, *left_out = NANO.sub_spaces
    table(tmp_path / "cpu.json", left_out=tuple(left_out))
    assert invented.asked == [b.key for b in NANO.all_blocks(NUM_CLASSES, (home,))]


def test_a_killed_run_loses_a_few_blocks(tmp_path: Path, invented: Invented, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "_SAVE_EVERY", 4)
    seen = []
    save = LatencyLUT.save
    monkeypatch.setattr(LatencyLUT, "save", lambda lut, path: (seen.append(len(lut.rows)), save(lut, path)))
    table(tmp_path / "cpu.json")
    assert seen[:2] == [4, 8]


def test_a_block_that_fails_is_named_and_the_others_are_kept(tmp_path: Path, invented: Invented) -> None:
    invented.fails = {BLOCKS[2].key}
    with pytest.raises(
        MeasureError, match=rf"1 of {len(BLOCKS)} blocks .* the first: {BLOCKS[2].key}: timeout; .*again"
    ):
        table(tmp_path / "cpu.json")
    assert len(LatencyLUT.load(tmp_path / "cpu.json").rows) == len(BLOCKS) - 1
    invented.fails.clear()
    assert len(table(tmp_path / "cpu.json").rows) == len(BLOCKS)
    assert invented.asked.count(BLOCKS[0].key) == 1


@pytest.mark.parametrize("change", ["compiler", "device", "space"])
def test_a_table_of_something_else_is_replaced(
    change: str, tmp_path: Path, invented: Invented, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpu.json"
    space = dataclasses.replace(NANO, head_width=32) if change == "space" else NANO
    lut = table(path, space=space)
    if change == "compiler":
        monkeypatch.setitem(KINDS, "invented", Kind("invented", lambda: "nobody 2.0", invented.measure))
    elif change == "device":
        target = dataclasses.replace(HOST, fingerprint="0123456789ab")
        LatencyLUT(dataclasses.replace(lut.header, target=target), lut.rows).save(path)
    invented.asked.clear()
    table(path)
    assert len(invented.asked) == len(BLOCKS)


def test_a_file_that_is_no_table_is_measured_anew(tmp_path: Path, invented: Invented) -> None:
    (tmp_path / "cpu.json").write_text("{")
    assert len(table(tmp_path / "cpu.json").rows) == len(BLOCKS)


def test_an_unknown_kind_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ChanasError, match="unknown kind of default schedules 'tflite'; known: pytorch, untuned"):
        table(tmp_path / "cpu.json", "tflite")


def test_blocks_are_timed_as_cold_as_in_a_network(tmp_path: Path, synthetic_pool: SyntheticPool) -> None:
    table(tmp_path / "cpu.json", "untuned")
    assert [b.what.block for b in synthetic_pool.built] == list(BLOCKS)
