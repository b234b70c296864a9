"""chanas/measuring/remote/device.py: a device that vanishes loses nothing but time, and one line says that
it is gone."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import chanas
from chanas.compiler.cuda import nvrtc as cuda_nvrtc
from chanas.core.codec import to_json
from chanas.core.usage import Place, Usage
from chanas.devices import cuda_runtime
from chanas.devices.target_files import describe_target
from chanas.errors import MeasureError, TargetError
from chanas.measuring.messages import Answer, ErrorKind, Measure, Request, WorkerError
from chanas.measuring.remote import device as remote
from chanas.measuring.remote.device import Description, RemoteDevice, what_it_is
from chanas.measuring.remote.link import Submit
from chanas.measuring.remote.tracker import Address
from chanas.measuring.runner import RunnerLostError
from chanas.measuring.worker.process import WorkerProcess

from ...compiler.workbench import HOST

PROCESSOR = {"llvm_cpu": "znver4", "machine": "x86_64"}
HERE = {"tvm": "1", **PROCESSOR, "boot": "b", "llvm_targets": ["aarch64", "x86_64"]}
THERE = {"target": HOST.to_json(), "tvm": "1", "chanas": chanas.__version__, **PROCESSOR, "boot": "other"}
PI4 = dataclasses.replace(HOST, mcpu="cortex-a72", mtriple="aarch64-linux-gnu")
BOARD = {"target": PI4.to_json(), "llvm_cpu": "cortex-a72", "machine": "aarch64"}
DONE = to_json(Answer({"seconds": 1.0}, None, 0.1))
BUSY = WorkerError(ErrorKind.BUSY, "all 2 of them are in use")
PENDING = {"pending": True}
TIMING = Measure(library=Path("kernel.so"), case=Path("case.npz"))


class Script:
    """Stands where a link process stands: answers as it is told to, one list for each call; strings are errors."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = {"connect": [{"device": THERE}], "submit": [DONE], "wait": [DONE]} | answers
        self.asked: list[str] = []
        self.num_stops = 0

    def call(self, request: Request, _timeout_s: float) -> Answer:
        name = request.call
        if name == "ping":
            return Answer(HERE, None, 0.0)
        self.asked.append(name)
        left = self.answers[name]
        answer = left.pop(0) if len(left) > 1 else left[0]
        if name == "connect" and isinstance(answer, dict) and "device" in answer:
            answer = {**answer, "num_devices": 4, "num_free": 2}
        return Answer.of(WorkerError.read(answer) if isinstance(answer, str) else answer)

    def stop(self) -> None:
        self.num_stops += 1

    close = stop


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "POLL_S", 0.01)


PI4_THERE = Usage(place=Place("tracker:1", "pi4"))


def device(script: Script) -> RemoteDevice:
    def linked() -> WorkerProcess:
        return script  # type: ignore[return-value]

    return RemoteDevice(PI4_THERE, link=linked)


def connect(described: dict[str, Any], **more: Any) -> Description:
    """Take a device that describes itself so."""
    return device(Script(connect=[{"device": described, **more}])).connect()


def connected(script: Script) -> RemoteDevice:
    there = device(script)
    there.connect()
    return there


# ---- calls ----------------------------------------------------------------------------------------------------------
def test_an_answer_is_the_devices_own() -> None:
    script = Script(submit=[PENDING], wait=[PENDING, DONE])
    assert connected(script).call(TIMING, 1.0) == Answer({"seconds": 1.0}, None, 0.1)
    assert script.asked == ["connect", "submit", "wait", "wait"]


def test_an_error_of_the_kernel_is_no_loss_of_the_device() -> None:
    error = WorkerError(ErrorKind.CRASH, "the worker ended with signal 11 (SIGSEGV) in measure")
    script = Script(submit=[to_json(Answer(None, error, 0.2))])
    there = connected(script)
    assert there.call(TIMING, 1.0) == Answer(None, error, 0.2)
    assert (there.num_lost, script.num_stops) == (0, 0)


