"""The server on a device: TVM's own RPC server, with functions that time in a worker process as one does locally.

A kernel that crashes or hangs takes the worker with it, not the server (`chanas.measuring.fleet`),
and figures come from the same code as those of a local run: cold weights, own copies of the code, limits of time and
memory. TVM serves each session from a process of its own, in a folder of its own that goes with it; one session at a
time.

Whoever reaches the server can run any code on the device: TVM's RPC has no authentication and no encryption.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import logging
import multiprocessing
import os
import platform
import queue
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import chanas
from chanas.compiler.backends import backend_of
from chanas.core.codec import to_json
from chanas.core.processor import host_processor
from chanas.core.target import LOCAL_TARGETS, HardwareTarget, gpu_in_dtype, tvm_version
from chanas.devices.cores import split_cores
from chanas.devices.gpu_use import gpu_of, require_free
from chanas.devices.host import host_triple, load_target
from chanas.devices.lean_tvm import torch_hidden
from chanas.errors import MeasureError, TargetError, unknown_name
from chanas.interrupts import die_with_parent
from chanas.measuring.locks import device_lock
from chanas.measuring.messages import TIMINGS, Answer, TimingRequest, WorkerError, read_request
from chanas.measuring.remote.tracker import Address
from chanas.measuring.worker.process import WorkerProcess, worker_command

HEARTBEAT_S = 2.0
"""Seconds between two signs of life of a request: client and server notice within it that the other is gone."""
# A peer that lost its power sends no word that it is gone: the kernel asks after this idle time, so often.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
_PAUSE_S = 1.0
# A GPU is left by the session before at most so long after that one has ended.
_LEFT_WITHIN_S = 3.0
# What launches kernels is built for every processor of the platform: a GPU is the same GPU whatever is beside it.
_ANY_PROCESSOR = "generic"
# Of the space that is free where uploaded files lie, which is memory on some boards. The weights of 24 networks as
# large as the largest one of `mbv3` (12.3 M parameters) are 1.1 GiB.
_ROOM_SHARE, _MAX_ROOM_BYTES = 0.25, 4 << 30

logger = logging.getLogger(__name__)


def served_target(name: str) -> HardwareTarget:
    """Detect the device of this machine that is served: its processor (`cpu`) or its GPU (`cuda`). Raises TargetError:
    it has none."""
    if name not in LOCAL_TARGETS:
        raise TargetError(unknown_name("target to serve", name, LOCAL_TARGETS))
    try:
        return load_target(name)
    except TargetError as error:
        reason = str(error).partition(";")[0]
        raise TargetError(f"{reason}; without --target {name} its processor is served") from error


def this_side() -> dict[str, str]:
    """The facts of this machine that a client and a device compare: versions, processor, and what is the same for all
    processes of one machine until it is started again (empty if the system doesn't say)."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {
        "tvm": tvm_version(),
        "chanas": chanas.__version__,
        "llvm_cpu": host_processor().compiled_for,
        "machine": platform.machine(),
        "boot": boot,
    }


def describe(served: HardwareTarget, num_threads: int = 1, dtype: str = "f32") -> dict[str, Any]:
    """Describe this device to a client.

    The target names processor and platform: a client that is another kind of machine builds for them.
    """
    target, here = _used_so(served, num_threads, dtype), host_processor()
    mcpu, mattr = (here.mcpu, here.mattr) if target.gpu is None else (_ANY_PROCESSOR, ())
    described = dataclasses.replace(target, mcpu=mcpu, mattr=mattr, mtriple=host_triple())
    return {"target": described.to_json(), **this_side()}


def _used_so(served: HardwareTarget, num_threads: int, dtype: str) -> HardwareTarget:
    """Return the served device with so many threads and that dtype. Raises TargetError: it can't be used so.

    A GPU's driver is asked for nothing: it knows no process that was forked after it was asked once.
    """
    if served.gpu is None:
        return load_target("cpu", num_threads, dtype)
    if num_threads != 1:
        raise TargetError(f"expected 1 thread for a GPU, got {num_threads}")
    return gpu_in_dtype(served, dtype)


