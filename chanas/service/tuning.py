"""Tunings and searches on this machine's device, as work of the service."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from chanas.core.arch import SearchSpace
from chanas.core.target import HardwareTarget, tvm_version
from chanas.core.usage import TargetName, Usage
from chanas.devices.gpu_use import check_free
from chanas.devices.host import load_used
from chanas.errors import ChanasError, ServiceError
from chanas.files.run import RunDirectory
from chanas.prescheduler.kernels.backends import backend_of
from chanas.prescheduler.measuring.shared.client import Client
from chanas.prescheduler.measuring.shared.job import TuningJob
from chanas.prescheduler.measuring.shared.workers import SharedWorkers, open_shared_workers
from chanas.prescheduler.records.merging import merge_records
from chanas.prescheduler.records.store import device_key
from chanas.scheduler.pools import PoolMaker
from chanas.scheduler.resources import Resource
from chanas.service import archive
from chanas.service.folder import DataFolder
from chanas.service.process import ACCURACIES, COMMAND, MODEL, OUT, RUN, SPACE
from chanas.service.requests import JobRequest, digest_of
from chanas.service.store.jobs import Claimed, Made
from chanas.service.store.uploads import is_hash
from chanas.service.work import Opened
from chanas.workflows.jobs.plan import JobPlan
from chanas.workflows.jobs.run import describe_job

_TOLD = ("num_new_trials", "num_failed_trials", "drift", "num_blocks", "latency_s", "accuracy")
_ABOUT = {
    "model": ("model", "shapes"),
    "table": ("space", "num_classes", "sub_spaces"),
    "search": ("space", "num_classes", "sub_spaces", "accuracies"),
}
"""Fields of a request that say what it is about, by its kind."""


class Tunings:
    """Jobs on the device of a target, each tuning in a process of its own.

    Args:
        usage: the device and the threads of an inference; jobs choose the dtype.
        workers: the machine's, of this target.
        command: what Python runs in the process of a job.
    """

    def __init__(
        self, usage: Usage, workers: SharedWorkers, folder: DataFolder, command: Sequence[str] = COMMAND
    ) -> None:
        self._usage, self._workers, self._folder, self._command = usage, workers, folder, tuple(command)

    @cached_property
    def _hardware(self) -> HardwareTarget:
        return load_used(self._usage)

    def resources(self) -> Sequence[Resource]:
        return self._workers.resources()

    def pools(self) -> Mapping[str, PoolMaker]:
        return self._workers.pools()

    def devices(self) -> Sequence[Mapping[str, Any]]:
        hardware = self._hardware
        return [
            {
                "target": hardware.name,
                "device": hardware.device,
                "fingerprint": hardware.fingerprint,
                "threads": hardware.num_threads,
                "compiler": f"tvm-{tvm_version()}",
                "space_version": backend_of(hardware).space_version,
                "resources": {r.name: r.num_units for r in self.resources()},
            }
        ]

    def _used(self, target: str) -> tuple[Usage, HardwareTarget]:
        usage = Usage.of(TargetName.parse(target))
        if (usage.device, usage.threads) != (self._usage.device, self._usage.threads):
            raise ServiceError(f"expected target {self._usage.name}, this service's, got '{target}'", 422)
        return usage, load_used(usage)

    def content(self, request: JobRequest) -> str:
        try:
            _, hardware = self._used(request.target)
            if request.space is not None and not is_hash(request.space):
                SearchSpace.load(request.space)
        except ServiceError:
            raise
        except ChanasError as error:
            raise ServiceError(str(error), 422) from error
        about = request.model_dump(mode="json", include=set(_ABOUT[request.kind]))
        key = device_key(hardware, tvm_version(), backend_of(hardware).space_version)
        return digest_of([request.kind, about, key, hardware.dtype, hardware.batch])

    def open(self, claimed: Claimed) -> Opened:
        request = JobRequest.model_validate(claimed.request)
        usage, hardware = self._used(request.target)
        folder = self._folder.jobs / claimed.id
        folder.mkdir(parents=True, exist_ok=True)
        plan = describe_job(self._plan(claimed.id, request, usage, folder), usage, hardware, self._workers)
        plan["service"] = {
            "folder": str(folder.absolute()),
            "records": str(self._folder.records.absolute()),
            "transfer": request.transfer,
            "latency_s": request.demand.latency_s if request.kind == "search" else None,
        }
        facts: dict[str, Any] = {}
        client = Client(f"{claimed.id}.{claimed.attempt}", self._command, plan, self._folder.log(claimed.id))
        job = TuningJob(client, self._workers, facts.update)
        return Opened(job, job.close, facts)

    def _plan(self, name: str, request: JobRequest, usage: Usage, folder: Path) -> JobPlan:
        """The job's files put into its folder, and the plan that names them as seen from there."""
        fields: dict[str, Any] = {"name": name, "run": RUN, "seed": request.seed}
        if request.trials is not None:
            fields["trials"] = request.trials
        if request.model is not None:
            fields |= {"model": self._place(request.model, folder / MODEL), "out": OUT, "shapes": request.shapes}
            if request.demand.minutes is not None:
                fields["minutes"] = request.demand.minutes
            return JobPlan(**fields)
        if request.space is not None:
            fields["space"] = self._place(request.space, folder / SPACE)
        if request.num_classes is not None:
            fields["num_classes"] = request.num_classes
        if request.accuracies is not None:
            self._place(request.accuracies, folder / ACCURACIES)
        return JobPlan(**fields, sub_spaces=request.sub_spaces, calibrate=request.calibrate, dtype=usage.dtype)

    def _place(self, named: str, path: Path) -> str:
        """The upload of this hash under a name of ours, in the folder of the job; what is none is left as it is."""
        if not is_hash(named):
            return named
        with contextlib.suppress(FileExistsError):
            try:
                os.link(self._folder.uploads / named, path)
            except FileNotFoundError:
                raise ServiceError(f"upload {named[:12]}… has been deleted") from None
        return path.name

    def finish(self, claimed: Claimed, facts: Mapping[str, Any]) -> Made:
        self.keep(claimed.id)
        request, folder = JobRequest.model_validate(claimed.request), self._folder.jobs / claimed.id
        run = RunDirectory(folder / RUN)
        made = {"model": folder / OUT, "search": run.bundle, "table": run.luts}[request.kind]
        packed = archive.pack(made, self._folder.bundle(claimed.id))
        told = {name: facts[name] for name in _TOLD if facts.get(name) is not None}
        latency_s, accuracy, demand = facts.get("latency_s"), facts.get("accuracy"), request.demand
        met = None
        if demand.latency_s is not None:
            met = latency_s is not None and latency_s <= demand.latency_s
        if demand.accuracy is not None:
            met = bool(met) and accuracy is not None and accuracy >= demand.accuracy
        return Made({**told, "met": met, "bundle": packed}, latency_s, accuracy)

    def keep(self, job: str) -> None:
        merge_records(RunDirectory(self._folder.jobs / job / RUN).records, self._folder.records)

    def clear(self, job: str) -> None:
        if (self._folder.jobs / job).exists():
            self.keep(job)
            shutil.rmtree(self._folder.jobs / job)

    def left(self) -> Sequence[str]:
        return [path.name for path in self._folder.jobs.iterdir()] if self._folder.jobs.is_dir() else []

    def bundle(self, job: str) -> Path:
        return self._folder.bundle(job)

    def log(self, job: str) -> Path:
        return self._folder.log(job)

    def close(self) -> None:
        self._workers.close()


@contextlib.contextmanager
def open_tunings(usage: Usage, folder: DataFolder) -> Iterator[Tunings]:
    """The work of a service on a device of this machine.

    Raises:
        ChanasError: the device is not there, is in use, or cannot be used so.
    """
    hardware = load_used(usage)
    check_free([hardware], shared=False)
    with open_shared_workers(dataclasses.replace(hardware, dtype="float32")) as workers:
        yield Tunings(usage, workers, folder)
