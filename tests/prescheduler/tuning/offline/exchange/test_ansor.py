"""chanas/prescheduler/tuning/offline/exchange/ansor.py: measure records of Ansor and TenSet."""

from __future__ import annotations

import math
from typing import Any

import pytest

from chanas.prescheduler.tuning.offline.exchange.ansor import read_record
from chanas.prescheduler.tuning.offline.exchange.reading import UnusableError

from .others import GPU_HARDWARE, GPU_TARGET, HARDWARE, KEY, STEPS, measure_record, padded, sequence


def rows_of(*steps: list[Any]) -> list[tuple[str, list[float]]]:
    """Rows of steps on a processor, without the device's."""
    return sequence(read_record(measure_record(steps)).rows)[1:]


def test_a_record_has_its_workload_seconds_and_device() -> None:
    record = read_record(measure_record())
    target = record.source.target
    assert (record.workload, record.op, record.num_flops, record.point) == (KEY, "subgraph", 0, ())
    assert record.seconds == pytest.approx(2e-4)
    assert (target.kind, target.device, target.num_threads, target.vector_lanes) == ("llvm", "platinum-8272", 16, 16)
    assert sequence(record.rows)[0] == ("DV", padded(4, 0, 4, 0, 0, 2))


def test_a_gpu_is_one() -> None:
    record = read_record(measure_record(target=GPU_TARGET, hardware=GPU_HARDWARE))
    gpu = record.source.target.gpu
    assert gpu is not None
    assert (gpu.arch, gpu.warp_size, gpu.max_threads_per_block, gpu.max_shared_bytes_per_block) == (
        "sm_75",
        32,
        1024,
        49152,
    )


def test_devices_are_told_apart_by_target_and_hardware() -> None:
    records = [measure_record(), measure_record(), measure_record(hardware=[8, *HARDWARE[1:]])]
    one, again, other = (read_record(record).source for record in records)
    assert one == again
    assert one.device != other.device


@pytest.mark.parametrize(
    ("key", "op"),
    [('["matmul_add", 128]', "matmul_add"), (KEY, "subgraph"), ("no JSON", "subgraph"), ("3", "subgraph")],
)
def test_an_operator_is_named_by_its_key_if_that_names_one(key: str, op: str) -> None:
    assert read_record(measure_record(key=key)).op == op


def test_a_task_of_a_writer_before_input_names_is_read() -> None:
    record = measure_record()
    record["i"][0].pop()
    assert read_record(record).workload == KEY


LOG7 = math.log2(7)