def check_asked(served: HardwareTarget, target: str) -> None:
    """Raises TargetError: the client wants a GPU (`cuda`) and this is a processor, or the other way round."""
    if target == served.local_name:
        return
    if target == "cuda":
        raise TargetError(
            f"it serves its processor ({served.device}), and --target cuda asks for a GPU; leave that out, or run "
            "`chanas device serve --target cuda` where there is one, under a key of its own"
        )
    raise TargetError(f"it serves its GPU ({served.device}); add --target cuda")


def wait_until_free(shared: bool) -> str | None:
    """Same as `require_free`, but wait for a GPU in use as long as the session before may take to leave it."""
    deadline = time.monotonic() + _LEFT_WITHIN_S
    while True:
        try:
            return require_free(shared)
        except TargetError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S / 4)


class Session:
    """The timings of one client, one after the other. Requests and answers are JSON texts.

    `served` is what times, this machine's processor or its GPU; `folder` gives an uploaded file's path by its name.
    """

    def __init__(
        self,
        served: HardwareTarget,
        folder: Callable[[str], str],
        worker: Callable[[int], WorkerProcess] | None = None,
    ) -> None:
        self._served, self._folder = served, folder
        self._gpu = gpu_of(served)
        self._make_worker = worker or self._new_worker
        self._workers: dict[int, WorkerProcess] = {}
        self._asked, self._answers = queue.Queue[str](), queue.Queue[str]()
        self._num_calls = 0

    def describe(self, request: str) -> str:
        """Describe the device with so many threads and that dtype (`describe`), or say why it can't be used so.

        `room_bytes` is how much a client may leave with it, `warning` what else uses it. A request without a target is
        only a query: nothing is checked or reserved.
        """
        return self._answer(self._described, request)

    def _described(
        self, num_threads: int = 1, dtype: str = "f32", target: str | None = None, shared: bool = False
    ) -> dict[str, Any]:
        if target is not None:
            check_asked(self._served, target)
        described = describe(self._served, num_threads, dtype)
        warning = None if target is None or self._served.gpu is None else wait_until_free(shared)
        return {**described, "room_bytes": self._room_bytes(), "warning": warning}

    def _new_worker(self, num_threads: int) -> WorkerProcess:
        """A processor's has its cores to itself; that of a GPU takes any that is idle."""
        timing, others = split_cores(num_threads)
        cores = timing if backend_of(self._served).has_own_cores else [*timing, *others]
        return WorkerProcess(num_threads, cores, worker_command(self._served))

    def _room_bytes(self) -> int:
        free = shutil.disk_usage(Path(self._folder("room")).parent).free
        return min(_MAX_ROOM_BYTES, int(_ROOM_SHARE * free))

    def call(self, request: str) -> str:
        """Begin a timing, and wait a heartbeat for its answer.

        The text is `{"request", "files", "num_threads", "timeout_s"}`: a request to the worker, whose library is laid
        out from `files` (a name for each uploaded one, in a folder when "is_folder").
        """
        if not self._num_calls:  # a worker ends with the thread that started it, and this one with the session
            threading.Thread(target=self._time_what_is_asked, daemon=True).start()
        self._num_calls += 1
        self._asked.put(request)
        return self.wait()

    def wait(self, _request: str = "") -> str:
        """Wait another heartbeat for the answer of what was begun: `{"pending": true}` when there is none yet."""
        try:
            return self._answers.get(timeout=HEARTBEAT_S)
        except queue.Empty:
            return json.dumps({"pending": True})

    def _time_what_is_asked(self) -> None:
        while True:
            self._answers.put(self._answer(self._time, self._asked.get()))

    def _answer(self, function: Callable[..., Any], request: str) -> str:
        """The result of a function of what a request says, or its error."""
        try:
            return json.dumps({"result": to_json(function(**json.loads(request)))})
        except Exception as error:  # the disk is full, say: the client hears of it
            return json.dumps({"error": to_json(WorkerError.of(error))})

    def _time(self, request: dict[str, Any], files: dict[str, Any], num_threads: int, timeout_s: float) -> Answer:
        folder = Path(self._folder(f"call{self._num_calls}"))
        try:
            asked = read_request(request, TIMINGS)
            if isinstance(asked, TimingRequest):
                asked = self._laid_out(asked, files, folder)
            worker = self._workers.setdefault(num_threads, self._make_worker(num_threads))
            with device_lock(gpu=self._gpu):
                return worker.call(asked, timeout_s)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _laid_out(self, request: TimingRequest, files: dict[str, Any], folder: Path) -> TimingRequest:
        """The request with the paths of its files here."""
        folder.mkdir()
        names = files["library"]["names"]
        for name, uploaded in names.items():
            os.link(self._folder(_plain(uploaded)), folder / _plain(name))
        library = folder if files["library"]["is_folder"] else folder / next(iter(names))
        return dataclasses.replace(request, library=library, case=Path(self._folder(_plain(files["case"]))))


