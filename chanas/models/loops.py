"""Operators whose loops depend on what they did before: what is scattered, summed up on the way, or found in order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import te, tirx

from chanas.models import elementwise
from chanas.models.graph import Node


def from_start(number: Any, extent: int) -> Any:
    """A place along an axis: negative ones count from the end, those beyond the ends stand for the ends."""
    number, end = number.astype("int64"), tirx.const(extent, "int64")
    forward = tirx.Select(number < 0, number + end, number)
    return tirx.max(tirx.min(forward, end - 1), tirx.const(0, "int64")).astype("int32")


def _loops(extents: Sequence[int], body: Callable[..., Any]) -> Any:
    """Nested loops around a statement that depends on their variables."""
    variables = [tirx.Var(f"i{n}", "int32") for n in range(len(extents))]
    found = body(*variables)
    for variable, extent in reversed(list(zip(variables, extents, strict=True))):
        found = tirx.For(variable, 0, int(extent), tirx.ForKind.SERIAL, found)
    return found


def _in_order(node: Node, reads: Sequence[Any], body: Callable[[Sequence[Any], Any], Sequence[Any]]) -> Any:
    """An output that statements write, one after the other."""

    def written(sources: Sequence[Any], outs: Sequence[Any]) -> Any:
        statements = list(body(sources, outs[0]))
        return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)

    return te.extern(node.shape or (1,), list(reads), written, name=node.op, dtype=node.dtype)


_COMBINED: Mapping[str, Callable[[Any, Any], Any]] = {
    "none": lambda _, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": elementwise.maximum,
    "min": elementwise.minimum,
}


def _scatter(node: Node, x: Any, numbers: Any, updates: Any, where: Callable[..., tuple[Any, ...]]) -> Any:
    combined = _COMBINED[node.attributes["reduction"]]

    def body(sources: Sequence[Any], out: Any) -> Sequence[Any]:
        start, places, new = sources

        def copied(*i: Any) -> Any:
            return tirx.BufferStore(out, tirx.BufferLoad(start, i), i)

        def put(*i: Any) -> Any:
            there = where(places, i)
            value = combined(tirx.BufferLoad(out, there), tirx.BufferLoad(new, i))
            return tirx.BufferStore(out, value, there)

        return _loops(x.shape, copied), _loops(updates.shape, put)

    return _in_order(node, (x, numbers, updates), body)


def scatter_elements(node: Node, lanes: int, x: Any, numbers: Any, updates: Any) -> Any:
    axis = node.attributes["axis"]

    def where(places: Any, i: Sequence[Any]) -> tuple[Any, ...]:
        return (*i[:axis], from_start(tirx.BufferLoad(places, i), int(x.shape[axis])), *i[axis + 1 :])

    return _scatter(node, x, numbers, updates, where)


def scatter_nd(node: Node, lanes: int, x: Any, numbers: Any, updates: Any) -> Any:
    rank, size = len(numbers.shape) - 1, int(numbers.shape[-1])

    def where(places: Any, i: Sequence[Any]) -> tuple[Any, ...]:
        found = (tirx.BufferLoad(places, [*i[:rank], k]) for k in range(size))
        return (*(from_start(f, int(x.shape[k])) for k, f in enumerate(found)), *i[rank:])

    return _scatter(node, x, numbers, updates, where)


def cumulative(node: Node, lanes: int, x: Any) -> Any:
    """Sums or products along an axis so far; `exclusive` of what is at the place itself, `reverse` from the end."""
    a, length = node.attributes, int(node.shape[node.attributes["axis"]])
    axis = a["axis"]
    both = _COMBINED["add" if node.op == "cumsum" else "mul"]
    first = tirx.const(0 if node.op == "cumsum" else 1, node.dtype)

    def body(sources: Sequence[Any], out: Any) -> Sequence[Any]:
        def step(*i: Any) -> Any:
            here = length - 1 - i[axis] if a["reverse"] else i[axis]
            back = here + 1 if a["reverse"] else here - 1
            safe = tirx.max(tirx.min(back, length - 1), 0)
            at, before = ((*i[:axis], p, *i[axis + 1 :]) for p in (here, safe))
            new = tirx.BufferLoad(sources[0], before if a["exclusive"] else at)
            if a["exclusive"]:
                value = tirx.if_then_else(i[axis] == 0, first, both(tirx.BufferLoad(out, before), new))
            else:
                value = tirx.if_then_else(i[axis] == 0, new, both(tirx.BufferLoad(out, before), new))
            return tirx.BufferStore(out, value, at)

        return [_loops(node.shape, step)]

    return _in_order(node, [x], body)


def topk(node: Node, lanes: int, x: Any) -> Any:
    """The places of the largest (or smallest) numbers along an axis, the best first, of equal ones the first."""
    axis, largest = node.attributes["axis"], node.attributes["largest"]
    extents = [int(e) for e in x.shape]
    length, k = extents[axis], int(node.shape[axis])
    zero = tirx.const(0, "int64")

    def body(sources: Sequence[Any], out: Any) -> Sequence[Any]:
        def at(i: Sequence[Any], number: Any) -> Any:
            inside = tirx.max(number, zero).astype("int32")
            return tirx.BufferLoad(sources[0], (*i[:axis], inside, *i[axis:]))

        def is_better(a: Any, b: Any) -> Any:
            return a > b if largest else a < b

        def rank(*i: Any) -> Any:
            rest = i[:-1]
            j = i[-1]
            here = (*rest[:axis], j, *rest[axis:])
            before = tirx.BufferLoad(out, (*rest[:axis], tirx.max(j - 1, 0), *rest[axis:]))
            t = tirx.Var("t", "int32")
            wide, best = t.astype("int64"), tirx.BufferLoad(out, here)
            value, last = at(rest, wide), at(rest, before)
            is_left = tirx.any(j == 0, is_better(last, value), tirx.all(last == value, wide > before))
            is_next = tirx.any(best < zero, is_better(value, at(rest, best)))
            found = tirx.Select(tirx.all(is_left, is_next), wide, best)
            search = tirx.For(t, 0, length, tirx.ForKind.SERIAL, tirx.BufferStore(out, found, here))
            return tirx.SeqStmt([tirx.BufferStore(out, tirx.const(-1, "int64"), here), search])

        return [_loops([*extents[:axis], *extents[axis + 1 :], k], rank)]

    return _in_order(node, [x], body)


def eliminated(node: Node, lanes: int, x: Any) -> Any:
    """Matrices [B, n, n] as Gauss's elimination leaves them, of each column the largest number first: [B, n + 2, n]
    with a row that has the sign of their rows' order, and one in which rows are held while they change places."""
    num, n = int(node.shape[0]), int(node.shape[2])

    def body(sources: Sequence[Any], out: Any) -> Sequence[Any]:
        def at(*i: Any) -> Any:
            return tirx.BufferLoad(out, i)

        def put(value: Any, *i: Any) -> Any:
            return tirx.BufferStore(out, value, i)

        def start(b: Any, i: Any, j: Any) -> Any:
            value = tirx.BufferLoad(sources[0], [b, tirx.min(i, n - 1), j])
            return put(tirx.if_then_else(i < n, value, tirx.const(1.0, node.dtype)), b, i, j)

        def swap(b: Any, k: Any, i: Any) -> Any:
            moves = ((n + 1, k), (k, i), (i, n + 1))
            rows = [_loops([n], lambda j, to=to, come=come: put(at(b, come, j), b, to, j)) for to, come in moves]
            turn = _loops([n], lambda j: put(at(b, n, j) * tirx.const(-1.0, node.dtype), b, n, j))
            is_larger = tirx.all(i > k, tirx.abs(at(b, i, k)) > tirx.abs(at(b, k, k)))
            return tirx.IfThenElse(is_larger, tirx.SeqStmt([*rows, turn]), None)

        def subtract(b: Any, k: Any, i: Any, j: Any) -> Any:
            new = at(b, i, j) - at(b, i, k) / at(b, k, k) * at(b, k, j)
            is_left = tirx.all(i > k, j > k, at(b, k, k) != tirx.const(0.0, node.dtype))
            return tirx.IfThenElse(is_left, put(new, b, i, j), None)

        def step(b: Any, k: Any) -> Any:
            swaps = _loops([n], functools.partial(swap, b, k))
            return tirx.SeqStmt([swaps, _loops([n, n], functools.partial(subtract, b, k))])

        return [_loops([num, n + 2, n], start), _loops([num, n], step)]

    return _in_order(node, [x], body)


IN_ORDER: Mapping[str, Callable[..., Any]] = {
    "scatter_elements": scatter_elements,
    "scatter_nd": scatter_nd,
    "cumsum": cumulative,
    "cumprod": cumulative,
    "eliminated": eliminated,
    "topk": topk,
}
"""These operators by name: they are neither fused nor scheduled."""
