"""Several devices in one service: which jobs run where, and what a device that is lost costs."""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from typing import Any, cast

import pytest

from chanas.core.usage import HERE
from chanas.errors import ConfigError, ServiceError
from chanas.measuring.remote.held import HeldDevices
from chanas.measuring.shared.workers import SharedWorkers, Slot
from chanas.scheduler.jobs import DEVICE, HOST, MEASURE, Stage, UnitLostError
from chanas.scheduler.mock import strict_rounds
from chanas.service.folder import DataFolder
from chanas.service.mock import MockWork
from chanas.service.page.shown import strips
from chanas.service.requests import JobRequest
from chanas.service.runner import Runner
from chanas.service.store.database import Database
from chanas.service.store.jobs import Claimed, JobStore, NewJob
from chanas.service.tuning import Tunings, open_tunings
from chanas.service.work import Opened, Tell
from chanas.workflows.jobs.plan import DevicePlan, parse_device
from chanas.workflows.jobs.run import Machines

from ..compiler.workbench import device

PI4 = dataclasses.replace(device(lanes=4), name="cpu@pi4", fingerprint="0123456789ab")
ON_PI4 = f"{DEVICE}@pi4"


class Timer:
    """A device that nothing is timed on."""

    def watch(self, changed: Any) -> None:
        self.changed = changed


def tunings_of(folder: DataFolder, *keys: str) -> Tunings:
    """Two devices of this machine ("") and one of the key pi4, or some of them."""
    slots = (Slot(),)
    kinds = {
        "": SharedWorkers(slots, cast(Any, (Timer(), Timer()))),
        "pi4": SharedWorkers(slots, cast(Any, (Timer(),)), ON_PI4),
    }
    held = {"pi4": HeldDevices((), PI4)}
    return Tunings(HERE, Machines({key: kinds[key] for key in keys}, held), folder)


def request(target: str) -> JobRequest:
    return JobRequest(kind="model", model="torchvision:a", target=target)


def resource_of(tunings: Tunings, target: str) -> set[str]:
    """The resources that a job needs."""
    claimed = Claimed("j", "t", 1, request(target).model_dump(mode="json", exclude_unset=True), target, 0, None)
    opened = tunings.open(claimed)
    return {*opened.job.outlook(lambda _kind: 1.0, {HOST: 1, DEVICE: 2, ON_PI4: 1}).work_s}


def test_each_device_is_told_with_its_units(folder: DataFolder) -> None:
    here, there = tunings_of(folder, "", "pi4").devices()
    assert (here["target"], here["resources"]) == ("cpu", {HOST: 1, DEVICE: 2})
    assert (there["target"], there["resources"]) == ("cpu@pi4", {HOST: 1, ON_PI4: 1})
    assert here["fingerprint"] != there["fingerprint"] == PI4.fingerprint


def test_jobs_run_on_the_device_that_their_target_names(folder: DataFolder) -> None:
    both = tunings_of(folder, "", "pi4")
    assert resource_of(both, "cpu") == {HOST, DEVICE}
    assert resource_of(both, "cpu@pi4") == {HOST, ON_PI4}
    assert resource_of(both, f"cpu@{PI4.fingerprint}") == {HOST, ON_PI4}
    assert resource_of(tunings_of(folder, "pi4"), "cpu") == {HOST, ON_PI4}  # there are no others


def test_what_one_device_has_tuned_answers_no_job_of_another(folder: DataFolder) -> None:
    both = tunings_of(folder, "", "pi4")
    contents = [both.content(request(target)) for target in ("cpu", "cpu@pi4", f"cpu@{PI4.fingerprint}")]
    assert contents[0] != contents[1] == contents[2]


@pytest.mark.parametrize("target", ["cpu@pi5", "cpu-2t", "cpu-bf16@pi4", "cuda"])
def test_a_target_of_no_device_is_refused_with_what_there_is(folder: DataFolder, target: str) -> None:
    with pytest.raises(ServiceError, match="this service's") as told:
        tunings_of(folder, "", "pi4").content(request(target))
    assert told.value.status == 422


def test_a_network_of_a_library_that_is_not_installed_is_refused(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "timm" else name)
    tunings = tunings_of(folder, "")
    assert tunings.content(request("cpu"))
    with pytest.raises(ServiceError, match="timm:a needs timm, which is not installed: pip install timm") as told:
        tunings.content(JobRequest(kind="model", model="timm:a"))
    assert told.value.status == 422


def test_devices_are_read_from_their_options() -> None:
    assert parse_device("2,3") == DevicePlan(cores=(2, 3))
    assert parse_device("pi4@127.0.0.1:9190") == DevicePlan(rpc="127.0.0.1:9190", key="pi4")
    for text in ("", "x", "@127.0.0.1:9190", "pi4@"):
        with pytest.raises(ConfigError, match="expected cores"):
            parse_device(text)


def test_no_two_devices_have_a_core_in_common(folder: DataFolder) -> None:
    with pytest.raises(ConfigError, match="in common"), open_tunings(HERE, folder, [parse_device("0")] * 2):
        pass


class LosingWork(MockWork):
    """The second device is lost over the first stage that it measures."""

    is_lost = False

    def watch(self, lose: Tell, restore: Tell) -> None:
        self.lose, self.restore = lose, restore

    def open(self, claimed: Claimed) -> Opened:
        job, work = strict_rounds(3, dict.fromkeys((MEASURE,), 0.01)), self

        class Job(type(job)):  # type: ignore[misc]
            def offer(self) -> list[Stage]:
                return [dataclasses.replace(s, work=losing(s.work), unit=1) for s in super().offer()]

        def losing(measure: Any) -> Any:
            def run() -> Any:
                if not work.is_lost:
                    work.is_lost = True
                    work.lose(DEVICE, 1)
                    raise UnitLostError("planted")
                return measure()

            return run

        job.__class__ = Job
        return Opened(job)


def test_a_device_that_is_lost_costs_its_stage(folder: DataFolder, database: Database, store: JobStore) -> None:
    work = LosingWork(folder, num_devices=2)
    runner = Runner(database, store, work)
    runner.start()
    asked = request("cpu").model_dump(mode="json", exclude_unset=True)
    try:
        new = NewJob(
            tenant="a", key=None, digest="d", kind="model", request=asked, content="c", effort="e", target="cpu"
        )
        job, _ = store.submit(new, 10).result()
        until_s = time.monotonic() + 20.0
        while store.get("a", job)["state"] != "complete":
            assert time.monotonic() < until_s
            time.sleep(0.01)
        assert runner.lost == [(DEVICE, 1)]
        named = strips({DEVICE: 2}, [], 60, time.time(), runner.lost)
        assert [strip.is_lost for strip in named] == [False, True]
        work.restore(DEVICE, 1)
        assert runner.lost == []
    finally:
        runner.stop()
