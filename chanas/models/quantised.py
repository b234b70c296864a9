"""Networks that are quantised already: their roundings taken out of the graph, and what whole numbers stand for.

A file says by QuantizeLinear and DequantizeLinear, one behind the other, that a value is rounded to a grid: with one
scale and one zero point, to uint8, or to int8, whose numbers are ours less 128. The graph without these roundings is
one of operators that fuse as any others do; the values that they stood on have the file's grids, and weights are the
file's whole numbers. What is rounded in the middle of what fuses, such as a sum before its residual is added, and what
is passed on in float32, is not rounded then.

Quantisers leave an activation out where the rounding that follows does the same: a value that comes of no activation,
and whose grid begins at 0, has a relu there again, or a relu6 where the grid ends by 6.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from chanas.compiler.program import OtherOperation, Program
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError
from chanas.models.activations import name_activation
from chanas.models.channels_last import channels_first
from chanas.models.folding import keep_axes, simplify
from chanas.models.graph import PRODUCTS, Constant, Graph, Node, Read, Rewriter, Values, numbered, rewritten
from chanas.models.layouts import choices_in
from chanas.models.lowering import MAX_IMAGE_CHANNELS, lower
from chanas.operators.quantised import Grid, exact_weights, fits_pairs

_SHIFTS = {"uint8": 0, "int8": 128}
"""Types of whole numbers, and how much less theirs are than those of a grid."""
_PRODUCTS = (*PRODUCTS, "conv", "conv_transpose")
_NEVER_NEGATIVE = ("softmax", "abs", "exp")
_PASSING_ON = (
    *("reshape", "permute_dims", "broadcast_to", "slice", "strided_slice", "concat", "shuffle", "take", "repeat"),
    *("pad", "max_pool2d", "avg_pool2d", "mean", "max", "multiply"),
)
"""Operators that give no negative number where they read none."""
_MOVES = ("reshape", "permute_dims", "max_pool2d")
"""Operators of one input that give some of the numbers which they read."""
_MOST, _SIX = 255, 6.0


@dataclass(frozen=True, eq=False)
class QuantisedGraph:
    """A quantised network without its roundings.

    graph    simplified
    grids    of its values, by their names
    rounded  names of values that are rounded in float32 as the file says: by channel, to other types than whole numbers
             of eight bits, or to a second grid
    """

    graph: Graph
    grids: Mapping[str, Grid]
    rounded: tuple[str, ...]


def without_roundings(graph: Graph) -> QuantisedGraph | None:
    """A network without the roundings that its file has of values, which are left where it reads a picture and at its
    outputs; None where it rounds none to a grid.

    Args:
        graph: as it was read, not simplified.
    """
    return _Roundings(graph).found()


@dataclass(frozen=True, eq=False)
class QuantisedProgram:
    """The program of a quantised network, with the file's grids and whole weights.

    able      numbers of the operators that can be in int8
    too_wide  how many can't, as pairs of their weights take more than 16 bits on a processor that adds them up in these
    inexact   how many can't, as their weights are no whole numbers of eight bits
    rounded   as `QuantisedGraph`
    """

    program: Program
    able: tuple[int, ...]
    too_wide: int
    inexact: int
    rounded: tuple[str, ...]


def lower_quantised(found: QuantisedGraph, own: HardwareTarget, device: HardwareTarget) -> QuantisedProgram:
    """The program of a quantised network.

    Args:
        own: the device in float32.
        device: the same in int8.

    Raises:
        ConfigError: no operator can be in int8.
    """
    program = lower(found.graph, own)
    names = {**dict(enumerate(facts.name for facts in found.graph.inputs)), **program.names}
    grids = {number: found.grids[name] for number, name in names.items() if name in found.grids}
    program = dataclasses.replace(program, grids=_passed_on(program, grids))
    tuned = program.tuned_numbers()
    able = [number for number in tuned if choices_in(program, number, device)]
    whole, too_wide, inexact = {}, 0, 0
    for number in able:
        weight, workload = tuned[number].weight, tuned[number].choices[0]
        if weight is None or workload.reads_image:
            continue
        exact = exact_weights(weight)
        if exact is None:
            inexact += 1
        elif not (device.has_dots or workload.is_channelwise or fits_pairs(exact[0])):
            too_wide += 1
        else:
            whole[number] = exact
    program = dataclasses.replace(program, weights=whole)
    able = [number for number in able if choices_in(program, number, device)]
    if not able:
        raise ConfigError(
            f"no operator of the network can be in int8 ({too_wide} have pairs of weights that take more than 16 "
            f"bits, {inexact} weights that are no whole numbers of eight bits); tune it without --dtype int8"
        )
    return QuantisedProgram(program, tuple(able), too_wide, inexact, found.rounded)


# ---- roundings of a graph --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Rounding:
    """A value, the grid that a node rounds it to, and the name of its whole numbers; moves are what they went through
    since, which floats may go through before as well."""

    value: int
    grid: Grid
    name: str
    moves: tuple[Node, ...]


class _Roundings:
    """A graph built anew without roundings.

    grids           of its values, by their names
    kept            names of whole numbers that are rounded to as the file does
    behind          values that come of products
    activated       values of activations, and what comes of these alone: none was left out behind them
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = _with_names(channels_first(rewritten(graph, keep_axes)))
        self.new = Rewriter(graph.inputs)
        self.grids: dict[str, Grid] = {}
        self.kept, self.behind, self.activated = set[str](), set[int](), set[int]()

    def found(self) -> QuantisedGraph | None:
        outputs = set(self.graph.outputs)
        for value, node in numbered(self.graph):
            node = self.new.renewed(node)
            rounding = _rounding(node, self.new)
            made: Node | Read = node if rounding is None else self._instead(node, rounding, value in outputs)
            made = name_activation(made, self.new) if isinstance(made, Node) else made
            self.new.let(value, self._added(made) if isinstance(made, Node) else made)
        graph = self.new.graph(self.graph.outputs)
        if not self.grids:
            return None
        rounded = [node.name for node in graph.nodes if _rounded(node, graph) is not None]
        left = tuple(name for name in rounded if name not in self.kept)
        return QuantisedGraph(simplify(graph), self.grids, left)

    def _added(self, node: Node) -> int:
        number = self.new.add(node)
        reads = {read for read in node.reads if isinstance(read, int)}
        if node.op in _PRODUCTS or reads & self.behind:
            self.behind.add(number)
        passes = node.op in _PASSING_ON and reads <= self.activated
        passes = passes and all(r.value.min(initial=0) >= 0 for r in node.reads if isinstance(r, Constant))
        low = node.attributes["low"] if node.op == "clip" else None
        if passes or node.op in ("activation", *_NEVER_NEGATIVE) or (low is not None and low >= 0):
            self.activated.add(number)
        return number

    def _instead(self, node: Node, rounding: _Rounding, is_output: bool) -> Node | Read:
        """The value that a rounding stands on, or an activation of it, in place of the last node; or that node."""
        read, grid = rounding.value, rounding.grid
        shape = self.new.shape_of(read)
        is_picture = read not in self.behind and len(shape) == 4 and shape[1] <= MAX_IMAGE_CHANNELS
        if is_output or is_picture:
            self.kept.add(rounding.name)
            self.grids[node.name] = grid
            return node
        found = self._on_grid(read, grid, node.name)
        if found is None:
            return node
        for move in rounding.moves:
            read = self._added(found) if isinstance(found, Node) else found
            found = dataclasses.replace(move, reads=(read,), dtype=node.dtype, name=f"{move.name} of floats")
            self.grids[found.name] = grid
        return found

    def _on_grid(self, value: int, grid: Grid, name: str) -> Node | int | None:
        """The value, or an activation of it of the given name, that has a grid now; None where it has another one."""
        before = self.new.node_of(value)
        if grid.zero == 0 and before is not None and value not in self.activated:
            high = _SIX if _MOST * grid.step <= _SIX + grid.step / 2 else None
            self.grids[name] = grid
            return Node("clip", (value,), self.new.shape_of(value), "float32", {"low": 0.0, "high": high}, name)
        own = self.new.inputs[value].name if before is None else before.name
        return value if self.grids.setdefault(own, grid) == grid else None


