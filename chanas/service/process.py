"""The process of one job of the service: run as `python -m chanas.service.process`, with turns on its standard input.

It begins with what others have learned, tunes as `chanas jobs run` does, and leaves its files in the job's folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from chanas.core.target import HardwareTarget
from chanas.core.usage import Usage
from chanas.errors import ModelError
from chanas.files.run import RunDirectory
from chanas.measuring.shared.turns import Exchange, main
from chanas.service.folder import hold
from chanas.workflows.jobs import client

COMMAND = ("-m", "chanas.service.process")
RUN, OUT, MODEL, SPACE, ACCURACIES, LOCK = "run", "out", "model.onnx", "space.yaml", "accuracies.csv", "job.lock"
"""Names in the folder of a job."""

_LEAVE_S = 600.0
"""Seconds that the process of a service that was killed may take to end its last turn."""


def tune(plan: dict[str, Any], exchange: Exchange) -> dict[str, Any]:
    """Tune in the folder of the job, where no other process of it may be at work."""
    own = plan["service"]
    os.chdir(own["folder"])
    with hold(Path(LOCK), _LEAVE_S, "an earlier process of this job is still at work"):
        records = RunDirectory(RUN).records
        _learn(records, Path(own["records"]), HardwareTarget.from_json(plan["target"]), own["transfer"])
        if Path(MODEL).exists():
            check_whole(Path(MODEL))
        if own["latency_s"] is not None:
            return _search(plan, exchange, own["latency_s"])
        return client.tune(plan, exchange)


def _learn(records: Path, shared: Path, target: HardwareTarget, transfer: bool) -> None:
    """Pass on what an earlier attempt has measured, and take what is known of the device."""
    from chanas.prescheduler.records.merging import merge_records
    from chanas.prescheduler.records.store import own_key

    merge_records(records, shared)
    if transfer:
        merge_records(shared, records, own_key(target))


def check_whole(path: Path) -> None:
    """Refuse an ONNX file with parts in other files: they would be read from this machine.

    Raises:
        ModelError: it is such a file, or none of ONNX.
    """
    from chanas.models.importing import lies_outside

    if lies_outside(path):
        raise ModelError("the weights of the upload lie in another file; export the network with its weights inside")


def _search(plan: dict[str, Any], exchange: Exchange, latency_s: float) -> dict[str, Any]:
    """Fill the latency table, then search by it; both on the device that is shared."""
    from chanas.core.latency import LatencyLUT
    from chanas.search.target import SearchTarget
    from chanas.workflows.jobs.plan import JobPlan
    from chanas.workflows.searching.search import search_on
    from chanas.workflows.searching.sources import AccuracyFile, open_source
    from chanas.workflows.searching.targets import check_tables
    from chanas.workflows.stages.stored import stored_table

    made = client.tune(plan, exchange)
    job, usage, run = JobPlan.model_validate(plan["job"]), Usage(**plan["usage"]), RunDirectory(RUN)
    with client.hold_shared(plan, exchange)(usage) as (hardware, open_pool):
        table = LatencyLUT.load(stored_table(run, hardware))
        targets = (SearchTarget(hardware, latency_s, table, open_pool=open_pool),)
        source = open_source(run, AccuracyFile(ACCURACIES, job.space, job.num_classes), hardware.name)
        check_tables(targets, source.task.space)
        bundle = search_on(run, targets, source, seed=job.seed, progress=False)
    measured = bundle.measured
    return {**made, "latency_s": measured["latency_s"], "accuracy": measured["top1_table"]}


if __name__ == "__main__":
    main(tune)
