"""The process of one job: run as `python -m chanas.workflows.jobs.client`, with turns on its standard input."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from chanas.core.effort import NetworkEffort, TableEffort
from chanas.core.target import HardwareTarget
from chanas.core.usage import Usage
from chanas.files.run import RunDirectory
from chanas.measuring.devices import HoldDevice
from chanas.measuring.fleet import OpenPool
from chanas.measuring.shared.turns import Exchange, SharedPool, main
from chanas.workflows.jobs.plan import JobPlan

COMMAND = ("-m", "chanas.workflows.jobs.client")


def tune(plan: dict[str, Any], exchange: Exchange) -> dict[str, Any]:
    """Tune as a job's plan says, on the shared device; returns what to tell of it."""
    job, usage, hold = JobPlan.model_validate(plan["job"]), Usage(**plan["usage"]), hold_shared(plan, exchange)
    return (_tune_table if job.model is None else _tune_network)(job, usage, hold)


def hold_shared(plan: dict[str, Any], exchange: Exchange) -> HoldDevice:
    """A hold of the device that a plan is about, which is asked turn by turn."""
    target = HardwareTarget.from_json(plan["target"])
    pool = SharedPool(exchange, plan["num_builders"], plan["overlap"], plan["num_devices"], learns=plan["learns"])

    @contextlib.contextmanager
    def hold(_usage: Usage) -> Iterator[tuple[HardwareTarget, OpenPool]]:
        yield target, lambda _target: contextlib.nullcontext(pool)

    return hold


def _tune_table(job: JobPlan, usage: Usage, hold: HoldDevice) -> dict[str, Any]:
    from chanas.workflows.stages.tuning import preschedule

    summary = preschedule(
        RunDirectory(job.run),
        usage,
        space=job.space,
        num_classes=job.num_classes,
        effort=job.effort(TableEffort),
        hold=hold,
    )
    return {
        "path": str(summary.path),
        "num_new_trials": summary.num_new_trials,
        "num_failed_trials": summary.num_failed_trials,
        "drift": summary.drift,
        "num_blocks": len(summary.lut.rows),
    }


def _tune_network(job: JobPlan, usage: Usage, hold: HoldDevice) -> dict[str, Any]:
    from chanas.workflows.models.chain import Model
    from chanas.workflows.models.saving import default_folder

    loaded = Model.load(job.model or "", job.shapes)
    folder = job.out or default_folder(job.run, loaded.name, usage, loaded.opened.shapes)
    effort = job.effort(NetworkEffort)
    tuned = loaded.tune(usage, effort=effort, run=RunDirectory(job.run), folder=folder, hold=hold)
    built = tuned.build()
    saved = built.save(folder)
    return {
        "path": str(saved.folder),
        "num_new_trials": tuned.tuned.num_new_trials,
        "num_failed_trials": tuned.tuned.num_failed_trials,
        "drift": tuned.tuned.drift,
        "latency_s": built.proof.seconds,
    }


if __name__ == "__main__":
    main(tune)
