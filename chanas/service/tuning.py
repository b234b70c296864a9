"""Tunings and searches on the service's devices, as its work."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from chanas.compiler.backends import backend_of
from chanas.core.arch import SearchSpace
from chanas.core.target import HardwareTarget, tvm_version
from chanas.core.usage import TargetName, Usage
from chanas.errors import ChanasError, ConfigError, ServiceError
from chanas.files.run import RunDirectory
from chanas.measuring.shared.job import TuningJob
from chanas.measuring.shared.turns import Client
from chanas.measuring.shared.workers import Tell
from chanas.models.sources.opening import check_library
from chanas.prescheduler.records.merging import merge_records
from chanas.prescheduler.records.store import own_key
from chanas.scheduler.pools import PoolMaker
from chanas.scheduler.resources import Resource
from chanas.service import archive
from chanas.service.folder import DataFolder
from chanas.service.process import ACCURACIES, COMMAND, MODEL, OUT, RUN, SPACE
from chanas.service.requests import JobRequest, digest_of
from chanas.service.store.jobs import Claimed, Made
from chanas.service.store.uploads import is_hash
from chanas.service.work import Opened
from chanas.workflows.jobs.plan import DevicePlan, JobPlan, check_devices
from chanas.workflows.jobs.run import Machines, describe_job, open_machines

_TOLD = ("num_new_trials", "num_failed_trials", "drift", "num_blocks", "latency_s", "accuracy")
_ABOUT = {
    "model": ("model", "shapes"),
    "table": ("space", "num_classes", "sub_spaces"),
    "search": ("space", "num_classes", "sub_spaces", "accuracies"),
}
"""Fields of a request that say what it is about, by its kind."""


class Tunings:
    """Jobs on devices that are used in one way, each tuning in a process of its own.

    Args:
        usage: the kind of the devices and the threads of an inference; jobs choose the dtype on this machine's.
        machines: the devices by key ("": this machine's), and the slots that they share.
        command: what Python runs in the process of a job.
    """

    def __init__(self, usage: Usage, machines: Machines, folder: DataFolder, command: Sequence[str] = COMMAND) -> None:
        self._usage, self._machines, self._folder, self._command = usage, machines, folder, tuple(command)
        self._numbers = itertools.count()

    @cached_property
    def _hardware(self) -> dict[str, HardwareTarget]:
        return {key: self._machines.target(key, self._usage) for key in self._machines.kinds}

    def resources(self) -> Sequence[Resource]:
        return self._machines.resources()

    def pools(self) -> Mapping[str, PoolMaker]:
        return self._machines.pools()

    def watch(self, lose: Tell, restore: Tell) -> None:
        self._machines.watch(lose, restore)

    def devices(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "target": hardware.name,
                "device": hardware.device,
                "fingerprint": hardware.fingerprint,
                "threads": hardware.num_threads,
                "compiler": f"tvm-{tvm_version()}",
                "space_version": backend_of(hardware).space_version,
                "resources": {r.name: r.num_units for r in self._machines.kinds[key].resources()},
            }
            for key, hardware in self._hardware.items()
        ]

    def _key(self, named: str, target: str) -> str:
        """The key of the devices that a target names, by their key or a fingerprint; where it names none, those of this
        machine, or the only ones."""
        kinds = list(self._machines.kinds)
        found = [named] if named in kinds else kinds if not named and len(kinds) == 1 else []
        found += [key for key, hardware in self._hardware.items() if named and hardware.fingerprint == named]
        if not found:
            known = ", ".join(str(dataclasses.replace(self._usage.name, key=key)) for key in kinds)
            raise ServiceError(f"expected one of this service's targets ({known}), got '{target}'", 422)
        return found[0]

    def _used(self, target: str) -> tuple[str, Usage, HardwareTarget]:
        name = TargetName.parse(target)
        key, usage = self._key(name.key, target), Usage.of(name)
        wanted = (usage.device, usage.threads, usage.dtype if key else "")
        if wanted != (self._usage.device, self._usage.threads, self._usage.dtype if key else ""):
            known = dataclasses.replace(self._usage.name, key=key)
            raise ServiceError(f"expected target {known}, this service's, got '{target}'", 422)
        return key, usage, self._machines.target(key, usage)

    def content(self, request: JobRequest) -> str:
        try:
            _, _, hardware = self._used(request.target)
            if request.space is not None and not is_hash(request.space):
                SearchSpace.load(request.space)
            check_library(request.model or "")
        except ServiceError:
            raise
        except ChanasError as error:
            raise ServiceError(str(error), 422) from error
        about = request.model_dump(mode="json", include=set(_ABOUT[request.kind]))
        key = own_key(hardware)
        return digest_of([request.kind, about, key, hardware.dtype, hardware.batch])

    def open(self, claimed: Claimed) -> Opened:
        request = JobRequest.model_validate(claimed.request)
        key, usage, hardware = self._used(request.target)
        workers = self._machines.kinds[key]
        folder = self._folder.jobs / claimed.id
        folder.mkdir(parents=True, exist_ok=True)
        plan = describe_job(self._plan(claimed.id, request, usage, folder), usage, hardware, workers)
        plan["service"] = {
            "folder": str(folder.absolute()),
            "records": str(self._folder.records.absolute()),
            "transfer": request.transfer,
            "latency_s": request.demand.latency_s if request.kind == "search" else None,
        }
        facts: dict[str, Any] = {}
        client = Client(claimed.name, self._command, plan, self._folder.log(claimed.id))
        job = TuningJob(client, workers, facts.update, next(self._numbers))
        return Opened(job, job.close, facts)

    def _plan(self, name: str, request: JobRequest, usage: Usage, folder: Path) -> JobPlan:
        """The job's files put into its folder, and the plan that names them as seen from there."""
        fields: dict[str, Any] = {"name": name, "run": RUN, "seed": request.seed, "tune_share": request.tune_share}
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
        self._machines.close()


@contextlib.contextmanager
def open_tunings(usage: Usage, folder: DataFolder, devices: Sequence[DevicePlan] = ()) -> Iterator[Tunings]:
    """The work of a service on some devices; without any, on this machine's.

    Raises:
        ConfigError: devices have a core or a key in common, or cannot be used so.
        ChanasError: a device is not there, is in use, or cannot be used so.
    """
    try:
        check_devices(devices, usage)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    keys = ["", *(device.key for device in devices if device.key is not None)]
    with open_machines(devices, {key: [usage] for key in keys}) as machines:
        yield Tunings(usage, machines, folder)
