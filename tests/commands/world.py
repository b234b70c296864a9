"""A folder with all that a user can get wrong: YAML files, tables, images and runs; commands in `golden/` meet it."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import yaml
from networks import save_onnx
from PIL import Image
from tables import random_table, save_accuracies, save_space

from chanas.core.arch import SearchSpace
from chanas.files.run import RunDirectory
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.train import train_supernet

from ..devices.test_target_files import BOARD

PHASE: dict[str, Any] = {"name": "a", "steps": 1, "base_lr": 1.0}
CONFIG: dict[str, Any] = {"data": {"dataset": "digits"}, "phases": [PHASE], "batch_size": 8, "gap_batch_size": 4}
QUICK = {"recalibration_images": 32, "num_threads": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "good": QUICK,
    "augment": {"data": {"augment": {"flop": True}}},
    "batch-of-1": {"batch_size": 1},
    "batch-of-many": {"batch_size": "many"},
    "batch-shared": {"num_micro_batches": 3},
    "batch-spread": {"num_micro_batches": 8, "gap_batch_size": 8},
    "dataset": {"data": {"dataset": "digit"}},
    "depths": {"phases": [PHASE | {"depths": [9]}]},
    "gap": {"objective": {"add_gap_to_train": True}},
    "key": {"batchsize": 3},
    "kernel-sizes": {"phases": [PHASE | {"kernel_sizes": [3, 9]}]},
    "no-phase": {"phases": []},
    "no-resolution": {"phases": [PHASE | {"resolutions": []}]},
    "no-root": {"data": {"dataset": "imagefolder"}},
    "phase-key": {"phases": [PHASE | {"kernels": 3}]},
    "phase-rate": {"phases": [{"name": "a", "steps": 1}]},
    "phase-steps": {"phases": [{"name": "a", "base_lr": 1}]},
    "splits": {"data": {"splits": {"gap": 0.5, "holdout": 0.5}}},
    "std": {"data": {"std": [1, 0, 1]}},
    "strategy": {"strategy": "random"},
    "warmup": {"phases": [PHASE | {"warmup_steps": 1}]},
    "width": {"phases": [PHASE | {"width_multipliers": [2.0]}]},
}

SPACES: dict[str, dict[str, Any]] = {
    "depths": {"depths": [0, 1]},
    "grey": {"in_channels": 1},
    "head": {"head_width": "960"},
    "kernels": {"kernel_sizes": [2, 4]},
    "key": {"depth": [2]},
    "name": {"name": 3},
    "no-resolution": {"resolutions": []},
    "no-stages": {"stages": []},
    "resolution-alone": {"resolutions": 32},
    "resolution-descending": {"resolutions": [32, 24]},
    "resolution-fraction": {"resolutions": [24.5]},
    "resolution-text": {"resolutions": ["a", "b"]},
    "schema": {"schema": 99},
    "stage-keys": {"stages": [{"width": 8}]},
    "stage-text": {"stages": ["a"]},
    "stages-number": {"stages": 3},
    "stride": {"stem_stride": 0},
    "true-channels": {"in_channels": True},
    "width-infinite": {"width_multipliers": [1.0, math.inf]},
    "width-nan": {"width_multipliers": [math.nan]},
    "width-text": {"width_multipliers": ["wide"]},
}
STAGES: dict[str, dict[str, Any]] = {
    "activation": {"activation": "gelu"},
    "stage-key": {"strid": 1},
    "stage-stride": {"stride": 1.5},
    "stage-width": {"width": 0},
    "use-se": {"use_se": "yes"},
}

BOARDS: dict[str, dict[str, Any]] = {
    "key": {"l2_byts": 1},
    "kind": {"kind": "npu"},
    "l1-above-l2": {"l1_bytes": 2 << 20},
    "l1-text": {"l1_bytes": "32K"},
    "l1-zero": {"l1_bytes": 0},
    "l2-above-l3": {"l3_bytes": 1024},
    "lanes": {"vector_lanes": 5},
    "mattr": {"mattr": ["dotprod"]},
    "name": {"name": "My Board"},
    "no-kind": {"kind": None},
    "no-mcpu": {"mcpu": None},
}
GPUS: dict[str, dict[str, Any]] = {
    "registers": {"registers_per_block": 131072},
    "shared": {"max_shared_bytes_per_block": 233473},
    "warp": {"warp_size": 2048},
}
JOB: dict[str, Any] = {"name": "a", "run": "run"}
SWEEP: dict[str, Any] = {"command": "tune", "parameters": {"trials": [1, 2]}, "fixed": {"model": "net.onnx"}}
SWEEPS: dict[str, dict[str, Any]] = {
    "at-once": {"at_once": 2},
    "command": {"command": "tunes"},
    "key": {"values": {}},
    "option": {"fixed": {"modell": "net.onnx"}},
    "value": {"parameters": {"trials": [1, "two"]}},
    "zip": {"parameters": {"trials": [1, 2], "seed": [0]}, "combine": "zip"},
}
JOBS: dict[str, dict[str, Any]] = {
    "devices": {"devices": [{"cores": [0, 1]}]},
    "int8": {"jobs": [JOB | {"calibration": "images/good"}]},
    "key": {"jobs": [JOB | {"trails": 3}]},
    "one": {},
    "policy": {"policy": "fifo"},
    "priority": {"policy": "sequential", "jobs": [JOB | {"priority": 1}]},
    "runs": {"jobs": [JOB, JOB | {"name": "b"}]},
    "threads": {"threads": 9999},
}
ANSOR = '{"i": [["[1]", "llvm", [1, 64, 64, 0, 0, 0, 0, 0], "", 1, []], [[], []]], "r": [[0.1], 0, 1, 1], "v": "v0.6"}'
KERNELS = {
    "kernels": ["1,NCHW,8,", "2,NCHW,5,", "4,NCHW,2,2.5", "4,NHWC,failed,", "2,NHWC,4,failed"],
    "kernels-same": ["1,NCHW,8,"],
    "kernels-twice": ["1,NCHW,8,", "2,NCHW,8,", "1,NCHW,5,"],
}
H100 = Path(__file__).resolve().parents[2] / "chanas" / "configs" / "targets" / "h100.yaml"
NO_MAPPINGS: dict[str, bytes] = {"list": b"- 1\n- 2\n", "broken": b"a: [", "empty": b"", "binary": b"\xff\xfe\x00\xd8"}


def make_world(folder: Path, space: SearchSpace) -> None:
    """Fill the folder, which is the working directory.

    Args:
        folder: exists and is empty.
        space: the search space of `tiny.yaml`, of the tables and of the supernet in `run`.
    """
    for name, content in NO_MAPPINGS.items():
        (folder / f"{name}.yaml").write_bytes(content)
    save_space(space, folder / "tiny.yaml")
    space_json = space.to_json()
    stage, *others = space_json["stages"]
    spaces = SPACES | {name: {"stages": [stage | change, *others]} for name, change in STAGES.items()}
    write_yaml(folder / "configs", CONFIG, CONFIGS)
    write_yaml(folder / "spaces", space_json, spaces)
    write_yaml(folder / "boards", BOARD, BOARDS)
    write_yaml(folder / "gpus", yaml.safe_load(H100.read_text(encoding="utf-8")), GPUS)
    write_yaml(folder / "jobs-files", {"jobs": [JOB]}, JOBS)
    write_yaml(folder / "sweep-files", SWEEP, SWEEPS)
    make_tables(folder, space)
    make_images(folder / "images")
    make_run(RunDirectory(folder / "run"), space)
    save_onnx(folder / "net.onnx")
    (folder / "net.pth").write_bytes(b"\x80\x02}q\x00.")
    (folder / "cut.onnx").write_bytes((folder / "net.onnx").read_bytes()[:100])
    save_accuracies(space, folder / "accuracies.csv")
    (folder / "ansor.json").write_text(f"{ANSOR}\n{ANSOR[:-20]}\n", encoding="utf-8")
    (folder / "failed.json").write_text(f"{ANSOR.replace('[0.1], 0', '[1e10], 6')}\n", encoding="utf-8")
    (folder / "accuracies-key.csv").write_text("architecture,top1\nr12,50\n", encoding="utf-8")
    (folder / "accuracies-head.csv").write_text("network,top1\n", encoding="utf-8")
    (folder / "networks.csv").write_text("op,old_ms,new_ms\n" + "a,1,2\nb,2,3\n" + "c,3,\n" * 5, encoding="utf-8")
    for name, rows in KERNELS.items():
        text = "\n".join(["tile,layout,old_ms,new_ms", *rows]) + "\n"
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")


def write_yaml(folder: Path, content: dict[str, Any], changes: dict[str, dict[str, Any]]) -> None:
    """One file for each change; a key that becomes None is left out."""
    folder.mkdir()
    for name, change in changes.items():
        data = {key: value for key, value in (content | change).items() if value is not None}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")


def make_tables(folder: Path, space: SearchSpace) -> None:
    """Tables as files, and runs with nothing but a table."""
    table = random_table(space)
    table.save(folder / "table.json")
    table.save(RunDirectory(folder / "table").lut("cpu"))
    (folder / "notes.txt").write_text("phases: []", encoding="utf-8")
    (folder / "damaged.json").write_text('{"schema": 1, "rows": {', encoding="utf-8")
    (folder / "headless.json").write_text(json.dumps({"schema": 1}), encoding="utf-8")
    (folder / "schema.json").write_text(json.dumps({"schema": 99}), encoding="utf-8")
    random_table(dataclasses.replace(space, name="other")).save(folder / "other.json")
    table.rows |= random_table(space, num_classes=100).rows
    table.save(folder / "classes.json")
    table = random_table(space)
    target = dataclasses.replace(table.header.target, device="6502", fingerprint="0123456789ab")
    table.header = dataclasses.replace(table.header, target=target)
    table.save(RunDirectory(folder / "6502").lut("cpu"))


def make_images(folder: Path) -> None:
    """Folders of images, each but `good` with one thing wrong."""
    good = folder / "good"
    for name in ("dark", "light"):
        (good / name).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (20 + number, 24)).save(good / name / f"{number}.png")
    for name in ("corrupt", "cut", "grey", "link", "empty-class", "one-class"):
        shutil.copytree(good, folder / name)
    (folder / "corrupt" / "dark" / "3.png").write_bytes(b"not an image")
    (folder / "cut" / "dark" / "3.png").write_bytes((good / "dark" / "3.png").read_bytes()[:40])
    Image.new("L", (20, 20)).save(folder / "grey" / "dark" / "grey.png")
    (folder / "link" / "dark" / "lost.png").symlink_to("nowhere.png")
    (folder / "empty-class" / "empty").mkdir()
    shutil.rmtree(folder / "one-class" / "light")
    (folder / "no-class").mkdir()
    for name in ("unsorted", "lacking", "more"):
        shutil.copytree(good, folder / name / "train")
    (folder / "unsorted" / "val").mkdir()
    shutil.copytree(good / "dark", folder / "lacking" / "val" / "dark")
    shutil.copytree(good, folder / "more" / "val")
    (folder / "more" / "val" / "grey").mkdir()


def make_run(run: RunDirectory, space: SearchSpace) -> None:
    """A run with a supernet after one step, and a table of this processor."""
    train_supernet(run, space, TrainConfig.from_json(CONFIG | QUICK), progress=False)
    random_table(space).save(run.lut("cpu"))
