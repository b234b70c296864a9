"""Branches and loops, written out: the branch that is taken, and each round of what goes round a known number of times.

Whether a loop goes on has to be known in each round, as it is where its body only counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from chanas.models.graph import Constant, Read
from chanas.models.reading.call import Call, Given, Listed, reads
from chanas.models.reading.making import constant


@reads("If", attributes=["then_branch", "else_branch"])
def _if(call: Call) -> Sequence[Given]:
    return call.body(call.attribute("then_branch" if _known(call, call.input(0), "branch") else "else_branch"), [])


@reads("Loop", attributes=["body"])
def _loop(call: Call) -> Sequence[Given]:
    """Values that go round, at the end, and those that each round gives, one after the other."""
    graph = call.attribute("body")
    limit = _known(call, call.input(0), "loop") if call.has(0) else None
    goes_on: Given = call.input(1) if call.has(1) else constant(True, "bool")
    state = [call.value(i) for i in range(2, len(call.inputs))]
    given: list[list[Given]] = [[] for _ in range(len(graph.output) - 1 - len(state))]
    num = 0
    while (limit is None or num < limit) and _known(call, goes_on, "loop"):
        call.check_steps(num + 1)
        goes_on, *found = call.body(graph, [constant(num, "int64"), goes_on, *state])
        state = found[: len(state)]
        for values, value in zip(given, found[len(state) :], strict=True):
            values.append(value)
        num += 1
    if given and not num:
        raise call.refused("is a loop of no rounds, whose outputs have no shape")
    return [*state, *(_stacked(call, values, 0) for values in given)]


@reads(
    "Scan",
    attributes=[
        "body",
        "directions",
        "num_scan_inputs",
        "scan_input_axes",
        "scan_input_directions",
        "scan_output_axes",
        "scan_output_directions",
    ],
)
def _scan(call: Call) -> Sequence[Given]:
    """Values that go round, at the end, and those of each round, along an axis of theirs.

    Before operator set 9 all have one more axis in front, of sequences that go through the loop alone.
    """
    values = [call.input(i) for i in range(call.opset < 9, len(call.inputs))]
    if call.opset >= 9:
        return _scanned(call, values)
    if call.has(0):
        raise call.refused("has lengths of sequences, which are not there")
    make, num = call.make, call.make.shape_of(values[0])[0]
    alone = [[make.without_axis(make.slice(v, 0, n, 1), 0) for v in values] for n in range(num)]
    return [_stacked(call, parts, 0) for parts in zip(*(_scanned(call, own) for own in alone), strict=True)]


def _scanned(call: Call, values: Sequence[Read]) -> list[Given]:
    make, graph, num = call.make, call.attribute("body"), int(call.attribute("num_scan_inputs"))
    state: list[Given] = list(values[: len(values) - num])
    sources = values[len(values) - num :]
    ways = call.attribute("scan_input_directions" if call.opset >= 9 else "directions", (0,) * num)
    axes = [
        call.in_range(a, make.rank(s))
        for a, s in zip(call.attribute("scan_input_axes", (0,) * num), sources, strict=True)
    ]
    lengths = {make.shape_of(s)[a] for a, s in zip(axes, sources, strict=True)}
    if len(lengths) != 1 or 0 in lengths:
        raise call.refused(f"goes along axes of {sorted(lengths)} numbers; expected one length above 0")
    (length,) = lengths
    call.check_steps(length)
    num_given = len(graph.output) - len(state)
    given: list[list[Given]] = [[] for _ in range(num_given)]
    for t in range(length):
        parts = [
            make.without_axis(make.slice(s, a, length - 1 - t if way else t, 1), a)
            for s, a, way in zip(sources, axes, ways, strict=True)
        ]
        found = call.body(graph, [*state, *parts])
        state = found[: len(state)]
        for rounds, value in zip(given, found[len(state) :], strict=True):
            rounds.append(value)
    backwards = call.attribute("scan_output_directions", (0,) * num_given)
    into = call.attribute("scan_output_axes", (0,) * num_given)
    outs = [
        _stacked(call, rounds[::-1] if way else rounds, a)
        for rounds, a, way in zip(given, into, backwards, strict=True)
    ]
    return [*state, *outs]


def _known(call: Call, value: Given, what: str) -> int:
    """The number, or the truth, that decides where a branch or a loop goes.

    Raises:
        ModelError: it is computed from the network's input.
    """
    if not isinstance(value, Constant):
        raise call.refused(
            f"is a {what} that depends on the network's input, which can't be tuned as one program; export the network "
            "without"
        )
    return int(value.value.ravel()[0])


def _stacked(call: Call, rounds: Sequence[Given], axis: int) -> Read:
    """Values of one shape along a new axis."""
    values = [r for r in rounds if not isinstance(r, Listed)]
    if len(values) != len(rounds):
        raise call.refused("gives a sequence in each round, which is not there")
    return call.make.stack(values, call.in_range(axis, call.make.rank(values[0]) + 1))