@pytest.mark.parametrize("lost", ["crash: the worker ended with exit code 1 in submit", "RuntimeError: reset by peer"])
def test_a_device_that_is_lost_says_why_and_is_there_again(lost: str) -> None:
    script = Script(submit=[lost, DONE])
    there = connected(script)
    with pytest.raises(RunnerLostError, match=lost.partition(": ")[2]):
        there.call(TIMING, 1.0)
    assert not there.is_there
    assert there.restore() is None
    assert there.is_there
    assert there.call(TIMING, 1.0).result == {"seconds": 1.0}
    assert there.num_lost == 1
    assert script.asked == ["connect", "submit", "connect", "submit"]


def test_a_device_that_stays_away_says_why() -> None:
    there = connected(Script(connect=[{"device": THERE}, "MeasureError: no tracker answers"]))
    there.stop()
    assert there.restore() == WorkerError(ErrorKind.RAISED, "no tracker answers", "MeasureError")
    assert not there.is_there


def test_a_device_whose_worker_cannot_start_is_no_lost_one() -> None:
    there = connected(Script(submit=["MeasureError: a worker process could not start"]))
    with pytest.raises(MeasureError, match=r"^a device of key 'pi4' can't time: a worker process could not start$"):
        there.call(TIMING, 1.0)
    assert there.num_lost == 0


def test_a_call_that_is_given_up_comes_back_at_once() -> None:
    waiting, given_up = threading.Event(), threading.Event()

    class Hanging(Script):
        def call(self, request: Request, timeout_s: float) -> Answer:
            if isinstance(request, Submit):
                waiting.set()
                given_up.wait(20.0)
                return Answer.of(WorkerError(ErrorKind.CRASH, "the worker ended with signal 9 (SIGKILL) in submit"))
            return super().call(request, timeout_s)

        def stop(self) -> None:
            given_up.set()

    there = connected(Hanging())
    with ThreadPoolExecutor(1) as threads:
        called = threads.submit(there.call, TIMING, 1.0)
        waiting.wait(20.0)
        there.stop()
        with pytest.raises(RunnerLostError):
            called.result(20.0)


# ---- who is there ---------------------------------------------------------------------------------------------------
def test_a_device_knows_how_many_there_are_and_whether_it_is_this_machine() -> None:
    there, here = connected(Script()), connected(Script(connect=[{"device": {**THERE, "boot": "b"}}]))
    assert (there.num_devices, there.num_free) == (4, 2)
    assert (there.is_local, here.is_local) == (False, True)


def test_a_key_without_a_device_is_told_at_once() -> None:
    script = Script(connect=["MeasureError: no device of key 'pi4' at tracker tracker:1; it has: jetson"])
    with pytest.raises(MeasureError, match=r"^no device of key 'pi4' at tracker tracker:1; it has: jetson$"):
        device(script).connect()


AWAY, OTHER = "MeasureError: no tracker answers", "MeasureError: no device of key 'pi4'"


@pytest.mark.parametrize("looks", [[BUSY, BUSY], [BUSY, AWAY, OTHER]], ids=["busy", "then without a tracker"])
def test_a_busy_device_is_waited_for_while_the_tracker_may_go_and_come_back(looks: list[Any]) -> None:
    script = Script(connect=[*looks, {"device": THERE}])
    assert device(script).connect().target == HOST
    reason = "no tracker answers" if AWAY in looks else "busy: all 2 of them are in use"
    with pytest.raises(MeasureError, match=rf"became free within 0.05 s \({reason}\); what was measured is kept"):
        device(Script(connect=looks[:2])).connect(0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tvm": "2"}, "the device has TVM 2, here it is 1; install the same on both"),
        ({"chanas": "9"}, "the device has chanas 9, here it is"),
        (
            {"llvm_cpu": "m88k", "machine": "m88k"},
            r"\(m88k m88k; here x86_64\), and the compiler here makes no code for",
        ),
        ({"legs": 4}, "install the same on both"),
    ],
)
def test_a_device_that_does_not_fit_is_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        connect({**THERE, **change})


