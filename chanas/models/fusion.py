"""Fusion: residual and activation after a product, squeeze-excite's gate or a normalisation with its activation before
it, in one operator with it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from chanas.models.graph import PRODUCTS, Constant, Graph, Node, Read, numbered, per_channel


@dataclass
class Chain:
    """A product with its neighbours; numbers are values of the graph.

    end             the value that all of it gives
    source          the value that it reads
    gate            the value [N, C, 1, 1] that its input is multiplied by; with a prologue numbers by channel
    prologue        the function of the input, times the gate, plus the shift, that is multiplied with the weights
    shift           numbers by channel
    residual        the value that is added, before the activation or after it
    """

    product: int
    end: int
    source: Read
    gate: Read | None = None
    prologue: str | None = None
    shift: Constant | None = None
    residual: Read | None = None
    residual_first: bool = False
    activation: str = "none"
    absorbed: list[int] = field(default_factory=list)


def find_chains(graph: Graph) -> dict[int, Chain]:
    """The chains of a graph by the values that they end in; every node is in one chain at most."""
    return _Fusion(graph).chains()


def is_product(node: Node) -> bool:
    """True of a convolution or product of matrices with weights that are known."""
    return node.op in PRODUCTS and node.constant(1) is not None and len(node.shape) <= 4 and node.dtype == "float32"


def keeps_rows(node: Node, before: tuple[int, ...]) -> bool:
    """True of a reshape that leaves rows of numbers as they are, [T, C] to [1, T, C] or back: the same in memory."""
    if node.op != "reshape":
        return False
    return len(node.shape) < 4 and len(before) < 4 and node.shape[-1:] == before[-1:]


def _adds_a_map(graph: Graph, node: Node) -> bool:
    """True of a sum of two different values of the same shape."""
    first, second = node.reads
    if isinstance(first, Constant) or isinstance(second, Constant) or first == second:
        return False
    return graph.shape_of(first) == graph.shape_of(second) == node.shape


def is_plain_pointwise(node: Node) -> bool:
    """True of a 1×1 convolution of all channels without stride and padding."""
    weight = node.constant(1)
    if node.op != "conv2d" or weight is None or weight.shape[2:] != (1, 1):
        return False
    a = node.attributes
    return set(a["strides"]) == {1} and not any(a["padding"]) and a["groups"] == 1


class _Fusion:
    """The search for chains; `taken` has the nodes that are in one already."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.readers, self.taken = graph, graph.readers(), set[int]()

    def chains(self) -> dict[int, Chain]:
        chains: dict[int, Chain] = {}
        for value, node in numbered(self.graph):
            if not is_product(node):
                continue
            chain = Chain(value, value, node.reads[0])
            self._extend_forward(chain)
            if is_plain_pointwise(node):
                self._take_gate(chain)
                self._take_prologue(chain)
            self.taken |= {value, *chain.absorbed}
            chains[chain.end] = chain
        return chains

    def _extend_forward(self, chain: Chain) -> None:
        """Take in an activation and a sum, in either order, as long as nothing else reads what is between."""
        has_activation = False
        while len(self.readers[chain.end]) == 1 and self.readers[chain.end][0] >= 0:
            index = self.readers[chain.end][0]
            number, node = index + len(self.graph.inputs), self.graph.nodes[index]
            if number in self.taken:
                return
            if keeps_rows(node, self.graph.shape_of(chain.end)):
                pass
            elif node.op == "activation" and not has_activation:
                chain.activation, has_activation = node.attributes["name"], True
                chain.residual_first = chain.residual is not None
            elif node.op == "add" and chain.residual is None and _adds_a_map(self.graph, node):
                chain.residual = node.reads[1] if node.reads[0] == chain.end else node.reads[0]
            else:
                return
            chain.absorbed.append(number)
            chain.end = number

    def _before(self, chain: Chain, op: str) -> Node | None:
        """The node that gives a chain's source, if it is of this operator and nothing else reads it."""
        if isinstance(chain.source, Constant) or chain.source in self.taken or len(self.readers[chain.source]) != 1:
            return None
        found = self.graph.node_of(chain.source)
        return found if found is not None and found.op == op else None

    def _take_gate(self, chain: Chain) -> None:
        """Take in the product with a gate per channel before a 1×1 convolution that alone reads it."""
        before = self._before(chain, "multiply")
        if before is None:
            return
        for x, gate in (before.reads, before.reads[::-1]):
            if isinstance(x, Constant) or isinstance(gate, Constant):
                return
            shape = self.graph.shape_of(x)
            if shape == before.shape and len(shape) == 4 and self.graph.shape_of(gate) == (*shape[:2], 1, 1) != shape:
                self._absorb(chain, x)
                chain.gate = gate
                return

    def _take_prologue(self, chain: Chain) -> None:
        """Take in an activation before a 1×1 convolution that alone reads it, of what may have been scaled and shifted
        by channel: a normalisation that nothing before it takes."""
        activation = self._before(chain, "activation")
        if activation is None or chain.gate is not None or len(activation.shape) != 4:
            return
        numbers = {"add": 0.0, "multiply": 1.0}
        found = {op: Constant(np.full(activation.shape[1], number, np.float32)) for op, number in numbers.items()}
        self._absorb(chain, activation.reads[0])
        for op in numbers:
            node = self._before(chain, op)
            constant = None if node is None else node.constant(1)
            by_channel = None if constant is None else per_channel(constant.value, 4)
            if node is None or by_channel is None or self.graph.shape_of(node.reads[0]) != activation.shape:
                continue
            found[op] = Constant(np.broadcast_to(by_channel, activation.shape[1]))
            self._absorb(chain, node.reads[0])
        chain.prologue, chain.gate, chain.shift = activation.attributes["name"], found["multiply"], found["add"]

    def _absorb(self, chain: Chain, source: Read) -> None:
        """Take in the node that gives a chain's source; what that node reads is the source then."""
        assert not isinstance(chain.source, Constant)
        chain.absorbed.append(chain.source)
        chain.source = source
