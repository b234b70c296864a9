"""A finished network as a graph of operators: plain data, with weights as arrays of numpy.

Values are numbered as in `chanas.operators`: the inputs first, then the output of each node. Nothing here knows TVM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chanas.core.arrays import Array
from chanas.models.sources.model import TensorFacts


@dataclass(frozen=True, eq=False)
class Constant:
    """Numbers that are known: weights, or what came of them."""

    value: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def scalar(self) -> float | None:
        """The number, if there is only one."""
        return float(self.value.ravel()[0]) if self.value.size == 1 else None


Read = int | Constant
"""A value by its number, or a constant."""
MAP_PRODUCTS = ("conv2d", "upconv")
"""Operators that multiply maps with weights [C_out, C_in / groups, kh, kw]."""
PRODUCTS = (*MAP_PRODUCTS, "matmul")
"""Operators that multiply with weights: a bias, an activation and a residual after them can become part of them."""


@dataclass(frozen=True, eq=False)
class Node:
    """One operator.

    op          its name in `definitions` or `elementwise`, such as `conv2d`
    reads       the tensors that it reads, in order
    shape       of its output
    attributes  numbers, texts and tuples of them
    name        of its output in the file that it was read from; empty for what came from rewriting
    """

    op: str
    reads: tuple[Read, ...]
    shape: tuple[int, ...]
    dtype: str = "float32"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def constant(self, position: int) -> Constant | None:
        """The constant that it reads at a position, if that is one."""
        if position >= len(self.reads):
            return None
        read = self.reads[position]
        return read if isinstance(read, Constant) else None

    @property
    def function(self) -> str:
        """Its operator; of an activation that one's name."""
        return str(self.attributes["name"]) if self.op == "activation" else self.op

    @property
    def factor(self) -> float | None:
        """The one number that it multiplies what it reads by; None of any other node."""
        second = self.constant(1)
        number = None if second is None else second.scalar
        if number and self.op == "divide":
            return 1 / number
        return number if self.op == "multiply" else None


class Values:
    """Numbered values: those of the inputs, then what each node gives."""

    inputs: tuple[TensorFacts, ...]
    nodes: Sequence[Node]

    def node_of(self, read: Read) -> Node | None:
        """The node that gives a value; None for inputs and constants."""
        if isinstance(read, Constant) or read < len(self.inputs):
            return None
        return self.nodes[read - len(self.inputs)]

    def shape_of(self, read: Read) -> tuple[int, ...]:
        """The shape of a value or a constant."""
        return read.shape if isinstance(read, Constant) else self._facts(read).shape

    def dtype_of(self, read: Read) -> str:
        """The type of a value or a constant."""
        return str(read.value.dtype) if isinstance(read, Constant) else self._facts(read).dtype

    def _facts(self, number: int) -> TensorFacts | Node:
        return self.node_of(number) or self.inputs[number]


@dataclass(frozen=True, eq=False)
class Graph(Values):
    """A network: its inputs, its nodes in an order in which they can run, and the values that it gives back."""

    inputs: tuple[TensorFacts, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Read, ...]

    def readers(self) -> dict[int, list[int]]:
        """Indices of the nodes that read each value, as often as they do; -1 stands for an output of the network."""
        found: dict[int, list[int]] = {v: [] for v in range(len(self.inputs) + len(self.nodes))}
        for i, node in enumerate(self.nodes):
            for read in node.reads:
                if not isinstance(read, Constant):
                    found[read].append(i)
        for read in self.outputs:
            if not isinstance(read, Constant):
                found[read].append(-1)
        return found


class Rewriter(Values):
    """A graph that is built from another one, node by node: what each old value has become is looked up here."""

    nodes: list[Node]

    def __init__(self, inputs: Sequence[TensorFacts]) -> None:
        self.inputs, self.nodes = tuple(inputs), []
        self._became: dict[int, Read] = {v: v for v in range(len(self.inputs))}

    def read(self, old: Read) -> Read:
        """The new value of an old one."""
        return old if isinstance(old, Constant) else self._became[old]

    def add(self, node: Node) -> int:
        """Append a node whose reads are new values; returns its value."""
        self.nodes.append(node)
        return len(self.inputs) + len(self.nodes) - 1

    def let(self, old: int, new: Read) -> None:
        """Note what an old value has become."""
        self._became[old] = new

    def renewed(self, node: Node) -> Node:
        """An old node as it reads new values."""
        return dataclasses.replace(node, reads=tuple(self.read(r) for r in node.reads))

    def graph(self, outputs: Sequence[Read]) -> Graph:
        """The new graph, whose outputs are old values; nodes that nothing reads are left out."""
        return without_unread(Graph(self.inputs, tuple(self.nodes), tuple(self.read(o) for o in outputs)))


Rule = Callable[[Node, Rewriter], Node | Read]
"""The node in place of another, which reads values of the graph that is built, or a value that is there already."""


def rewritten(graph: Graph, rule: Rule, new: Rewriter | None = None) -> Graph:
    """A graph with what a rule makes of each node; `new` is its beginning, if there is one."""
    new = Rewriter(graph.inputs) if new is None else new
    for value, node in numbered(graph):
        found = rule(new.renewed(node), new)
        new.let(value, new.add(found) if isinstance(found, Node) else found)
    return new.graph(graph.outputs)


def numbered(graph: Graph) -> Iterator[tuple[int, Node]]:
    """Nodes with the number of the value that each gives."""
    return enumerate(graph.nodes, len(graph.inputs))


def without_unread(graph: Graph) -> Graph:
    """The graph without nodes that no output depends on, and with each node that repeats an earlier one left out; sums
    and products have their constant second."""
    needed = {o for o in graph.outputs if not isinstance(o, Constant)}
    for value, node in reversed(list(numbered(graph))):
        if value in needed:
            needed |= {r for r in node.reads if not isinstance(r, Constant)}
    new = Rewriter(graph.inputs)
    seen: dict[tuple[Any, ...], int] = {}
    for value, node in numbered(graph):
        if value not in needed:
            continue
        node = new.renewed(node)
        if node.op in ("add", "multiply") and node.constant(0) and not node.constant(1):
            node = dataclasses.replace(node, reads=node.reads[::-1])
        reads = tuple(r if isinstance(r, int) else ("constant", id(r.value)) for r in node.reads)
        key = (node.op, reads, node.shape, node.dtype, repr(sorted(node.attributes.items())))
        if key not in seen:
            seen[key] = new.add(node)
        new.let(value, seen[key])
    return Graph(graph.inputs, tuple(new.nodes), tuple(new.read(o) for o in graph.outputs))


def per_channel(value: Array, rank: int, axis: int = 1) -> Array | None:
    """The numbers of a constant by channel, if it has one for each channel of maps [1, C, H, W] (or of rows [1, C]) and
    is the same elsewhere: float32[C]; None otherwise. One number stands for itself, float32[1].

    Args:
        axis: of the channels; of rows it may be the last.
    """
    shape = (1,) * (rank - value.ndim) + value.shape
    by_channel = len(shape) == rank and all(e == 1 for a, e in enumerate(shape) if a != axis % rank)
    return np.asarray(value.reshape(-1), dtype=np.float32) if by_channel or value.size == 1 else None
