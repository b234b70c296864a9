"""Networks from strangers' files, opened in a process with limits before anything of them is opened in this one.

A file may be made to exhaust memory, to compute for ever, or to end the process that reads it. So one of its own, run
as `python -m chanas.models.importing`, does first all that this one will do: it opens the file, reads its
graph, and asks its framework for an answer. What goes wrong there is one line here. Nothing that it made is unpickled:
it says that it came to the end, and leaves what PyTorch has exported as an ONNX file.
"""

from __future__ import annotations

import importlib
import math
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from chanas import interrupts
from chanas.core.units import format_bytes
from chanas.errors import ModelError
from chanas.files.scratch import scratch_folder
from chanas.measuring.messages import ErrorKind, Ping, Request
from chanas.measuring.worker.process import WorkerProcess
from chanas.measuring.worker.serve import Calls, limit_memory, memory_limit, ping, serve_requests
from chanas.models.folding import simplify
from chanas.models.graph import PRODUCTS, Graph
from chanas.models.likely_shapes import describe_likely
from chanas.models.reading.reader import read_graph
from chanas.models.sources.model import OpenedModel, Shapes
from chanas.models.sources.onnx_files import parse_onnx, tensors_of
from chanas.models.sources.onnx_models import OpenShapeError
from chanas.models.sources.opening import PROGRAM, is_searched, library_of, open_model

_COMMAND = ("-m", "chanas.models.importing")
_TIMEOUT_S = 600.0
"""PyTorch's exporter takes 10 s for the largest of torchvision's networks, and small boards are twenty times slower."""
_SHARE_OF_FREE = 0.9
_COPIES = 4
"""Copies of weights: as a model, as arrays, folded, and in the framework."""


@dataclass(frozen=True, kw_only=True)
class OpenNetwork(Request):
    """Open and read a network; what PyTorch exports is written to `exported`."""

    source: str
    shapes: Shapes
    exported: Path


@dataclass(frozen=True, kw_only=True)
class FindOutside(Request):
    """Find out whether tensors of an ONNX file lie in other files."""

    source: str


def import_network(
    source: str | Path, shapes: Shapes | None = None, weights: Path | None = None, command: Sequence[str] = _COMMAND
) -> OpenedModel:
    """A network as `open_model` opens it, and `read_graph` and `simplify` can read it.

    Args:
        weights: of a library's network.
        command: what Python runs in the other process.

    Raises:
        ModelError: as these say, or it takes too much memory or time, or ends the process that opens it.
        CheckpointError: as `open_model` says.
    """
    if library_of(source) is not None or weights is not None or is_searched(source):  # no stranger's file
        return open_model(source, shapes, weights)
    with scratch_folder() as scratch, ThreadPoolExecutor(1) as meanwhile:
        request = OpenNetwork(source=str(source), shapes=shapes or {}, exported=scratch / "exported.onnx")
        if Path(source).suffix == PROGRAM:
            meanwhile.submit(importlib.import_module, "torch")  # takes seconds; the other process takes one core
        _ask(request, str(source), command)
        return open_model(source, shapes, exported=request.exported if request.exported.exists() else None)


def lies_outside(path: Path, command: Sequence[str] = _COMMAND) -> bool:
    """True of an ONNX file with tensors in other files.

    Raises:
        ModelError: it is no ONNX file, or cannot be opened within the limits.
    """
    return bool(_ask(FindOutside(source=str(path)), str(path), command))


def _ask(request: Request, source: str, command: Sequence[str]) -> Any:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    worker = WorkerProcess(1, list(cores), command)
    try:
        answer = worker.call(request, _TIMEOUT_S)
    finally:
        worker.close()
    error = answer.error
    if error is None:
        return answer.result
    if error.exception_class is not None:
        raise error.exception_class(error.text)
    if error.kind is ErrorKind.TIMEOUT:
        raise ModelError(f"{source} took more than {_TIMEOUT_S:g} s to open; tune a smaller network")
    raise ModelError(f"{source} cannot be opened ({error}); export the network again, or a smaller one")


# ---- in the other process --------------------------------------------------------------------------------------------
def open_network(request: OpenNetwork) -> None:
    """Do all that is done with a file before it is tuned."""
    shapes = {name: tuple(shape) for name, shape in request.shapes.items()}
    try:
        opened = open_model(request.source, shapes)
    except OpenShapeError as error:
        likely = describe_likely(Path(request.source), shapes)
        raise ModelError(f"{error}; its nodes fit together with {likely}" if likely else str(error)) from error
    # What is computed of small weights may be large: from here on no more than a worker, beside the weights.
    limit_memory(min(import_limit(), memory_limit() + _COPIES * opened.proto.ByteSize()))
    graph = simplify(read_graph(opened.proto, opened.inputs))
    check_values(graph, opened.name)
    opened.answer(opened.random_inputs())
    if opened.program is not None:
        request.exported.write_bytes(opened.proto.SerializeToString())


def find_outside(request: FindOutside) -> bool:
    """Answer `FindOutside`."""
    return any(tensor.external_data for tensor, _ in tensors_of(parse_onnx(Path(request.source))))


def check_values(graph: Graph, name: str) -> None:
    """Refuse a graph that no worker can compute, or that computes nothing.

    Raises:
        ModelError: a value is larger than what a worker may allocate, or weights are NaN; names the node.
    """
    limit = memory_limit()
    values = [(facts.name, facts.shape, facts.dtype) for facts in graph.inputs]
    values += [(f"{node.name} ({node.op})", node.shape, node.dtype) for node in graph.nodes]
    for value, shape, dtype in values:
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if num_bytes > limit:
            raise ModelError(
                f"{value} of {name} takes {format_bytes(num_bytes)} {list(shape)}, and a worker may allocate "
                f"{format_bytes(limit)}; give a smaller input with --shape, or export a smaller network"
            )
    for node in graph.nodes:
        weights = node.constant(1) if node.op in PRODUCTS else None
        if weights is not None and weights.value.size and np.isnan(weights.value.min()):
            raise ModelError(
                f"the weights of {node.name or node.op} of {name} are NaN, so that it computes nothing; export the "
                "network after it was trained"
            )


def import_limit() -> int:
    """Bytes that opening a network may take: three times what a worker may, for weights as read, as a model, as arrays,
    folded, and in its framework; no more than nearly all that is free."""
    return min(3 * memory_limit(), int(_SHARE_OF_FREE * psutil.virtual_memory().available))


def main() -> None:
    """Serve requests until standard input closes."""
    interrupts.die_with_parent()
    limit_memory(import_limit())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls: Calls = {Ping: ping, OpenNetwork: open_network, FindOutside: find_outside}
    serve_requests(calls, prepare=lambda: None)


if __name__ == "__main__":
    main()
