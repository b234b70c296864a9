"""Fusion: residual and activation after a product, squeeze-excite's gate before it, in one operator with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from chanas.prescheduler.models.graph import PRODUCTS, Constant, Graph, Node, Read, numbered


@dataclass
class Chain:
    """A product with its neighbours; numbers are values of the graph.

    end             the value that all of it gives
    source          the value that it reads
    gate            the value [N, C, 1, 1] that its input is multiplied by
    residual        the value that is added, before the activation or after it
    """

    product: int
    end: int
    source: Read
    gate: Read | None = None
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
        _take_gate(graph, chain, node, readers, taken)
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


def _take_gate(graph: Graph, chain: Chain, node: Node, readers: dict[int, list[int]], taken: set[int]) -> None:
    """Take in the product with a gate per channel before a 1×1 convolution that alone reads it."""
    before = graph.node_of(chain.source)
    if before is None or isinstance(chain.source, Constant) or before.op != "multiply" or chain.source in taken:
        return
    if len(readers[chain.source]) != 1 or not is_plain_pointwise(node):
        return
    for x, gate in (before.reads, before.reads[::-1]):
        if isinstance(x, Constant) or isinstance(gate, Constant):
            return
        shape = graph.shape_of(x)
        if shape == before.shape and len(shape) == 4 and graph.shape_of(gate) == (*shape[:2], 1, 1) != shape:
            chain.absorbed.append(chain.source)
            chain.source, chain.gate = x, gate
            return


def is_plain_pointwise(node: Node) -> bool:
    """True of a 1×1 convolution of all channels without stride and padding."""
    weight = node.constant(1)
    if node.op != "conv2d" or weight is None or weight.shape[2:] != (1, 1):
        return False
    a = node.attributes
    return set(a["strides"]) == {1} and not any(a["padding"]) and a["groups"] == 1
