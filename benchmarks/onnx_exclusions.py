"""What of ONNX's operator tests a network of fixed shapes can't be: rules with their causes, each computed from the
model and the arrays of a test.

A rule says nothing about what is refused today: it looks for values that come from the test's inputs (those that are
weights do not count) where a shape, an axis, a number of rounds or a branch depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Rule = Callable[[Any, Sequence[Any], Sequence[Any]], bool]

SHAPE_INPUTS: Mapping[str, Collection[int]] = {
    **{
        f"Reduce{name}": (1,)
        for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
    **dict.fromkeys(("AffineGrid", "CenterCropPad", "CumProd", "CumSum", "Expand", "OneHot", "Reshape"), (1,)),
    **dict.fromkeys(("Split", "Squeeze", "TopK", "Trilu", "Unsqueeze", "Upsample"), (1,)),
    **dict.fromkeys(("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow"), (0,)),
    "Col2Im": (1, 2),
    "DFT": (1, 2),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Tile": (1, 2),
}
"""Inputs of operators that are shapes, sizes, axes or numbers of something, by their positions. A region that is
resized is among them: it says which part of an axis is kept."""
SHAPES_OF_NUMBERS: Mapping[str, Collection[int]] = {
    "Compress": (1,),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "NonZero": (0,),
    "Unique": (0,),
}
"""Operators whose output has a shape that depends on these inputs."""
_BRANCHES: Mapping[str, Collection[int]] = {"If": (0,), "Loop": (0, 1)}
_FREE = ("ConstantOfShape", "Shape", "Size")  # what they give depends on shapes alone
_TRAINING = ("Adagrad", "Adam", "Gradient", "Momentum")
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_NO_TENSORS = ("ImageDecoder", "Optional", "RegexFullMatch", "Sequence", "SplitToSequence", "String", "TfIdfVectorizer")
_FLOAT64 = 11
_BEYOND = (*range(17, 30), 14, 15)  # float8 and below, whole numbers of four bits and fewer, complex numbers


def _nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph, those of the graphs in their attributes among them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _reached(graph: Any, computed: set[str], positions: Mapping[str, Collection[int]]) -> bool:
    """True if a node reads one of the values that come from the inputs, `computed`, at one of these positions.

    Values that a node gives are added to `computed`. In the graph of a loop what goes round counts as computed."""
    for node in graph.node:
        if any(node.input[i] in computed for i in positions.get(node.op_type, ()) if i < len(node.input)):
            return True
        inner = [g for a in node.attribute for g in (a.g, *a.graphs) if g.node]
        for body in inner:
            own = {value.name for value in body.input}
            if node.op_type == "Loop":  # the number of the round, and whether it goes on, are known where the loop is
                own -= {value.name for value in body.input[:2]}
            if _reached(body, computed | own, positions):
                return True
            if node.op_type == "Loop" and node.op_type in positions and _depends(body, body.output[0].name, own):
                return True
        if node.op_type not in _FREE and (any(name in computed for name in node.input) or inner):
            computed.update(name for name in node.output if name)
    return False


def _depends(graph: Any, name: str, on: set[str]) -> bool:
    """True if a value of a graph comes from some of its inputs."""
    found = set(on)
    _reached(graph, found, {})
    return name in found


def _given(model: Any) -> set[str]:
    """Names of inputs that are no weights."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return {value.name for value in model.graph.input} - weights


def _has(*starts: str) -> Rule:
    return lambda model, inputs, outputs: any(node.op_type.startswith(starts) for node in _nodes(model.graph))


def _reads(positions: Mapping[str, Collection[int]]) -> Rule:
    return lambda model, inputs, outputs: _reached(model.graph, _given(model), positions)


def _no_tensors(model: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    values = [*model.graph.input, *model.graph.output]
    no_tensor = any(not v.type.HasField("tensor_type") or v.type.tensor_type.elem_type == 8 for v in values)
    return no_tensor or _has(*_NO_TENSORS)(model, inputs, outputs)


def _is_training(model: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Gradients and optimisers, dropout that drops, normalisation by the batch's own numbers."""
    modes = {t.name for t in model.graph.initializer if t.data_type == 9 and t.raw_data == b"\x01"}
    for node in _nodes(model.graph):
        if node.op_type in _TRAINING or any(a.name == "training_mode" and a.i for a in node.attribute):
            return True
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] in _given(model) | modes:
            return True
    return False


def _has_no_judge(model: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Corners that stay corners, with a scale that leaves a fraction of a number: ONNX's evaluator alone takes the
    length to have that fraction; ONNX Runtime and PyTorch take the length that comes out."""
    weights = {t.name: t for t in model.graph.initializer}
    for node in _nodes(model.graph):
        rules = [a.s for a in node.attribute if a.name == "coordinate_transformation_mode"]
        if (
            node.op_type == "Resize"
            and rules == [b"align_corners"]
            and len(node.input) > 2
            and node.input[2] in weights
        ):
            from onnx import numpy_helper

            whole = numpy_helper.to_array(weights[node.input[2]]) * np.asarray(inputs[0]).shape
            return bool((np.abs(whole - np.round(whole)) > 1e-5).any())
    return False


def _is_beyond(model: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    values = [*model.graph.input, *model.graph.output]
    if any(v.type.tensor_type.elem_type in _BEYOND for v in values):
        return True
    if _has("BitCast")(model, inputs, outputs) and any(v.type.tensor_type.elem_type == _FLOAT64 for v in values):
        return True  # the bits of a number that is computed in float32
    floats = [np.asarray(a) for a in (*inputs, *outputs) if a is not None and np.asarray(a).dtype == np.float64]
    return any(np.isfinite(a).all() and (np.abs(a) > np.finfo(np.float32).max).any() for a in floats)


RULES: Mapping[str, Rule] = {
    "texts, sequences or optionals": _no_tensors,
    "an operator of another domain than ai.onnx": lambda model, inputs, outputs: any(
        node.domain not in ("", "ai.onnx", "ai.onnx.preview.training") for node in _nodes(model.graph)
    ),
    "training": _is_training,
    "random numbers": lambda model, inputs, outputs: any(node.op_type in _RANDOM for node in _nodes(model.graph)),
    "numbers beyond float32 and whole ones of eight bits and more": _is_beyond,
    "an input without elements": lambda model, inputs, outputs: any(a is not None and np.size(a) == 0 for a in inputs),
    "frameworks that differ": _has_no_judge,
    "no input": lambda model, inputs, outputs: not _given(model),
    "a shape, an axis or a size given as an input": _reads(SHAPE_INPUTS),
    "a shape that depends on numbers": _reads(SHAPES_OF_NUMBERS),
    "a branch or a number of rounds that depends on numbers": _reads(_BRANCHES),
}
"""The causes, and what finds a test of each by its model and the arrays that go in and come out. The first one that
does counts."""


def cause_of(model: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> str | None:
    """Why a test is left out; None: it counts."""
    return next((cause for cause, rule in RULES.items() if rule(model, inputs, outputs)), None)
