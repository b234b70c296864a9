"""Jobs of a file, run by this machine: each tuning in a process of its own, their stages by one policy."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from chanas.core.target import HardwareTarget, in_batches
from chanas.core.usage import Place, Usage
from chanas.devices.cores import split_cores
from chanas.devices.gpu_use import check_free
from chanas.devices.host import load_used
from chanas.errors import ConfigError, SchedulerError
from chanas.files.writing import write_json
from chanas.measuring.remote.held import HeldDevices, held_devices
from chanas.measuring.runner import RETURN_WITHIN_S
from chanas.measuring.shared.job import TuningJob
from chanas.measuring.shared.turns import Client
from chanas.measuring.shared.workers import SharedWorkers, Tell, open_kinds
from chanas.prescheduler.tuning.cost_model.solving import answer
from chanas.report.jobs.page import build_schedule_page
from chanas.scheduler.board import Entry
from chanas.scheduler.engine import Scheduler, Terms
from chanas.scheduler.policies import policy
from chanas.scheduler.pools import PoolExecutor, PoolMaker
from chanas.scheduler.resources import Resource
from chanas.scheduler.trace import Trace
from chanas.workflows.jobs.client import COMMAND
from chanas.workflows.jobs.control import obey, served
from chanas.workflows.jobs.plan import DevicePlan, JobPlan, JobsFile, parse_jobs

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


@dataclass(frozen=True)
class Machines:
    """Workers by the key of their devices ("": this machine's), and the devices elsewhere that are held."""

    kinds: dict[str, SharedWorkers]
    held: dict[str, HeldDevices]

    def target(self, key: str, usage: Usage) -> HardwareTarget:
        """The devices of a key; those of this machine used like that."""
        return in_batches(self.held[key].target, usage.batch) if key else load_used(usage)

    def resources(self) -> list[Resource]:
        """Resources that stages need."""
        return list({r.name: r for workers in self.kinds.values() for r in workers.resources()}.values())

    def pools(self) -> dict[str, PoolMaker]:
        """Pools of these resources."""
        return {name: pool for workers in self.kinds.values() for name, pool in workers.pools().items()}

    def watch(self, lose: Tell, restore: Tell) -> None:
        """Tell of devices that are lost, and of those that are back."""
        for workers in self.kinds.values():
            workers.watch(lose, restore)

    def close(self) -> None:
        """End all processes."""
        for workers in self.kinds.values():
            workers.close()


@contextlib.contextmanager
def open_machines(
    devices: Sequence[DevicePlan], usages: Mapping[str, Sequence[Usage]], cluster: str | None = None
) -> Iterator[Machines]:
    """The machines that jobs share.

    Args:
        devices: without any, this machine's one device.
        usages: by the key of devices ("": those of this machine), how jobs use them: at least one.
        cluster: as `run_jobs` says.

    Raises:
        ChanasError: a device is not there, is in use, or cannot be used so.
    """
    with contextlib.ExitStack() as stack:
        held = {}
        for device in devices:
            if device.key is not None and device.rpc is not None:
                place = Place(device.rpc, device.key, device.num)
                usage = dataclasses.replace(usages[device.key][0], place=place)
                held[device.key] = stack.enter_context(held_devices(usage))
        local: list[Sequence[int]] = [device.cores for device in devices if device.cores]
        here = [load_used(usage) for usage in usages[""]] if local or not held else []
        check_free(here, shared=False)
        target = dataclasses.replace((here or [h.target for h in held.values()])[0], dtype="float32")
        if not (local or held):
            local = [split_cores(target.num_threads)[0]]
        yield Machines(stack.enter_context(open_kinds(target, local, held, cluster, answer)), held)


def _usages(plans: JobsFile) -> dict[str, list[Usage]]:
    """The usages of the jobs by the key of their devices; where a key has no job yet, those of all."""
    keys = {"", *(device.key for device in plans.devices if device.key is not None)}
    own = {key: [plans.usage(job) for job in plans.jobs if plans.key_of(job) == key] for key in keys}
    return {key: usages or [plans.usage(job) for job in plans.jobs] for key, usages in own.items()}


def run_jobs(
    plans: JobsFile,
    folder: Path,
    *,
    cluster: str | None = None,
    command: Sequence[str] = COMMAND,
    tell: Callable[[str], None] = lambda _line: None,
) -> JobsResult:
    """Run all jobs of a file to their ends; one that fails takes no other with it. Meanwhile they can be paused,
    resumed, cancelled and killed (`control.ask`); paused ones are waited for.

    An exception (Ctrl-C, say) ends all jobs, each of which keeps what it has measured; trace and page are written.

    Args:
        folder: for logs (`NAME.log`), the trace (`trace.json`) and a page about it (`jobs.html`).
        cluster: of dask, which builds and learns instead of this machine's cores: `tcp://HOST:PORT`, `tls://…`,
            `local` or `local:NUMBER` of processes.
        command: what Python runs in the process of a job.
        tell: gets a line when a job has ended.

    Raises:
        ChanasError: a device is not there, is in use, or cannot be used so.
        SchedulerError: a file in the folder cannot be written, or jobs are run in it already.
    """
    with open_machines(plans.devices, _usages(plans), cluster) as machines:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SchedulerError(f"folder {folder} cannot be made: {error.strerror or error}") from error
        return _run(plans, machines, folder, command, tell)


def _run(
    plans: JobsFile, machines: Machines, folder: Path, command: Sequence[str], tell: Callable[[str], None]
) -> JobsResult:
    with PoolExecutor(machines.pools()) as executor:
        jobs = _Jobs(plans, machines, executor, folder, command, tell)
        scheduler = jobs.scheduler
        jobs.join(plans, Path.cwd())
        with served(folder, partial(obey, scheduler, jobs.add)):
            try:
                trace = scheduler.run()
            finally:
                jobs.close()
                machines.close()
                write_json(folder / TRACE, scheduler.trace.to_json())
                build_schedule_page(folder / TRACE, folder / PAGE)
    seconds = trace.completion_s()
    results = tuple(
        JobResult(n, str(e.status), seconds[n], e.error, folder / f"{n}.log", jobs.facts.get(n, {}))
        for n, e in scheduler.jobs.items()
    )
    return JobsResult(folder / PAGE, results, trace)


class _Jobs:
    """The jobs of a scheduler: those of its file, and those that are added while they run."""

    def __init__(
        self,
        plans: JobsFile,
        machines: Machines,
        executor: PoolExecutor,
        folder: Path,
        command: Sequence[str],
        tell: Callable[[str], None],
    ) -> None:
        self.facts: dict[str, dict[str, Any]] = {}
        self.scheduler = Scheduler(
            machines.resources(),
            policy(plans.policy),
            executor,
            ended=self._end,
            is_patient=True,
        )
        self.scheduler.return_within_s = RETURN_WITHIN_S
        machines.watch(self.scheduler.lose, self.scheduler.restore)
        self._plans, self._machines = plans, machines
        self._folder, self._command, self._tell = folder, command, tell
        self._jobs: dict[str, TuningJob] = {}
        self._runs: dict[str, Path] = {}

    def _end(self, entry: Entry) -> None:
        self._jobs[entry.name].close()
        self._tell(f"job {entry.name}: {entry.status}{f', {entry.error}' if entry.error else ''}")

    def add(self, file: dict[Any, Any], place: Path) -> list[str]:
        """Take in the jobs of another file, by their names; paths in it are relative to `place`.

        Raises:
            ConfigError: it does not say what it should, or not the same of the devices.
            SchedulerError: a name was there before, or the run directory belongs to a job that has not ended.
        """
        before = self._plans.model_dump(mode="json", exclude={"jobs"}, exclude_unset=True)
        plans = parse_jobs(before | file, "added jobs")
        for name in JobsFile.model_fields.keys() - {"jobs"}:
            if getattr(plans, name) != getattr(self._plans, name):
                raise ConfigError(f"the jobs that run were begun with another {name}; leave it out of what is added")
        at_work = {self._runs[entry.name] for entry in self.scheduler.board.entries}
        for plan in plans.jobs:
            if plan.name in self._jobs:
                raise SchedulerError(f"expected a new name for a job, got '{plan.name}' again")
            if (place / plan.run).resolve() in at_work:
                raise SchedulerError(f"another job is at work in {plan.run}; name another run")
        self.join(plans, place)
        return [plan.name for plan in plans.jobs]

    def join(self, plans: JobsFile, place: Path) -> None:
        """Hand all jobs of a file to the scheduler."""
        targets = [self._machines.target(plans.key_of(plan), plans.usage(plan)) for plan in plans.jobs]
        for plan, target in zip(plans.jobs, targets, strict=True):
            name, workers = plan.name, self._machines.kinds[plans.key_of(plan)]
            described = describe_job(plan, plans.usage(plan), target, workers)
            client = Client(name, self._command, described, self._folder / f"{name}.log", place)
            self._jobs[name] = TuningJob(client, workers, partial(self._keep, name, place), len(self._jobs))
            self._runs[name] = (place / plan.run).resolve()
            due_s = None
            if plan.deadline_minutes is not None:
                due_s = self.scheduler.executor.now_s + 60.0 * plan.deadline_minutes
            terms = Terms(user=plan.user, priority=plan.priority, deadline_s=due_s)
            self.scheduler.join(name, self._jobs[name], terms)

    def _keep(self, name: str, place: Path, facts: dict[str, Any]) -> None:
        if "path" in facts and place != Path.cwd():
            facts = facts | {"path": str(place / facts["path"])}
        self.facts[name] = facts

    def close(self) -> None:
        """End the processes of all jobs."""
        for job in self._jobs.values():
            job.close()


def describe_job(plan: JobPlan, usage: Usage, target: HardwareTarget, workers: SharedWorkers) -> dict[str, Any]:
    """The facts that the process of a job is handed."""
    return {
        "job": plan.model_dump(mode="json", exclude_unset=True),
        "usage": {"device": usage.device, "threads": usage.threads, "dtype": usage.dtype, "batch": usage.batch},
        "target": target.to_json(),
        "num_builders": workers.num_builders,
        "num_devices": len(workers.devices),
        "overlap": workers.overlap,
        "learns": workers.learns,
    }
