"""Small ONNX models, opened and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from chanas.models.folding import simplify
from chanas.models.graph import Graph
from chanas.models.reading.reader import read_graph
from chanas.models.sources.model import OpenedModel
from chanas.models.sources.opening import open_model

Tensor = tuple[str, str, Sequence[int]]
"""Name, dtype and shape."""


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    weights: Mapping[str, np.ndarray],  # type: ignore[type-arg]
) -> Any:
    """An ONNX model of opset 17."""

    def facts(tensors: Sequence[Tensor]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, dtype, shape in tensors
        ]

    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "net", facts(inputs), facts(outputs), stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def opened_and_read(proto: Any, folder: Path) -> tuple[OpenedModel, Graph]:
    """A model as it is opened from a file, and its graph."""
    onnx.save(proto, folder / "net.onnx")
    opened = open_model(folder / "net.onnx")
    return opened, simplify(read_graph(opened.proto, opened.inputs))
