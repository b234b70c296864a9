"""Operators along axes: sums, largest numbers, order, shares, normalisations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chanas.models.graph import Constant, Read
from chanas.models.reading.call import Call, reads
from chanas.models.reading.making import Maker, constant, resized


def _square(make: Maker, x: Read) -> Read:
    return make.each("multiply", x, x)


def _in_floats(op: str, make: Maker, x: Read) -> Read:
    """A function of floats; of whole numbers as ONNX's own bodies have it, through floats and back."""
    return make.cast(make.each(op, make.cast(x, "float32")), make.dtype_of(x))


def _same(make: Maker, x: Read) -> Read:
    return x


_Step = Callable[[Maker, Read], Read]
_FOLDS: dict[str, tuple[_Step, str, _Step]] = {
    "ReduceSum": (_same, "sum", _same),
    "ReduceMean": (_same, "mean", _same),
    "ReduceMax": (_same, "max", _same),
    "ReduceMin": (_same, "min", _same),
    "ReduceProd": (_same, "prod", _same),
    "ReduceL1": (lambda make, x: make.each("abs", x), "sum", _same),
    "ReduceL2": (_square, "sum", functools.partial(_in_floats, "sqrt")),
    "ReduceSumSquare": (_square, "sum", _same),
    "ReduceLogSum": (_same, "sum", functools.partial(_in_floats, "log")),
}


def _axes(call: Call) -> Sequence[int]:
    """The axes of a reduction; None of them given means all, unless the node says that it means none."""
    rank = len(call.shape(0))
    given = call.numbers("axes", 1, "axes")
    if given:
        return [call.in_range(a, rank) for a in given]
    return () if call.attribute("noop_with_empty_axes", 0) else range(rank)


@reads(*_FOLDS, attributes=["axes", "keepdims", "noop_with_empty_axes"])
def _reduce(call: Call) -> Read:
    make, (before, fold, after) = call.make, _FOLDS[call.op]
    x, dtype = before(make, call.input(0)), make.dtype_of(call.input(0))
    keeps = bool(call.attribute("keepdims", 1))
    if dtype == "bool":
        return make.cast(make.fold(fold, make.cast(x, "int32"), _axes(call), keeps), "bool")
    if fold == "mean" and not dtype.startswith("float"):
        total, num = make.fold("sum", x, _axes(call), keeps), math.prod(call.shape(0)[a] for a in _axes(call))
        return make.each("divide", total, make.number(num, total))
    return after(make, make.fold(fold, x, _axes(call), keeps))


@reads("ReduceLogSumExp", attributes=["axes", "keepdims", "noop_with_empty_axes"])
def _reduce_log_sum_exp(call: Call) -> Read:
    """max + log Σ e^(x − max), which is finite for every finite x."""
    make, axes, dtype = call.make, _axes(call), call.make.dtype_of(call.input(0))
    x = make.cast(call.input(0), "float32")
    largest = make.fold("max", x, axes, True)
    limits = np.finfo(np.float32)
    largest = make.clip(largest, float(limits.min), float(limits.max))
    total = make.fold("sum", make.each("exp", make.each("subtract", x, largest)), axes, True)
    found = make.cast(make.each("add", make.each("log", total), largest), dtype)
    return found if call.attribute("keepdims", 1) else make.fold("sum", found, axes, False)


@reads("ArgMax", "ArgMin", attributes=["axis", "keepdims", "select_last_index"])
def _extreme_place(call: Call) -> Read:
    before = call.shape(0)
    axis = call.axis("axis", 0, len(before))
    keeps = bool(call.attribute("keepdims", 1))
    shape = resized(before, axis, *([1] if keeps else []))
    facts = {"axis": axis, "keepdims": keeps, "last": bool(call.attribute("select_last_index", 0))}
    return call.make.node(call.op.lower(), [call.input(0)], shape, "int64", **facts)


@reads("TopK", attributes=["axis", "k", "largest", "sorted"])
def _top_k(call: Call) -> Sequence[Read]:
    make, x, before = call.make, call.input(0), call.shape(0)
    axis = call.axis("axis", -1, len(before))
    k = call.known_number(1, "number") if call.has(1) else int(call.attribute("k"))
    if not 0 <= k <= before[axis]:
        raise call.refused(f"takes {k} of {before[axis]} along axis {axis}")
    shape = resized(before, axis, k)
    places = make.node("topk", [x], shape, "int64", axis=axis, largest=bool(call.attribute("largest", 1)))
    return [make.node("gather_elements", [x, places], shape, axis=axis), places]


