"""Processor cores: which a process may use, which threads keep off, and how they are shared out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def limited_to(num_threads: int) -> Iterator[None]:
    """Keep this process on its first `num_threads` cores, and PyTorch on as many threads; undone afterwards."""
    import torch

    before = torch.get_num_threads()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        torch.set_num_threads(num_threads)
        if cores is not None:
            os.sched_setaffinity(0, sorted(cores)[:num_threads])
        yield
    finally:
        torch.set_num_threads(before)
        if cores is not None:
            os.sched_setaffinity(0, cores)


def usable_cores() -> list[int]:
    """The cores that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def split_cores(num_threads: int) -> tuple[list[int], list[int]]:
    """The cores that time, and those that compile meanwhile (none when all are needed for timing)."""
    cores = usable_cores()
    return cores[:num_threads], cores[num_threads:]


@contextlib.contextmanager
def kept_off(cores: Sequence[int]) -> Iterator[None]:
    """Keep this process off some cores, as far as there are others: what it computes would disturb what is timed."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    move_to(before - set(cores) or before)
    try:
        yield
    finally:
        move_to(before)


def move_to(cores: set[int]) -> None:
    """Move all threads of this process, and those that they start, where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        return
    for entry in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            os.sched_setaffinity(int(entry.name), cores)
