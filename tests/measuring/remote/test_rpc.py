"""A tracker and a server of `chanas device serve` on loopback: sessions, losses, and a table measured over RPC."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from networks import save_onnx
from tables import QUICK_SEARCH, save_accuracies, save_space

from chanas.core.processor import host_processor
from chanas.core.usage import Place, Usage
from chanas.devices.host import host_triple
from chanas.errors import MeasureError
from chanas.files.run import RunDirectory
from chanas.measuring.fleet import Fleet
from chanas.measuring.messages import Hang, Ping
from chanas.measuring.remote.device import RemoteDevice
from chanas.measuring.remote.held import HeldDevices, held_devices
from chanas.measuring.remote.tracker import Address, device_groups
from chanas.measuring.runner import RunnerLostError
from chanas.operators.workload import Workload
from chanas.prescheduler.tables.lut import PrescheduleSummary
from chanas.testing.runners import Run, RunnerContract
from chanas.workflows.models.chain import Model
from chanas.workflows.searching.search import search
from chanas.workflows.searching.sources import AccuracyFile, AccuracySource, open_source
from chanas.workflows.stages.tables import check, open_table

from ...compiler.workbench import CHOICES, HOST, NANO, NUM_CLASSES, Workbench, fill_table, random_lut

pytestmark = pytest.mark.rpc
KEY = "here"
SMALL = Workload("pointwise", 7, 32, 32, epilogue="relu")


def at(tracker: Address, key: str = KEY) -> Usage:
    """The use of devices there, on one thread."""
    return Usage(place=Place(str(tracker), key))


def until(condition: Callable[[], bool], within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def num_free(tracker: Address, key: str = KEY) -> int:
    """Free devices of the key; none while the tracker is not up."""
    try:
        return sum(g.num_free for g in device_groups(tracker) if g.key == key)
    except MeasureError:
        return 0


@pytest.fixture(scope="module")
def tracker() -> Iterator[Address]:
    """One that is up: a server ends where there is none."""

    def is_up() -> bool:
        try:
            return device_groups(address) == []
        except MeasureError:
            return False

    pytest.importorskip("tornado", reason="TVM's tracker needs it: pip install 'chanas[rpc]'")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = Address(*probe.getsockname())
    script = Path(__file__).parents[1] / "lean_tracker.py"
    process = subprocess.Popen([sys.executable, str(script), str(address.port)])
    assert until(is_up)
    yield address
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def server(tracker: Address) -> Iterator[psutil.Process]:
    process = serving(tracker, KEY)
    assert until(lambda: num_free(tracker) == 1)
    yield psutil.Process(process.pid)
    process.terminate()
    process.wait()


def serving(tracker: Address, key: str) -> subprocess.Popen[bytes]:
    """A server of this machine under a key."""
    command = [sys.executable, "-m", "chanas", "device", "serve", "--tracker", str(tracker), "--key", key]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def pair(tracker: Address, server: psutil.Process) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two servers of one key."""
    processes = [serving(tracker, "pair") for _ in range(2)]
    assert until(lambda: num_free(tracker, "pair") == 2)
    yield processes
    for process in processes:
        process.terminate()
        process.wait()


@pytest.fixture
def device(tracker: Address, server: psutil.Process) -> Iterator[RemoteDevice]:
    remote = RemoteDevice(at(tracker))
    remote.connect()
    yield remote
    remote.close()
    assert until(lambda: num_free(tracker) == 1)  # whatever happened: the server waits for the next client


def pid_of(device: RemoteDevice) -> int:
    return int(device.call(Ping(), 60.0).result["pid"])


def test_a_device_says_what_it_is_and_stays_ours(device: RemoteDevice, tracker: Address) -> None:
    here = host_processor()
    expected = dataclasses.replace(HOST, mcpu=here.mcpu, mattr=here.mattr, mtriple=host_triple())
    assert device.description is not None
    assert device.description.target == expected
    assert device.is_local
    assert num_free(tracker) == 0
    assert pid_of(device) == pid_of(device)


