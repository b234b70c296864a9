"""Work that only waits, to try the service and its load with: no compiler, no device. A service that somebody serves
never has it; it is handed to a runner by tests and by `benchmarks/`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chanas.scheduler.jobs import BUILD, DEVICE, HOST, LEARN, MEASURE, SELECT
from chanas.scheduler.mock import strict_rounds
from chanas.scheduler.pools import PoolMaker, thread_pool
from chanas.scheduler.resources import Resource
from chanas.service import archive
from chanas.service.folder import DataFolder
from chanas.service.requests import JobRequest, digest_of
from chanas.service.store.jobs import Claimed, Made
from chanas.service.work import Opened, Tell


class MockWork:
    """Jobs of a few rounds of stages that sleep; a network's latency is drawn from its name.

    Args:
        stage_s: mean seconds of a stage.
        num_slots: of the host.
        num_devices: all alike.
    """

    def __init__(
        self, folder: DataFolder, stage_s: float = 0.001, num_rounds: int = 2, num_slots: int = 2, num_devices: int = 1
    ) -> None:
        self.folder, self.stage_s, self.num_rounds = folder, stage_s, num_rounds
        self.num_slots, self.num_devices = num_slots, num_devices

    def resources(self) -> Sequence[Resource]:
        return [Resource(HOST, self.num_slots), Resource(DEVICE, self.num_devices)]

    def pools(self) -> Mapping[str, PoolMaker]:
        return {HOST: thread_pool, DEVICE: thread_pool}

    def watch(self, lose: Tell, restore: Tell) -> None:
        """Lose nothing."""

    def devices(self) -> Sequence[Mapping[str, Any]]:
        units = {r.name: r.num_units for r in self.resources()}
        return [{"target": "cpu", "device": "mock", "fingerprint": "mock", "threads": 1, "resources": units}]

    def content(self, request: JobRequest) -> str:
        return digest_of(request.model_dump(mode="json", include={"kind", "model", "space", "target"}))

    def open(self, claimed: Claimed) -> Opened:
        means_s = dict.fromkeys((SELECT, BUILD, MEASURE, LEARN), self.stage_s)
        seed = JobRequest.model_validate(claimed.request).seed
        return Opened(strict_rounds(self.num_rounds, means_s, 0.2, seed))

    def finish(self, claimed: Claimed, facts: Mapping[str, Any]) -> Made:
        request = JobRequest.model_validate(claimed.request)
        latency_s = random.Random(request.model or "").uniform(1e-3, 1e-2)
        files = self.folder.jobs / claimed.id
        files.mkdir(parents=True, exist_ok=True)
        (files / "tuned.json").write_text('{"mock": true}\n', encoding="utf-8")
        packed = archive.pack(files, self.folder.bundle(claimed.id))
        goal_s = request.demand.latency_s
        met = None if goal_s is None else latency_s <= goal_s
        return Made({"latency_s": latency_s, "met": met, "bundle": packed, **facts}, latency_s)

    def keep(self, job: str) -> None:
        """Learn nothing."""

    def clear(self, job: str) -> None:
        files = self.folder.jobs / job
        (files / "tuned.json").unlink(missing_ok=True)
        if files.is_dir():
            files.rmdir()

    def left(self) -> Sequence[str]:
        return [path.name for path in self.folder.jobs.iterdir()] if self.folder.jobs.is_dir() else []

    def bundle(self, job: str) -> Path:
        return self.folder.bundle(job)

    def log(self, job: str) -> Path:
        return self.folder.log(job)

    def close(self) -> None:
        """End nothing."""
