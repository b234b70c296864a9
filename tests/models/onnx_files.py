"""Small ONNX models, opened and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from chanas.core.arrays import Array
from chanas.models.folding import simplify
from chanas.models.graph import Graph
from chanas.models.reading.reader import read_graph
from chanas.models.sources.model import OpenedModel
from chanas.models.sources.opening import open_model

Tensor = tuple[str, str, Sequence[int | str] | None]
"""Name, dtype and shape."""


def onnx_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor | str],
    weights: Mapping[str, Array | np.generic | float] | None = None,
    *,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    **facts: Any,
) -> Any:
    """An ONNX model, of operators of the domain `own`, too; outputs by name alone have any shape."""

    def described(tensors: Sequence[Tensor]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, dtype, shape in tensors
        ]

    given = [(o, "float32", None) if isinstance(o, str) else o for o in outputs]
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "net", described(inputs), described(given), stored, **facts)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=8)


def opened_and_read(proto: Any, folder: Path) -> tuple[OpenedModel, Graph]:
    """A model as it is opened from a file, and its graph."""
    onnx.save(proto, folder / "net.onnx")
    opened = open_model(folder / "net.onnx")
    return opened, simplify(read_graph(opened.proto, opened.inputs))
