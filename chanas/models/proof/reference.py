"""Inputs of a network and its framework's outputs for them, with which compiled programs are compared.

Inputs are of several kinds (`chanas.network.inputs.KINDS`), as far as the framework's outputs for them are finite and
there is time to ask it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chanas.compiler.comparison import Draw, difference, largest_of
from chanas.core.arrays import Array
from chanas.errors import ModelError
from chanas.models.graph import Constant, Graph, numbered
from chanas.models.proof.rounding import Growth, allowed, growths, moved_answers, moved_inputs
from chanas.models.sources.model import OpenedModel
from chanas.network.inputs import KINDS, drawn_inputs
from chanas.operators.precision import INT8, Precision

_SECONDS = 10.0
"""Time for the framework's answers; the first one is waited for however long it takes."""
_ROUNDED = 2
"""Answers of the framework for inputs that are rounded at random."""
_MOST_BYTES = 1 << 28
"""Bytes of draws after which there are no more."""
_PASSED_ON = ("reshape", "astype", "permute_dims", "slice", "strided_slice", "broadcast_to", "concat", "where", "add")
"""Operators after which whole numbers are still indices; `add` and `where` make those before the first positive."""


@dataclass(frozen=True, eq=False)
class Reference:
    """The framework's answers with which every program of a network is compared; they are asked for once.

    growths   of rounding errors up to each value of the graph
    draws     at least one; programs are timed on the first
    unproven  names of outputs that are alike for other inputs: comparing them with the framework's says nothing
    """

    opened: OpenedModel
    graph: Graph
    growths: tuple[Growth, ...]
    draws: tuple[Draw, ...]
    unproven: tuple[str, ...] = ()

    @property
    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(output.shape for output in self.draws[0].outputs)

    def answer(self, inputs: Sequence[Array]) -> list[Array]:
        """The framework's outputs. It may write to what it is given, and to what it gives."""
        return [np.array(o) for o in self.opened.answer([x.copy() for x in inputs])]

    def rounded_to(self, precision: Precision, num_operators: int) -> Reference:
        """The reference of a program so many of whose operators compute in a precision of fewer bits.

        Numbers of floating-point outputs may be further off by the tolerance of whole networks, as a share of the
        largest, and by twice what rounding the inputs alone moves the framework's answer, times the root of the number
        of operators: each of them rounds as much.
        """
        if precision == INT8:  # what its numbers lose is found out with pictures, and no rounding error
            return dataclasses.replace(self, draws=tuple(map(_without_bounds, self.draws)))
        if precision not in self._moves:
            rng = np.random.default_rng(0)
            self._moves[precision] = [self._moved_by(precision, draw, rng) for draw in self.draws]
        factor, share = 2.0 * math.sqrt(num_operators), precision.network_tolerance

        def rounded(draw: Draw, moves: Sequence[float]) -> Draw:
            parts = zip(draw.outputs, draw.allowed, moves, strict=True)
            allowed = (
                a + np.float32(share * largest_of(o) + factor * m) if o.dtype.kind == "f" else a for o, a, m in parts
            )
            return dataclasses.replace(draw, allowed=tuple(allowed))

        return dataclasses.replace(self, draws=tuple(map(rounded, self.draws, self._moves[precision])))

    @functools.cached_property
    def _moves(self) -> dict[Precision, list[list[float]]]:
        """The largest move of each output in each draw, by the precisions that were asked for: a program is proven more
        than once."""
        return {}

    def _moved_by(self, precision: Precision, draw: Draw, rng: np.random.Generator) -> list[float]:
        """The largest move of each floating-point output where inputs are rounded; 0 of others."""
        moved = [self.answer(moved_inputs(draw.inputs, precision.units // 2, rng)) for _ in range(_ROUNDED)]

        def largest_move(i: int, output: Array) -> float:
            if output.dtype.kind != "f":
                return 0.0
            return float(np.nanmax(np.max([np.abs(answer[i] - output) for answer in moved], axis=0)))

        return [largest_move(i, output) for i, output in enumerate(draw.outputs)]

    def growth(self, output: int) -> Growth:
        """The growth of rounding errors up to an output."""
        read = self.graph.outputs[output]
        return Growth() if isinstance(read, Constant) else self.growths[read]


def _without_bounds(draw: Draw) -> Draw:
    """A draw for which any floating-point numbers are right."""
    pairs = zip(draw.outputs, draw.allowed, strict=True)
    largest = np.finfo(np.float32).max
    allowed = tuple(np.full_like(a, largest) if o.dtype.kind == "f" else a for o, a in pairs)
    return dataclasses.replace(draw, allowed=allowed)


def reference_of(opened: OpenedModel, graph: Graph, seed: int = 0) -> Reference:
    """Draw inputs and ask the framework for its outputs.

    Args:
        graph: of the opened network, simplified.

    Raises:
        ModelError: the framework can't run the network, its outputs are never numbers or differ from call to call, or
            one has no elements, so that there is nothing to compare with.
    """
    asking = _Asking(Reference(opened, graph, tuple(growths(graph)), ()), seed)
    finite: list[Draw] = []
    others: list[Draw] = []
    for name, inputs in asking.inputs():
        if (finite or others) and (asking.is_late or sum(d.nbytes for d in (*finite, *others)) > _MOST_BYTES):
            break
        draw = asking.draw(name, inputs)
        if draw is not None:
            (finite if all(np.isfinite(o).all() for o in draw.outputs) else others).append(draw)
    draws = finite or others
    if not draws:
        raise asking.error
    asking.check_repeatable(draws[0])
    unproven = tuple(map(opened.output_name, _unproven(draws)))
    return dataclasses.replace(asking.reference, draws=tuple(draws), unproven=unproven)


class _Asking:
    """The framework asked for its outputs, with a limit of time; `error` says why there are none."""

    def __init__(self, reference: Reference, seed: int) -> None:
        self.reference, self.seed = reference, seed
        self.opened, self.growth, self.answer = reference.opened, reference.growth, reference.answer
        self.can_move = any(facts.dtype.startswith("float") for facts in reference.opened.inputs)
        self.begun = time.monotonic()
        self.error = ModelError(
            "the network itself gives NaN or infinity for random inputs, so that its tuned program can't be compared "
            "with it; check its weights"
        )

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.begun > _SECONDS

    def inputs(self) -> Iterator[tuple[str, list[Array]]]:
        """Inputs of each kind, and in the end such with zeros for all whole numbers; none twice."""
        shapes = [(facts.shape, facts.dtype) for facts in self.opened.inputs]
        seen: list[list[Array]] = []
        tables, zeros = index_limits(self.reference.graph), list[int | None]([1] * len(shapes))
        for kind, limits in (*((kind, tables) for kind in KINDS), (KINDS[0], zeros)):
            found = drawn_inputs(kind, shapes, limits, self.seed)
            if not any(all(map(np.array_equal, found, other)) for other in seen):
                seen.append(found)
                yield kind, found

    def draw(self, name: str, inputs: Sequence[Array]) -> Draw | None:
        """Inputs with the framework's outputs; None where one of these has NaN or is infinite everywhere, and where the
        framework refuses the inputs."""
        try:
            outputs = self.answer(inputs)
        except Exception as error:  # whatever a framework raises for an index beyond a table
            self.error = (
                error if isinstance(error, ModelError) else ModelError(f"{self.opened.name} can't be run: {error}")
            )
            return None
        if not all(o.size for o in outputs):
            raise ModelError(
                "an output of the network has no elements, so that there is nothing to compare; export it without"
            )
        if any(np.isnan(o).any() or not np.isfinite(o).any() for o in outputs):
            return None
        asked = moved_answers(self.answer, inputs, self.seed) if self.can_move else iter(())
        moved = []
        while not self.is_late and (found := next(asked, None)) is not None:
            moved.append(found)
        return Draw(
            name,
            tuple(inputs),
            tuple(outputs),
            tuple(allowed(o, [m[i] for m in moved], self.growth(i), not self.can_move) for i, o in enumerate(outputs)),
        )

    def check_repeatable(self, draw: Draw) -> None:
        """Ask once more, if there is time.

        Raises:
            ModelError: the outputs are others.
        """
        if self.is_late:
            return
        for i, (again, before) in enumerate(zip(self.answer(draw.inputs), draw.outputs, strict=True)):
            if difference(again, before, allowed(before, [], self.growth(i))).excess > 1.0:
                raise ModelError(
                    f"output {self.opened.output_name(i)} of {self.opened.name} is another one when the network is run "
                    "again with the same inputs: it draws random numbers, or keeps a state between calls; export it "
                    "without, or with the state as an input and an output"
                )


def _unproven(draws: Sequence[Draw]) -> list[int]:
    """Indices of the outputs about which a comparison says nothing: the framework's own for other inputs would pass for
    them, as zeros do that a last layer begins with."""
    first, others = draws[0], draws[1:]

    def passes(i: int, other: Draw) -> bool:
        return difference(other.outputs[i], first.outputs[i], first.allowed[i]).excess <= 1.0

    return [i for i in range(len(first.outputs)) if others and all(passes(i, other) for other in others)]


def index_limits(graph: Graph) -> list[int | None]:
    """Limits of the whole numbers of each input, since they choose rows of tables; None where they don't."""
    limits: list[int | None] = []
    for number in range(len(graph.inputs)):
        carried, found = {number}, list[int]()
        for value, node in numbered(graph):
            places = [r for r in node.reads if not isinstance(r, Constant) and r in carried]
            if not places:
                continue
            shape, a = graph.shape_of(node.reads[0]), node.attributes
            if node.op in ("take", "gather_elements") and node.reads[1] in places:
                found.append(shape[a["axis"]])
            elif node.op == "gather_nd" and node.reads[1] in places:
                num = graph.shape_of(node.reads[1])[-1]
                found.append(min(shape[a["batch_dims"] : a["batch_dims"] + num]))
            elif node.op in _PASSED_ON and "int" in node.dtype:
                carried.add(value)
        limits.append(min(found) if found and "int" in graph.inputs[number].dtype else None)
    return limits
