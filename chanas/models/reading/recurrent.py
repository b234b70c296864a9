"""LSTM, GRU and RNN of known length, as loops that are written out: a step is a few products of matrices.

Notation of ONNX: T steps, N sequences, D directions, H numbers of a state; W multiplies the input, R the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chanas.models.graph import Constant, Read
from chanas.models.reading.call import Call, read_as, reads
from chanas.models.reading.making import constant

_ATTRIBUTES = (
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "layout",
    "output_sequence",
)
Function = Callable[[Read], Read]


@dataclass(frozen=True, eq=False)
class _Direction:
    """Values that one direction of a layer reads.

    x         rows [T][N, gates · H]: products with W and the biases that can be added to them at once
    r         R transposed, [H, gates · H]
    biases    of R's products, [gates · H]
    h, c      states at the start, [N, H]
    peepholes [3 · H]
    """

    call: Call
    x: Sequence[Read]
    r: Read
    biases: Read | None
    h: Read
    c: Read
    peepholes: Read | None
    functions: Sequence[Function]
    hidden: int

    def gate(self, rows: Read, number: int) -> Read:
        """The part of rows that is one gate's."""
        return self.call.make.slice(rows, 1, number * self.hidden, self.hidden)


Step = Callable[[_Direction, Read, Read, Read], tuple[Read, Read]]


def _layer(call: Call, num_gates: int, names: Sequence[str], step: Step, *, added_to_x: bool) -> list[Read]:
    """Y [T, D, N, H], Y_h [D, N, H] and Y_c [D, N, H], or with the sequences first (`layout`)."""
    make = call.make
    is_first = bool(call.attribute("layout", 0))
    x = make.transpose(call.input(0), (1, 0, 2)) if is_first else call.input(0)
    length, num, _ = make.shape_of(x)
    call.check_steps(length)
    hidden = int(call.attribute("hidden_size", call.shape(2)[-1]))
    way = call.choice("direction", "forward", ("forward", "reverse", "bidirectional"))
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[way]
    lengths = _lengths(call, length)
    outs: list[list[Read]] = []
    last_h: list[Read] = []
    last_c: list[Read] = []
    for d, is_backward in enumerate(backwards):
        direction = _direction(call, x, d, num_gates, _functions(call, names, d), hidden, added_to_x, is_first)
        h, c = direction.h, direction.c
        found: list[Read] = [constant(0.0)] * length
        for t in reversed(range(length)) if is_backward else range(length):
            new_h, new_c = step(direction, direction.x[t], h, c)
            out = new_h
            if lengths is not None:  # a sequence that has ended keeps its state and gives zeros
                is_on = make.each("greater", lengths, make.number(t, lengths))
                out = make.each("where", is_on, new_h, make.number(0.0, new_h))
                new_h, new_c = make.each("where", is_on, new_h, h), make.each("where", is_on, new_c, c)
            h, c, found[t] = new_h, new_c, out
        outs.append(found)
        last_h.append(h)
        last_c.append(c)
    ways = len(backwards)
    steps = [
        make.reshape(make.concat([outs[d][t] for d in range(ways)], 0), (1, ways, num, hidden)) for t in range(length)
    ]
    y = make.concat(steps, 0)
    ends = [make.reshape(make.concat(parts, 0), (ways, num, hidden)) for parts in (last_h, last_c)]
    if is_first:
        y, ends = make.transpose(y, (2, 0, 1, 3)), [make.transpose(e, (1, 0, 2)) for e in ends]
    return [y, *ends]


def _lengths(call: Call, length: int) -> Read | None:
    """Lengths of the sequences, [N, 1], where some may be shorter."""
    if not call.has(4):
        return None
    found = call.input(4)
    if isinstance(found, Constant) and (found.value >= length).all():
        return None
    return call.make.reshape(found, (*call.shape(4), 1))


def _direction(
    call: Call, x: Read, d: int, num_gates: int, functions: Sequence[Function], hidden: int, added: bool, is_first: bool
) -> _Direction:
    make = call.make
    length, num, size = make.shape_of(x)

    def own(position: int) -> Read:
        value = call.input(position)
        if is_first and position in (5, 6):
            value = make.transpose(value, (1, 0, 2))
        return make.reshape(make.slice(value, 0, d, 1), make.shape_of(value)[1:])

    w, r = (make.transpose(own(i), (1, 0)) for i in (1, 2))
    wide = num_gates * hidden
    rows = make.matmul(make.reshape(x, (length * num, size)), w)
    biases: Read | None = None
    if call.has(3):
        both = own(3)
        first, biases = make.slice(both, 0, 0, wide), make.slice(both, 0, wide, wide)
        if added:
            first, biases = make.each("add", first, biases), None
        rows = make.each("add", rows, first)
    zeros = constant(np.zeros((num, hidden)))
    h, c = (own(i) if call.has(i) else zeros for i in (5, 6))
    peepholes = own(7) if call.has(7) else None
    parts = [make.slice(rows, 0, t * num, num) for t in range(length)]
    return _Direction(call, parts, r, biases, h, c, peepholes, functions, hidden)


