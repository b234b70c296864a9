"""chanas/measuring/locks.py: one process times at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path

import pytest

from chanas.errors import ChanasError, MeasureError
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.locks import LOCK_FOLDER, device_lock
from chanas.measuring.messages import Ping

from ..compiler.workbench import HOST

ROOT = Path(__file__).resolve().parents[2]

HOLDER = """
import time
from chanas.measuring.locks import device_lock
with device_lock():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the device."""
    with subprocess.Popen([sys.executable, "-c", HOLDER], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_gpu_is_timed_while_the_processor_is() -> None:
    with device_lock(), device_lock(gpu="0"), device_lock(gpu="1"):
        pass
    with device_lock(gpu="0"), pytest.raises(MeasureError), device_lock(lambda: True, gpu="0"):
        pass


# ---- the device -----------------------------------------------------------------------------------------------------
def test_cores_are_held_beside_others_and_not_beside_the_whole_processor() -> None:
    with device_lock(cores=(1, 2)):
        with device_lock(lambda: True, cores=(0,)):
            pass
        for others in ((2, 3), ()):
            with pytest.raises(MeasureError), device_lock(lambda: True, cores=others):
                pass
    with device_lock(), pytest.raises(MeasureError), device_lock(lambda: True, cores=(0,)):
        pass


def test_what_is_timed_waits_for_another_process_and_that_is_not_its_own_time(
    pool: WorkerPool, holder: subprocess.Popen[str]
) -> None:
    """Its time limit is shorter than the wait."""
    before_s, start_s, waiting = pool.timing_s, time.monotonic(), pool.measure(Ping(), timeout_s=0.5)
    with pytest.raises(NotYet):
        waiting.result(1.0)
    holder.kill()
    answer = waiting.result(60.0)
    assert answer.error is None
    assert answer.wall_s < 0.5
    assert pool.timing_s - before_s < time.monotonic() - start_s - 0.9  # as it may have started its worker


@pytest.mark.usefixtures("holder")
def test_building_waits_for_nobody(pool: WorkerPool) -> None:
    assert pool.build(Ping(), 60.0).result(120.0).error is None


@pytest.mark.usefixtures("holder")
def test_a_pool_that_is_closed_stops_waiting() -> None:
    with WorkerPool(HOST) as workers:
        waiting = workers.measure(Ping(), 60.0)
        started = time.monotonic()
        while not waiting.running():
            assert time.monotonic() - started < 60.0
            time.sleep(0.01)
    with pytest.raises(MeasureError, match="given up while another process was timing on this machine"):
        waiting.result(60.0)


@pytest.mark.usefixtures("holder")
def test_locks_of_different_folders_are_different_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MeasureError), device_lock(lambda: True):
        pass
    monkeypatch.setenv(LOCK_FOLDER, str(tmp_path))
    with device_lock(lambda: True):
        assert {path.suffix for path in tmp_path.glob("chanas-device-*")} == {".lock", ".next"}


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCK_FOLDER, str(tmp_path / "nowhere"))
    with pytest.raises(ChanasError, match=f"{LOCK_FOLDER}, got '.*nowhere'$"), device_lock():
        pass


def test_who_waits_for_the_device_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that nobody else wants."""
    monkeypatch.setenv(LOCK_FOLDER, str(tmp_path))
    order: list[str] = []

    def want() -> None:
        with device_lock():
            order.append("who waited")

    other = threading.Thread(target=want)
    with device_lock():
        other.start()
        time.sleep(0.2)
    with device_lock():
        order.append("the holder, again")
    other.join()
    assert order == ["who waited", "the holder, again"]


def test_a_lock_that_another_user_has_made_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCK_FOLDER, str(tmp_path))
    for name in ("lock", "next"):
        (tmp_path / f"chanas-device-{os.getuid()}.{name}").touch(mode=0o444)
    with device_lock(), pytest.raises(MeasureError), device_lock(lambda: True):
        pass


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCK_FOLDER, str(tmp_path))
    (tmp_path / "precious").write_text("kept")
    (tmp_path / f"chanas-device-{os.getuid()}.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ChanasError, match="cannot be opened"), device_lock():
        pass
    assert (tmp_path / "precious").read_text() == "kept"
