"""Files that a disk, an editor or another program damaged: every reader ends with one line, never with a traceback."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from chanas.bundle.codesign import CoDesign, write_bundle
from chanas.core.arch import SearchSpace
from chanas.core.genome import decode, sample
from chanas.core.latency import CacheMisses, Calibration, LatencyLUT
from chanas.errors import ChanasError, CheckpointError
from chanas.files.run import RunDirectory
from chanas.files.writing import write_json
from chanas.measuring.messages import Reading
from chanas.network.preprocess import Preprocess
from chanas.prescheduler.records.store import BlockRecord, RecordStore, TuningRecord
from chanas.report.reading import read_run
from chanas.search.accuracy.evaluations import EvaluationStore
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.sources import load_source
from chanas.supernet.data.splits import load_splits, make_splits, save_splits
from chanas.supernet.training.checkpoint import checkpoint_path, metrics_path, newest_whole, write_checkpoint
from chanas.supernet.training.metrics import append_metrics, cut_metrics, read_metrics
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.resume import check_resumable, refuse_existing
from chanas.supernet.training.state import Progress
from chanas.workflows.searching.results import TargetResult, rule_regrets, stored_results
from chanas.workflows.stages import tables
from chanas.workflows.stages.stored import SUPERNET, stored_task

from .compiler.workbench import HOST
from .tables import CLASSES, random_table, save_space

Reader = Callable[[Path], object]
NUM_DAMAGES = 100
# What stands in the place of a value; the texts are put into the JSON as they are.
VALUES = (None, True, -1, 0, 1.5, 10**30, "x", "", "\ud800", [], {}, [[]], [None], {"key": 1}, "r9-w1-k3e3", "../x")
TEXTS = ("NaN", "-Infinity", "1e999", "9" * 5000, "[" * 100_000, '"\\q"', "tru")
SCHEDULES = (("w", (1, 2)),)


# ---- damage ---------------------------------------------------------------------------------------------------------
def damaged(content: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    """The content cut short, with other bytes, and, where it is JSON (lines), with other values and lost keys."""
    yield b""
    yield b"\xff\xfe" + content
    for _ in range(NUM_DAMAGES):
        out, at = bytearray(content), int(rng.integers(len(content)))
        kind = rng.integers(4)
        if kind == 0:
            out = out[:at]
        elif kind == 1:
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            out[at : at + int(rng.integers(1, 9))] = rng.bytes(int(rng.integers(9)))
        else:
            out = bytearray(other_value(content, rng) or out[:at])
        yield bytes(out)


def other_value(content: bytes, rng: np.random.Generator) -> bytes | None:
    """JSON, or one of several lines of it, with one value replaced or one key lost; None where it is none."""
    lines = content.split(b"\n")
    whole = _parsed(content) is not None
    texts = [content] if whole else lines
    number = int(rng.integers(len(texts)))
    data = _parsed(texts[number])
    if data is None:
        return None
    marker = "\x00here"
    places = list(_places(data))
    holder, key = places[int(rng.integers(len(places)))] if places else (None, None)
    if holder is None:
        return None
    choice = int(rng.integers(len(VALUES) + len(TEXTS) + 2))
    text = None
    if choice < len(VALUES):
        holder[key] = VALUES[choice]
    elif choice < len(VALUES) + len(TEXTS):
        holder[key], text = marker, TEXTS[choice - len(VALUES)]
    else:
        del holder[key]
    out = json.dumps(data)
    texts[number] = (out if text is None else out.replace(json.dumps(marker), text)).encode()
    return b"\n".join(texts)


def _parsed(content: bytes) -> Any:
    try:
        data = json.loads(content)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every value inside of it, by what holds it and its key; of long lists the first few."""
    items = list(data.items()) if isinstance(data, dict) else list(enumerate(data[:4]))
    for key, value in items:
        yield data, key
        if isinstance(value, dict | list):
            yield from _places(value)