def test_a_board_of_another_processor_is_built_for_where_something_links_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linkers: dict[str, str] = {"aarch64-linux-gnu": "a linker"}
    monkeypatch.setattr(remote, "find_linker", linkers.get)
    found = connect({**THERE, **BOARD})
    assert (found.target.mcpu, found.target.mtriple) == ("cortex-a72", "aarch64-linux-gnu")
    linkers.clear()
    with pytest.raises(
        TargetError, match=r"^the device is of another kind .* and no cross linker for aarch64-linux-gnu"
    ):
        connect({**THERE, **BOARD})


# ---- GPUs -----------------------------------------------------------------------------------------------------------
H100 = dataclasses.replace(describe_target("h100"), mcpu="generic", mtriple="x86_64-linux-gnu")
WITH_GPU = {**THERE, "target": H100.to_json()}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Architectures that a compiler was looked for, found for sm_90."""
    archs: list[str] = []

    def library_for(arch: str) -> None:
        archs.append(arch)
        if arch != "sm_90":
            raise TargetError(f"no compiler here has architecture '{arch}'")

    monkeypatch.setattr(cuda_nvrtc, "library_for", library_for)
    monkeypatch.setattr(cuda_runtime, "load_cudart", lambda: None)
    return archs


def test_a_gpu_is_built_for_whatever_processor_is_beside_it(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "find_linker", lambda _triple: None)
    found = connect({**WITH_GPU, "llvm_cpu": "sapphirerapids"})
    assert (found.target, asked) == (H100, ["sm_90"])
    arm = dataclasses.replace(H100, mtriple="aarch64-linux-gnu")
    with pytest.raises(TargetError, match="and no cross linker for aarch64-linux-gnu was found"):
        connect({**WITH_GPU, **BOARD, "target": arm.to_json()})


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"device": WITH_GPU}, f"GPU {H100.device} [sm_90]"),
        ({"device": {**THERE, **BOARD}}, f"CPU {HOST.device} [cortex-a72]"),
        ({"device": {**THERE, "legs": 4}}, "install the same on both"),
        (BUSY, "in use"),
        ("MeasureError: no device of key 'pi4'", "no device of key 'pi4'"),
    ],
)
def test_a_device_is_said_in_words(answer: Any, says: str) -> None:
    script: Any = Script(connect=[answer])
    assert what_it_is(Address("tracker", 1), "pi4", lambda: script).endswith(says)
    assert script.num_stops == 1


def test_a_gpu_that_no_compiler_here_knows_is_one_line(asked: list[str]) -> None:
    assert H100.gpu is not None
    newer = dataclasses.replace(H100, gpu=dataclasses.replace(H100.gpu, arch="sm_200"))
    with pytest.raises(TargetError, match=r"^no compiler here has architecture 'sm_200'$"):
        connect({**WITH_GPU, "target": newer.to_json()})
    assert asked == ["sm_200"]


def test_a_gpu_that_others_use_is_warned_of(asked: list[str], caplog: pytest.LogCaptureFixture) -> None:
    connect(WITH_GPU, warning="the GPU is busy: times are of both")
    assert caplog.messages == ["a device of key 'pi4': the GPU is busy: times are of both"]
    assert asked == ["sm_90"]


def test_what_comes_back_must_be_of_the_same_kind() -> None:
    other = {**THERE, "target": {**HOST.to_json(), "fingerprint": "0123456789ab", "device": "a toaster"}}
    script = Script(connect=[{"device": THERE}, {"device": other}])
    there = connected(script)
    there.stop()
    with pytest.raises(TargetError, match=r"the devices of key 'pi4' are of different kinds: .* and a toaster .* own$"):
        there.restore()
    assert not there.is_there
