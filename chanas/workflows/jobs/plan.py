"""A file of tuning jobs: which tables and networks, on which devices, by which policy."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chanas.core.effort import NetworkEffort, Search, TableEffort
from chanas.core.usage import Usage
from chanas.errors import ConfigError, unknown_name
from chanas.files.yaml_files import read_mapping
from chanas.scheduler.policies import POLICIES, Ranked

EXCLUSIVE = tuple(name for name, make in POLICIES.items() if not make().shares)
"""Policies that let no two stages disturb each other."""
_FAIR = tuple(name for name, make in POLICIES.items() if isinstance(make(), Ranked))
"""Policies that know users, priorities and deadlines."""

_NAME = re.compile(r"[\w.-]+")


AnyEffort = TypeVar("AnyEffort", TableEffort, NetworkEffort)


class DevicePlan(BaseModel):
    """A device of this machine, by the cores that are its own; or devices that a tracker (`rpc`) knows by a key: `num`
    of them, by default all that are free and alike."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cores: tuple[int, ...] = ()
    rpc: str | None = None
    key: str | None = None
    num: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _is_here_or_there(self) -> DevicePlan:
        remote = self.rpc is not None and self.key is not None
        half = remote != bool({"rpc", "key", "num"} & self.model_fields_set)
        if half or remote == bool(self.cores):
            raise ValueError("expected the cores of a device of this machine, or rpc and key of devices elsewhere")
        return self


def parse_device(text: str) -> DevicePlan:
    """A device as commands take it: `0` or `2,3` are cores of this machine, `pi4@HOST:PORT` all of a tracker's key.

    Raises:
        ConfigError: it is neither.
    """
    key, _, rpc = text.partition("@")
    try:
        return DevicePlan(rpc=rpc, key=key) if rpc and key else DevicePlan(cores=tuple(map(int, text.split(","))))
    except ValueError:
        raise ConfigError(f"expected cores such as 0 or 2,3, or KEY@HOST:PORT of a tracker, got '{text}'") from None


def check_devices(devices: Sequence[DevicePlan], usage: Usage) -> None:
    """
    Raises:
        ValueError: devices cannot be used so, or have a core or a key in common.
    """
    cores = [core for device in devices for core in device.cores]
    keys = [device.key for device in devices if device.key is not None]
    if cores and usage.device != "cpu":
        raise ValueError(f"devices with cores are of target cpu, got {usage.device}")
    if any(device.cores and len(device.cores) != usage.threads for device in devices):
        raise ValueError(f"each device needs {usage.threads} of the cores, as many as there are threads")
    if len({*cores}) < len(cores) or len({*keys}) < len(keys):
        raise ValueError("no two devices may have a core or a key in common")


class JobPlan(BaseModel, TableEffort, NetworkEffort, extra="forbid", frozen=True):
    """A tuning: of a network where there is a `model`, else of a latency table. Names are those of the options of
    `chanas tune` and `chanas prescheduler`, and of their efforts' fields."""

    name: str = Field(min_length=1, max_length=60)
    run: Path
    model: str | None = None
    out: Path | None = None
    minutes: float | None = Field(default=None, gt=0)
    shapes: dict[str, tuple[int, ...]] = {}
    space: str | None = None
    num_classes: int | None = Field(default=None, ge=1)
    calibrate: int = Field(default=12, ge=0)
    dtype: str = "f32"
    batch: int = Field(default=1, ge=1)
    trials: int | None = Field(default=None, ge=1)
    tune_share: float = Field(default=1.0, gt=0, le=1)
    key: str | None = None
    user: str = ""
    priority: int = 0
    deadline_minutes: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _fits_its_kind(self) -> JobPlan:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r} must be of letters, digits, '.', '_' and '-': files are called so")
        of_tables = {"space", "num_classes", "sub_spaces", "calibrate", "dtype", "batch"}
        of_networks, of_int8 = {"out", "minutes", "shapes", "layouts"}, {"calibration", "max_error"}  # of networks
        wrong = self.model_fields_set & ((of_networks if self.model is None else of_tables) | of_int8)
        if wrong:
            kind = "a table (no 'model')" if self.model is None else "a network"
            raise ValueError(f"{', '.join(sorted(wrong))} can't be set for {kind}")
        return self

    def effort(self, kind: type[AnyEffort]) -> AnyEffort:
        """The effort of the job's table, or of its network.

        Raises:
            ConfigError: a number is out of its range.
        """
        return kind(**{field.name: getattr(self, field.name) for field in dataclasses.fields(kind)})