@pytest.mark.parametrize(
    ("steps", "rows"),
    [
        ([["SP", 2, 0, 56, [2, 4], 1]], [("SP other", padded(LOG7, 1, 2, LOG7 + 3))]),
        ([["SP", 2, 0, 56, [2, 4], 0]], [("SP other", padded(1, 2, LOG7, LOG7 + 3))]),
        ([["SP", 2, 0, None, [4], 1]], [("SP other", padded(0, 0, 2, 2))]),
        ([["SP", 2, 0, 57, [8], 1]], [("SP other", padded(0, 3, 3, 6))]),
        (
            [["SP", 2, 0, 64, [2, 4, 8], 1], ["FSP", 3, 0, 0, 2]],
            [("SP other", padded(1, 2, 3, 6)), ("SP other", padded(0, 1, 5, 6))],
        ),
        (
            [["SP", 2, 0, 8, [2, 4], 1], ["SP", 2, 1, 8, [4, 1], 1], ["FFSP", 3, 0, [0, 1], 1, 1]],
            [("SP other", padded(0, 1, 2, 3)), ("SP other", padded(1, 2, 0, 3)), ("SP other", padded(0, 0, 2, 2))],
        ),
        ([["RE", 2, [1, 0, 2]]], [("RE order", padded(0, 3, 1 / 3))]),
        ([["FU", 2, [0, 1, 2]]], [("FU", padded(3))]),
        ([["AN", 2, 0, 0]], []),
        ([["AN", 2, 0, 1]], [("PR unroll", padded())]),
        ([["AN", 2, 0, 2]], [("AN vec", padded(4))]),
        ([["AN", 2, 0, 3]], [("AN vec", padded(0, 4))]),
        ([["AN", 2, 0, 4]], [("AN other", padded(0, 0, 1))]),
        ([["AN", 2, 0, 7]], [("AN other", padded(1))]),
        ([["AN", 2, 0, 10]], [("AN other", padded(0, 1))]),
        ([["AN", 2, 0, 11]], [("AN mma", padded(1))]),
        ([["PR", 2, 0, "auto_unroll_max_step$7"]], [("PR unroll", padded(0, 3))]),
        ([["PR", 2, 0, "prefetch"]], [("AN other", padded(0, 0, 0, 0, 0, 0, 0, 1))]),
        ([["SA", 2, 0, 32, 8]], [("AN other", padded(0, 0, 0, 1))]),
        ([["CA", 2, 3, 5]], [("CA pad", padded(0, 5))]),
        ([["CI", 2], ["CR", 1]], [("CI pad", padded(1)), ("AN other", padded(0, 0, 0, 0, 1))]),
        ([["CHR", 2, "shared", [3, 4]]], [("CHR shared", padded(0, 2))]),
        ([["CHR", 2, "local", [3]], ["CHW", 2, "local"]], [("CHR input", padded(0, 1)), ("CHW", padded())]),
        ([["RF", 2, 1, 0]], [("RF", padded())]),
    ],
)
def test_a_step_is_a_row(steps: list[list[Any]], rows: list[tuple[str, list[float]]]) -> None:
    assert rows_of(*steps) == [(slot, pytest.approx(numbers)) for slot, numbers in rows]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (measure_record(error=7), r"that failed \(run timeout\)"),
        (measure_record(error=99), r"that failed \(99\)"),
        (measure_record(seconds=[1e10]), "that failed"),
        (measure_record(seconds=[]), "without seconds"),
        (measure_record(seconds=[0.0]), "without seconds"),
        (measure_record(version="v0.5"), r"of another version than v0.6 \(v0.5\)"),
        (measure_record([["XX", 1]]), r"steps that are not known \(XX\)"),
        (measure_record([["AN", 2, 0, 12]]), "annotation 12"),
        (measure_record(target="opencl -device=mali"), r"of targets of other kinds \(opencl\)"),
    ],
)
def test_a_record_of_no_use_says_why(record: Any, reason: str) -> None:
    with pytest.raises(UnusableError, match=reason):
        read_record(record)


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    """A record with another value at a place."""
    record: Any = measure_record()
    inner = record
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return dict(record)


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ([1, 2], "an object for a measure record"),
        ({"i": []}, "with i, r and v"),
        (changed(["v"], 6), "a text for v"),
        (changed(["i"], []), "a list of 2 for i"),
        (changed(["i", 0], [KEY, "llvm"]), "a task of workload, target and hardware"),
        (changed(["i", 0, 0], 3), "a text for the workload's key"),
        (changed(["i", 0, 0], "x" * 5000), "at most 4096 characters"),
        (changed(["i", 0, 2], [1]), "a list of 8 for hardware parameters"),
        (changed(["i", 0, 2, 0], "four"), "a whole number"),
        (changed(["i", 1], [[]]), "a list of 2 for the state"),
        (changed(["r"], [[1.0], 0]), "a list of 4 for r"),
        (changed(["r", 0], ["fast"]), "a number for seconds"),
        (changed(["r", 0], [True]), "a number for seconds"),
        (changed(["r", 1], -1), "the error's number"),
        (measure_record([[]]), "with steps|a step"),
        (measure_record([[3, 1]]), "a text for a step's name"),
        (measure_record([["SP", 2, 0, 56]]), "6 values of step SP, got 4"),
        (measure_record([["SP", 2, 0, 56, [0], 1]]), "from 1 on for the lengths"),
        (measure_record([["SP", 2, 0, 56, [2] * 40, 1]]), "at most 16 numbers"),
        (measure_record([["FSP", 2, 0, 0, 2]]), "a step SP before it"),
        (measure_record([STEPS[0], ["FFSP", 3, 0, [0], 9, 1]]), "a level of FFSP"),
        (measure_record([["RE", 2, [1] * 300]]), "at most 256 numbers"),
        (measure_record([["CI", 1]] * 5000), "at most 4096 steps"),
    ],
)
def test_what_is_no_record_is_refused(record: Any, error: str) -> None:
    with pytest.raises((ValueError, UnusableError), match=error):
        read_record(record)
