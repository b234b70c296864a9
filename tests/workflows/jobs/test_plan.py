"""chanas/workflows/jobs/plan.py: what a file of jobs may say."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chanas.core.effort import NetworkEffort, Search, TableEffort
from chanas.core.usage import Usage
from chanas.errors import ConfigError
from chanas.measuring.remote.held import HeldDevices
from chanas.workflows.jobs.plan import parse_jobs, read_jobs
from chanas.workflows.jobs.run import Machines, describe_job

from ...compiler.cuda_cases import GPU

TABLE = {"name": "a", "run": "runs/a"}
PI = {"rpc": "here:9190", "key": "pi"}
NETWORK = {"name": "b", "run": "runs/b", "model": "torchvision:resnet18"}


def parsed(*jobs: dict[str, Any], **options: Any) -> Any:
    return parse_jobs({"jobs": list(jobs), **options}, "jobs.yaml")


def test_a_file_of_jobs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(
        "threads: 2\npolicy: lookahead\njobs:\n"
        "  - {name: a, run: runs/a, space: mbv3-32, sub_spaces: [r24-w1], dtype: bf16, user: me, priority: 1}\n"
        "  - {name: b, run: runs/b, model: net.onnx, shapes: {x: [1, 3, 8, 8]}, minutes: 2, deadline_minutes: 30}\n"
    )
    plans = read_jobs(path)
    table, network = plans.jobs
    assert plans.policy == "lookahead"
    assert plans.usage(table).name.dtype == "bf16"
    assert (plans.usage(network).threads, plans.usage(network).dtype) == (2, "f32")
    assert table.sub_spaces == ("r24-w1",)
    assert network.shapes == {"x": (1, 3, 8, 8)}


def test_a_job_has_the_effort_that_its_keys_say_and_else_that_of_the_options() -> None:
    common: dict[str, Any] = {"trials": 3, "tune_share": 0.5, "tuner": "random", "warm_start": "runs/x", "seed": 7}
    common |= {"early_stopping": 9, "knobs": "k.yaml", "search": Search(gamma=2.0)}
    of_table: dict[str, Any] = {"sub_spaces": ("r24-w1",), "calibrate": 0}
    of_network: dict[str, Any] = {"minutes": 2.0, "layouts": "8,16"}
    table, network = parsed(
        *(kind | common | {"search": {"gamma": 2.0}} | own for kind, own in ((TABLE, of_table), (NETWORK, of_network)))
    ).jobs
    assert table.effort(TableEffort) == TableEffort(**common, **of_table)
    assert network.effort(NetworkEffort) == NetworkEffort(**common, **of_network)
    table, network = parsed(TABLE, NETWORK).jobs
    assert (table.effort(TableEffort), network.effort(NetworkEffort)) == (TableEffort(), NetworkEffort())
    with pytest.raises(ConfigError, match="at least 6 networks to calibrate with, got 3"):
        parsed(TABLE | {"calibrate": 3}).jobs[0].effort(TableEffort)


def test_a_job_is_timed_here_unless_it_names_a_key_or_there_is_only_one() -> None:
    both = parsed(TABLE, NETWORK | {"key": "pi"}, devices=[{"cores": [0]}, {"cores": [1]}, PI])
    assert [both.key_of(job) for job in both.jobs] == ["", "pi"]
    assert [device.cores for device in both.devices if device.cores] == [(0,), (1,)]
    elsewhere = parsed(TABLE, devices=[PI])
    assert elsewhere.key_of(elsewhere.jobs[0]) == "pi"


def test_a_table_of_a_gpu_may_be_of_batches() -> None:
    plans = parsed(TABLE | {"batch": 32}, TABLE | {"name": "c", "run": "c"}, target="cuda")
    assert [str(plans.usage(job).name) for job in plans.jobs] == ["cuda-b32", "cuda"]
    machines = Machines({}, {"lab": HeldDevices((), dataclasses.replace(GPU, name="cuda@lab"))})
    target = machines.target("lab", plans.usage(plans.jobs[0]))
    assert (target.name, target.batch) == ("cuda-b32@lab", 32)
    workers = cast(Any, SimpleNamespace(num_builders=1, devices=(), overlap=True, learns=False))
    described = describe_job(plans.jobs[0], plans.usage(plans.jobs[0]), target, workers)
    assert Usage(**described["usage"]) == plans.usage(plans.jobs[0])


@pytest.mark.parametrize(
    ("jobs", "options", "told"),
    [
        ((), {}, "jobs"),
        ((TABLE, TABLE | {"run": "c"}), {}, "name of its own, got a"),
        ((TABLE, TABLE | {"name": "c", "run": "runs/../runs/a"}), {}, "run of its own"),
        ((TABLE | {"trails": 3},), {}, "unknown key; known: batch, calibrate"),
        ((TABLE,), {"device": "cpu"}, "unknown key; known: devices"),
        ((TABLE | {"minutes": 3},), {}, "minutes can't be set for a table"),
        ((TABLE | {"out": "x"},), {}, "out can't be set for a table"),
        ((TABLE | {"calibration": "x"},), {}, "calibration can't be set for a table"),
        ((NETWORK | {"max_error": 0.1},), {}, "max_error can't be set for a network"),
        ((TABLE | {"search": {"gama": 3}},), {}, "jobs.0.search.gama: unknown key; known: batch_size"),
        ((TABLE | {"batch": 32},), {}, "batch 1 on a processor"),
        ((TABLE | {"batch": 0},), {"target": "cuda"}, "batch"),
        ((NETWORK | {"batch": 32},), {"target": "cuda"}, "batch can't be set for a network"),
        ((NETWORK | {"calibrate": 3},), {}, "calibrate can't be set for a network"),
        ((TABLE | {"trials": 0},), {}, "trials"),
        ((TABLE | {"tune_share": 0},), {}, "tune_share: expected greater than 0"),
        ((NETWORK | {"tune_share": 1.5},), {}, "tune_share: expected less than or equal to 1"),
        ((TABLE | {"name": "a/b"},), {}, "letters, digits"),
        ((TABLE,), {"devices": [{"cores": []}]}, "expected the cores"),
        ((TABLE,), {"devices": [{"rpc": "here:1"}]}, "expected the cores"),
        ((TABLE,), {"devices": [{"cores": [0], "key": "a"}]}, "expected the cores"),
        ((TABLE,), {"devices": [{"core": [0]}]}, "unknown key; known: cores"),
        ((TABLE,), {"devices": [{"cores": [0]}], "threads": 2}, "needs 2 of the cores"),
        ((TABLE,), {"devices": [{"cores": [0]}], "target": "cuda"}, "target cpu"),
        ((TABLE,), {"devices": [{"cores": [0]}, {"cores": [0]}]}, "in common"),
        ((TABLE,), {"devices": [PI, PI]}, "in common"),
        ((TABLE,), {"devices": [PI, PI | {"key": "zen"}]}, "job 'a' needs a key"),
        ((TABLE | {"key": "b"},), {"devices": [PI]}, "known: pi"),
        ((TABLE, TABLE | {"name": "c", "run": "c", "dtype": "bf16"}), {"devices": [PI]}, "of one dtype"),
        ((TABLE,), {"policy": "fifo"}, "unknown policy 'fifo'"),
        ((TABLE,), {"policy": "synchronous"}, "unknown policy 'synchronous'"),
    ],
)
def test_what_it_may_not_say(jobs: tuple[dict[str, Any], ...], options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parsed(*jobs, **options)
