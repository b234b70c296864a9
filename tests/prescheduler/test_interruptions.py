"""Whoever ends a process loses nothing that was measured, and the next one measures nothing of it again: while
operators are tuned, blocks are timed, tables are made of others, and default schedules are timed."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fast_cases import fast

from chanas.core.effort import AdaptEffort, Effort
from chanas.core.latency import LatencyLUT
from chanas.core.task import Task
from chanas.files.run import RunDirectory
from chanas.measuring.messages import BlockAt, Build, OperatorAt, UntunedBlock
from chanas.operators.steps import tuned_workloads
from chanas.prescheduler import session
from chanas.prescheduler.records.store import RecordStore
from chanas.prescheduler.tables import defaults
from chanas.prescheduler.tables.defaults import default_table
from chanas.prescheduler.tables.transfer.adapt import adapt
from chanas.prescheduler.tuning import jobs

from ..compiler.workbench import (
    HOST,
    NANO,
    NUM_CLASSES,
    SyntheticPool,
    device,
    fill_table,
    interrupted_bar,
    random_lut,
)

TASK = Task(NANO, NUM_CLASSES)
BLOCKS = NANO.all_blocks(NUM_CLASSES)
OTHER = device(lanes=8 if HOST.vector_lanes == 16 else 16)


def tuned(run: RunDirectory, pool: SyntheticPool) -> Mapping[Any, object]:
    """Operators, each with trials of its own."""
    with contextlib.closing(RecordStore(run.records, HOST)) as store:
        some = tuned_workloads(BLOCKS, HOST)
        scratch = run.root / "scratch"
        scratch.mkdir(exist_ok=True)
        return jobs.TuningJobs(pool, HOST, store, Effort(trials=5), scratch).run(some, progress=False)


def filled(run: RunDirectory, pool: SyntheticPool) -> Mapping[Any, object]:
    """A table, whose operators have a common budget."""
    return fill_table(run, NANO, HOST, NUM_CLASSES, trials=3, tuner="random").lut.rows


def adapted(run: RunDirectory, pool: SyntheticPool) -> Mapping[Any, object]:
    """A table from one of the same vectors: six blocks are timed."""
    effort = AdaptEffort(measure=6, trials=0)
    return adapt(run, TASK, HOST, [random_lut(NANO, BLOCKS, HOST)], BLOCKS, effort, progress=False).lut.rows


def mapped(run: RunDirectory, pool: SyntheticPool) -> Mapping[Any, object]:
    """A table from one of other vectors: operators of six blocks are tuned."""
    effort = AdaptEffort(measure=6, trials=3)
    return adapt(run, TASK, HOST, [random_lut(NANO, BLOCKS, OTHER)], BLOCKS, effort, progress=False).lut.rows


def untuned(run: RunDirectory, pool: SyntheticPool) -> Mapping[Any, object]:
    """A table of default schedules."""
    return default_table(run.lut("untuned"), "untuned", TASK, HOST, progress=False).rows


def asked(pool: SyntheticPool, kind: type) -> set[str]:
    """What was built: blocks, or operators with their points."""
    return {name_of(a) for a in pool.built if isinstance(a.what, kind) and not a.path.name.startswith("canary")}


def name_of(asked: Build) -> str:
    if isinstance(asked.what, OperatorAt):
        return f"{asked.what.workload.key} {list(asked.what.point)}"
    assert isinstance(asked.what, BlockAt | UntunedBlock)
    return asked.what.block.key


def in_records(query: str) -> Callable[[RunDirectory], set[str]]:
    def kept(run: RunDirectory) -> set[str]:
        with contextlib.closing(sqlite3.connect(run.records)) as db:
            return {name for (name,) in db.execute(query)}

    return kept


@dataclass(frozen=True)
class Stage:
    """Work that may be ended at each step of the progress bar of a module; what it leaves behind, and its name."""

    work: Callable[[RunDirectory, SyntheticPool], Mapping[Any, object]]
    bars: ModuleType
    kind: type
    kept: Callable[[RunDirectory], set[str]]
    in_table: bool = False
    """True if the table has what is done, too."""


OPERATORS = in_records("SELECT workload || ' ' || point FROM records")
IN_BLOCKS = in_records("SELECT block FROM blocks")
STAGES = {
    "operators": Stage(tuned, jobs, OperatorAt, OPERATORS),
    "operators of a table": Stage(filled, jobs, OperatorAt, OPERATORS),
    "blocks of a table": Stage(filled, session, BlockAt, IN_BLOCKS, in_table=True),
    "blocks of an adapted table": Stage(adapted, session, BlockAt, IN_BLOCKS),
    "operators of an adapted table": Stage(mapped, jobs, OperatorAt, OPERATORS),
    "default schedules": Stage(
        untuned, defaults, UntunedBlock, lambda run: set(LatencyLUT.load(run.lut("untuned")).rows)
    ),
}


@pytest.mark.parametrize("moment", fast(["first", "middle", "last"], [1]))
@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_what_was_measured_before_the_end_is_kept_and_not_measured_again(
    stage: Stage, moment: str, tmp_path: Path, synthetic_pool: SyntheticPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, run, whole = synthetic_pool, RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "whole")
    at_once = stage.work(whole, pool)
    total = len(stage.kept(whole))
    assert asked(pool, stage.kind) == stage.kept(whole)
    num_done = {"first": 1, "middle": total // 2, "last": total}[moment]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stage.bars, "progress_bar", interrupted_bar(num_done))
        stage.work(run, pool)
    before = stage.kept(run)
    assert len(before) == num_done
    rows = LatencyLUT.load(run.lut("cpu")).rows if run.lut("cpu").exists() else {}
    assert len(rows) == (num_done if stage.in_table else 0)
    pool.built.clear()
    again = stage.work(run, pool)
    assert asked(pool, stage.kind).isdisjoint(before)
    assert before <= stage.kept(run)
    assert len(stage.kept(run)) == total
    assert again.keys() == at_once.keys()
    assert rows.items() <= again.items()
    pool.built.clear()
    pool.turns.clear()
    stage.work(run, pool)
    assert pool.built == pool.turns == []


def test_the_store_is_closed_and_the_table_says_what_all_runs_took(
    run: RunDirectory, synthetic_pool: SyntheticPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close = [], RecordStore.close
    monkeypatch.setattr(RecordStore, "close", lambda store: (closed.append(store.path), close(store)))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(jobs, "progress_bar", interrupted_bar(5))
        filled(run, synthetic_pool)
    assert closed == [run.records]
    first_s, synthetic_pool.timing_s = synthetic_pool.timing_s, 0.0
    filled(run, synthetic_pool)
    header = LatencyLUT.load(run.lut(HOST.name)).header
    assert header.timing_s == pytest.approx(first_s + synthetic_pool.timing_s)
    assert (header.built_in_s or 0.0) > 0.0
