"""Shapes for inputs that an ONNX file leaves open: of the sizes that networks are made for those with which its nodes
fit together."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chanas.errors import ChanasError
from chanas.models.reading.reader import read_graph
from chanas.models.sources.model import Shapes
from chanas.models.sources.onnx_files import load_onnx
from chanas.models.sources.onnx_models import inputs_of, open_extents

_SIZES = (
    *((side, side) for side in (224, 640, 320, 256, 299, 416, 512, 384, 128, 112)),
    *((48, 320), (32, 320), (64, 160), (32, 100)),
    *((side, side) for side in (96, 64, 48, 32)),
)
"""Rows and columns of images that networks are trained for: large ones, lines of text, small ones."""
_SECONDS, _SHOWN = 10.0, 2
_SIZE_OF_IMAGES = "imgsz"
"""The name under which detectors of Ultralytics say rows and columns."""


def describe_likely(path: Path, shapes: Shapes) -> str:
    """The options for a file whose images are open, `--shape x=1,3,640,640`; empty where none is found in ten seconds.

    Args:
        shapes: those that are given.
    """
    proto = load_onnx(path)
    extents = {name: found for name, found in open_extents(proto).items() if name not in shapes}
    found: list[str] = []
    deadline = time.monotonic() + _SECONDS
    for rows, columns in _sizes(proto):
        if len(found) == _SHOWN or time.monotonic() > deadline:
            break
        tried = {name: _filled(e, rows, columns) for name, e in extents.items()}
        given = {name: shape for name, shape in tried.items() if shape is not None}
        options = " ".join(f"--shape {name}={','.join(map(str, shape))}" for name, shape in given.items())
        if len(given) == len(extents) and options not in found and _fits(proto, {**shapes, **given}, path):
            found.append(options)
    return " or ".join(found)


def _sizes(proto: Any) -> Iterator[tuple[int, int]]:
    """Rows and columns to try: first those that the file itself says."""
    for entry in proto.metadata_props:
        if entry.key == _SIZE_OF_IMAGES:
            try:
                rows, columns = map(int, json.loads(entry.value))
            except (ValueError, TypeError, RecursionError):
                continue
            yield rows, columns
    yield from _SIZES


def _filled(extents: Sequence[int | str], rows: int, columns: int) -> tuple[int, ...] | None:
    """The shape of an image of so many rows and columns, as far as these are open; None of what is no image."""
    if len(extents) != 4:
        return None
    is_last = extents[3] in (1, 3, 4)
    likely = (1, rows, columns, 3) if is_last else (1, 3, rows, columns)
    return tuple(e if isinstance(e, int) and e > 0 else n for e, n in zip(extents, likely, strict=True))


def _fits(proto: Any, shapes: Shapes, path: Path) -> bool:
    """True if the model can be read with these shapes, and gives as many of each output as there are images, one, where
    it calls both numbers the same."""
    try:
        graph = read_graph(proto, inputs_of(proto, shapes, path))
    except ChanasError:
        return False
    images = {_first_axis(value) for value in proto.graph.input if value.name in shapes} - {""}
    outputs = zip(proto.graph.output, graph.outputs, strict=True)
    return all(graph.shape_of(read)[:1] == (1,) for value, read in outputs if _first_axis(value) in images)


def _first_axis(value: Any) -> str:
    """The name of the first axis' extent; empty where it has none."""
    axes = value.type.tensor_type.shape.dim
    return str(axes[0].dim_param) if axes else ""
