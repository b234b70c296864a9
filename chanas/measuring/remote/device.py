"""Timing on devices elsewhere, over TVM's RPC: what is built here is sent there, and seconds come back.

A device that is lost loses only what it was timing: that is timed again, on the same device once it is back or on
another one of its key. Each device is held through a process of its own (`chanas.measuring.remote.link`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import chanas
from chanas.compiler.toolchains import find_linker, no_cross_linker
from chanas.core.codec import fields_from_json
from chanas.core.target import HardwareTarget
from chanas.core.usage import Usage
from chanas.devices.cores import usable_cores
from chanas.errors import MeasureError, TargetError
from chanas.measuring.messages import Answer, ErrorKind, Ping, Request, WorkerError
from chanas.measuring.remote.link import Connect, Submit, Wait
from chanas.measuring.remote.tracker import Address, check_key, parse_address
from chanas.measuring.runner import POLL_S, RETURN_WITHIN_S, RunnerLostError, stays_away
from chanas.measuring.worker.process import WorkerProcess

_LINK = ("-m", "chanas.measuring.remote.link")
_CONNECT_TIMEOUT_S, _SEND_TIMEOUT_S, _REPLY_TIMEOUT_S = 60.0, 600.0, 30.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Description:
    """A device's description of itself (`server.describe`)."""

    target: HardwareTarget
    tvm: str
    chanas: str
    llvm_cpu: str
    machine: str
    boot: str

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Description:
        """Raises TargetError: it is of another version of chanas, which says other things."""
        try:
            description: Description = fields_from_json(cls, data)
        except TypeError:
            raise TargetError(
                f"the device has chanas {data.get('chanas')}, this is {chanas.__version__}; install the same on both"
            ) from None
        return description

    def check(self, here: dict[str, Any]) -> None:
        """Check that code built here runs on the device and is timed there as it would be here.

        Args:
            here: versions and processor on this side, and what its compiler knows (`link`).

        Raises:
            TargetError: versions differ, or code for that processor can't be built here.
        """
        for what, theirs, mine in (("TVM", self.tvm, here["tvm"]), ("chanas", self.chanas, chanas.__version__)):
            if theirs != mine:
                raise TargetError(f"the device has {what} {theirs}, here it is {mine}; install the same on both")
        if self.target.gpu is not None:
            _check_kernels(self.target.gpu.arch)
        is_alike = self.target.gpu is not None or self.llvm_cpu == here["llvm_cpu"]
        if self.machine == here["machine"] and is_alike:
            return
        processor = f"the device is of another kind ({self.machine} {self.llvm_cpu}; here {here['machine']})"
        if self.machine not in here["llvm_targets"]:
            raise TargetError(f"{processor}, and the compiler here makes no code for {self.machine}")
        if find_linker(self.target.mtriple) is None:
            raise TargetError(f"{processor}, and {no_cross_linker(self.target.mtriple)}")


def _check_kernels(arch: str) -> None:
    """Raises TargetError: kernels for a GPU of that architecture can't be compiled here; says what to install."""
    from chanas.compiler.cuda.nvrtc import library_for
    from chanas.devices.cuda_runtime import load_cudart

    library_for(arch)
    load_cudart()


