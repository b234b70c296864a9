"""The process that holds the connection to one device: run as `python -m chanas.measuring.remote.link`.

It serves requests as a worker does (`chanas.measuring.worker.serve`) and passes timings on over TVM's RPC.
A connection that hangs takes only this process with it, and ending it ends the session on the device, whatever that is
doing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chanas.core.codec import fields_to_json
from chanas.core.target import llvm_targets
from chanas.devices.lean_tvm import hide_torch
from chanas.errors import TargetError
from chanas.measuring.messages import (
    ErrorKind,
    Ping,
    Request,
    RequestError,
    TimingRequest,
    WorkerError,
)
from chanas.measuring.remote.server import this_side
from chanas.measuring.remote.tracker import Address, device_groups, group_of, request_server
from chanas.measuring.worker.serve import serve_requests


@dataclass(frozen=True)
class Connect(Request):
    """Take a free device of a key from a tracker; `used` says how it is used (`server.Session.describe`)."""

    tracker: Address
    key: str
    used: dict[str, Any]


@dataclass(frozen=True)
class Submit(Request):
    """Send a request and its files to the device, and begin it."""

    request: Request
    num_threads: int
    timeout_s: float


@dataclass(frozen=True)
class Wait(Request):
    """Wait a little longer for the answer of what was begun."""


class Uploads:
    """Files on the device, by what is in them: nothing is sent twice while it is there.

    They stay until there are more than `max_bytes` of them. Whole networks are timed round after round, each with its
    weights: where these don't fit together, every round sends all of them again.
    """

    def __init__(self, upload: Callable[[Path, str], None], remove: Callable[[str], None], max_bytes: int) -> None:
        self._upload, self._remove, self._max_bytes = upload, remove, max_bytes
        self._sizes: dict[str, int] = {}  # in order of their last use
        self._names: dict[tuple[str, int, int, int], str] = {}

    def send(self, path: Path) -> str:
        """Upload a file unless it is there; returns its name on the device."""
        name = self._name(path)
        if name not in self._sizes:
            self._upload(path, name)
        self._sizes[name] = self._sizes.pop(name, path.stat().st_size)
        return name

    def _name(self, path: Path) -> str:
        stat = path.stat()
        known = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if known not in self._names:
            self._names[known] = hashlib.sha256(path.read_bytes()).hexdigest()[:32] + path.suffix
        return self._names[known]

    def make_room(self, num_kept: int) -> None:
        """Remove what was not used for longest, but for the last `num_kept` files: those of the next timing."""
        while len(self._sizes) > num_kept and sum(self._sizes.values()) > self._max_bytes:
            oldest = next(iter(self._sizes))
            self._remove(oldest)
            del self._sizes[oldest]


class Link:
    """A session with one device."""

    def __init__(self) -> None:
        self._session: Any = None
        self._uploads: Uploads | None = None
        self._functions: dict[str, Any] = {}

    def ping(self, _request: Ping) -> dict[str, Any]:
        """Answers when the link is ready, and tells of this side what a device tells of the other."""
        return {"pid": os.getpid(), **this_side(), "llvm_targets": llvm_targets()}

    def connect(self, request: Connect) -> dict[str, Any] | WorkerError:
        """Take a free device of the key: `{"device": description, "num_devices", "num_free", "warning"}`, where the
        numbers are of the key's devices and of those that are still free; or that all of them are in use.
        """
        address, key = request.tracker, request.key
        group = group_of(device_groups(address), key, address)
        busy = WorkerError(ErrorKind.BUSY, f"all {len(group.addresses)} of them are in use")
        if not group.num_free:
            return busy
        server = request_server(address, key)
        if server is None:
            return busy  # somebody was faster
        from tvm import rpc

        self._session = rpc.connect(*server)
        self._functions = {}
        try:
            self._functions = {n: self._session.get_function(f"chanas.{n}") for n in ("describe", "call", "wait")}
        except (AttributeError, RuntimeError) as error:
            raise RuntimeError(f"the server of key '{key}' is not one of `chanas device serve`") from error
        try:
            described = self._ask("describe", request.used)
        except RequestError as error:
            raise TargetError(f"a device of key '{key}' can't be used: {error.error.message}") from error
        warning = described.pop("warning", None)
        self._uploads = Uploads(
            lambda path, name: self._session.upload(str(path), name),
            lambda name: self._session.remove(name),
            described.pop("room_bytes", 0),
        )
        numbers = {"num_devices": len(group.addresses), "num_free": group.num_free - 1}
        return {"device": described, "warning": warning, **numbers}

    def _ask(self, function: str, request: dict[str, Any]) -> Any:
        answer = json.loads(self._functions[function](json.dumps(request)))
        if "error" in answer:
            raise RequestError(WorkerError.from_json(answer["error"]))
        return answer.get("result", answer)

    def submit(self, submit: Submit) -> Any:
        """Send files and begin a timing: the device's answer, or `{"pending": true}`."""
        assert self._uploads is not None
        request = submit.request
        files = dict(self._sent(self._uploads, request)) if isinstance(request, TimingRequest) else {}
        self._uploads.make_room(len(files.get("library", {}).get("names", ())) + ("case" in files))
        return self._ask("call", {**fields_to_json(submit), "files": files})

    @staticmethod
    def _sent(uploads: Uploads, request: TimingRequest) -> Iterator[tuple[str, Any]]:
        library = request.library
        paths = sorted(library.glob("*.so")) if library.is_dir() else [library]
        yield "library", {"is_folder": library.is_dir(), "names": {p.name: uploads.send(p) for p in paths}}
        yield "case", uploads.send(request.case)

    def wait(self, _request: Wait) -> Any:
        """Wait a little longer for the answer."""
        return self._ask("wait", {})


def main() -> None:
    """Serve requests until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_torch()
    link = Link()
    serve_requests({Ping: link.ping, Connect: link.connect, Submit: link.submit, Wait: link.wait})


if __name__ == "__main__":
    main()
