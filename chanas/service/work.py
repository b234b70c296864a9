"""The interface of whatever carries the service's jobs out: of tunings on this machine, or of mock jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from chanas.scheduler.jobs import Job
from chanas.scheduler.pools import PoolMaker
from chanas.scheduler.resources import Resource
from chanas.service.requests import JobRequest
from chanas.service.store.jobs import Claimed, Made

Tell = Callable[[str, int], None]


@dataclass(frozen=True)
class Opened:
    """A job for the scheduler.

    close  ends its processes
    facts  what it made, once it is complete
    """

    job: Job
    close: Callable[[], None] = lambda: None
    facts: dict[str, Any] = field(default_factory=dict)


class Work(Protocol):
    """Carries out jobs. Methods but `resources`, `pools` and `close` may be called from several threads."""

    def resources(self) -> Sequence[Resource]:
        """Resources of the scheduler."""

    def pools(self) -> Mapping[str, PoolMaker]:
        """Pools of these, for `PoolExecutor`."""

    def watch(self, lose: Tell, restore: Tell) -> None:
        """Tell of units that are lost, and of those that are back, by resource and number."""

    def devices(self) -> Sequence[Mapping[str, Any]]:
        """The devices, for people: `target`, `device`, `fingerprint`, `resources` (units by name) and the like."""

    def content(self, request: JobRequest) -> str:
        """A name for all that jobs of the same content share: what they are about, and device, compiler and space.

        Raises:
            ServiceError: such a job cannot be run here.
        """

    def open(self, claimed: Claimed) -> Opened:
        """Prepare a job. Whatever is raised fails it."""

    def finish(self, claimed: Claimed, facts: Mapping[str, Any]) -> Made:
        """Pass on what a complete job has learned, and write its bundle. It may be called again after a crash."""

    def keep(self, job: str) -> None:
        """Pass on what a job has learned so far, whose processes have ended."""

    def clear(self, job: str) -> None:
        """Remove the folder of a job that has ended, if there is one; what it has learned is kept."""

    def left(self) -> Sequence[str]:
        """Jobs that have folders."""

    def bundle(self, job: str) -> Path:
        """The file with its bundle."""

    def log(self, job: str) -> Path:
        """The file that it has printed to."""

    def close(self) -> None:
        """End all processes."""
