"""A node of ONNX as the table of operators sees it, and the table's decorator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chanas.core.arrays import Array
from chanas.errors import ModelError
from chanas.models.graph import Constant, Read

if TYPE_CHECKING:
    from chanas.models.reading.making import Maker

_MAX_STEPS = 1024  # of a loop that is written out


@dataclass(frozen=True, eq=False)
class Listed:
    """A sequence of values; operators on sequences alone read it."""

    values: tuple[Read, ...]


Given = Read | Listed
"""The value, or the sequence of values, that a name in a file stands for."""


@dataclass(frozen=True, eq=False)
class Call:
    """A node that an entry reads.

    op       the operator
    place    its name for people: the node's, or its first output's
    opset    version of the operator set that the file was written for
    inputs   values, None where an optional one is left out
    given    attributes of the node by name
    outputs  the number of outputs that anything reads, up to the last one that is
    make     the graph that is built
    body     the outputs of a graph in an attribute, for values of its inputs
    """

    op: str
    place: str
    opset: int
    inputs: tuple[Given | None, ...]
    given: Mapping[str, Any]
    outputs: int
    make: Maker
    body: Callable[[Any, Sequence[Given]], list[Given]]

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default."""
        return self.given.get(name, default)

    def has(self, position: int) -> bool:
        """True if an input is given."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def value(self, position: int) -> Given:
        """A value or a sequence that the operator needs.

        Raises:
            ModelError: it is not given.
        """
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            raise self.refused(f"has no input {position}")
        return found

    def input(self, position: int) -> Read:
        """A value that the operator needs.

        Raises:
            ModelError: it is not given, or a sequence.
        """
        found = self.value(position)
        if isinstance(found, Listed):
            raise self.refused(f"has a sequence as input {position}")
        return found

    def items(self, position: int) -> tuple[Read, ...]:
        """The values of a sequence.

        Raises:
            ModelError: it is not given, or no sequence.
        """
        found = self.inputs[position] if position < len(self.inputs) else None
        if not isinstance(found, Listed):
            raise self.refused(f"has no sequence as input {position}")
        return found.values

    def shape(self, position: int) -> tuple[int, ...]:
        """The shape of an input."""
        return self.make.shape_of(self.input(position))

    def known(self, position: int, what: str) -> Array:
        """An input that has to be known before the network runs.

        Raises:
            ModelError: it is computed from the network's input.
        """
        found = self.input(position)
        if not isinstance(found, Constant):
            raise self.refused(
                f"takes its {what} from the network's input; a network is tuned for fixed shapes: export it with these"
            )
        return found.value

    def whole(self, position: int, what: str) -> tuple[int, ...]:
        """Whole numbers that have to be known, as `known` says."""
        return tuple(int(n) for n in self.known(position, what).ravel())

    def known_number(self, position: int, what: str) -> int:
        """A whole number that has to be known, as `known` says."""
        return self.whole(position, what)[0]

    def known_or(self, position: int, what: str, default: Any) -> Any:
        """The value as `known` gives it, or a default where it is left out."""
        return self.known(position, what) if self.has(position) else default

    def numbers(self, name: str, position: int, what: str) -> tuple[int, ...] | None:
        """Whole numbers that are an attribute in older operator sets and an input in newer ones; None: neither."""
        if self.has(position):
            return self.whole(position, what)
        found = self.given.get(name)
        return None if found is None else tuple(int(n) for n in found)

    def axis(self, name: str, default: int, rank: int) -> int:
        """An attribute that is an axis, counted from the front.

        Raises:
            ModelError: there is no such axis.
        """
        return self.in_range(int(self.attribute(name, default)), rank)

    def in_range(self, axis: int, rank: int) -> int:
        """An axis counted from the front.

        Raises:
            ModelError: there is no such axis.
        """
        if not -rank <= axis < max(rank, 1):
            raise self.refused(f"has axis {axis}, of a value with {rank} axes")
        return axis % max(rank, 1)

    def choice(self, name: str, default: str, known: Sequence[str]) -> str:
        """An attribute that is one of some words.

        Raises:
            ModelError: it is another one.
        """
        found = str(self.attribute(name, default))
        if found not in known:
            raise self.refused(f"has {name} {found!r}; known: {', '.join(known)}")
        return found

    def check_steps(self, num: int) -> None:
        """Check that a loop has few enough steps to be written out.

        Raises:
            ModelError: it has more.
        """
        if num > _MAX_STEPS:
            raise self.refused(
                f"has more than {_MAX_STEPS} steps, the most that are written out; give a shorter --shape"
            )

    def refused(self, why: str) -> ModelError:
        """The error about this node: `why` goes on after its operator and its name."""
        return ModelError(f"{self.op} (node {self.place}) {why}")


Entry = Callable[[Call], "Given | Sequence[Given]"]


@dataclass(frozen=True)
class Operator:
    """An entry of the table: how an operator is read, and the attributes that this looks at, or that say nothing about
    what it computes."""

    read: Entry
    attributes: frozenset[str]


TABLE: dict[str, Operator] = {}
"""All operators by name."""


def reads(*names: str, attributes: Sequence[str] = ()) -> Callable[[Entry], Entry]:
    """Register the entry of operators. Before operator set 6 `consumed_inputs` said what may be written to."""

    def register(entry: Entry) -> Entry:
        TABLE.update(dict.fromkeys(names, Operator(entry, frozenset([*attributes, "consumed_inputs"]))))
        return entry

    return register


def read_as(call: Call, op: str, inputs: Sequence[Read], given: Mapping[str, Any]) -> Read:
    """The output of another operator of one output, in place of a node's own."""
    found = TABLE[op].read(dataclasses.replace(call, op=op, inputs=tuple(inputs), given=given))
    assert isinstance(found, int | Constant)
    return found