def _functions(call: Call, names: Sequence[str], d: int) -> list[Function]:
    """The activations of a direction."""
    given = [str(n) for n in call.attribute("activations", ())] or list(names) * 2
    numbers = {name: list(call.attribute(f"activation_{name}", ())) for name in ("alpha", "beta")}
    limit = call.attribute("clip")
    found = []
    for name in given:
        takes = _NUMBERS.get(name.lower(), ())
        own = {key: numbers[key].pop(0) for key in takes if numbers[key]}
        found.append(_function(call, name, own, None if limit is None else float(limit)))
    num = len(names)
    if len(found) < num * (d + 1):
        raise call.refused(f"has {len(found)} activations; expected {num} for each direction")
    return found[d * num : (d + 1) * num]


_NUMBERS = {
    **dict.fromkeys(("affine", "scaledtanh", "hardsigmoid"), ("alpha", "beta")),
    **dict.fromkeys(("leakyrelu", "thresholdedrelu", "elu"), ("alpha",)),
}
"""Activations that take numbers, which are given for these alone, one after the other."""
_OPERATORS = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu")


def _function(call: Call, name: str, numbers: Mapping[str, float], limit: float | None) -> Function:
    """An activation: an operator of its own, or one of two that are none."""
    make, kind = call.make, name.lower()
    operator = next((op for op in _OPERATORS if op.lower() == kind), None)
    if operator is None and kind not in ("affine", "scaledtanh"):
        raise call.refused(f"has activation {name}, which is not there")

    def of(x: Read) -> Read:
        x = x if limit is None else make.clip(x, -limit, limit)
        if operator is not None:
            return read_as(call, operator, [x], numbers)
        alpha, beta = float(numbers.get("alpha", 1.0)), numbers.get("beta")
        if kind == "affine":
            return make.scaled(x, alpha, beta or 0.0)
        return make.scaled(make.each("tanh", make.scaled(x, 1.0 if beta is None else beta)), alpha)

    return of


@reads("LSTM", attributes=[*_ATTRIBUTES, "input_forget"])
def _lstm(call: Call) -> Sequence[Read]:
    make, is_coupled = call.make, bool(call.attribute("input_forget", 0))

    def step(d: _Direction, x: Read, h: Read, c: Read) -> tuple[Read, Read]:
        f, g, out = d.functions
        rows = make.each("add", x, make.matmul(h, d.r))
        i_, o_, f_, c_ = (d.gate(rows, n) for n in range(4))
        holes = None if d.peepholes is None else [make.slice(d.peepholes, 0, n * d.hidden, d.hidden) for n in range(3)]

        def seen(value: Read, state: Read, number: int) -> Read:
            return value if holes is None else make.each("add", value, make.each("multiply", holes[number], state))

        into = f(seen(i_, c, 0))
        kept = make.each("subtract", make.number(1.0, into), into) if is_coupled else f(seen(f_, c, 2))
        new_c = make.each("add", make.each("multiply", kept, c), make.each("multiply", into, g(c_)))
        return make.each("multiply", f(seen(o_, new_c, 1)), out(new_c)), new_c

    return _layer(call, 4, ("Sigmoid", "Tanh", "Tanh"), step, added_to_x=True)


@reads("GRU", attributes=[*_ATTRIBUTES, "linear_before_reset"])
def _gru(call: Call) -> Sequence[Read]:
    make, is_linear = call.make, bool(call.attribute("linear_before_reset", 0))

    def step(d: _Direction, x: Read, h: Read, c: Read) -> tuple[Read, Read]:
        f, g = d.functions
        wide = 3 * d.hidden
        biases = constant(np.zeros(wide)) if d.biases is None else d.biases
        r_zr, r_h = make.slice(d.r, 1, 0, 2 * d.hidden), make.slice(d.r, 1, 2 * d.hidden, d.hidden)
        b_zr, b_h = make.slice(biases, 0, 0, 2 * d.hidden), make.slice(biases, 0, 2 * d.hidden, d.hidden)
        gates = make.each("add", make.slice(x, 1, 0, 2 * d.hidden), make.each("add", make.matmul(h, r_zr), b_zr))
        z, r = (f(d.gate(gates, n)) for n in range(2))
        if is_linear:
            new = make.each("multiply", r, make.each("add", make.matmul(h, r_h), b_h))
        else:
            new = make.each("add", make.matmul(make.each("multiply", r, h), r_h), b_h)
        new = g(make.each("add", d.gate(x, 2), new))
        rest = make.each("subtract", make.number(1.0, z), z)
        return make.each("add", make.each("multiply", rest, new), make.each("multiply", z, h)), c

    return _layer(call, 3, ("Sigmoid", "Tanh"), step, added_to_x=False)[:2]


@reads("RNN", attributes=_ATTRIBUTES)
def _rnn(call: Call) -> Sequence[Read]:
    make = call.make

    def step(d: _Direction, x: Read, h: Read, c: Read) -> tuple[Read, Read]:
        return d.functions[0](make.each("add", x, make.matmul(h, d.r))), c

    return _layer(call, 1, ("Tanh",), step, added_to_x=True)[:2]
