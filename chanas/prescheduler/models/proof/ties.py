"""Whole numbers that differ for a reason: places of the largest or smallest of numbers that are as good as equal."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from chanas.errors import ModelError
from chanas.prescheduler.models.proof.reference import Reference
from chanas.prescheduler.models.proof.rounding import allowed, growths, moved_answers
from chanas.prescheduler.models.sources.onnx_models import values_of
from chanas.prescheduler.workloads.comparison import Comparison, Difference, Draw

_PASSED_ON = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_CHOOSING = {"ArgMax": 0, "ArgMin": 0, "TopK": 1}
"""Operators that give places, and which of their outputs these are."""


def without_ties(reference: Reference, compared: Comparison) -> tuple[Draw, ...]:
    """The draws, which allow any whole number where a wrong one is the place of a number that is within what is allowed
    of the number at the right place (`rounding`)."""
    return tuple(
        dataclasses.replace(draw, allowed=tuple(_with_ties(reference, draw, i, d) for i, d in enumerate(differences)))
        for draw, differences in zip(reference.draws, compared.draws, strict=True)
    )


def _with_ties(reference: Reference, draw: Draw, output: int, apart: Difference) -> Any:
    given = draw.allowed[output]
    node = _choosing(reference.opened.proto, output) if apart.places else None
    if node is None:
        return given
    attributes = {a.name: a.i for a in node.attribute}
    try:
        answer = values_of(reference.opened.proto, [node.input[0]], reference.opened.inputs)
        [numbers] = answer([x.copy() for x in draw.inputs])
        moved = [outputs[0] for outputs in moved_answers(answer, draw.inputs)]
    except ModelError:  # no framework gives the numbers themselves
        return given
    axis = attributes.get("axis", -1 if node.op_type == "TopK" else 0) % numbers.ndim
    read = reference.graph.outputs[output]
    bounds = allowed(numbers, moved, growths(reference.graph)[read] if isinstance(read, int) else 0.0)
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
