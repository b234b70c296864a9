"""What a network's compiled program is compared with: inputs, and its framework's outputs for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chanas.errors import ModelError
from chanas.prescheduler.models.graph import Graph
from chanas.prescheduler.models.sources.model import Array, OpenedModel

NETWORK_TOLERANCE = 1e-3
"""Largest error that is right, as a share of the largest output: a hundred layers of sums in another order, some by
Winograd's transforms, are within 2e-4."""


@dataclass(frozen=True, eq=False)
class Draw:
    """Inputs of a network and the framework's outputs for them, in order.

    name  what the inputs are like, for people
    """

    name: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class Reference:
    """What every program of a network is compared with; it is asked for once.

    draws     at least one; programs are timed on the first
    unproven  names of outputs that are alike for other inputs: comparing them with the framework's says nothing
    """

    opened: OpenedModel
    graph: Graph
    draws: tuple[Draw, ...]
    unproven: tuple[str, ...] = ()

    @property
    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(output.shape for output in self.draws[0].outputs)


def reference_of(opened: OpenedModel, graph: Graph, seed: int = 0) -> Reference:
    """Draw inputs and ask the framework for its outputs.

    Args:
        graph: of the opened network, simplified.

    Raises:
        ModelError: the framework's own outputs are not finite, or an output has no elements, so that there is nothing
            to compare with.
    """
    inputs, expected = opened.finite_inputs(seed)
    if not all(e.size for e in expected):
        raise ModelError(
            "an output of the network has no elements, so that there is nothing to compare; export it without"
        )
    if not math.isfinite(max(float(np.abs(e).max()) for e in expected)):
        raise ModelError(
            "the network itself gives NaN or infinity for random inputs, so that its tuned program can't be compared "
            "with it; check its weights"
        )
    unproven = _unproven_names(opened, expected, seed)
    return Reference(opened, graph, (Draw("random", tuple(inputs), tuple(expected)),), unproven)


def _unproven_names(opened: OpenedModel, expected: Sequence[Array], seed: int) -> tuple[str, ...]:
    """Names of outputs that are alike for other inputs, so that comparing them says nothing."""
    try:
        other = opened.answer(opened.random_inputs(seed + 1, num_indices=2))
    except Exception:  # whatever a framework raises where a table has one row: the inputs that are compared had zeros
        return ()
    return tuple(opened.output_name(i) for i in unproven_outputs(expected, other))


def unproven_outputs(expected: Sequence[Array], other: Sequence[Array]) -> list[int]:
    """Indices of the outputs about which a proof says nothing: the framework's own for other inputs would pass for
    them, as zeros do that a last layer begins with."""
    allowed = NETWORK_TOLERANCE * max(float(np.abs(e).max()) for e in expected)
    differences = (np.abs(np.subtract(o, e, dtype=np.float64)).max() for o, e in zip(other, expected, strict=True))
    return [i for i, difference in enumerate(differences) if difference <= allowed]