@reads("CumSum", "CumProd", attributes=["exclusive", "reverse"])
def _cumulative(call: Call) -> Read:
    axis = call.in_range(call.known_number(1, "axis"), len(call.shape(0)))
    facts: dict[str, Any] = {name: bool(call.attribute(name, 0)) for name in ("exclusive", "reverse")}
    return call.make.node(call.op.lower(), [call.input(0)], call.shape(0), axis=axis, **facts)


# ---- shares ---------------------------------------------------------------------------------------------------------
@reads("Softmax", "LogSoftmax", "Hardmax", attributes=["axis"])
def _softmax(call: Call) -> Read:
    """Along one axis since operator set 13, along all axes from one on before."""
    make, x, before = call.make, call.input(0), call.shape(0)
    is_old = call.opset < 13
    axis = call.axis("axis", 1 if is_old else -1, len(before)) if before else 0
    if is_old and axis != len(before) - 1:
        x = make.reshape(x, (math.prod(before[:axis]), math.prod(before[axis:])))
        return make.reshape(_share(make, x, 1, call.op), before)
    return _share(make, x, axis, call.op)


def _share(make: Maker, x: Read, axis: int, op: str) -> Read:
    shape = make.shape_of(x)
    if op == "Hardmax":
        first = make.node("argmax", [x], resized(shape, axis, 1), "int64", axis=axis, keepdims=True, last=False)
        places = make.along(constant(np.arange(shape[axis]), "int64"), axis, len(shape))
        return make.cast(make.each("equal", first, places), make.dtype_of(x))
    return make.node({"Softmax": "softmax", "LogSoftmax": "log_softmax"}[op], [x], shape, axis=axis)


# ---- normalisations -------------------------------------------------------------------------------------------------
@reads("BatchNormalization", attributes=["epsilon", "is_test", "momentum", "spatial", "training_mode"])
def _batch_norm(call: Call) -> Read:
    """x · scale + shift by channel; before operator set 9 by number, too (`spatial`)."""
    make, x = call.make, call.input(0)
    of_batch = call.attribute("training_mode", 0) or (
        call.opset < 7 and call.attribute("is_test", 0) == 0 and call.outputs > 1
    )
    if of_batch and not isinstance(x, Constant):  # of weights: they are standardised, in whatever mode
        raise call.refused("is in training mode; export the network for inference (call eval() before it)")
    shape = call.shape(0)
    parts = [
        make.along(call.input(i), min(1, len(shape) - 1), len(shape))
        if call.attribute("spatial", 1)
        else make.reshape(call.input(i), (1, *shape[1:]))
        for i in range(1, 5)
    ]
    epsilon = float(call.attribute("epsilon", 1e-5))
    if of_batch and isinstance(x, Constant):
        axes = tuple(a for a in range(len(shape)) if a != 1)
        parts[2:] = [constant(of(x.value, axes, keepdims=True, dtype=np.float64)) for of in (np.mean, np.var)]
    if all(isinstance(p, Constant) for p in parts):
        gamma, beta, mean, variance = (p.value.astype(np.float64) for p in parts if isinstance(p, Constant))
        scale = gamma / np.sqrt(variance + epsilon)
        return make.each("add", make.each("multiply", x, constant(scale)), constant(beta - mean * scale))
    gamma_, beta_, mean_, variance_ = parts
    deviation = make.each("sqrt", make.scaled(variance_, shift=epsilon))
    return make.each(
        "add", make.each("multiply", make.each("divide", make.each("subtract", x, mean_), deviation), gamma_), beta_
    )


@reads("InstanceNormalization", attributes=["epsilon"])
def _instance_norm(call: Call) -> Read:
    make, x, shape = call.make, call.input(0), call.shape(0)
    rows = make.reshape(x, (*shape[:2], math.prod(shape[2:])))
    found = _normal(make, rows, 1, float(call.attribute("epsilon", 1e-5)))
    scale, shift = (make.reshape(call.input(i), (1, shape[1], 1)) for i in (1, 2))
    return make.reshape(make.each("add", make.each("multiply", found, scale), shift), shape)


def _normal(make: Maker, x: Read, num_axes: int, epsilon: float) -> Read:
    """(x − mean) / √(variance + ε) along the last axes."""
    own = make.shape_of(x)[-num_axes:]
    reads = [x, constant(np.ones(own)), constant(np.zeros(own))]
    return make.node("layer_norm", reads, make.shape_of(x), "float32", num_axes=num_axes, epsilon=epsilon)


