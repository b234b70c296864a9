"""A second look at outputs that differ: what the framework's own answer leaves open.

Numbers: what a sum rounds away, a weight that moves by a unit in its last place changes as much. So where numbers
cancel each other within a network, and not at its inputs, its answer moves when its weights do.

Whole numbers: places of the largest or smallest of numbers that are as good as equal.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from chanas.compiler.comparison import Comparison, Difference, Draw
from chanas.core.arrays import Array
from chanas.errors import ModelError
from chanas.models.proof.reference import Reference
from chanas.models.proof.rounding import STEPS, Growth, allowed, moved_inputs
from chanas.models.reading.quantised import reads_steps
from chanas.models.sources.model import OpenedModel
from chanas.models.sources.onnx_models import values_of

_PASSED_ON = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_CHOOSING = {"ArgMax": 0, "ArgMin": 0, "TopK": 1}
"""Operators that give places, and which of their outputs these are."""
_WEIGHTED = (
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN"),
    *("BatchNormalization", "LayerNormalization", "InstanceNormalization", "GroupNormalization"),
)
"""Operators that read weights. Constants of others may be sizes, limits or powers, which
don't move."""


def with_uncertainty(reference: Reference, compared: Comparison) -> tuple[Draw, ...]:
    """The draws, which allow wrong outputs as much more as the network leaves open."""

    def looked_at(draw: Draw, differences: Sequence[Difference]) -> Draw:
        wrong = [i for i, apart in enumerate(differences) if apart.excess > 1.0]
        floats = [i for i in wrong if draw.outputs[i].dtype.kind == "f"]
        names = [reference.opened.proto.graph.output[i].name for i in floats]
        found = list(draw.allowed)
        with contextlib.suppress(ModelError):  # no framework gives them
            bounds = values_and_bounds(reference.opened, names, draw.inputs, map(reference.growth, floats))
            for i, (_, allowed_too) in zip(floats, bounds, strict=True):
                found[i] = np.maximum(found[i], allowed_too)
        for i in set(wrong) - set(floats):
            found[i] = _with_ties(reference, draw, i, differences[i])
        return dataclasses.replace(draw, allowed=tuple(found))

    return tuple(map(looked_at, reference.draws, compared.draws))


def values_and_bounds(
    opened: OpenedModel, names: Sequence[str], inputs: Sequence[Array], growths: Iterable[Growth]
) -> list[tuple[Array, Array]]:
    """Values of an ONNX model by their names, and the distances that a program may have from them: as far as they move
    when all numbers of inputs and weights do, beside what rounding explains.

    Raises:
        ModelError: no framework gives them.
    """
    if not names:
        return []
    rng = np.random.default_rng(0)
    values = values_of(opened.proto, names, opened.inputs)([x.copy() for x in inputs])
    moved = []
    for steps in STEPS:
        proto = _with_moved_weights(opened.proto, steps, rng)
        moved.append(values_of(proto, names, opened.inputs)(moved_inputs(inputs, steps, rng)))
    return [
        (value, allowed(value, [m[i] for m in moved], growth))
        for i, (value, growth) in enumerate(zip(values, growths, strict=True))
    ]


def _with_moved_weights(proto: Any, steps: int, rng: np.random.Generator) -> Any:
    from onnx import ModelProto, numpy_helper

    copy = ModelProto()
    copy.CopyFrom(proto)
    weighted = [node for node in copy.graph.node if node.op_type in _WEIGHTED or reads_steps(node.op_type)]
    weights = {name for node in weighted for name in node.input[1:]}
    weights |= {node.input[0] for node in copy.graph.node if node.op_type == "MatMul"}
    tensors = {tensor.name: tensor for tensor in copy.graph.initializer}
    for node in reversed(copy.graph.node):
        if node.op_type in (*_PASSED_ON, "Transpose") and node.output[0] in weights:
            weights.add(node.input[0])
        if node.op_type == "Constant":
            tensors |= {name: a.t for name, a in zip(node.output, node.attribute, strict=False) if a.name == "value"}
    for name in weights & tensors.keys():
        [moved] = moved_inputs([numpy_helper.to_array(tensors[name])], steps, rng)
        tensors[name].CopyFrom(numpy_helper.from_array(moved, tensors[name].name))
    return copy


def _with_ties(reference: Reference, draw: Draw, output: int, apart: Difference) -> Array:
    """The distances allowed, which let any whole number pass where a wrong one is the place of a number that is within
    what is allowed of the number at the right place."""
    given = draw.allowed[output]
    node = _choosing(reference.opened.proto, output) if apart.places else None
    if node is None:
        return given
    attributes = {a.name: a.i for a in node.attribute}
    try:
        growths = [reference.growth(output)]
        [(numbers, bounds)] = values_and_bounds(reference.opened, [node.input[0]], draw.inputs, growths)
    except ModelError:  # no framework gives the numbers themselves
        return given
    axis = attributes.get("axis", -1 if node.op_type == "TopK" else 0) % numbers.ndim
    shape = list(numbers.shape)
    shape[axis] = draw.outputs[output].size * shape[axis] // numbers.size
    right, found = draw.outputs[output].ravel(), given.ravel().copy()
    for place, number in zip(apart.places, apart.found, strict=True):
        at = [int(n) for n in np.unravel_index(place, shape)]
        if not 0 <= number < numbers.shape[axis]:
            continue
        mine, theirs = ((*at[:axis], int(n), *at[axis + 1 :]) for n in (number, right[place]))
        if abs(float(numbers[mine]) - float(numbers[theirs])) <= float(bounds[mine]) + float(bounds[theirs]):
            found[place] = np.inf
    return found.reshape(given.shape)


def _choosing(proto: Any, output: int) -> Any:
    """The node that gives an output's places, if it is one that chooses; None otherwise."""
    producers = {name: node for node in proto.graph.node for name in node.output if name}
    name = proto.graph.output[output].name
    while (node := producers.get(name)) is not None and node.op_type in _PASSED_ON:
        name = node.input[0]
    is_place = node is not None and node.op_type in _CHOOSING and node.output[_CHOOSING[node.op_type]] == name
    return node if is_place else None
