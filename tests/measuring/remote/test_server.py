"""chanas/measuring/remote/server.py: sessions, without a network; test_rpc.py has the server as a
whole."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processors import CPUINFO

import chanas
from chanas.core.codec import to_json
from chanas.core.processor import parse_cpuinfo
from chanas.core.target import HardwareTarget, tvm_version
from chanas.devices import host
from chanas.devices.host import host_triple
from chanas.devices.target_files import describe_target
from chanas.devices.timing import TimingSettings
from chanas.errors import TargetError
from chanas.measuring.messages import Answer, Measure, Ping, Request, TimingRequest
from chanas.measuring.remote import server as device_server
from chanas.measuring.remote.server import Session, listen, served_target, wait_until_free
from chanas.measuring.worker.process import WorkerProcess

from ...compiler.workbench import HOST, plant_worker

GPU = describe_target("h100")
# Serves requests, and answers each alike.
WORKER = 'import sys\nfor _ in sys.stdin: print(\'{"result": "the GPU\\\'s", "error": null}\', flush=True)'


class Noting:
    """Stands where a worker stands: remembers what it was asked, and which files there were."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, float]] = []
        self.files: list[list[str]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def call(self, request: Request, timeout_s: float) -> Answer:
        self.may_answer.wait(20.0)
        self.asked.append((request, timeout_s))
        if isinstance(request, TimingRequest):
            library = request.library
            self.files.append(sorted(p.name for p in library.iterdir()) if library.is_dir() else [library.name])
        return Answer({"seconds": 1.0}, None, 0.5)


@pytest.fixture
def worker() -> Noting:
    return Noting()


@pytest.fixture
def session(worker: Noting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(device_server, "HEARTBEAT_S", 0.05)

    def lent(_num_threads: int) -> WorkerProcess:
        return worker  # type: ignore[return-value]

    return Session(HOST, lambda name: str(tmp_path / name), lent)


TIMING = Measure(library=Path("/client/kernel.so"), case=Path("/client/case.npz"), settings=TimingSettings(repeats=7))


def text(request: Request, **files: Any) -> str:
    """What a client's link sends."""
    return json.dumps({"request": request.to_json(), "files": files, "num_threads": 1, "timeout_s": 3.0})


def single(library: str = "ab.so", case: str = "ef.npz") -> dict[str, Any]:
    """Names of the uploaded files of one library."""
    return {"library": {"is_folder": False, "names": {"kernel.so": library}}, "case": case}


def answer_of(session: Session, answer: dict[str, Any]) -> dict[str, Any]:
    while "pending" in answer:
        answer = json.loads(session.wait())
    return answer


def call(session: Session, request: Request, **files: Any) -> dict[str, Any]:
    return answer_of(session, json.loads(session.call(text(request, **files))))


def told(session: Session, **asked: Any) -> dict[str, Any]:
    """What a device says of itself."""
    return dict(json.loads(session.describe(json.dumps(asked))))


def test_a_device_says_what_it_is_by_the_flags_of_its_processor(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_server, "host_processor", lambda: parse_cpuinfo(CPUINFO["cooper-lake"]))
    found = told(session, num_threads=1, dtype="f32")["result"]
    flags = {"mcpu": "cascadelake", "mattr": ("+avx512bf16",)}
    expected = dataclasses.replace(HOST, mtriple=host_triple(), **flags)  # type: ignore[arg-type]
    assert HardwareTarget.from_json(found["target"]) == expected
    assert found["llvm_cpu"] == "cascadelake +avx512bf16"
    assert (found["tvm"], found["chanas"]) == (tvm_version(), chanas.__version__)


@pytest.mark.parametrize(("free", "room"), [(100, 25), (1 << 50, 4 << 30)])
def test_a_device_says_what_may_be_left_with_it(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, room: int
) -> None:
    def usage(folder: Path) -> Any:
        assert folder == tmp_path
        return SimpleNamespace(free=free)

    monkeypatch.setattr(device_server.shutil, "disk_usage", usage)
    assert told(session)["result"]["room_bytes"] == room


# ---- a GPU ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def gpu_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session of a GPU that nobody else uses."""
    monkeypatch.setattr(device_server, "require_free", lambda _shared: None)
    return Session(GPU, lambda name: str(tmp_path / name))


def test_a_gpu_says_what_it_is(gpu_session: Session) -> None:
    used = HardwareTarget.from_json(told(gpu_session, target="cuda", dtype="f16")["result"]["target"])
    assert (used.gpu, used.fingerprint, used.name) == (GPU.gpu, GPU.fingerprint, "h100-f16")
    assert (used.mcpu, used.mtriple) == ("generic", host_triple())


@pytest.mark.parametrize(
    ("which", "asked", "says"),
    [
        ("gpu_session", {"target": "cpu"}, f"it serves its GPU ({GPU.device}); add --target cuda"),
        ("gpu_session", {"target": "cuda", "num_threads": 2}, "expected 1 thread for a GPU, got 2"),
        ("gpu_session", {"dtype": "bf16"}, "unknown dtype of a GPU 'bf16'; known: f16, f32, tf32"),
        ("session", {"target": "cuda"}, f"it serves its processor ({HOST.device}), and --target cuda asks for a GPU;"),
        ("session", {"num_threads": 100000, "dtype": "f32"}, "expected between 1 and"),
    ],
)
def test_a_device_says_in_one_line_what_it_cannot_be(
    which: str, asked: dict[str, Any], says: str, request: pytest.FixtureRequest
) -> None:
    assert told(request.getfixturevalue(which), **asked)["error"]["text"].startswith(says)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cuda", "no NVIDIA GPU was found on this machine; without --target cuda its processor is served"),
        ("p100", "unknown target to serve 'p100'; known: cpu, cuda"),
    ],
)
def test_what_cannot_be_served_is_one_line(name: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "find_gpu", lambda: None)
    with pytest.raises(TargetError, match=f"^{says}$"):
        served_target(name)


