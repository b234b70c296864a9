"""benchmarks/onnx_exclusions.py: which of ONNX's tests are left out, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
FLOAT8 = onnx.TensorProto.FLOAT8E4M3FN
GIVEN = "a shape, an axis or a size given as an input"
BEYOND = "numbers beyond float32 and whole ones of eight bits and more"


def node(op: str, *reads: str, out: str = "out", **attributes: Any) -> Any:
    return helper.make_node(op, reads, [out], **attributes)


def branch(reads: str) -> Any:
    given = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph([node("Relu", reads, out="y")], "g", [], [given])
    return node("If", "c", then_branch=graph, else_branch=graph)


@pytest.mark.parametrize(
    ("nodes", "types", "expected"),
    [
        ([node("Add", "x", "y")], {"x": FLOAT, "y": FLOAT}, None),
        ([node("Reshape", "x", "shape")], {"x": FLOAT, "shape": INT64}, GIVEN),
        ([node("Abs", "n", out="m"), node("Expand", "x", "m")], {"x": FLOAT, "n": INT64}, GIVEN),
        ([node("Shape", "x", out="s"), node("Reshape", "x", "s")], {"x": FLOAT}, None),
        ([node("NonZero", "x")], {"x": FLOAT}, "a shape that depends on numbers"),
        ([branch("x")], {"x": FLOAT, "c": BOOL}, "a branch or a number of rounds that depends on numbers"),
        ([node("Relu", "x")], {"x": FLOAT8}, BEYOND),
        ([node("StringConcat", "x", "x")], {"x": FLOAT}, "texts, sequences or optionals"),
    ],
)
def test_a_cause_is_what_the_graph_shows(
    load: Any, nodes: list[Any], types: dict[str, int], expected: str | None
) -> None:
    inputs = [helper.make_tensor_value_info(name, dtype, [2]) for name, dtype in types.items()]
    graph = helper.make_graph(nodes, "one", inputs, [helper.make_tensor_value_info("out", FLOAT, None)])
    model = helper.make_model(graph)
    assert load("onnx_exclusions").cause_of(model, [np.ones(2)] * len(inputs), []) == expected
