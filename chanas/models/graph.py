"""A finished network as a graph of operators: plain data, with weights as arrays of numpy.

Values are numbered as in `chanas.operators`: the inputs first, then the output of each node. Nothing here knows TVM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chanas.models.sources.model import Array, TensorFacts


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


@dataclass(frozen=True, eq=False)
class Graph:
    """A network: its inputs, its nodes in an order in which they can run, and the values that it gives back."""

    inputs: tuple[TensorFacts, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Read, ...]

    def node_of(self, read: Read) -> Node | None:
        """The node that gives a value; None for inputs and constants."""
        if isinstance(read, Constant) or read < len(self.inputs):
            return None
        return self.nodes[read - len(self.inputs)]

    def shape_of(self, read: Read) -> tuple[int, ...]:
        """The shape of a value or a constant."""
        if isinstance(read, Constant):
            return read.shape
        node = self.node_of(read)
        return self.inputs[read].shape if node is None else node.shape

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


class Rewriter:
    """A graph that is built from another one, node by node: what each old value has become is looked up here."""

    def __init__(self, inputs: Sequence[TensorFacts]) -> None:
        self.inputs, self.nodes = tuple(inputs), list[Node]()
        self._became: dict[int, Read] = {v: v for v in range(len(self.inputs))}

    def read(self, old: Read) -> Read:
        """The new value of an old one."""
        return old if isinstance(old, Constant) else self._became[old]

    def reads(self, node: Node) -> tuple[Read, ...]:
        return tuple(self.read(r) for r in node.reads)

    def node_of(self, new: Read) -> Node | None:
        """The node that gives a new value; None for inputs and constants."""
        return None if isinstance(new, Constant) or new < len(self.inputs) else self.nodes[new - len(self.inputs)]

    def shape_of(self, new: Read) -> tuple[int, ...]:
        """The shape of a new value or a constant."""
        if isinstance(new, Constant):
            return new.shape
        node = self.node_of(new)
        return self.inputs[new].shape if node is None else node.shape

    def add(self, node: Node) -> int:
        """Append a node whose reads are new values; returns its value."""
        self.nodes.append(node)
        return len(self.inputs) + len(self.nodes) - 1

    def let(self, old: int, new: Read) -> None:
        """Note what an old value has become."""
        self._became[old] = new

    def copy(self, old: int, node: Node) -> None:
        """Take a node over as it is."""
        self.let(old, self.add(dataclasses.replace(node, reads=self.reads(node))))

    def graph(self, outputs: Sequence[Read]) -> Graph:
        """The new graph, whose outputs are old values; nodes that nothing reads are left out."""
        return without_unread(Graph(self.inputs, tuple(self.nodes), tuple(self.read(o) for o in outputs)))


def with_constant_second(node: Node) -> Node:
    """A node; a sum or product with its constant second."""
    if node.op in ("add", "multiply") and len(node.reads) == 2 and node.constant(0) and not node.constant(1):
        return dataclasses.replace(node, reads=node.reads[::-1])
    return node


def numbered(graph: Graph) -> Iterator[tuple[int, Node]]:
    """Nodes with the number of the value that each gives."""
    return enumerate(graph.nodes, len(graph.inputs))


def without_unread(graph: Graph) -> Graph:
    """The graph without nodes that no output depends on, and with each node that repeats an earlier one left out."""
    needed = {o for o in graph.outputs if not isinstance(o, Constant)}
    for value, node in reversed(list(numbered(graph))):
        if value in needed:
            needed |= {r for r in node.reads if not isinstance(r, Constant)}
    became: dict[int, int] = {v: v for v in range(len(graph.inputs))}
    nodes: list[Node] = []
    seen: dict[tuple[Any, ...], int] = {}

    def renamed(read: Read) -> Read:
        return read if isinstance(read, Constant) else became[read]

    for value, node in numbered(graph):
        if value not in needed:
            continue
        reads = tuple(renamed(r) for r in node.reads)
        key = (
            node.op,
            tuple(_identity(r) for r in reads),
            node.shape,
            node.dtype,
            repr(sorted(node.attributes.items())),
        )
        if key not in seen:
            nodes.append(dataclasses.replace(node, reads=reads))
            seen[key] = len(graph.inputs) + len(nodes) - 1
        became[value] = seen[key]
    return Graph(graph.inputs, tuple(nodes), tuple(renamed(o) for o in graph.outputs))


def _identity(read: Read) -> Any:
    return read if isinstance(read, int) else ("constant", id(read.value))


def per_channel(value: Array, rank: int) -> Array | None:
    """The numbers of a constant by channel, if it has one for each channel of maps [1, C, H, W] (or of rows [1, C]) and
    is the same elsewhere: float32[C]; None otherwise. One number stands for itself, float32[1]."""
    if value.size == 1:
        return np.asarray(value.reshape(1), dtype=np.float32)
    shape = (1,) * (rank - value.ndim) + value.shape
    if len(shape) != rank or any(extent != 1 for axis, extent in enumerate(shape) if axis != 1):
        return None
    return np.asarray(value.reshape(-1), dtype=np.float32)
