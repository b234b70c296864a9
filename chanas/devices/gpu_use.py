"""Check that the GPU is free to be timed on: the other processes on it and its free memory, by `nvidia-smi`, which
comes with the driver."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chanas.errors import TargetError

if TYPE_CHECKING:
    from chanas.core.target import HardwareTarget

GPU_TARGET = "cuda"
_TIMEOUT_S = 20.0
# Programs of whole networks of 224 pixels, many copies of a block's weights and what flushes the largest L2 caches take
# well under this.
MIN_FREE_MIB = 1024

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GPUProcess:
    """A process that computes on the GPU: its number, its name, and its memory there as nvidia-smi writes it (MiB)."""

    pid: int
    name: str
    memory: str

    def describe(self) -> str:
        return f"pid {self.pid}, {self.name}, {self.memory} MiB"


def visible_gpu() -> str:
    """The first GPU that CUDA shows, as `nvidia-smi` takes it: its number or its UUID."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def gpu_of(target: HardwareTarget) -> str | None:
    """The GPU that a target of this machine is, as its lock is named (`locks.device_lock`); None for a processor."""
    return None if target.gpu is None else visible_gpu()


def _ask(query: str) -> list[list[str]] | None:
    """Lines of `nvidia-smi`, each as its fields, of the first GPU that CUDA shows; None where it can't be asked."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-i", visible_gpu()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def other_processes() -> list[GPUProcess]:
    """List the other processes that compute on the GPU; empty if `nvidia-smi` can't say."""
    found = []
    for fields in _ask("--query-compute-apps=pid,process_name,used_memory") or []:
        if len(fields) >= 3 and fields[0].isdigit() and int(fields[0]) != os.getpid():
            found.append(GPUProcess(int(fields[0]), fields[1], fields[-1]))
    return found


def free_mib() -> int | None:
    """MiB of the GPU's memory that are free; None where `nvidia-smi` can't say."""
    answer = _ask("--query-gpu=memory.free")
    return int(answer[0][0]) if answer and answer[0][0].isdigit() else None


def check_free(targets: Iterable[HardwareTarget], shared: bool) -> None:
    """Check that no other process uses the GPU, if one of `targets` is this machine's GPU. With `shared`, only warn.

    Raises:
        TargetError: as `require_free` says.
    """
    if any(target.gpu is not None for target in targets):
        warning = require_free(shared)
        if warning is not None:
            logger.warning("%s", warning)


def require_free(shared: bool) -> str | None:
    """Check that the GPU can be timed on. Return a warning if another process uses it and `shared` allows that.

    Raises:
        TargetError: another process computes there, or too little of its memory is left.
    """
    left, others = free_mib(), other_processes()
    if left is not None and left < MIN_FREE_MIB:
        holders = f" ({'; '.join(p.describe() for p in others)})" if others else ""
        raise TargetError(
            f"the GPU is out of memory: expected {MIN_FREE_MIB} MiB free, got {left}; end what holds the rest{holders}"
        )
    if not others:
        return None
    busy = f"the GPU is busy with another process ({'; '.join(p.describe() for p in others)})"
    if not shared:
        raise TargetError(f"{busy}, so that its times would be of both; wait for it, or time anyway with --shared")
    return f"{busy}: times are of both"