# ---- one file of each kind ------------------------------------------------------------------------------------------
def table(run: RunDirectory, space: SearchSpace) -> tuple[Path, Reader]:
    """With all rows; it is read as `chanas lut show` does."""
    lut = random_table(space)
    fit = Calibration(1e-6, 1.0, 1e-7, 8, 0.01, 0.02, 0.9, 0.1, CacheMisses(1e-9, 1e6, 2e6), 0.01)
    LatencyLUT(lut.header, lut.rows, fit).save(run.lut("cpu"))
    preset = save_space(space, run.root / "space.yaml")

    def read(path: Path) -> object:
        summary = tables.show(tables.open_table(path, space=preset, num_classes=CLASSES))
        return json.dumps(summary.to_json()), list(summary.lines())

    return run.lut("cpu"), read


def splits(run: RunDirectory, space: SearchSpace) -> tuple[Path, Reader]:
    source, config = load_source(DataConfig()), DataConfig()
    path = run.supernet / "splits.json"
    save_splits(path, make_splits(source, config.splits, 0))
    return path, lambda path: load_splits(path, source).digest


def _header(space: SearchSpace) -> dict[str, Any]:
    return {
        "space": space.to_json(),
        "space_digest": space.digest,
        "config": TrainConfig.load("digits").to_json(),
        "class_names": ["a", "b"],
        "num_classes": 2,
        "num_steps": 3,
        "done": False,
        "seed": 0,
        "splits_digest": "0123",
        "architecture": None,
        **Progress(step=1, best_top1={"all": 0.5}).to_json(),
    }


def _resume(run: RunDirectory) -> object:
    saved, path = newest_whole(run)
    config = TrainConfig.from_json(saved.header["config"], "checkpoint config")
    check_resumable(saved.header, path, SearchSpace.from_json(saved.header["space"]), config, None)
    return Progress.from_json(saved.header)


def checkpoint(run: RunDirectory, space: SearchSpace) -> tuple[Path, Reader]:
    write_checkpoint(run, _header(space), {"supernet.a": torch.ones(2)}, keep=0)
    return checkpoint_path(run), lambda path: _resume(run)


def checkpoint_header(run: RunDirectory, space: SearchSpace) -> tuple[Path, Reader]:
    """The JSON inside of the checkpoint, by itself: put back before it is read."""
    tensors = {"supernet.a": torch.ones(2)}
    write_checkpoint(run, _header(space), tensors, keep=0)
    with safe_open(checkpoint_path(run), framework="pt") as file:
        (name, text), *_ = file.metadata().items()
    path = run.root / "header.json"
    path.write_text(text)

    def read(path: Path) -> object:
        checkpoint_path(run).write_bytes(save(tensors, metadata={name: path.read_bytes().decode(errors="replace")}))
        with contextlib.suppress(CheckpointError):  # there is a checkpoint
            refuse_existing(run)
        return _resume(run)

    return path, read


def checkpoint_json(run: RunDirectory, space: SearchSpace) -> tuple[Path, Reader]:
    write_checkpoint(run, _header(space), {"supernet.a": torch.ones(2)}, keep=0)
    path = run.supernet / "checkpoint.json"
    return path, lambda path: (stored_task(run), SUPERNET.read_with(path, lambda data: data["seed"]))


def metrics(run: RunDirectory, space: SearchSpace) -> tuple[Path, Reader]:
    run.supernet.mkdir(parents=True)
    for step in range(4):
        sizes = {"smallest": {"train_loss": 0.5, "top1": None}}
        append_metrics(run, {"kind": "training", "step": step, "phase": "all", "wall_s": 1.0, "by_size": sizes})

    def read(path: Path) -> object:
        cut_metrics(run, 2)
        rows = read_metrics(run)
        return max((float(row.get("wall_s", 0.0)) for row in rows), default=0.0), max(
            (r["step"] for r in rows), default=0
        )

    return metrics_path(run), read


def evaluations(run: RunDirectory, space: SearchSpace) -> tuple[Path, Reader]:
    path = run.search / "evaluations.jsonl"
    store = EvaluationStore(path, space, "digest")
    for architecture in decode(space, sample(space, 4, np.random.default_rng(0))):
        store.add(architecture, 0.5)
    return path, lambda path: EvaluationStore(path, space, "digest").with_purpose("explore")


