"""chanas/prescheduler/tuning/offline/exchange/metaschedule.py: databases of TVM's MetaSchedule."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chanas.errors import DataError
from chanas.prescheduler.tuning.offline.exchange.measured import Measured
from chanas.prescheduler.tuning.offline.exchange.metaschedule import RECORDS_FILE, WORKLOADS_FILE, read_database

from .others import TRACE, database, padded, sequence, tuning_record, write_lines

CUDA = {"kind": "cuda", "arch": "sm_80", "thread_warp_size": 32, "max_threads_per_block": 1024}
LOG3 = math.log2(3)


def read(folder: Path, *records: Any) -> tuple[list[Measured], Counter[str]]:
    skipped: Counter[str] = Counter()
    return list(read_database(database(folder, *records) / RECORDS_FILE, skipped)), skipped


def test_a_record_has_its_workload_seconds_device_and_the_block_that_was_tiled(tmp_path: Path) -> None:
    [record], skipped = read(tmp_path, tuning_record())
    target = record.source.target
    assert (record.workload, record.op, record.num_flops) == ("metaschedule-11112222", "dense", 0)
    assert record.seconds == pytest.approx(2e-4)
    assert (target.kind, target.device, target.num_threads, target.dtype) == ("llvm", "znver4", 2, "float32")
    assert not skipped


def test_a_trace_is_replayed_with_its_decisions(tmp_path: Path) -> None:
    [record], _ = read(tmp_path, tuning_record())
    assert sequence(record.rows)[1:] == [
        ("SP other", pytest.approx(padded(0, LOG3, 3, LOG3 + 3))),
        ("RE order", padded(0, 2, 1)),
        ("FU", padded(2)),
        ("AN vec", padded(0, 1)),
        ("AN vec", padded(3)),
    ]


@pytest.mark.parametrize(
    ("instruction", "row"),
    [
        (["Unroll", ["l7"], [], []], ("PR unroll", padded(0, math.log2(9)))),
        (["Bind", ["l7"], ["threadIdx.x"], []], ("AN other", padded(0, 4))),
        (["Bind", ["l6"], ["blockIdx.y"], []], ("AN other", padded(1 + LOG3))),
        (["Bind", ["l2"], ["vthread.x"], []], ("AN other", padded(0, 0, 1))),
        (["Annotate", ["l7", 16], ["pragma_auto_unroll_max_step"], []], ("PR unroll", padded(0, math.log2(17)))),
        (["Annotate", ["b1", 9], ["meta_schedule.parallel"], []], ("AN vec", padded(0, 1))),
        (["Annotate", ["b1", 1], ["double_buffer_scope"], []], ("AN other", padded(0, 0, 0, 0, 0, 0, 0, 1))),
        (["CacheRead", ["b0", ["b1"]], [0, "shared.dyn"], ["b9"]], ("CHR shared", padded(0, 1))),
        (["CacheWrite", ["b0"], [0, "local"], ["b9"]], ("CHW", padded())),
        (["ReverseComputeAt", ["b1", "l7"], [1, -1], []], ("CA pad", padded())),
        (["ComputeInline", ["b1"], [], []], ("CI pad", padded(1))),
        (["RFactor", ["l7"], [0], ["b9"]], ("RF", padded())),
        (["Tensorize", ["b0"], ["wmma", True], []], ("AN mma", padded(1))),
        (["StorageAlign", ["b0"], [0, -2, 32, 8], []], ("AN other", padded(0, 0, 0, 1))),
        (["SetScope", ["b0"], [0, "shared"], []], ("AN other", padded(0, 0, 0, 0, 0, 1))),
        (["TransformLayout", ["b0"], [0], []], ("AN other", padded(0, 0, 0, 0, 0, 0, 1))),
        (["Split", ["l7", None, 4], [1, 0], ["l9", "l10"]], ("SP other", padded(0, 1, 2, 3))),
        (["GetBlock", [], ["root", "main"], ["b9"]], None),
        (["SampleComputeLocation", ["b0"], [], ["l9"]], None),
        (["Annotate", ["b1", 1], ["pragma_unroll_explicit"], []], None),
        (["Annotate", ["b1", 32], ["meta_schedule.vectorize"], []], None),
    ],
)
def test_an_instruction_is_a_row_or_none(tmp_path: Path, instruction: list[Any], row: tuple[str, Any] | None) -> None:
    [before], _ = read(tmp_path, tuning_record())
    [record], _ = read(tmp_path, tuning_record([*TRACE, instruction]))
    added = sequence(record.rows)[len(before.rows) :]
    assert added == ([] if row is None else [(row[0], pytest.approx(row[1]))])


def test_a_categorical_decision_is_a_number(tmp_path: Path) -> None:
    sample = ["SampleCategorical", [], [[0, 16, 64], [0.5, 0.25, 0.25]], ["v20"]]
    unroll = ["Annotate", ["b0", "v20"], ["pragma_auto_unroll_max_step"], []]
    [record], _ = read(tmp_path, tuning_record([*TRACE, sample, unroll], [[4, [3, 8]], [len(TRACE), 2]]))
    assert sequence(record.rows)[-1] == ("PR unroll", pytest.approx(padded(0, math.log2(65))))


def test_a_gpu_and_a_dtype_make_another_device(tmp_path: Path) -> None:
    half = [["TENSOR", "float16", [4]]]
    found, _ = read(tmp_path, tuning_record(target=CUDA), tuning_record(target=CUDA, arguments=half))
    one, other = (record.source for record in found)
    assert one.target.gpu is not None
    assert (one.target.device, one.target.dtype, other.target.dtype) == ("sm_80", "float32", "float16")
    assert one.device != other.device


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (tuning_record(seconds=[1e10]), "that failed"),
        (tuning_record(seconds=None), "without seconds"),
        (tuning_record(target=None), "without a target"),
        (tuning_record(target={"kind": "hexagon"}), "of targets of other kinds (hexagon)"),
        (tuning_record([["Teleport", [], [], []]]), "with instructions that are not known (Teleport)"),
    ],
)
def test_records_of_no_use_are_counted(tmp_path: Path, record: Any, reason: str) -> None:
    found, skipped = read(tmp_path, tuning_record(), record)
    assert len(found) == 1
    assert skipped == {reason: 1}


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ("[0, [[[", "no whole JSON"),
        ({}, "a list of 2 for a tuning record"),
        (tuning_record(workload=1), "one of 1 workloads, got number 1"),
        ([0, [1, 2, 3]], "a list of 4"),
        (tuning_record([["GetLoops", []]]), "a list of 4 for an instruction"),
        (tuning_record(decisions=[[4, ["a"]]]), "a whole number from 1 on for the decision of SamplePerfectTile"),
        (tuning_record([["Split", [], [], []]]), "1 to 256 loops, got 0"),
        (tuning_record([["Split", ["l0", -4], [], []]]), "factors of Split from 1 on"),
        (tuning_record([["Bind", ["l0"], [], []]]), "inputs and attributes of Bind"),
        (tuning_record(target=[]), "an object for the target"),
        (tuning_record(target={"kind": "llvm", "num-cores": 0}), "num-cores"),
        (tuning_record([["GetLoops", [], [], []]] * 5000), "at most 4096 instructions"),
    ],
)
def test_a_damaged_line_is_told_with_its_number(tmp_path: Path, record: Any, error: str) -> None:
    with pytest.raises(DataError, match=rf"{RECORDS_FILE}:2: .*{error}"):
        read(tmp_path, tuning_record(), record)


def test_numbers_that_no_loop_has_are_not_known(tmp_path: Path) -> None:
    fuses = [["Fuse", [f"l{n}"] * 8, [1], [f"l{n + 1}"]] for n in range(7, 2000)]
    [record], _ = read(tmp_path, tuning_record([*TRACE[:6], *fuses]))
    assert len(record.rows) == 2 + len(fuses)


def test_the_workloads_stand_beside_the_records(tmp_path: Path) -> None:
    folder = database(tmp_path / "a", tuning_record())
    (folder / WORKLOADS_FILE).unlink()
    with pytest.raises(DataError, match=rf"expected {WORKLOADS_FILE} beside it"):
        list(read_database(folder / RECORDS_FILE, Counter()))
    write_lines(folder / WORKLOADS_FILE, ["1" * 99, "x"])
    with pytest.raises(DataError, match=rf"{WORKLOADS_FILE}:1: expected a hash"):
        list(read_database(folder / RECORDS_FILE, Counter()))


def test_what_tvm_writes_is_read(tmp_path: Path) -> None:
    import tvm
    from tvm import s_tir, te
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo
    from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord

    a = te.placeholder((16, 24), name="a")
    b = te.compute((16, 24), lambda i, j: a[i, j] * 2.0, name="twice")
    function = te.create_prim_func([a, b]).with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": function})
    written = JSONDatabase(work_dir=str(tmp_path))
    workload = written.commit_workload(module)
    schedule = s_tir.Schedule(module, seed=1)
    outer, inner = schedule.get_loops(schedule.get_sblock("twice"))
    parts = schedule.split(inner, schedule.sample_perfect_tile(inner, 2, decision=[3, 8]))
    schedule.vectorize(parts[-1])
    schedule.parallel(outer)
    target = tvm.target.Target({"kind": "llvm", "num-cores": 4})
    arguments = ArgInfo.from_prim_func(function)
    for seconds in ([2e-5], [1e10]):
        written.commit_tuning_record(TuningRecord(schedule.trace, workload, seconds, target, arguments))
    skipped: Counter[str] = Counter()
    [record] = read_database(tmp_path / RECORDS_FILE, skipped)
    assert (record.op, record.seconds, record.source.target.num_threads) == ("twice", 2e-5, 4)
    assert sequence(record.rows)[1:] == [
        ("SP other", pytest.approx(padded(0, LOG3, 3, LOG3 + 3))),
        ("AN vec", padded(3)),
        ("AN vec", padded(0, 2)),
    ]
    assert skipped == {"that failed": 1}