@reads("LayerNormalization", attributes=["axis", "epsilon", "stash_type"])
def _layer_norm(call: Call) -> Sequence[Read]:
    make, x, shape = call.make, call.input(0), call.shape(0)
    axis = call.axis("axis", -1, len(shape))
    own, epsilon = shape[axis:], float(call.attribute("epsilon", 1e-5))
    num = len(own)
    scale = call.input(1)
    shift = call.input(2) if call.has(2) else constant(np.zeros(own))
    goes = all(make.shape_of(t) == own for t in (scale, shift))
    if goes:
        found: Read = make.node("layer_norm", [x, scale, shift], shape, "float32", num_axes=num, epsilon=epsilon)
    else:
        found = make.each("add", make.each("multiply", _normal(make, x, num, epsilon), scale), shift)
    if call.outputs < 2:
        return [found]
    axes = range(axis, len(shape))
    mean = make.fold("mean", x, axes, True)
    apart = make.each("subtract", x, mean)
    variance = make.fold("mean", make.each("multiply", apart, apart), axes, True)
    deviation = make.each("sqrt", make.scaled(variance, shift=epsilon))
    return [found, mean, make.each("divide", make.number(1.0, deviation), deviation)]


@reads("GroupNormalization", attributes=["epsilon", "num_groups", "stash_type"])
def _group_norm(call: Call) -> Read:
    """Scale and shift are by group before operator set 21, by channel since."""
    make, x, shape = call.make, call.input(0), call.shape(0)
    groups = int(call.attribute("num_groups"))
    rows = make.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups))
    found = make.reshape(_normal(make, rows, 1, float(call.attribute("epsilon", 1e-5))), shape)
    parts = []
    for i in (1, 2):
        part = call.input(i)
        if call.shape(i) == (groups,) and groups != shape[1]:
            part = make.broadcast(make.reshape(part, (groups, 1)), (groups, shape[1] // groups))
        parts.append(make.reshape(part, (1, shape[1], *[1] * (len(shape) - 2))))
    return make.each("add", make.each("multiply", found, parts[0]), parts[1])


@reads("RMSNormalization", attributes=["axis", "epsilon", "stash_type"])
def _rms_norm(call: Call) -> Read:
    make, x, shape = call.make, call.input(0), call.shape(0)
    axes = range(call.axis("axis", -1, len(shape)), len(shape))
    squares = make.fold("mean", make.each("multiply", x, x), axes, True)
    size = make.each("sqrt", make.scaled(squares, shift=float(call.attribute("epsilon", 1e-5))))
    return make.each("multiply", make.each("divide", x, size), call.input(1))


@reads("MeanVarianceNormalization", attributes=["axes"])
def _mean_variance(call: Call) -> Read:
    make, x = call.make, call.input(0)
    axes = [call.in_range(a, len(call.shape(0))) for a in call.attribute("axes", (0, 2, 3))]
    apart = make.each("subtract", x, make.fold("mean", x, axes, True))
    deviation = make.each("sqrt", make.fold("mean", make.each("multiply", apart, apart), axes, True))
    return make.each("divide", apart, make.scaled(deviation, shift=1e-9))


@reads("LpNormalization", attributes=["axis", "p"])
def _lp_norm(call: Call) -> Read:
    """x by its size along an axis; zeros stay zeros."""
    make, x = call.make, call.input(0)
    axis, p = call.axis("axis", -1, len(call.shape(0))), int(call.attribute("p", 2))
    if p == 1:
        size = make.fold("sum", make.each("abs", x), [axis], True)
    else:
        size = make.each("sqrt", make.fold("sum", make.each("multiply", x, x), [axis], True))
    is_zero = make.each("equal", size, make.number(0.0, size))
    return make.each("divide", x, make.each("where", is_zero, make.number(1.0, size), size))


@reads("LRN", attributes=["alpha", "beta", "bias", "size"])
def _lrn(call: Call) -> Read:
    make, x = call.make, call.input(0)
    size, alpha = int(call.attribute("size")), float(call.attribute("alpha", 1e-4))
    squares = make.node("neighbours", [make.each("multiply", x, x)], call.shape(0), size=size)
    base = make.scaled(squares, alpha / size, float(call.attribute("bias", 1.0)))
    beta = float(call.attribute("beta", 0.75))
    if beta == 0.75:  # b^¾ = √b · √√b
        root = make.each("sqrt", base)
        power = make.each("multiply", root, make.each("sqrt", root))
    else:
        power = make.each("power", base, make.number(beta, base))
    return make.each("divide", x, power)
