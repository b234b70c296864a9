"""Processes that begin as copies of one that has imported what they need: workers of the CPU, each of which would take
a second to import TVM, and those that open networks of strangers, which take eight to import PyTorch and its exporter.

`Nursery.Popen` stands where `subprocess.Popen` does, for these and for programs that tests plant in place of workers.
This module, run as a program with the arguments of Python that start such a process, is the one that is copied: it
forks when it is asked over the socket that is its standard input, and hands over the pid. A copy is a child of whoever
asked, is waited for and killed like any other, and serves requests as the process that it stands for does. Tests of how
a worker starts and ends use real ones (`real_workers` in tests/conftest.py).
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
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chanas.measuring.worker.process import WORKERS

ROOT = Path(__file__).resolve().parent.parent
WORKER, OPENER = WORKERS["llvm"], ("-m", "chanas.models.importing")
"""Arguments of Python that start a worker of the CPU, and what opens a stranger's network."""
_PR_SET_CHILD_SUBREAPER = 36


class Nursery:
    """Starts workers and those that open networks; the process that they are copies of is started with the first."""

    PIPE = subprocess.PIPE

    def __init__(self, planted: Sequence[Path]) -> None:
        self._planted = tuple(map(str, planted))
        self._lock = threading.Lock()
        self._originals: dict[tuple[str, ...], tuple[subprocess.Popen[bytes], socket.socket]] = {}

    def Popen(self, command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:  # noqa: N802
        """A copy where the command is that of one of these, and what `subprocess` starts otherwise."""
        python, *program = command
        is_planted = program[0].startswith(self._planted)
        if python != sys.executable or not (is_planted or tuple(program) in (WORKER, OPENER)):
            return subprocess.Popen(command, env=env, **options)
        with self._lock:
            return self._copy(WORKER if is_planted else tuple(program), program if is_planted else [], env)

    def _copy(
        self, original: tuple[str, ...], program: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """A copy of that process, or one of the programs that are planted in its place."""
        pipes = [os.pipe() for _ in range(3)]  # it has the end of the first that is read, and of the others the other
        theirs, ours = [p[i > 0] for i, p in enumerate(pipes)], [p[i == 0] for i, p in enumerate(pipes)]
        asked = json.dumps([program, dict(environment), os.getcwd()]).encode()
        adopting(True)
        try:
            connection = self._connection(original)
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

    def _connection(self, original: tuple[str, ...]) -> socket.socket:
        if original not in self._originals:
            connection, other = socket.socketpair()
            with other:
                paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
                environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
                started = subprocess.Popen([sys.executable, __file__, *original], stdin=other, env=environment)
            self._originals[original] = started, connection
        return self._originals[original][1]

    def close(self) -> None:
        """End the processes; their copies have ended, or do with this one."""
        for process, connection in self._originals.values():
            connection.close()
            process.wait()


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


def prepared_worker() -> Callable[[], None]:
    """What a worker does, with TVM imported."""
    from chanas.devices.lean_tvm import hide_torch

    hide_torch()
    import tvm  # noqa: F401

    from chanas.measuring.worker import cpu

    return cpu.main


def prepared_opener() -> Callable[[], None]:
    """What a process does that opens a network, with all imported that opening one of PyTorch takes."""
    import torch
    from networks import save_program
    from quick_export import remember_operators
    from tqdm import tqdm

    from chanas.models import importing
    from chanas.models.sources.opening import open_model

    tqdm.monitor_interval = 0  # its thread would not be there in a copy
    with tempfile.TemporaryDirectory() as folder:
        network = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.ReLU())
        opened = open_model(save_program(network, [torch.zeros(1, 1, 2, 2)], Path(folder) / "net.pt2"))
        opened.answer(opened.random_inputs())
    remember_operators()
    return importing.main


def main() -> None:
    """Copy this process whenever it is asked to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    main_of_copies = {WORKER: prepared_worker, OPENER: prepared_opener}[tuple(sys.argv[1:])]()
    gc.freeze()
    gc.enable()
    connection = socket.socket(fileno=os.dup(0))
    while size := connection.recv(4, socket.MSG_WAITALL):
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
        program, environment, place = json.loads(connection.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL))
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            pid = os.fork()
            if pid:
                os.write(tell, pid.to_bytes(4, "little"))
                os._exit(0)
            serve = functools.partial(run_program, program) if program else main_of_copies
            be_worker(serve, between, connection, descriptors, environment, place)
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
    place: str,
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
        os.chdir(place)
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
