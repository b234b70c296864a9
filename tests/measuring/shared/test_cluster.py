"""chanas/measuring/shared/cluster.py: builds on dask workers, on threads of this process and on real
processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chanas.errors import ConfigError, SchedulerError
from chanas.measuring.messages import Build, Learn, ModuleFile, OperatorsAt, Ping, Request
from chanas.measuring.shared import cluster as module
from chanas.measuring.shared.cluster import RESOURCE, Cluster, check_cluster, open_cluster
from chanas.measuring.shared.turns import Ask
from chanas.scheduler.jobs import WorkerDiedError

from ...compiler.workbench import HOST, WORKLOAD, plant_worker

distributed = pytest.importorskip("distributed")
# What dask itself leaves open or warns of is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")
QUICK = (str(Path(__file__).resolve().parents[1] / "planted_quick.py"),)
WITHIN_S = 30.0


def asked(request: Request) -> Ask:
    return Ask(number=0, times=False, timeout_s=WITHIN_S, request=request)


@contextlib.contextmanager
def cluster_of(num_workers: int, *, processes: bool, **options: Any) -> Iterator[tuple[Cluster, Any]]:
    silent = {"dashboard_address": None, "silence_logs": 50, "memory_limit": 0}
    with (
        distributed.LocalCluster(n_workers=num_workers, threads_per_worker=1, processes=processes, **silent) as local,
        distributed.Client(local, set_as_default=False) as client,
        contextlib.closing(Cluster(client, HOST, poll_s=0.02, **options)) as cluster,
    ):
        yield cluster, local


@pytest.fixture(scope="module")
def threads() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        plant_worker(patch, "llvm", QUICK)
        with cluster_of(2, processes=False) as (cluster, _):
            yield cluster


def test_what_is_built_comes_back_and_what_it_reads_is_sent(threads: Cluster, tmp_path: Path) -> None:
    module_, library = tmp_path / "network.json", tmp_path / "made.so"
    module_.write_text("{}")
    answer = threads.answer(asked(Build(target=HOST, what=ModuleFile(module_), path=library)))
    assert answer.error is None
    assert library.exists()
    there = tmp_path / "there.so"
    there.write_bytes(b"compiled before")
    several = tmp_path / "several"
    request = Build(target=HOST, what=OperatorsAt(WORKLOAD, [(0,), (1,)], [None, there]), path=several)
    assert threads.answer(asked(request)).error is None
    assert sorted(path.name for path in several.iterdir()) == ["0.so", "1.so"]
    assert (several / "1.so").read_bytes() == b"compiled before"


def test_what_a_cost_model_asks_is_answered_by_a_worker() -> None:
    def learn(question: dict[str, Any]) -> dict[str, Any]:
        return {"twice": 2 * question["x"], "thread": threading.get_ident()}

    with cluster_of(1, processes=False, learn=learn) as (cluster, _):
        assert cluster.learns
        found = cluster.answer(asked(Learn(question={"x": 21}))).result
    assert found["twice"] == 42
    assert found["thread"] != threading.get_ident()


def test_each_thread_of_the_workers_is_a_unit_with_a_process_of_its_own(threads: Cluster) -> None:
    assert threads.num_units == 2
    found: list[int] = []
    asks = [
        threading.Thread(target=lambda: found.append(threads.answer(asked(Ping())).result["pid"])) for _ in range(9)
    ]
    for thread in asks:
        thread.start()
    for thread in asks:
        thread.join()
    assert 1 <= len({*found}) <= 2
    assert os.getpid() not in found


def test_a_build_is_sent_for_this_machines_processor_and_without_its_paths(threads: Cluster, monkeypatch: Any) -> None:
    def build(ask: str, _kind: str, _files: Any) -> tuple[str, dict[str, bytes]]:
        return json.dumps({"result": json.loads(ask)["request"]["arguments"], "error": None}), {}

    monkeypatch.setattr(module, "build", build)
    arguments = threads.answer(asked(Build(target=HOST, what=ModuleFile(Path("b.json")), path=Path("a.so")))).result
    assert arguments["target"]["mcpu"]
    assert "/" not in arguments["path"] + arguments["what"]["ModuleFile"]["path"]
    several = OperatorsAt(WORKLOAD, [(0,), (1,)], [Path("there/0.so"), None])
    arguments = threads.answer(asked(Build(target=HOST, what=several, path=Path("several")))).result
    assert arguments["what"]["OperatorsAt"]["compiled"] == ["1-0.so", None]


def test_workers_of_other_versions_are_refused() -> None:
    class Client:
        def run(self, _function: Any) -> dict[str, Any]:
            return {"tcp://a:1": module.versions() | {"TVM": "0.1"}}

    with pytest.raises(SchedulerError, match=r"worker tcp://a:1 has TVM 0.1"):
        Cluster(Client(), HOST)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "address", ["remote", "local:0", "local:x", "http://here", "tcp://here", "tcp://a..b:1", "tls://[::1:99999"]
)
def test_what_is_no_cluster_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected --cluster local"):
        check_cluster(address)


def test_without_dask_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(ConfigError, match=r"chanas\[cluster\]"):
        check_cluster("local")


@pytest.mark.slow
def test_a_worker_that_dies_costs_its_build_and_its_unit_until_there_is_another() -> None:
    told: list[tuple[str, str, int]] = []
    with cluster_of(1, processes=True) as (cluster, local):
        cluster.watch(lambda *unit: told.append(("lost", *unit)), lambda *unit: told.append(("back", *unit)))
        [nanny] = local.workers.values()
        first, answers = nanny.pid, list[Any]()
        thread = threading.Thread(target=lambda: answers.append(cluster.answer(asked(Ping()))))
        thread.start()
        time.sleep(0.5)  # its worker process takes longer to start
        os.kill(first, signal.SIGKILL)
        thread.join(2 * WITHIN_S)
        assert answers[0].error is None
        assert nanny.pid != first
        assert told == [("lost", RESOURCE, 0), ("back", RESOURCE, 0)]


def test_without_any_worker_a_build_waits_no_longer_than_it_is_told_to() -> None:
    with cluster_of(1, processes=False, return_within_s=0.2) as (cluster, local):
        cluster.watch(lambda *_: None, lambda *_: None)
        local.scale(0)
        with pytest.raises(WorkerDiedError, match="no worker"):
            cluster.answer(asked(Ping()))


def test_an_address_where_nothing_is_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CONNECT_S", 0.2)
    told = pytest.raises(SchedulerError, match="no cluster with workers is at tcp:")
    with told, open_cluster("tcp://127.0.0.1:9", 1, HOST):
        pass