def _plain(name: str) -> str:
    """The name of a file in a folder. Raises MeasureError: it would lead out of it."""
    if not name or Path(name).name != name:
        raise MeasureError(f"expected the name of a file without a folder, got '{name}'")
    return name


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one.

    Raises:
        TargetError: the address can't be had.
    """
    with contextlib.ExitStack() as stack:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted sockets inherit all of these
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):
                    listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            listener.bind((host, port))
            listener.listen(8)
        except (OSError, OverflowError, UnicodeError) as error:
            raise TargetError(
                f"a server can't listen at {host}:{port} ({error}); choose another --port or --host"
            ) from error
        stack.pop_all()
        return listener


def serve(tracker: Address, key: str, listener: socket.socket, served: HardwareTarget) -> NoReturn:
    """Report to the tracker and serve one session after the other, until the process is ended.

    `served` is what times: this machine's processor, or its GPU.

    TVM's loop ends with the first session that ends badly, and with a tracker that stays away: here it begins anew.
    """
    with torch_hidden():
        import tvm_ffi
        from tvm.rpc import server

    session = Session(served, lambda name: str(tvm_ffi.get_global_func("tvm.rpc.server.workpath")(name)))
    for name in ("describe", "call", "wait"):
        tvm_ffi.register_global_func(f"chanas.{name}", getattr(session, name), override=True)
    # TVM forks for every session: the functions above are there, and each has a `session` of its own to change.
    multiprocessing.set_start_method("fork", force=True)
    os.register_at_fork(after_in_child=_begin_session)
    signal.signal(signal.SIGTERM, _interrupt)
    package = str(Path(chanas.__file__).resolve().parent.parent)  # sessions work in folders of their own
    os.environ["PYTHONPATH"] = os.pathsep.join([package, *_absolute(os.environ.get("PYTHONPATH", ""))])
    host, port = listener.getsockname()[:2]
    told_host = None if host in ("0.0.0.0", "::") else host  # None: as the tracker sees it
    home = Path.cwd()
    try:
        while True:
            try:
                server._listen_loop(listener, port, key, (tracker.host, tracker.port), "", told_host)
            except Exception as error:
                logger.warning("waiting for clients again: %s", error)
            os.chdir(home)
            gc.collect()  # the sockets of what failed are closed with it
            time.sleep(_PAUSE_S)
    finally:
        for child in multiprocessing.active_children():
            child.kill()


def _absolute(paths: str) -> list[str]:
    return [str(Path(path).resolve()) for path in paths.split(os.pathsep) if path]


def _begin_session() -> None:
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
