"""Where numbers come from that only move, and transpositions that move none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chanas.models.graph import Constant, Graph, Node, rewritten
from chanas.models.moves import drop_move, moved_from
from chanas.models.sources.model import TensorFacts

INPUTS = (TensorFacts("x", (2, 3, 4), "float32"),)


def graph_of(*steps: tuple[str, tuple[int, ...], Mapping[str, Any]]) -> Graph:
    """A chain of operators: name, output shape, attributes."""
    nodes = [Node(op, (value,), shape, attributes=facts) for value, (op, shape, facts) in enumerate(steps)]
    return Graph(INPUTS, tuple(nodes), (len(nodes),))


TURN = ("permute_dims", (3, 2, 4), {"axes": (1, 0, 2)})


def test_the_places_of_numbers_follow_every_move() -> None:
    moved = moved_from(graph_of(TURN, ("slice", (3, 1, 4), {"axis": 1, "begin": 1}), ("reshape", (3, 4), {})), 3)
    assert moved.source == 0
    assert moved.places.tolist() == np.arange(24).reshape(2, 3, 4)[1].tolist()


def test_a_number_that_all_are_multiplied_by_is_passed_over_only_if_asked_for() -> None:
    turned = graph_of(TURN).nodes[0]
    product = Node("multiply", (1, Constant(np.full(1, 0.5, np.float32))), turned.shape)
    graph = Graph(INPUTS, (turned, product), (2,))
    moved = moved_from(graph, 2, scaled=True)
    assert (moved.source, moved.factor) == (0, 0.5)
    assert moved_from(graph, 2).source == 2


def test_transpositions_that_others_undo_are_left_out() -> None:
    back = ("permute_dims", (2, 3, 4), {"axes": (1, 0, 2)})
    assert [n.op for n in rewritten(graph_of(TURN, back), drop_move).nodes] == ["reshape"]


def test_a_transposition_of_single_rows_is_a_reshape() -> None:
    single = [("reshape", (1, 6, 4), {}), ("permute_dims", (6, 1, 4), {"axes": (1, 0, 2)})]
    assert "permute_dims" not in [n.op for n in rewritten(graph_of(*single), drop_move).nodes]


def test_a_transposition_that_moves_numbers_stays() -> None:
    assert [n.op for n in rewritten(graph_of(TURN, ("reshape", (6, 4), {})), drop_move).nodes] == [
        "permute_dims",
        "reshape",
    ]