def test_who_only_wants_to_know_is_told(gpu_session: Session) -> None:
    assert told(gpu_session)["result"]["target"]["device"] == GPU.device


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is in use is looked at again and again, for a moment."""
    monkeypatch.setattr(device_server, "_PAUSE_S", 0.0)
    monkeypatch.setattr(device_server, "_LEFT_WITHIN_S", 0.05)


@pytest.mark.usefixtures("impatient")
def test_a_gpu_that_others_use_is_refused_or_shared(gpu_session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def require_free(shared: bool) -> str:
        if not shared:
            raise TargetError("the GPU is busy")
        return "times are of both"

    monkeypatch.setattr(device_server, "require_free", require_free)
    assert told(gpu_session, target="cuda")["error"]["text"] == "the GPU is busy"
    assert told(gpu_session, target="cuda", shared=True)["result"]["warning"] == "times are of both"


@pytest.mark.usefixtures("impatient")
def test_the_session_before_is_given_time_to_leave_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([TargetError("busy"), TargetError("busy"), None])

    def require_free(_shared: bool) -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    monkeypatch.setattr(device_server, "require_free", require_free)
    assert wait_until_free(shared=False) is None


def test_a_gpu_is_timed_on_by_a_worker_of_its_own_and_under_its_own_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[str | None] = []

    @contextlib.contextmanager
    def device_lock(*, gpu: str | None) -> Iterator[None]:
        locked.append(gpu)
        yield

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(device_server, "device_lock", device_lock)
    plant_worker(monkeypatch, "cuda", ("-c", WORKER))
    answer = call(Session(GPU, lambda name: str(tmp_path / name)), Ping())
    assert answer["result"]["result"] == "the GPU's"
    assert locked == ["3"]


def test_uploaded_files_get_their_names_back_for_a_call(session: Session, worker: Noting, tmp_path: Path) -> None:
    for name in ("ab.so", "cd.so", "ef.npz"):
        (tmp_path / name).write_text(name)
    several = {"library": {"is_folder": True, "names": {"0.so": "ab.so", "1.so": "cd.so"}}, "case": "ef.npz"}
    answer = call(session, TIMING, **single())
    assert answer == {"result": to_json(Answer({"seconds": 1.0}, None, 0.5))}
    call(session, TIMING, **several)
    request, timeout_s = worker.asked[0]
    assert timeout_s == 3.0
    assert request == dataclasses.replace(TIMING, library=request.library, case=tmp_path / "ef.npz")
    assert worker.files == [["kernel.so"], ["0.so", "1.so"]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ab.so", "cd.so", "ef.npz"]  # nothing of the calls is left


def test_a_long_call_is_waited_for_in_heartbeats(session: Session, worker: Noting) -> None:
    worker.may_answer.clear()
    assert json.loads(session.call(text(Ping()))) == {"pending": True}
    assert json.loads(session.wait()) == {"pending": True}
    worker.may_answer.set()
    assert answer_of(session, {"pending": True})["result"]["wall_s"] == 0.5


@pytest.mark.parametrize("name", ["../ab.so", "/etc/passwd", "", "sub/ab.so"])
def test_a_name_that_leads_out_of_the_folder_is_refused(session: Session, worker: Noting, name: str) -> None:
    answer = call(session, TIMING, **single(library=name))
    assert "expected the name of a file without a folder" in answer["error"]["text"]
    assert answer["error"]["exception"] == "MeasureError"
    assert worker.asked == []


def test_a_port_that_is_taken_is_one_line() -> None:
    with listen("127.0.0.1", 0) as held, pytest.raises(TargetError, match=r"a server can't listen at 127\.0\.0\.1"):
        listen("127.0.0.1", held.getsockname()[1])


def test_a_peer_that_lost_its_power_is_noticed() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()[:2]):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
