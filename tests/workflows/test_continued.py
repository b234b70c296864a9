"""Ctrl-C amid a stage, and the line that is printed: run as it stands, it ends the stage, and what was kept is not done
again. What is compiled is invented by the workers of `planted_quick.py`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from networks import save_onnx
from tables import save_space

from chanas.core.arch import SearchSpace
from chanas.supernet.training.phases import TrainConfig

from ..compiler.workbench import NANO, NUM_CLASSES
from ..prescheduler.tables.test_sigkill import INVENTED, Bench, rows_of

Moment = Callable[[Bench], bool]
END_WITHIN_S = 30.0  # on a machine that does other things besides; alone it is one or two

PHASE = {"name": "all", "base_lr": 0.05, "num_subnets": 2}
PHASE |= dict.fromkeys(("kernel_sizes", "expand_ratios", "depths", "width_multipliers", "resolutions"), "all")


def table(*words: str) -> list[str]:
    sub_space = NANO.sub_spaces[0].key
    options = ["--space", "nano.yaml", "--num-classes", str(NUM_CLASSES), "--sub-space", sub_space]
    return [*words, *options, "--calibrate", "0", "--trials", "2", "--tuner", "random", "--run", "a run"]


def measures(bench: Bench) -> bool:
    return len(rows_of(bench.run("a run"))) > 2


def trains(folder: str) -> Moment:
    def begun(bench: Bench) -> bool:
        path = bench.folder / "a run" / folder / "metrics.jsonl"
        return any(path.parent.glob("metrics.jsonl")) and path.read_text().count("\n") > 2

    return begun


def trains_one(bench: Bench) -> bool:
    found = list((bench.folder / "a run").glob("finetuned/*/*/supernet/metrics.jsonl"))
    return bool(found) and found[0].read_text().count("\n") > 2


@dataclass(frozen=True)
class Stage:
    """A command, the moment at which it is interrupted, and what has to run before it."""

    words: list[str]
    moment: Moment
    before: tuple[list[str], ...] = ()


TRAIN = ["train-supernet", "--config", "train.yaml", "--space", "tiny.yaml", "--run", "a run"]
STAGES = {
    "train-supernet": Stage(TRAIN, trains("supernet")),
    "train-supernet --overwrite": Stage([*TRAIN, "--seed", "5", "--overwrite"], trains("supernet"), (TRAIN,)),
    "finetune": Stage(["finetune", "a run", "--architecture", "smallest", "--epochs", "3"], trains_one, (TRAIN,)),
    "prescheduler": Stage(table("prescheduler"), measures),
    "tune": Stage(["tune", "net.onnx", "--trials", "4", "--tuner", "random", "--run", "a run"], measures),
    "sweep": Stage(["sweep", "sweep.yaml", "--out", "a sweep"], lambda b: any(b.folder.rglob("metrics.jsonl"))),
}


@pytest.fixture
def bench(tmp_path: Path, tiny_space: SearchSpace) -> Iterator[Bench]:
    save_space(NANO, tmp_path / "nano.yaml")
    save_space(tiny_space, tmp_path / "tiny.yaml")
    save_onnx(tmp_path / "net.onnx")
    training: dict[str, Any] = {
        "data": {"dataset": "digits"},
        "strategy": "sandwich",
        "phases": [PHASE | {"steps": 60}],
        "batch_size": 8,
        "gap_batch_size": 4,
        "recalibration_images": 32,
        "log_every": 1,
        "num_threads": 1,
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(TrainConfig.from_json(training).to_json()))
    fixed = {"config": str(tmp_path / "train.yaml"), "space": str(tmp_path / "tiny.yaml")}
    sweep = {"command": "train-supernet", "parameters": {"seed": [1, 2]}, "fixed": fixed}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    bench = Bench(tmp_path, INVENTED)
    bench.temporary.mkdir()
    yield bench
    for pid in bench.processes():
        os.kill(pid, signal.SIGKILL)


def start(bench: Bench, words: list[str]) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(
        [sys.executable, *bench.program, *words],
        cwd=bench.folder,
        env={**os.environ, "TMPDIR": str(bench.temporary), "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # as in a terminal
    )


def done(bench: Bench, words: list[str]) -> str:
    """What a command prints that runs to its end."""
    process = start(bench, words)
    printed, said = process.communicate()
    assert process.returncode == 0, said
    return printed


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", STAGES)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_the_line_that_is_printed_continues_the_stage(bench: Bench, name: str) -> None:
    stage = STAGES[name]
    for words in stage.before:
        done(bench, words)
    if "finetune" not in name and stage.before:
        (bench.folder / "a run" / "supernet" / "metrics.jsonl").write_text("")
    process = start(bench, stage.words)
    while process.poll() is None and not stage.moment(bench):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    begin_s = time.monotonic()
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 130, said
    assert time.monotonic() - begin_s < END_WITHIN_S
    assert "Traceback" not in said
    bench.wait_for_nobody()
    line = said.strip().splitlines()[-1]
    what = r"\d+ of \d+ \w+|\d+ new trials? and, in .+, a network of .+"
    kept = re.search(rf"interrupted, ({what}) are kept; continue with: (.*)", line)
    assert kept is not None, said
    program, *words = shlex.split(kept[2])
    assert Path(program).name == Path(INVENTED[0]).name
    assert words == [word for word in stage.words if word != "--overwrite"]
    before = rows_of(bench.run("a run"))
    printed = done(bench, words)
    assert before <= rows_of(bench.run("a run"))
    if "train" in name:
        header = json.loads((bench.folder / "a run" / "supernet" / "checkpoint.json").read_text())
        assert (header["step"], header["done"]) == (60, True)
        assert "after 60 steps" in printed
        assert done(bench, words).startswith("finished")
