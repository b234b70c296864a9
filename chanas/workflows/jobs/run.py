"""Jobs of a file, run on this machine: each tuning in a process of its own, their stages by one policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from chanas.core.target import HardwareTarget
from chanas.core.usage import Usage
from chanas.devices.gpu_use import check_free
from chanas.devices.host import load_used
from chanas.errors import SchedulerError
from chanas.files.writing import write_json
from chanas.prescheduler.measuring.shared.client import Client
from chanas.prescheduler.measuring.shared.job import TuningJob
from chanas.prescheduler.measuring.shared.workers import SharedWorkers, open_shared_workers
from chanas.report.jobs.page import build_schedule_page
from chanas.scheduler.board import Entry
from chanas.scheduler.engine import Scheduler, Terms
from chanas.scheduler.policies import policy
from chanas.scheduler.pools import PoolExecutor
from chanas.scheduler.trace import Trace
from chanas.workflows.jobs.client import COMMAND
from chanas.workflows.jobs.control import obey, served
from chanas.workflows.jobs.plan import JobPlan, JobsFile

TRACE, PAGE = "trace.json", "jobs.html"


@dataclass(frozen=True)
class JobResult:
    """The end of a job.

    status   complete, failed, cancelled or killed
    seconds  from the beginning of all jobs to its end
    error    why it failed
    facts    what it made (`client.tune`)
    """

    name: str
    status: str
    seconds: float
    error: str | None
    log: Path
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobsResult:
    """The end of all jobs: how each ended, what ran where and when, and the page about it."""

    page: Path
    results: tuple[JobResult, ...]
    trace: Trace


def run_jobs(
    plans: JobsFile,
    folder: Path,
    *,
    command: Sequence[str] = COMMAND,
    tell: Callable[[str], None] = lambda _line: None,
) -> JobsResult:
    """Run all jobs of a file to their ends; one that fails takes no other with it. Meanwhile they can be paused,
    resumed, cancelled and killed (`control.ask`); paused ones are waited for.

    An exception (Ctrl-C, say) ends all jobs, each of which keeps what it has measured; trace and page are written.

    Args:
        folder: for logs (`NAME.log`), the trace (`trace.json`) and a page about it (`jobs.html`).
        command: what Python runs in the process of a job.
        tell: gets a line when a job has ended.

    Raises:
        ChanasError: the device is not there, is in use, or cannot be used so.
        SchedulerError: a file in the folder cannot be written, or jobs are run in it already.
    """
    targets = {plan.name: load_used(plans.usage(plan)) for plan in plans.jobs}
    check_free(targets.values(), shared=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SchedulerError(f"folder {folder} cannot be made: {error.strerror or error}") from error
    shared = dataclasses.replace(next(iter(targets.values())), dtype="float32")
    facts: dict[str, dict[str, Any]] = {}
    jobs: dict[str, TuningJob] = {}

    def end(entry: Entry) -> None:
        jobs[entry.name].close()
        tell(f"job {entry.name}: {entry.status}{f', {entry.error}' if entry.error else ''}")

    with open_shared_workers(shared) as workers, PoolExecutor(workers.pools()) as executor:
        scheduler = Scheduler(workers.resources(), policy(plans.policy), executor, ended=end, is_patient=True)
        start_s = executor.now_s
        for plan in plans.jobs:
            client = Client(
                plan.name,
                command,
                describe_job(plan, plans.usage(plan), targets[plan.name], workers),
                folder / f"{plan.name}.log",
            )
            jobs[plan.name] = TuningJob(client, workers, partial(facts.__setitem__, plan.name))
            due_s = None if plan.deadline_minutes is None else start_s + 60.0 * plan.deadline_minutes
            scheduler.join(plan.name, jobs[plan.name], Terms(user=plan.user, priority=plan.priority, deadline_s=due_s))
        with served(folder, partial(obey, scheduler)):
            try:
                trace = scheduler.run()
            finally:
                for job in jobs.values():
                    job.close()
                workers.close()
                write_json(folder / TRACE, scheduler.trace.to_json())
                build_schedule_page(folder / TRACE, folder / PAGE)
    seconds = trace.completion_s()
    results = tuple(
        JobResult(n, str(e.status), seconds[n], e.error, folder / f"{n}.log", facts.get(n, {}))
        for n, e in scheduler.jobs.items()
    )
    return JobsResult(folder / PAGE, results, trace)


def describe_job(plan: JobPlan, usage: Usage, target: HardwareTarget, workers: SharedWorkers) -> dict[str, Any]:
    """The facts that the process of a job is handed."""
    return {
        "job": plan.model_dump(mode="json", exclude_unset=True),
        "usage": {"device": usage.device, "threads": usage.threads, "dtype": usage.dtype},
        "target": target.to_json(),
        "num_builders": len(workers.slots),
        "overlap": workers.overlap,
    }
