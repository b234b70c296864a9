"""Builds and learning on a dask cluster: processes of this machine, or workers on other ones, which need chanas and no
common disk.

A build is sent as a text and the files that it reads; an answer's text and the files that it made come back. Nothing of
them is pickled by us, but dask pickles what it carries: whoever reaches a cluster can run any code on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import platform
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import chanas
from chanas.core.codec import from_json, to_json
from chanas.core.processor import host_processor
from chanas.core.target import HardwareTarget, tvm_version
from chanas.devices.cores import usable_cores
from chanas.errors import ConfigError, SchedulerError, one_line
from chanas.measuring.fleet import Compute
from chanas.measuring.messages import Answer, Build, Learn, ModuleFile, OperatorsAt, Request
from chanas.measuring.remote.tracker import parse_address
from chanas.measuring.runner import POLL_S, RETURN_WITHIN_S
from chanas.measuring.shared.turns import Ask
from chanas.measuring.worker.process import WORKERS, WorkerProcess
from chanas.scheduler.jobs import WorkerDiedError

if TYPE_CHECKING:
    import distributed

RESOURCE = "cluster"
Files = Mapping[str, bytes]
"""Contents by name, relative to the folder of a build."""

Found = TypeVar("Found")

_LOCAL = re.compile(r"local(:(?P<num>[1-9]\d*))?")
_CONNECT_S = 20.0
_MAX_TEXT = 200


# ---- on a worker ----------------------------------------------------------------------------------------------------
def versions() -> dict[str, str]:
    """The facts of a machine that have to be the same wherever something is built."""
    return {"chanas": chanas.__version__, "TVM": tvm_version(), "machine": platform.machine()}


def build(ask: str, kind: str, files: Files) -> tuple[str, dict[str, bytes]]:
    """Carry out a build in a folder of its own.

    Args:
        ask: JSON of an `Ask`, whose paths are names in that folder.
        kind: of the target: whose worker builds.
        files: that it reads.

    Returns:
        JSON of the answer, and the files that were made.
    """
    asked: Ask = from_json(Ask, json.loads(ask))
    with tempfile.TemporaryDirectory(prefix="chanas-build-") as name:
        folder = Path(name)
        for path, content in files.items():
            (folder / path).write_bytes(content)
        request = _with_paths(asked.request, lambda path: folder / path)
        answer = _worker(threading.get_ident(), kind).call(request, asked.timeout_s)
        made = _contents(folder, request.path) if isinstance(request, Build) else {}
    return json.dumps(to_json(answer)), made


def _contents(folder: Path, library: Path) -> dict[str, bytes]:
    paths = sorted(library.rglob("*")) if library.is_dir() else [library]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


@functools.cache
def _worker(_thread: int, kind: str) -> WorkerProcess:
    """The process that compiles for a thread of a dask worker: it ends with that thread."""
    return WorkerProcess(1, usable_cores(), WORKERS[kind])


def dask_setup(_worker: object) -> None:
    """Leave Ctrl-C to the process that started this one; called by dask in the workers of a local cluster."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


# ---- here -----------------------------------------------------------------------------------------------------------
def _with_paths(request: Request, moved: Callable[[Path], Path]) -> Request:
    """The same build with other paths; nothing else that is sent to a cluster has any."""
    if not isinstance(request, Build):
        return request
    path, what = moved(request.path), request.what
    match what:
        case ModuleFile(module):
            what = dataclasses.replace(what, path=moved(module))
        case OperatorsAt(compiled=compiled):
            what = dataclasses.replace(what, compiled=[None if p is None else moved(p) for p in compiled])
    return dataclasses.replace(request, path=path, what=what)


def _for_anyone(request: Request) -> Request:
    """The same request for a processor that is named, where it is that of this machine."""
    if not isinstance(request, Build) or request.target.mcpu or request.target.gpu is not None:
        return request
    here = host_processor()
    return dataclasses.replace(request, target=dataclasses.replace(request.target, mcpu=here.mcpu, mattr=here.mattr))