def test_a_kernel_is_checked_and_timed(device: RemoteDevice, workbench: Workbench) -> None:
    from chanas.compiler.backends import schedule_space

    candidate = workbench.candidate(SMALL, schedule_space(SMALL, HOST).points[0])
    assert workbench.pool.build(candidate.build, 60.0).result().error is None
    answer = device.call(candidate.timing, 60.0)
    assert answer.error is None
    assert 0.0 < answer.timing.seconds < 1.0
    assert answer.timing.max_error < 1e-4


class TestOverRPC(RunnerContract):
    @pytest.fixture
    def run(self, device: RemoteDevice) -> Iterator[Run]:
        """Whatever becomes of a request, the device is not lost, and its worker is replaced at most."""
        yield device.call
        assert device.num_lost == 0


def test_a_session_that_is_killed_loses_only_what_it_timed(device: RemoteDevice, server: psutil.Process) -> None:
    pid_of(device)

    def kill_session() -> None:
        os.kill(server.children()[0].pid, signal.SIGKILL)

    threading.Timer(1.0, kill_session).start()
    with Fleet([], [device], overlap=True, key=KEY, return_within_s=60.0) as fleet:
        answer = fleet.measure(Hang(), 4.0).result()  # once more on the session after it, where it takes its full time
    assert str(answer.error) == "timeout: hang took more than 4 s"
    assert device.num_lost == 1


def test_a_client_that_vanishes_frees_the_device(device: RemoteDevice, tracker: Address) -> None:
    pid = pid_of(device)
    with ThreadPoolExecutor(1) as threads:
        called = threads.submit(device.call, Hang(), 300.0)
        time.sleep(0.5)
        device.stop()
        with pytest.raises(RunnerLostError):
            called.result()
    assert until(lambda: num_free(tracker) == 1, within_s=20.0)
    assert until(lambda: not psutil.pid_exists(pid))


def test_a_server_of_another_kind_is_told(tracker: Address, server: psutil.Process) -> None:
    code = (
        "import sys; from chanas.devices.lean_tvm import hide_torch; hide_torch(); from tvm.rpc.server import *; "
        f"PopenRPCServerState('127.0.0.1', 0x8000, 0xffff, False, ('127.0.0.1', {tracker.port}), 'stock').thread.join()"
    )
    stock = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        assert until(lambda: any(g.key == "stock" and g.num_free for g in device_groups(tracker)))
        remote = RemoteDevice(at(tracker, "stock"))
        with pytest.raises(MeasureError, match="the server of key 'stock' is not one of `chanas device serve`"):
            remote.connect()
        remote.close()
    finally:
        stock.kill()
        stock.wait()


def filled(run: RunDirectory, held: HeldDevices) -> PrescheduleSummary:
    """A small table that the devices have measured, every row of it."""
    narrow = NANO.sub_spaces[:1]
    quickly: dict[str, Any] = {"trials": 3, "sub_spaces": narrow, "tuner": "random", "open_pool": held.pool}
    summary = fill_table(run, NANO, held.target, NUM_CLASSES, **quickly)
    assert set(summary.lut.rows) == {b.key for b in NANO.all_blocks(NUM_CLASSES, narrow)}
    assert summary.num_failed_trials == 0
    return summary


