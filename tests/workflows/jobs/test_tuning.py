"""A table and a network tuned side by side for real: each gets what it would get alone, and nothing is measured
twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from networks import save_onnx
from tables import save_space

from chanas.core.latency import LatencyLUT
from chanas.scheduler.jobs import DEVICE, HOST
from chanas.workflows.jobs.plan import parse_jobs
from chanas.workflows.jobs.run import JobsResult, run_jobs
from chanas.workflows.models.chain import Model

from ...compiler.workbench import NANO, NUM_CLASSES
from ...scheduling import overlaps

NUM_TRIALS = 3


def tune(folder: Path) -> JobsResult:
    """The two jobs, from what is there."""
    effort = {"trials": NUM_TRIALS, "tuner": "gp"}
    space = str(save_space(NANO, folder / "nano.yaml"))
    table = {"space": space, "num_classes": NUM_CLASSES, "sub_spaces": ["r8-w1"], "calibrate": 0}
    jobs = [
        {"name": "table", "run": str(folder / "a"), **table, **effort},
        {"name": "network", "run": str(folder / "b"), "model": str(save_onnx(folder / "net.onnx")), **effort},
    ]
    return run_jobs(parse_jobs({"jobs": jobs}, "test"), folder / "out")


@pytest.mark.slow
def test_a_table_and_a_network_side_by_side(tmp_path: Path) -> None:
    result = tune(tmp_path)
    table, network = (job.facts for job in result.results)
    assert [(job.status, job.error) for job in result.results] == [("complete", None)] * 2
    blocks = NANO.all_blocks(NUM_CLASSES, [s for s in NANO.sub_spaces if s.key == "r8-w1"])
    assert LatencyLUT.load(Path(table["path"])).rows.keys() == {block.key for block in blocks}
    opened = Model.open(network["path"])
    assert opened.run(*opened.random_inputs())
    assert network["latency_s"] > 0.0
    assert overlaps(result.trace.spans) == []
    assert {s.resource for s in result.trace.spans} <= {HOST, DEVICE}
    again = tune(tmp_path)
    assert [job.facts["num_new_trials"] for job in again.results] == [0, 0]