class Cluster:
    """Units of a resource that build: as many as the workers have threads now. Which worker takes a build is dask's
    choice; one that dies over it costs that build, which another one does.

    Args:
        client: connected.
        target: whose builds are sent.
        learn: computes what cost models ask (`Learn`); called on a worker. None: that is computed where it is asked.
        poll_s: seconds between two looks at the workers.
        return_within_s: how long a build waits for a worker where there is none.

    Raises:
        SchedulerError: there are no workers, or not of our versions.
    """

    def __init__(
        self,
        client: distributed.Client,
        target: HardwareTarget,
        *,
        learn: Compute | None = None,
        poll_s: float = POLL_S,
        return_within_s: float = RETURN_WITHIN_S,
    ) -> None:
        self._client, self._kind, self._learn = client, target.kind, learn
        self.learns = learn is not None
        self._poll_s, self._return_within_s = poll_s, return_within_s
        self._check()
        self.num_units = self._num_threads()
        self._executor: Executor = client.get_executor(pure=False)  # type: ignore[no-untyped-call]
        self._lost: list[int] = []
        self._lose: Callable[[str, int], None] = lambda _resource, _unit: None
        self._restore: Callable[[str, int], None] = self._lose
        self._counting = threading.Lock()
        self._closed = threading.Event()

    def _check(self) -> None:
        here = versions()
        for worker, there in self._client.run(versions).items():
            for what, mine in here.items():
                if there[what] != mine:
                    raise SchedulerError(f"worker {worker} has {what} {there[what]}, here it is {mine}; use the same")

    def _num_threads(self) -> int:
        return sum(self._client.nthreads().values())  # type: ignore[no-untyped-call]

    def answer(self, ask: Ask) -> Answer:
        """Build on a worker, or compute what a cost model asks.

        Raises:
            WorkerDiedError: workers died over it, or there is none.
        """
        asked, files = ask.request, dict[str, bytes]()
        if isinstance(asked, Learn):
            assert self._learn is not None
            since_s = time.monotonic()
            found = self._result(self._learn, asked.question)
            return Answer(found, None, time.monotonic() - since_s)
        request = _for_anyone(asked)

        def pack(path: Path) -> Path:
            name = f"{len(files)}-{path.name}"
            files[name] = path.read_bytes() if path.is_file() else b""
            return Path(name)

        packed = _with_paths(request, pack)
        sent = {name: content for name, content in files.items() if content}
        text = json.dumps(to_json(dataclasses.replace(ask, request=packed)))
        answer, made = self._result(build, text, self._kind, sent)
        if isinstance(request, Build) and isinstance(packed, Build):
            for name, content in made.items():
                path = request.path / Path(name).relative_to(packed.path)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
        return Answer.from_json(json.loads(answer))

    def _result(self, work: Callable[..., Found], *arguments: Any) -> Found:
        from distributed.scheduler import KilledWorker

        since_s = time.monotonic()
        try:
            future = self._executor.submit(work, *arguments)
            try:
                while True:
                    if wait([future], self._poll_s).done:
                        return future.result()
                    since_s = time.monotonic() if len(self._lost) < self.num_units else since_s
                    if self._closed.is_set() or time.monotonic() - since_s > self._return_within_s:
                        raise WorkerDiedError("no worker of the cluster is left")
            finally:
                if not self._is_cut_off:
                    future.cancel()
        except Exception as error:
            if not (self._is_cut_off or isinstance(error, KilledWorker | CancelledError)):
                raise
            self._count()  # before the build is run again
            raise WorkerDiedError(f"a worker of the cluster died: {one_line(error, _MAX_TEXT)}") from error

    @property
    def _is_cut_off(self) -> bool:
        return str(self._client.status) == "closed"

    def watch(self, lose: Callable[[str, int], None], restore: Callable[[str, int], None]) -> None:
        """Tell of workers that are gone, and of others in their place."""
        self._lose, self._restore = lose, restore

        def look() -> None:
            while not self._closed.wait(self._poll_s):
                self._count()

        threading.Thread(target=look, daemon=True).start()

    def _count(self) -> None:
        """Have as many units in service as there are threads."""
        try:
            num_there = 0 if self._is_cut_off else self._num_threads()
        except Exception:  # whatever dask raises where its scheduler is gone
            num_there = 0
        with self._counting:
            while self.num_units - len(self._lost) > num_there:
                self._lost.append(self.num_units - len(self._lost) - 1)
                self._lose(RESOURCE, self._lost[-1])
            while self._lost and self.num_units - len(self._lost) < num_there:
                self._restore(RESOURCE, self._lost.pop())

    def close(self) -> None:
        """Give up what is built."""
        self._closed.set()


def check_cluster(address: str) -> None:
    """Raises ConfigError: it is no cluster's address, or dask is not installed."""
    kind, _, place = address.partition("://")
    try:
        if not _LOCAL.fullmatch(address):
            parse_address(place if kind in ("tcp", "tls") else "")
    except ConfigError:
        raise ConfigError(
            f"expected --cluster local, local:NUMBER, tcp://HOST:PORT or tls://HOST:PORT, got '{address}'"
        ) from None
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise ConfigError("--cluster needs dask: pip install 'chanas[cluster]'") from None


@contextlib.contextmanager
def open_cluster(
    address: str, num_workers: int, target: HardwareTarget, learn: Compute | None = None
) -> Iterator[Cluster]:
    """The cluster of an address; `local` starts `num_workers` processes on the cores of this one, `local:3` three.

    Raises:
        SchedulerError: it is not there, has no workers, or not of our versions.
    """
    import distributed

    found = _LOCAL.fullmatch(address)
    with contextlib.ExitStack() as stack:
        try:
            place: str | distributed.LocalCluster = address
            if found is not None:
                local = distributed.LocalCluster(  # type: ignore[no-untyped-call]
                    n_workers=int(found["num"] or num_workers),
                    threads_per_worker=1,
                    memory_limit=0,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                    preload=[__name__],
                )
                place = stack.enter_context(local)
            client = stack.enter_context(
                distributed.Client(place, timeout=_CONNECT_S, set_as_default=False)  # type: ignore[no-untyped-call]
            )
            client.wait_for_workers(1, timeout=_CONNECT_S)
        except (OSError, TimeoutError, ValueError) as error:
            reason = one_line(error, _MAX_TEXT) or "no answer"
            raise SchedulerError(
                f"no cluster with workers is at {address} ({reason}); start `dask scheduler` there and `dask worker`s"
            ) from error
        cluster = Cluster(client, target, learn=learn)
        stack.callback(cluster.close)
        yield cluster