def _with_names(graph: Graph) -> Graph:
    """The graph with a name for each node that is its own alone."""
    times = Counter(node.name for node in graph.nodes)
    nodes = [
        node if node.name and times[node.name] == 1 else dataclasses.replace(node, name=f"{node.op} #{value}")
        for value, node in numbered(graph)
    ]
    return dataclasses.replace(graph, nodes=tuple(nodes))


def _rounding(node: Node, graph: Values) -> _Rounding | None:
    """The rounding that ends in a node: step · (number − zero) of a value's whole number on the same grid."""
    constant = node.constant(1) if node.op == "multiply" else None
    step = None if constant is None else constant.scalar
    if step is None or not 0.0 < step < math.inf:
        return None
    zero, source = _shifted("subtract", node.reads[0], graph)
    cast = graph.node_of(source)
    number = None if cast is None or cast.op != "astype" or cast.dtype != "float32" else graph.node_of(cast.reads[0])
    moves: list[Node] = []
    while number is not None and number.op in _MOVES:
        moves.insert(0, number)
        number = graph.node_of(number.reads[0])
    rounded = None if number is None else _rounded(number, graph)
    if number is None or number.dtype not in _SHIFTS or rounded is None or zero is None or rounded[1:] != (step, zero):
        return None
    grid = Grid(step, int(zero) + _SHIFTS[number.dtype])
    return _Rounding(rounded[0], grid, number.name, tuple(moves)) if isinstance(rounded[0], int) else None