class JobsFile(BaseModel):
    """Jobs that share devices, which are used in one way. Where none are listed this machine is one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    jobs: tuple[JobPlan, ...] = Field(min_length=1)
    target: str = "cpu"
    threads: int = Field(default=1, ge=1)
    policy: str = "slack"
    devices: tuple[DevicePlan, ...] = ()

    @model_validator(mode="after")
    def _differ(self) -> JobsFile:
        if self.policy not in EXCLUSIVE:
            raise ValueError(unknown_name("policy", self.policy, EXCLUSIVE))
        for job in self.jobs if self.policy not in _FAIR else ():
            if terms := sorted(job.model_fields_set & {"user", "priority", "deadline_minutes"}):
                raise ValueError(
                    f"job '{job.name}' has {terms[0]}, which policy {self.policy} does not go by; {', '.join(_FAIR)} do"
                )
        for what, values in (
            ("name", [j.name for j in self.jobs]),
            ("run", [os.path.abspath(j.run) for j in self.jobs]),
        ):
            twice = sorted({v for v in values if values.count(v) > 1})
            if twice:
                raise ValueError(f"each job needs a {what} of its own, got {twice[0]} more than once")
        return self

    @model_validator(mode="after")
    def _has_devices(self) -> JobsFile:
        check_devices(self.devices, Usage(self.target, self.threads))
        for job in self.jobs:
            key = self.key_of(job)
            if job.batch > 1 and self.target == "cpu":
                raise ValueError(f"job '{job.name}': expected batch 1 on a processor, got {job.batch}; GPUs take more")
            dtypes = {j.dtype for j in self.jobs if self.key_of(j) == key}
            if key and len(dtypes) > 1:
                raise ValueError(f"jobs on devices of one key are of one dtype, got {', '.join(sorted(dtypes))}")
        return self

    def key_of(self, job: JobPlan) -> str:
        """The key of the devices that time for a job: its own, or the only one; none ("") for those of this machine.

        Raises:
            ValueError: there are no such devices.
        """
        keys = [device.key for device in self.devices if device.key is not None]
        if job.key is None and (any(device.cores for device in self.devices) or not keys):
            return ""
        if job.key is None and len(keys) == 1:
            return keys[0]
        if job.key not in keys:
            raise ValueError(f"job '{job.name}' needs a key of the devices, got {job.key}; known: {', '.join(keys)}")
        return job.key

    def usage(self, job: JobPlan) -> Usage:
        """The use that a job makes of the device."""
        return Usage(self.target, self.threads, job.dtype, job.batch)


def read_jobs(path: Path) -> JobsFile:
    """Read a file of jobs; paths in it are relative to where the command runs, as those of options are.

    Raises:
        ConfigError: it cannot be read, or does not say what it should.
    """
    return parse_jobs(read_file(path), str(path))


def read_file(path: Path) -> dict[str, Any]:
    """Read the content of a file of jobs, whatever it says.

    Raises:
        ConfigError: it cannot be read, or is no mapping.
    """
    return read_mapping(path, path, "file of jobs", "target, threads, policy, devices and jobs", ConfigError)


def parse_jobs(data: dict[str, Any], name: str) -> JobsFile:
    """Jobs from a mapping that errors call `name`.

    Raises:
        ConfigError: a key is unknown, missing or out of range.
    """
    try:
        return JobsFile.model_validate(data)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ").replace("Input should be", "expected", 1)
        if fault["type"] == "extra_forbidden":
            parts: dict[Any, type[BaseModel]] = {"jobs": JobPlan, "devices": DevicePlan}
            known = parts.get(fault["loc"][0] if len(fault["loc"]) > 1 else "", JobsFile).model_fields
            message = f"unknown key; known: {', '.join(sorted(known))}"
        elif fault["type"] == "unexpected_keyword_argument":
            message = f"unknown key; known: {', '.join(sorted(field.name for field in dataclasses.fields(Search)))}"
        raise ConfigError(f"{name}: {f'{place}: ' if place else ''}{message}"[:400]) from None