class RemoteDevice:
    """One device of a key, taken from the tracker on first use; a call waits for its answer, as that of a worker does.

    Args:
        usage: its tracker and key, and how it is used: as a processor (`cpu`) or a GPU (`cuda`), which is taken beside
            other processes there when that place is `shared`.
        link: starts the process that holds the connection.

    Raises:
        ConfigError: the usage has no tracker and key.
    """

    def __init__(self, usage: Usage, *, link: Callable[[], WorkerProcess] | None = None) -> None:
        place = usage.place
        self.key = check_key(place.key or "")
        used = {"num_threads": usage.threads, "dtype": usage.dtype, "target": usage.device, "shared": place.shared}
        self._connect = Connect(parse_address(place.rpc or ""), self.key, used)
        self._num_threads = usage.threads
        self.num_lost = 0
        self.num_devices = self.num_free = 0
        """Devices of the key, and those that were free for others, when this one was taken."""
        self.description: Description | None = None
        self._link = (link or _start_link)()
        self._closed = False
        self.is_there = False
        """True if a device is held, as far as is known."""
        self.is_local = False
        """True for this very machine, of which some cores are then timed on."""

    # ---- connection -------------------------------------------------------------------------------------------------
    def connect(self, within_s: float = RETURN_WITHIN_S) -> Description:
        """Take a device of the key; waits for a busy one, and meanwhile for a tracker that is away.

        Args:
            within_s: how long.

        Raises:
            MeasureError: none came within the time, or there was none at first.
            TargetError: it is of another kind than this side.
        """
        deadline, waits = time.monotonic() + within_s, False
        while (reason := self.restore()) is not None:
            waits |= reason.kind is ErrorKind.BUSY  # from then on for a tracker that goes away and comes back, too
            if not waits or self._closed:
                raise MeasureError(reason.message)
            if time.monotonic() > deadline:
                raise stays_away(f"no device of key '{self.key}' became free", within_s, reason)
            time.sleep(POLL_S)
        assert self.description is not None
        return self.description

    def restore(self) -> WorkerError | None:
        """Take a device of the key if one is free now; otherwise the reason why there is none.

        Raises:
            TargetError: it is of another kind than this side, or than the one before.
        """
        here = self._link.call(Ping(), _CONNECT_TIMEOUT_S)
        answer = here if here.error is not None else self._link.call(self._connect, _CONNECT_TIMEOUT_S)
        if answer.error is not None:
            if answer.error.kind is not ErrorKind.BUSY and answer.error.exception_class is not MeasureError:
                self.stop()  # but for the tracker's word, which leaves the link as it is
            return answer.error
        try:
            description = Description.from_json(answer.result["device"])
            description.check(here.result)
            if self.description is not None:
                check_alike(self.description, description, self.key)
        except TargetError:
            self.stop()  # it is free for others
            raise
        if answer.result.get("warning"):
            logger.warning("a device of key '%s': %s", self.key, answer.result["warning"])
        self.is_local = bool(description.boot) and description.boot == here.result["boot"]
        self.description = description
        self.num_devices, self.num_free = answer.result["num_devices"], answer.result["num_free"]
        self.is_there = True
        return None

    # ---- calls ------------------------------------------------------------------------------------------------------
    def call(self, request: Request, timeout_s: float) -> Answer:
        """Run one request by the worker of the device that is held.

        Raises:
            RunnerLostError: it was lost over the request.
            MeasureError: it can't time at all.
        """
        submit = Submit(request, self._num_threads, timeout_s)
        answer = self._link.call(submit, _SEND_TIMEOUT_S)
        while answer.error is None and "pending" in answer.result:
            answer = self._link.call(Wait(), _REPLY_TIMEOUT_S)
        if answer.error is None:
            return Answer.from_json(answer.result)
        if answer.error.exception_class is MeasureError:  # its worker can't start: no candidate's fault
            raise MeasureError(f"a device of key '{self.key}' can't time: {answer.error.message}")
        self.num_lost += 1
        self.stop()
        raise RunnerLostError(answer.error.message)

    def stop(self) -> None:
        """Give up the session, and the call that another thread may wait for: the device is lost."""
        self.is_there = False
        self._link.stop()

    def close(self) -> None:
        """Release the device; it is not taken again."""
        self._closed = True
        self.stop()
        self._link.close()


def _start_link() -> WorkerProcess:
    return WorkerProcess(1, usable_cores(), _LINK)


def what_it_is(tracker: Address, key: str, link: Callable[[], WorkerProcess] | None = None) -> str:
    """Describe a free device of the key (taken for a moment), or say why there is none."""
    process = (link or _start_link)()
    try:
        answer = process.call(Connect(tracker, key, {}), _CONNECT_TIMEOUT_S)
    finally:
        process.close()
    if answer.error is not None:
        return "in use" if answer.error.kind is ErrorKind.BUSY else answer.error.message
    try:
        return Description.from_json(answer.result["device"]).target.description
    except TargetError as error:
        return str(error)


def check_alike(one: Description, other: Description, key: str) -> None:
    """Raises TargetError: two devices of a key are of different kinds; their seconds don't belong in one table."""
    if one.target.fingerprint != other.target.fingerprint:
        raise TargetError(
            f"the devices of key '{key}' are of different kinds: {one.target.device} ({one.target.fingerprint}) and "
            f"{other.target.device} ({other.target.fingerprint}); give each kind a key of its own"
        )
