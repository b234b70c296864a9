"""A finished network through TVM's stock route, compiled and timed in a process of its own: LLVM ends the one that it
runs in where a program is too much for it. That process is `python -m chanas.workflows.models.untuned`."""

from __future__ import annotations

import signal
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chanas import interrupts
from chanas.bundle.tuned import LIBRARIES
from chanas.core.target import HardwareTarget
from chanas.devices.cores import split_cores
from chanas.devices.timing import time_single_calls
from chanas.errors import ModelError
from chanas.measuring.messages import Ping, Request
from chanas.measuring.worker.compiler import readable
from chanas.measuring.worker.process import WorkerProcess
from chanas.measuring.worker.serve import ping, serve_requests

if TYPE_CHECKING:
    from chanas.core.arrays import Array
    from chanas.models.sources.model import OpenedModel

_COMMAND = ("-m", "chanas.workflows.models.untuned")
_NUM_CALLS, _TIMEOUT_S = 3, 1800.0


@dataclass(frozen=True, kw_only=True)
class TimeUntuned(Request):
    """Compile a network without schedules, time it, and leave its outputs for its random inputs in a file."""

    target: HardwareTarget
    source: str
    weights: Path | None
    shapes: Mapping[str, Sequence[int]]
    outputs: Path


def untuned_network(
    opened: OpenedModel, target: HardwareTarget, scratch: Path, command: Sequence[str] = _COMMAND
) -> tuple[list[Array], float]:
    """The outputs of a network without schedules for its random inputs, and its median seconds over a few calls.

    Args:
        command: what Python runs in the other process.

    Raises:
        ModelError: it does not compile, or takes too long.
    """
    outputs = scratch / "untuned.npz"
    origin = opened.origin
    weights = Path(origin["weights"]) if origin["kind"] in LIBRARIES and "weights" in origin else None
    request = TimeUntuned(
        target=target, source=origin["source"], weights=weights, shapes=opened.shapes, outputs=outputs
    )
    worker = WorkerProcess(target.num_threads, split_cores(target.num_threads)[0], command)
    try:
        answer = worker.call(request, _TIMEOUT_S)
    finally:
        worker.close()
    if answer.error is not None:
        raise ModelError(f"did not compile: {readable(answer.error)}")
    with np.load(outputs, allow_pickle=False) as data:
        return [data[name] for name in data.files], answer.result["seconds"]


def time_untuned(request: TimeUntuned) -> dict[str, float]:
    """Compile and time in this process; `seconds` is the median."""
    from chanas.compiler.cpu.untuned import stock_module, stock_network
    from chanas.models.sources.opening import open_model

    opened = open_model(request.source, {name: tuple(shape) for name, shape in request.shapes.items()}, request.weights)
    shapes = {facts.name: list(facts.shape) for facts in opened.inputs}
    types = {facts.name: facts.dtype for facts in opened.inputs}
    module = stock_module(opened.proto, opened.program, shapes, types)
    call = stock_network(module, opened.random_inputs(), request.target)
    seconds = statistics.median(time_single_calls(call, _NUM_CALLS, 1))
    np.savez(request.outputs, *call())
    return {"seconds": seconds}


def main() -> None:
    """Serve requests until standard input closes."""
    interrupts.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve_requests({Ping: ping, TimeUntuned: time_untuned})


if __name__ == "__main__":
    main()
