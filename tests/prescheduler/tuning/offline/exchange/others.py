"""Records as other systems write them, with one thing changed at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chanas.core.arrays import Float32Array
from chanas.prescheduler.tuning.offline.primitives import NUM_VALUES, SLOTS

CPU_TARGET = "llvm -keys=cpu -mcpu=core-avx2 -model=platinum-8272"
HARDWARE = [16, 64, 64, 0, 0, 0, 0, 0]
GPU_TARGET = "cuda -keys=cuda,gpu -arch=sm_75 -max_num_threads=1024"
GPU_HARDWARE = [-1, 16, 64, 49152, 2147483647, 1024, 8, 32]
KEY = '["00112233445566778899aabbccddeeff", 1, 56, 56, 64]'
STEPS: list[list[Any]] = [
    ["SP", 2, 0, 56, [2, 4], 1],
    ["RE", 2, [1, 0, 2]],
    ["FSP", 3, 0, 0, 1],
    ["CA", 2, 3, 1],
    ["FU", 3, [0, 1]],
    ["AN", 3, 0, 3],
    ["PR", 2, 0, "auto_unroll_max_step$16"],
    ["AN", 2, 3, 2],
]


def measure_record(
    steps: Sequence[Sequence[Any]] = STEPS,
    seconds: Sequence[float] = (1e-4, 3e-4),
    error: int = 0,
    version: str = "v0.6",
    target: str = CPU_TARGET,
    hardware: Sequence[int] = HARDWARE,
    key: str = KEY,
) -> dict[str, Any]:
    """A record of Ansor."""
    task = [key, target, list(hardware), "", 1, []]
    return {"i": [task, [[], list(steps)]], "r": [list(seconds), error, 0.5, 1600000000], "v": version}


TRACE: list[list[Any]] = [
    ["GetSBlock", [], ["dense", "main"], ["b0"]],
    ["GetSBlock", [], ["root", "main"], ["b1"]],
    ["Annotate", ["b0", '"SSRSRS"'], ["meta_schedule.tiling_structure"], []],
    ["GetLoops", ["b0"], [], ["l2", "l3"]],
    ["SamplePerfectTile", ["l2"], [2, 64], ["v4", "v5"]],
    ["Split", ["l2", "v4", "v5"], [1, 0], ["l6", "l7"]],
    ["Reorder", ["l7", "l6"], [], []],
    ["Annotate", ["b1", 64], ["meta_schedule.vectorize"], []],
    ["EnterPostproc", [], [], []],
    ["Unannotate", ["b1"], ["meta_schedule.vectorize"], []],
    ["Fuse", ["l6", "l7"], [1], ["l8"]],
    ["Parallel", ["l8"], [], []],
    ["Vectorize", ["l7"], [], []],
]
DECISIONS: list[Any] = [[4, [3, 8]]]
LLVM = {"keys": ["cpu"], "kind": "llvm", "mcpu": "znver4", "num-cores": 2, "tag": ""}
ARGUMENTS = [["TENSOR", "float32", [24, 24]], ["TENSOR", "float32", [24, 24]]]


def tuning_record(
    trace: Sequence[Any] = TRACE,
    decisions: Sequence[Any] = DECISIONS,
    seconds: Any = (1e-4, 3e-4),
    target: Any = LLVM,
    arguments: Any = ARGUMENTS,
    workload: int = 0,
) -> list[Any]:
    """A record of MetaSchedule."""
    run_secs = seconds if seconds is None else list(seconds)
    return [workload, [[list(trace), list(decisions)], run_secs, target, arguments]]


def database(folder: Path, *records: Any, workloads: Sequence[Any] = (["11112222", "zGFi"],)) -> Path:
    """A folder with a database of MetaSchedule."""
    folder.mkdir(exist_ok=True)
    write_lines(folder / "database_workload.json", *workloads)
    write_lines(folder / "database_tuning_record.json", *records)
    return folder


def result(
    configuration: Any, value: Any = 0.5, name: str = "time", unit: str = "ms", **changes: Any
) -> dict[str, Any]:
    """A result as T4 has it."""
    plain = {
        "configuration": configuration,
        "objectives": [name],
        "times": {"runtimes": []},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [{"name": name, "value": value, "unit": unit}],
    }
    return plain | changes


def results(*found: Any, **changes: Any) -> dict[str, Any]:
    """A T4 file."""
    return {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}, "results": list(found)} | changes


def problem(**values: str) -> dict[str, Any]:
    """A T1 file: a parameter for each name, with its Values."""
    parameters = [{"Name": name, "Type": "int", "Values": text} for name, text in values.items()]
    return {
        "ConfigurationSpace": {"TuningParameters": parameters, "Conditions": []},
        "KernelSpecification": {
            "Language": "CUDA",
            "KernelName": "add",
            "KernelFile": "add.cu",
            "GlobalSize": {"X": "1"},
            "LocalSize": {"X": "1"},
            "Device": {"Name": "RTX A4000"},
        },
    }


def write_lines(path: Path, *rows: Any) -> Path:
    """A file of JSON lines; texts stand as they are."""
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def sequence(rows: Float32Array) -> list[tuple[str, list[float]]]:
    """Slots and numbers of rows."""
    return [(SLOTS[int(row[:-NUM_VALUES].argmax())], row[-NUM_VALUES:].tolist()) for row in rows]


def padded(*values: float) -> list[float]:
    return np.array([*values, *[0.0] * (NUM_VALUES - len(values))], dtype=np.float32).tolist()