def _rounded(node: Node, graph: Values) -> tuple[Read, float | None, float | None] | None:
    """The value that a node gives as whole numbers, its step and its zero, None where these are not one number; None of
    any other node."""
    clip = graph.node_of(node.reads[0]) if node.op == "astype" and node.dtype != "float32" else None
    if clip is None or clip.op != "clip":
        return None
    limits = np.iinfo(node.dtype)
    if (clip.attributes["low"], clip.attributes["high"]) != (limits.min, limits.max):
        return None
    zero, source = _shifted("add", clip.reads[0], graph)
    nearest = graph.node_of(source)
    divided = None if nearest is None or nearest.op != "round" else graph.node_of(nearest.reads[0])
    if divided is None or divided.op != "divide":
        return None
    step = divided.constant(1)
    return divided.reads[0], None if step is None else step.scalar, zero


def _shifted(op: str, read: Read, graph: Values) -> tuple[float | None, Read]:
    """The number that is added or subtracted last, and the value that it is added to: None where it is more than one, 0
    where there is none."""
    node = graph.node_of(read)
    if node is None or node.op != op:
        return 0.0, read
    second = node.constant(1)
    return (None if second is None else second.scalar), node.reads[0]


# ---- grids of a program ----------------------------------------------------------------------------------------------
def _passed_on(program: Program, grids: Mapping[int, Grid]) -> dict[int, Grid]:
    """The grids, with those of values that are the same numbers in another form: behind one that has a grid, and before
    it where nothing else reads what is there."""
    found = dict(grids)
    before = {n: _same_numbers(o) for n, o in enumerate(program.operations, len(program.inputs))}
    readers: dict[int, list[int]] = {}
    for number, operation in enumerate(program.operations, len(program.inputs)):
        for read in operation.reads:
            if isinstance(read, int):
                readers.setdefault(read, []).append(number)
    for number in reversed(before):
        source = before[number]
        if source is not None and number in found and all(before[r] is not None for r in readers[source]):
            found.setdefault(source, found[number])
    for number, source in before.items():
        if source in found:
            found.setdefault(number, found[source])
    return found


def _same_numbers(operation: object) -> int | None:
    """The value whose numbers an operation only gives another form; None of any other operation."""
    if not isinstance(operation, OtherOperation) or not (operation.is_change or operation.name == "reshape"):
        return None
    read = operation.reads[0] if len(operation.reads) == 1 else None
    return read if isinstance(read, int) else None
