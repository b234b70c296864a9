"""A process that answers requests, and what bounds it.

One JSON request (`chanas.measuring.messages`) per line on standard input, one JSON answer per line on the descriptor
that standard output was. What crashes or hangs takes only this process with it; the parent
(`chanas.measuring.worker.process`) starts another.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from chanas.core.codec import to_json
from chanas.core.units import format_bytes
from chanas.measuring.messages import Answer, Crash, ErrorKind, Hang, Ping, Request, WorkerError, read_request

Calls = Mapping[type[Request], Callable[[Any], Any]]


def memory_limit() -> int:
    """Bytes that a worker may allocate: 4 GiB, and on a small machine no more than half of its memory.

    Building and timing whole networks of 224 pixels takes well under 1 GiB; what needs more is a bad candidate.
    """
    return min(4 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def limit_memory(num_bytes: int) -> None:
    """An allocation beyond so many bytes fails in this process, instead of the system ending some other one."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def ping(_request: Ping) -> dict[str, Any]:
    """Answers when the worker is ready."""
    return {"pid": os.getpid()}


def hang(_request: Hang) -> None:
    """Never answers."""
    time.sleep(3600)


def crash(_request: Crash) -> None:
    """Ends the process as a broken kernel does."""
    os.kill(os.getpid(), signal.SIGSEGV)


ALWAYS: Calls = {Ping: ping, Hang: hang, Crash: crash}
"""Calls of every worker."""


def describe(error: Exception) -> WorkerError:
    """Describe an error in one line."""
    if isinstance(error, MemoryError) or "bad_alloc" in str(error):
        limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
        text = "" if limit == resource.RLIM_INFINITY else f"a worker may allocate {format_bytes(limit)}"
        return WorkerError(ErrorKind.OUT_OF_MEMORY, text)
    return WorkerError.of(error)


def load_compiler() -> None:
    """Import what workers compile with: that cost belongs to a worker's start, not to its first candidate."""
    import tvm  # noqa: F401


def serve_requests(
    calls: Calls,
    describe: Callable[[Exception], WorkerError] = describe,
    prepare: Callable[[], None] = load_compiler,
) -> None:
    """Answer one request after the other until standard input closes; whatever else is printed goes to stderr.

    Args:
        prepare: what is done before the first.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare()
    for line in sys.stdin:
        try:
            request = read_request(json.loads(line), calls)
            answer = Answer.of(calls[type(request)](request))
        except Exception as error:
            answer = Answer.of(describe(error))
        answers.write(json.dumps(to_json(answer)) + "\n")
        answers.flush()
