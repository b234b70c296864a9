"""chanas/models/reading/sequences.py: operators on sequences, beside ONNX's reference evaluator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from chanas.errors import ModelError
from chanas.models.graph import Graph
from chanas.models.reading.reader import read_graph
from chanas.models.sources.model import TensorFacts

from ..evaluated import evaluate

SHAPE = (4, 7)
_HEAD = '<ir_version: 8, opset_import: ["" : 17]> net (float[4, 7] x) => (float[n, m] y) <{}> {{ {} }}'
_WEIGHTS = "int64 two = {2}, int64 first = {0}, int64 last = {-1}, int64[3] parts = {1, 4, 2}"


def parsed(nodes: str) -> onnx.ModelProto:
    model: onnx.ModelProto = onnx.parser.parse_model(_HEAD.format(_WEIGHTS, nodes))
    return model


def graph_of(model: onnx.ModelProto) -> Graph:
    return read_graph(model, [TensorFacts("x", SHAPE, "float32")])


@pytest.mark.parametrize(
    "nodes",
    [
        "s = SplitToSequence<axis = 1>(x, two) y = SequenceAt(s, last)",
        "s = SplitToSequence<axis = 1>(x, parts) y = SequenceAt(s, first)",
        "s = SplitToSequence<keepdims = 0>(x) y = ConcatFromSequence<axis = 1, new_axis = 1>(s)",
        "s = SplitToSequence<axis = -1>(x, parts) y = ConcatFromSequence<axis = -1>(s)",
        "z = Relu(x) s = SequenceConstruct(x, z) t = SequenceInsert(s, z, first) y = ConcatFromSequence<axis = 0>(t)",
        "z = Relu(x) s = SequenceConstruct(x, z) t = SequenceInsert(s, z, last) y = ConcatFromSequence<axis = 0>(t)",
        "z = Relu(x) s = SequenceConstruct(x, z, x) t = SequenceErase(s, last) y = ConcatFromSequence<axis = 1>(t)",
        "s = SequenceEmpty<dtype = 1>() t = SequenceInsert(s, x) y = SequenceAt(t, first)",
        "s = SequenceConstruct(x, x) n = SequenceLength(s) m = Cast<to = 1>(n) y = Mul(x, m)",
    ],
)
def test_a_sequence_is_what_onnx_says(nodes: str) -> None:
    model = parsed(nodes)
    inputs = [np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)]
    (expected,) = ReferenceEvaluator(model).run(None, {"x": inputs[0]})
    (found,) = evaluate(graph_of(model), inputs)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("y = SplitToSequence<axis = 1>(x, two)", "output y is a sequence"),
        ("s = SequenceConstruct(x) y = Relu(s)", "Relu .* has a sequence as input 0"),
        ("y = SequenceAt(x, first)", "SequenceAt .* has no sequence as input 0"),
        ("s = SequenceConstruct(x) y = SequenceAt(s, two)", "names place 2 of a sequence of 1"),
    ],
)
def test_a_sequence_where_it_does_not_fit_is_a_line(nodes: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        graph_of(parsed(nodes))
