"""chanas/workflows/jobs/run.py: several tunings in processes of their own, on workers that start without a compiler."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chanas.errors import SchedulerError
from chanas.scheduler.jobs import BUILD, DEVICE, HOST, LEARN, MEASURE, START
from chanas.scheduler.trace import Trace
from chanas.workflows.jobs.control import JobState, Order, Request, ask
from chanas.workflows.jobs.plan import parse_jobs
from chanas.workflows.jobs.run import JobResult, JobsResult, run_jobs

from ...compiler.workbench import plant_worker
from ...scheduling import overlaps

PLANTED = Path(__file__).resolve().parents[2] / "measuring"
TUNING = (str(PLANTED / "planted_tuning.py"),)


@pytest.fixture(scope="module", autouse=True)
def quick_workers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        plant_worker(patch, "llvm", (str(PLANTED / "planted_quick.py"),))
        yield


def run(folder: Path, *names: str, **settings: Any) -> tuple[JobsResult, list[str]]:
    """All jobs to their ends, and what was told meanwhile."""
    told: list[str] = []
    plans = parse_jobs({"jobs": jobs_in(folder, *names), **settings}, "test")
    return run_jobs(plans, folder / "out", command=TUNING, tell=told.append), told


def jobs_in(folder: Path, *names: str) -> list[dict[str, str]]:
    return [{"name": name, "run": str(folder / name)} for name in names]


@pytest.fixture(scope="module")
def both(quick_workers: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[JobsResult, list[str]]:
    return run(tmp_path_factory.mktemp("both"), "a", "renews")


@pytest.fixture(scope="module")
def failures(quick_workers: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, JobResult]:
    result, _ = run(tmp_path_factory.mktemp("failures"), "fails", "raises", "dies", "killed", "a")
    return {job.name: job for job in result.results}


def test_jobs_share_builders_and_nothing_else(both: tuple[JobsResult, list[str]]) -> None:
    result, told = both
    a, other = (job.facts for job in result.results)
    assert [job.status for job in result.results] == ["complete", "complete"]
    assert a["pid"] != other["pid"]
    assert not {*a["timers"]} & {*other["timers"]}
    assert len({*a["builders"], *other["builders"]}) <= max(1, (os.cpu_count() or 1) - 1)
    assert sorted(told) == ["job a: complete", "job renews: complete"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_where_devices_take_all_cores_each_core_does_one_thing_at_a_time(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    result, _ = run(tmp_path, "a", "b", devices=[{"cores": [core]} for core in cores])
    assert [job.status for job in result.results] == ["complete", "complete"]
    assert result.trace.num_units == {HOST: len(cores)}
    assert overlaps(result.trace.spans) == []
    for job in result.results:  # a process of its own on each device that timed for it
        timed_on = {span.unit for span in result.trace.spans if span.job == job.name and span.kind == MEASURE}
        assert len(job.facts["timers"]) == len(timed_on)


def test_jobs_that_are_added_run_where_they_were_named(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    out, added = tmp_path / "out", {"name": "endless-2", "run": "b"}

    def order(do: Order, **fields: Any) -> str:
        try:
            return ask(out, Request(do=do, **fields))[0].status
        except SchedulerError as error:
            return str(error)

    def add() -> list[str]:
        wait_until(lambda: order("status") == "open")
        files = [
            {"jobs": [added]},
            {"jobs": [added]},
            {"jobs": [added | {"name": "c"}]},
            {"jobs": [added], "threads": 2},
            {"jobs": [{}]},
        ]
        told = [order("add", file=file, folder=elsewhere) for file in files]
        wait_until(lambda: BUILD in str(ask(out, Request(do="status", name="endless-2"))[0].runs))
        return [*told, *(order("kill", name=name) for name in ("endless-1", "endless-2"))]

    plans = parse_jobs({"jobs": jobs_in(tmp_path, "endless-1")}, "test")
    with ThreadPoolExecutor(1) as thread:
        told = thread.submit(add)
        result = run_jobs(plans, out, command=TUNING)
    first, again, busy, other, *rest = told.result()
    assert (first, rest[1:]) == ("open", ["killed", "killed"])
    assert "new name" in again
    assert "at work in b" in busy
    assert "another threads" in other
    assert "jobs.0.name" in rest[0]
    assert [job.name for job in result.results] == ["endless-1", "endless-2"]
    wait_until((elsewhere / "b.kept").exists)


def test_a_job_times_in_one_process_until_it_asks_for_another(both: tuple[JobsResult, list[str]]) -> None:
    a, renews = (job.facts for job in both[0].results)
    assert (len(a["timers"]), len(renews["timers"])) == (1, 2)


def test_each_stage_is_in_the_trace_and_no_unit_serves_two(both: tuple[JobsResult, list[str]]) -> None:
    result, _ = both
    stored = Trace.from_json(json.loads(result.page.with_name("trace.json").read_text()))
    assert len(stored.spans) == len(result.trace.spans)
    assert overlaps(stored.spans) == []
    for name in ("a", "renews"):
        kinds = [s.kind for s in stored.spans if s.job == name]
        assert kinds.count(START) == 1
        assert kinds.count(BUILD) == kinds.count(MEASURE) == 6
        assert kinds.count(LEARN) >= 2
    assert {s.resource for s in stored.spans if s.kind in (START, BUILD, LEARN)} == {HOST}
    assert {s.resource for s in stored.spans if s.kind == MEASURE} <= {HOST, DEVICE}
    assert "critical resource" in result.page.read_text()


@pytest.mark.parametrize(
    ("name", "reason"), [("fails", "planted"), ("raises", "RuntimeError: planted fault"), ("dies", "has ended")]
)
def test_a_job_that_fails_takes_no_other_with_it(failures: dict[str, JobResult], name: str, reason: str) -> None:
    assert failures[name].status == "failed"
    assert reason in (failures[name].error or "")
    assert failures["a"].status == "complete"


def test_a_job_whose_process_is_killed_goes_on_in_another_one(failures: dict[str, JobResult]) -> None:
    killed = failures["killed"]
    assert (killed.status, killed.error) == ("complete", None)
    assert "was killed by signal 9" in killed.log.read_text()


def test_a_fault_of_a_job_is_in_its_log(failures: dict[str, JobResult]) -> None:
    assert "Traceback" in failures["raises"].log.read_text()
    assert "Traceback" not in failures["fails"].log.read_text()


def test_an_interruption_ends_all_processes_and_leaves_the_trace(tmp_path: Path) -> None:
    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    plans = parse_jobs({"jobs": [{"name": n, "run": str(tmp_path / n)} for n in ("fails", "b")]}, "test")
    with pytest.raises(KeyboardInterrupt):
        run_jobs(plans, tmp_path, command=TUNING, tell=interrupt)
    assert json.loads((tmp_path / "trace.json").read_text())["spans"]
    wait_until(lambda: not children())


def test_jobs_are_paused_resumed_cancelled_and_killed_while_they_run(tmp_path: Path) -> None:
    out, endless = tmp_path / "out", ["endless-1", "endless-2"]

    def order(do: Order, name: str) -> JobState:
        [state] = ask(out, Request(do=do, name=name))
        return state

    def state_of(name: str) -> JobState:
        with contextlib.suppress(SchedulerError):  # they have not begun yet
            return order("status", name)
        return JobState(name=name, status="", seconds=0.0)

    def interfere() -> list[str]:
        try:
            wait_until(lambda: BUILD in str(state_of("endless-2").runs))
            states = [order("pause", "endless-1"), order("kill", "endless-2")]
            wait_until(lambda: not state_of("endless-1").runs)
            states += [state_of("endless-1"), order("resume", "endless-1")]
            wait_until(lambda: BUILD in str(state_of("endless-1").runs))
            return [state.status for state in (*states, order("cancel", "endless-1"))]
        except Exception:  # else they would never end
            for name in endless:
                with contextlib.suppress(SchedulerError):
                    order("kill", name)
            raise

    jobs = [{"name": name, "run": str(tmp_path / name)} for name in endless]
    with ThreadPoolExecutor(1) as thread:
        statuses = thread.submit(interfere)
        result = run_jobs(parse_jobs({"jobs": jobs, "policy": "interleaved"}, "test"), out, command=TUNING)
    assert statuses.result() == ["paused", "killed", "paused", "open", "cancelled"]
    assert [job.status for job in result.results] == ["cancelled", "killed"]
    assert all((tmp_path / f"{name}.kept").exists() for name in endless)
    wait_until(lambda: not children())


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children() -> list[str]:
    """Command lines of this process's tunings and planted workers."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            command = Path(f"/proc/{pid}/cmdline")
            text = command.read_text().replace("\0", " ") if command.exists() else ""
            found += [text] if "planted_" in text else []
    return found
