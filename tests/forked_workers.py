"""Workers of the CPU that begin as copies of a process that has imported TVM: each start would take a second of it.

`Nursery.Popen` stands where `subprocess.Popen` does, for workers and for programs that tests plant in their place. This
module, run as a program, is the process that is copied: it forks when it is asked over the socket that is its standard
input, and hands over the pid. A copy is a child of whoever asked, is waited for and killed like any other, and serves
requests as `python -m chanas.measuring.worker.cpu` does. Tests of how a worker starts and ends use real
ones (`real_workers` in tests/measuring/worker/test_process.py).
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_PR_SET_CHILD_SUBREAPER = 36


class Nursery:
    """Starts workers; the process that they are copies of is started with the first."""

    PIPE = subprocess.PIPE

    def __init__(self, command: Sequence[str], planted: Sequence[Path]) -> None:
        self._command = [sys.executable, *command]
        self._planted = tuple(map(str, planted))
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def Popen(self, command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:  # noqa: N802
        """A worker where the command is that of one, and what `subprocess` starts otherwise."""
        python, *program = command
        if python != sys.executable or not (self._command[1:] == program or program[0].startswith(self._planted)):
            return subprocess.Popen(command, env=env, **options)
        with self._lock:
            return self._copy([] if self._command[1:] == program else program, env)

    def _copy(self, program: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """The worker, or one of the programs that are planted in its place."""
        pipes = [os.pipe() for _ in range(3)]  # it has the end of the first that is read, and of the others the other
        theirs, ours = [p[i > 0] for i, p in enumerate(pipes)], [p[i == 0] for i, p in enumerate(pipes)]
        asked = json.dumps([program, dict(environment)]).encode()
        adopting(True)
        try:
            connection = self._connection()
            connection.sendall(len(asked).to_bytes(4, "little"))
            socket.send_fds(connection, [b"!"], theirs)
            connection.sendall(asked)
            pid = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "little")
        finally:
            adopting(False)
            for descriptor in theirs:
                os.close(descriptor)
        if pid == 0:
            raise RuntimeError("the process that workers are copies of has ended; what it said is on standard error")
        modes = ("wb", -1), ("rb", 0), ("rb", 0)
        return Adopted(pid, [os.fdopen(own, *mode) for own, mode in zip(ours, modes, strict=True)])

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket, other = socket.socketpair()
            with other:
                paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
                environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
                self._process = subprocess.Popen([sys.executable, __file__], stdin=other, env=environment)
        return self._socket

    def close(self) -> None:
        """End the process; its copies have ended, or do with this one."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()


def adopting(wanted: bool) -> None:
    """Become the parent of descendants whose parent ends, or not any more."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


class Adopted(subprocess.Popen[bytes]):
    """The handle of a child that another process has started."""

    def __init__(self, pid: int, pipes: Sequence[Any]) -> None:
        super().__init__(["true"])
        self.wait()
        self.pid, self.returncode = pid, None  # type: ignore[assignment]
        self.stdin, self.stdout, self.stderr = pipes


def main() -> None:
    """Copy this process whenever it is asked to."""
    from chanas.devices.lean_tvm import hide_torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_torch()
    gc.disable()
    import tvm  # noqa: F401

    from chanas.measuring.worker import cpu

    gc.freeze()
    gc.enable()
    connection = socket.socket(fileno=os.dup(0))
    while size := connection.recv(4, socket.MSG_WAITALL):
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
        program, environment = json.loads(connection.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL))
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            pid = os.fork()
            if pid:
                os.write(tell, pid.to_bytes(4, "little"))
                os._exit(0)
            serve = functools.partial(run_program, program) if program else cpu.main
            be_worker(serve, between, connection, descriptors, environment)
        for descriptor in (*descriptors, tell):
            os.close(descriptor)
        os.waitpid(between, 0)
        connection.sendall(os.read(told, 4))
        os.close(told)


def run_program(program: Sequence[str]) -> None:
    """Run a file with arguments as Python does."""
    sys.argv = list(program)
    sys.path.insert(0, str(Path(program[0]).parent))
    runpy.run_path(program[0], run_name="__main__")


def be_worker(
    serve: Callable[[], None],
    parent: int,
    connection: socket.socket,
    descriptors: Sequence[int],
    environment: dict[str, str],
) -> None:
    """Serve requests in a session of its own, once the process in between has ended; never returns."""
    code = 1
    try:
        connection.close()
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.closerange(3, max(descriptors) + 8)
        os.environ.clear()
        os.environ.update(environment)
        while os.getppid() == parent:
            os.sched_yield()
        serve()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