def bundle(run: RunDirectory, space: SearchSpace) -> tuple[Path, Reader]:
    (architecture,) = decode(space, sample(space, 1, np.random.default_rng(0)))
    module = run.root / "module.so"
    run.root.mkdir()
    module.write_bytes(b"code")
    latency = {"latency_s": 1e-3}
    document = {
        "space": space.to_json(),
        "architecture": {**architecture.to_json(), "genome": [0, 1]},
        "class_names": [str(i) for i in range(CLASSES)],
        "preprocess": Preprocess(32, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2)).to_json(),
        "targets": [
            {"target": HOST.to_json(), "constraints": latency, "predicted": latency, "measured": latency},
            {"target": {**HOST.to_json(), "name": "cpu@pi"}, "predicted": latency},
        ],
        **{"constraints": {"macs": 1.0}, "predicted": {"top1": 0.5}, "num_macs": 1, "num_params": 2},
    }
    write_bundle(run.bundle, document, {"a": np.ones(2, np.float32)}, [module, module])
    return run.bundle / "codesign.json", lambda path: (
        CoDesign.load(path.parent).blocks,
        CoDesign.load(path.parent, "cpu@pi"),
    )


def result(run: RunDirectory, space: SearchSpace) -> tuple[Path, Reader]:
    rows = [{"rule": "all", "sub_space": None, "top1": 0.9, "regret_points": 0.1}]
    write_json(run.search / "result.json", {"winner": "r32", "rule_regrets": rows, "cloud": {"top1": [0.5]}})
    return run.search / "result.json", rule_regrets


def targets(run: RunDirectory, space: SearchSpace) -> tuple[Path, Reader]:
    found = TargetResult("cpu", "A processor", 1e-3, "0123", covered=("r32-w1",), bundle=run.root / "bundles" / "cpu")
    write_json(run.per_target, {"request": "0123", "complete": False, "targets": [found.to_json(run)]})
    return run.per_target, lambda path: [found.line() for found in stored_results(run)[2]]


def records(run: RunDirectory, space: SearchSpace) -> tuple[Path, Reader]:
    store = RecordStore(run.records, HOST)
    store.add("w", [TuningRecord((i, 1), 1e-6, 1e-9, same_as=(1, 1)) for i in range(300)])
    store.add_block("b", BlockRecord(SCHEDULES, 1e-5))
    store.add_canary(Reading(1e-6, 1e-9, 1.0, 1.7e9))
    store.close()

    def read(path: Path) -> object:
        for left in ("-wal", "-shm"):
            path.with_name(path.name + left).unlink(missing_ok=True)
        store = RecordStore(path, HOST)
        try:
            blocks = store.load_block("b", SCHEDULES), store.load_canary()
            return store.load("w"), blocks, store.total_work(), store.count()
        finally:
            store.close()

    return run.records, read


KINDS = (
    checkpoint_header,
    table,
    splits,
    checkpoint,
    checkpoint_json,
    metrics,
    evaluations,
    bundle,
    result,
    targets,
    records,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_damaged_file_is_one_line(
    kind: Callable[[RunDirectory, SearchSpace], tuple[Path, Reader]], tiny_space: SearchSpace, tmp_path: Path
) -> None:
    path, read = kind(RunDirectory(tmp_path / "run"), tiny_space)
    read(path)
    content, rng, num_refused = path.read_bytes(), np.random.default_rng(0), 0
    for number, bad in enumerate(damaged(content, rng)):
        path.write_bytes(bad)
        try:
            read(path)
        except ChanasError as error:
            num_refused += 1
            assert "\n" not in str(error)
            str(error).encode()
        except Exception as error:
            error.add_note(f"damage {number} of {path.name}: {bad[:2000]!r}")
            raise
    assert num_refused > 0 or kind is metrics  # of which damaged lines are left out


@pytest.mark.parametrize(
    "kind", [table, checkpoint_json, metrics, bundle, result, targets], ids=lambda kind: kind.__name__
)
def test_a_report_reads_on_beside_a_damaged_file(
    kind: Callable[[RunDirectory, SearchSpace], tuple[Path, Reader]], tiny_space: SearchSpace, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "run")
    path, _ = kind(run, tiny_space)
    content = path.read_bytes()
    for bad in damaged(content, np.random.default_rng(1)):
        path.write_bytes(bad)
        assert all("\n" not in note for note in read_run(run).notes)
