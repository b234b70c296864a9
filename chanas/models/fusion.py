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
    readers = graph.readers()
    taken: set[int] = set()
    chains: dict[int, Chain] = {}
    for value, node in numbered(graph):
        if not is_product(node):
            continue
        chain = Chain(value, value, node.reads[0])
        _extend_forward(graph, chain, readers, taken)
        if is_plain_pointwise(node):
            _take_gate(graph, chain, readers, taken)
            _take_prologue(graph, chain, readers, taken)
        taken |= {value, *chain.absorbed}
        chains[chain.end] = chain
    return chains


def is_product(node: Node) -> bool:
    """True of a convolution or product of matrices with weights that are known."""
    return node.op in PRODUCTS and node.constant(1) is not None and len(node.shape) <= 4 and node.dtype == "float32"


def _extend_forward(graph: Graph, chain: Chain, readers: dict[int, list[int]], taken: set[int]) -> None:
    """Take in an activation and a sum, in either order, as long as nothing else reads what is between."""
    has_activation = False
    while len(readers[chain.end]) == 1 and readers[chain.end][0] >= 0:
        index = readers[chain.end][0]
        number, node = index + len(graph.inputs), graph.nodes[index]
        if number in taken:
            return
        if keeps_rows(node, graph.shape_of(chain.end)):
            pass
        elif node.op == "activation" and not has_activation:
            chain.activation, has_activation = node.attributes["name"], True
            chain.residual_first = chain.residual is not None
        elif node.op == "add" and chain.residual is None and _adds_a_map(graph, node):
            chain.residual = node.reads[1] if node.reads[0] == chain.end else node.reads[0]
        else:
            return
        chain.absorbed.append(number)
        chain.end = number


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


def _before(graph: Graph, chain: Chain, op: str, readers: dict[int, list[int]], taken: set[int]) -> Node | None:
    """The node that gives a chain's source, if it is of this operator and nothing else reads it."""
    if isinstance(chain.source, Constant) or chain.source in taken or len(readers[chain.source]) != 1:
        return None
    found = graph.node_of(chain.source)
    return found if found is not None and found.op == op else None


def _take_gate(graph: Graph, chain: Chain, readers: dict[int, list[int]], taken: set[int]) -> None:
    """Take in the product with a gate per channel before a 1×1 convolution that alone reads it."""
    before = _before(graph, chain, "multiply", readers, taken)
    if before is None:
        return
    for x, gate in (before.reads, before.reads[::-1]):
        if isinstance(x, Constant) or isinstance(gate, Constant):
            return
        shape = graph.shape_of(x)
        if shape == before.shape and len(shape) == 4 and graph.shape_of(gate) == (*shape[:2], 1, 1) != shape:
            _absorb(chain, x)
            chain.gate = gate
            return


def _take_prologue(graph: Graph, chain: Chain, readers: dict[int, list[int]], taken: set[int]) -> None:
    """Take in an activation before a 1×1 convolution that alone reads it, of what may have been scaled and shifted by
    channel: a normalisation that nothing before it takes."""
    activation = _before(graph, chain, "activation", readers, taken)
    if activation is None or chain.gate is not None or len(activation.shape) != 4:
        return
    numbers = {"add": 0.0, "multiply": 1.0}
    found = {op: Constant(np.full(activation.shape[1], number, np.float32)) for op, number in numbers.items()}
    _absorb(chain, activation.reads[0])
    for op in numbers:
        node = _before(graph, chain, op, readers, taken)
        constant = None if node is None else node.constant(1)
        by_channel = None if constant is None else per_channel(constant.value, 4)
        if node is None or by_channel is None or graph.shape_of(node.reads[0]) != activation.shape:
            continue
        found[op] = Constant(np.broadcast_to(by_channel, activation.shape[1]))
        _absorb(chain, node.reads[0])
    chain.prologue, chain.gate, chain.shift = activation.attributes["name"], found["multiply"], found["add"]


def _absorb(chain: Chain, source: Read) -> None:
    """Take in the node that gives a chain's source; what that node reads is the source then."""
    assert not isinstance(chain.source, Constant)
    chain.absorbed.append(chain.source)
    chain.source = source


def is_plain_pointwise(node: Node) -> bool:
    """True of a 1×1 convolution of all channels without stride and padding."""
    weight = node.constant(1)
    if node.op != "conv2d" or weight is None or weight.shape[2:] != (1, 1):
        return False
    a = node.attributes
    return set(a["strides"]) == {1} and not any(a["padding"]) and a["groups"] == 1