def test_a_table_is_measured_over_rpc(tracker: Address, server: psutil.Process, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    with held_devices(at(tracker)) as held:
        summary = filled(run, held)
    assert summary.path == run.luts / f"cpu@{KEY}.json"
    assert summary.lut.header.target.fingerprint == HOST.fingerprint
    space = save_space(NANO, tmp_path / "nano.yaml")
    table = open_table(run=run, usage=Usage(place=Place(key=KEY)), space=space)
    checked = check(table, num_rows=2, place=Place(str(tracker), KEY), progress=False)
    assert [row.error for row in checked.rows] == [None, None]


def test_a_finished_network_is_tuned_proven_and_saved_over_rpc(
    tracker: Address, server: psutil.Process, tmp_path: Path
) -> None:
    loaded = Model.load(save_onnx(tmp_path / "net.onnx"))
    tuned = loaded.tune(Usage(place=Place(str(tracker), KEY)), 2, run=tmp_path / "run", progress=False)
    assert tuned.target.name == f"cpu@{KEY}"
    assert (tuned.tuned.num_new_trials, tuned.tuned.num_failed_trials) == (2 * len(tuned.program.workloads()), 0)
    built = tuned.build()
    assert until(lambda: num_free(tracker) == 1)  # neither step keeps the device
    assert 0.0 < built.proof.seconds < 1.0
    assert built.proof.relative_error < 1e-5
    network = built.save(tmp_path / "net").open()
    (image,) = network.random_inputs(seed=1)
    np.testing.assert_allclose(network.run(image), loaded.opened.answer([image]), rtol=1e-4, atol=1e-5)
    assert loaded.tune(tuned.usage, 2, run=tmp_path / "run", progress=False).tuned.num_new_trials == 0


def test_a_finished_network_is_tuned_to_the_end_by_the_device_that_is_left(
    tracker: Address, pair: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    loaded, run = Model.load(save_onnx(tmp_path / "net.onnx")), RunDirectory(tmp_path / "run")

    def lose_one() -> None:
        assert until(lambda: run.records.is_file())
        pair[0].kill()

    killer = threading.Thread(target=lose_one)
    killer.start()
    tuned = loaded.tune(Usage(place=Place(str(tracker), "pair")), 8, run=run, progress=False)
    killer.join()
    assert pair[0].wait() == -signal.SIGKILL
    assert tuned.tuned.num_failed_trials == 0
    assert tuned.build().proof.relative_error < 1e-5


def accuracies(run: RunDirectory, folder: Path, target: str) -> AccuracySource:
    """Random accuracies, in place of a supernet."""
    space = save_space(CHOICES, folder / "choices.yaml")
    return open_source(
        run, AccuracyFile(save_accuracies(CHOICES, folder / "accuracies.csv", NUM_CLASSES), space), target
    )


@pytest.mark.parametrize(
    ("names", "place"),
    [((f"cpu@{KEY}",), {"key": KEY}), ((f"cpu@{KEY}", f"cpu-2t@{KEY}"), {})],
    ids=["one table", "used in two ways"],
)
def test_finalists_of_a_search_are_measured_on_the_device(
    tracker: Address, server: psutil.Process, tmp_path: Path, names: tuple[str, ...], place: dict[str, str]
) -> None:
    run = RunDirectory(tmp_path / "run")
    for name in names:
        there = dataclasses.replace(HOST, name=name, num_threads=2 if "2t" in name else 1)
        random_lut(CHOICES, CHOICES.all_blocks(NUM_CLASSES), there).save(run.lut(name))
    bundle = search(
        run,
        source=accuracies(run, tmp_path, names[0]),
        latency_s=1.0 if place else dict.fromkeys(names, 1.0),
        usage=Usage(place=Place(rpc=str(tracker), **place)),
        config=QUICK_SEARCH,
        progress=False,
    )
    assert bundle.targets == names
    assert all(0.0 < part["measured"]["latency_s"] < 1.0 for part in bundle.document["targets"])
    assert until(lambda: num_free(tracker) == 1)


def test_two_devices_time_and_one_goes_on_alone(
    tracker: Address, pair: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    with held_devices(at(tracker, "pair")) as held:
        assert len(held.devices) == 2
        with held.pool(held.target) as pool:
            pings = [pool.measure(Ping(), 60.0, device).result() for device in (0, 1)]
            assert ([p.device for p in pings], len({p.result["pid"] for p in pings})) == ([0, 1], 2)
            hanging = pool.measure(Hang(), 8.0, 0)
            assert until(hanging.running)
            time.sleep(0.5)
            lost = next(
                p for p in pair if psutil.Process(p.pid).children(recursive=True)[-1].pid == pings[0].result["pid"]
            )
            lost.kill()
            answer = hanging.result(120.0)  # begun anew by the other one, where it takes its full time
            assert (answer.device, str(answer.error)) == (1, "timeout: hang took more than 8 s")
        filled(RunDirectory(tmp_path / "run"), held)
