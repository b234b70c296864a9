"""A Relax module read as a graph: calls as nodes, tuples taken apart, batch normalisation as products and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.errors import ModelError
from chanas.prescheduler.models.graph import Constant, Graph, Node, Read, without_unread
from chanas.prescheduler.models.sources.model import OpenedModel

_SKIPPED = ("get_int", "get_int_tuple", "get_str", "id_", "is_", "same_as")
_SAME = {"dropout", "ensure_zero_offset", "wrap_param", "contrib_dropout"}


def read_graph(model: OpenedModel) -> Graph:
    """The graph of an opened network.

    Raises:
        ModelError: it has control flow, or shapes that depend on its input.
    """
    from tvm import relax

    main = relax.transform.CanonicalizeBindings()(model.module)["main"]
    reader = _Reader(model, main.params)
    body = main.body
    for block in body.blocks:
        for binding in block.bindings:
            reader.bind(binding)
    outputs = reader.found(body.body)
    flat = outputs if isinstance(outputs, list) else [outputs]
    return without_unread(Graph(model.inputs, tuple(reader.nodes), tuple(flat)))


class _Reader:
    """The nodes so far, and the value (or list of values) of each variable."""

    def __init__(self, model: OpenedModel, params: Sequence[Any]) -> None:
        self.name, self.num_inputs = model.name, len(model.inputs)
        self.nodes: list[Node] = []
        self.values: dict[Any, Read | list[Read]] = {param: i for i, param in enumerate(params)}

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return self.num_inputs + len(self.nodes) - 1

    def found(self, expression: Any) -> Any:
        """The value of an expression that is no call: a variable, a constant, or a tuple of these."""
        from tvm import relax
        from tvm.ir import GenericConst

        if isinstance(expression, GenericConst):
            return Constant(expression.value.numpy())
        if isinstance(expression, relax.Tuple):
            return [self.found(part) for part in expression.fields]
        if isinstance(expression, relax.TupleGetItem):
            return self.found(expression.tuple_value)[expression.index]
        if isinstance(expression, relax.Var):
            return self.values[expression]
        raise ModelError(
            f"{self.name} has a {type(expression).__name__}, which a network of fixed shapes does not need"
        )

    def bind(self, binding: Any) -> None:
        from tvm import relax

        value = binding.value
        if isinstance(value, relax.Call):
            self.values[binding.var] = self.called(value)
        elif isinstance(value, relax.If | relax.SeqExpr | relax.Function):
            raise ModelError(
                f"{self.name} has branches or loops, which can't be tuned as one program; export it without"
            )
        else:
            self.values[binding.var] = self.found(value)

    def called(self, call: Any) -> Read | list[Read]:
        from tvm import relax

        op = getattr(call.op, "name", "").removeprefix("relax.").removeprefix("nn.")
        if not op:
            raise ModelError(f"{self.name} calls a function of its own; export it as one graph")
        reads, attributes = self._arguments(call)
        if op in _SAME:
            return reads[0]
        if op == "batch_norm":
            return [self._batch_norm(reads, attributes, call), *reads[3:5]]
        given = call.ty
        if isinstance(given, relax.TupleType):
            if op != "split":
                raise ModelError(f"operator {op} of {self.name} has several outputs, which is not there")
            return self._split(reads[0], attributes, call)
        if op == "strided_slice" and len(reads) == 1:
            part = _slice_of(attributes, self._shape(call.args[0].ty, op))
            if part is not None:
                return self.add(Node("slice", tuple(reads), self._shape(given, op), str(given.dtype), part))
        return self.add(Node(op, tuple(reads), self._shape(given, op), str(given.dtype), attributes, call))

    def _shape(self, given: Any, op: str) -> tuple[int, ...]:
        extents = getattr(given.shape, "values", None)
        if extents is None or not all(hasattr(e, "value") for e in extents):
            raise ModelError(
                f"the output shape of an operator {op} of {self.name} depends on its input; export it with fixed shapes"
            )
        return tuple(int(e) for e in extents)

    def _arguments(self, call: Any) -> tuple[list[Read], dict[str, Any]]:
        """Tensors that a call reads, and its attributes, those that are given as arguments among them (`arg1`, …)."""
        reads: list[Read] = []
        attributes = (
            {}
            if call.attrs is None
            else {
                name: plain(getattr(call.attrs, name))
                for name in dir(call.attrs)
                if not name.startswith("_") and name not in _SKIPPED
            }
        )
        for position, argument in enumerate(call.args):
            if holds_tensors(argument):
                found = self.found(argument)
                reads += found if isinstance(found, list) else [found]
            else:
                attributes[f"arg{position}"] = plain(argument)
        return reads, attributes

    def _batch_norm(self, reads: Sequence[Read], attributes: dict[str, Any], call: Any) -> int:
        """x·scale + shift, a node each."""
        x, *statistics = reads
        gamma, beta, mean, variance = (r.value if isinstance(r, Constant) else None for r in statistics)
        if gamma is None or beta is None or mean is None or variance is None:
            raise ModelError(
                f"a batch normalisation of {self.name} has no statistics of its own; export the network for inference"
            )
        first = call.ty.fields[0]
        shape = self._shape(first, "batch_norm")
        broadcast = [1] * len(shape)
        broadcast[attributes.get("axis", 1)] = -1
        deviation = np.sqrt(variance.astype(np.float64) + attributes["epsilon"])
        scale = (gamma if attributes.get("scale", True) else 1.0) / deviation
        shift = (beta if attributes.get("center", True) else 0.0) - mean * scale
        product = self.add(Node("multiply", (x, _broadcast(scale, broadcast)), shape))
        return self.add(Node("add", (product, _broadcast(shift, broadcast)), shape))

    def _split(self, x: Read, attributes: dict[str, Any], call: Any) -> list[Read]:
        """A `slice` for each part: `axis`, `begin`, and the length by its shape."""
        parts: list[Read] = []
        begin = 0
        for field in call.ty.fields:
            shape = self._shape(field, "split")
            axis = attributes["axis"] % len(shape)
            facts = {"axis": axis, "begin": begin}
            parts.append(self.add(Node("slice", (x,), shape, str(field.dtype), facts)))
            begin += shape[axis]
        return parts


def holds_tensors(argument: Any) -> bool:
    """True of a call's argument that is a tensor or a tuple of tensors; False of numbers and tuples of them."""
    from tvm import relax
    from tvm.ir import GenericConst

    if isinstance(argument, relax.Tuple):
        return all(holds_tensors(part) for part in argument.fields)
    return isinstance(argument, relax.Var | GenericConst | relax.TupleGetItem)


def _slice_of(attributes: dict[str, Any], shape: tuple[int, ...]) -> dict[str, int] | None:
    """Axis and begin of a slice without steps along one axis; None of any other."""
    axes, begins = attributes.get("arg1"), attributes.get("arg2")
    if not axes or not begins or len(axes) != 1 or set(attributes.get("arg4") or (1,)) != {1}:
        return None
    axis, begin = axes[0] % len(shape), begins[0]
    return {"axis": axis, "begin": begin + shape[axis] if begin < 0 else begin}


def _broadcast(value: Any, shape: Sequence[int]) -> Constant:
    return Constant(np.asarray(value, dtype=np.float32).reshape(shape))


def plain(value: Any) -> Any:
    """A value of TVM's as one of Python's."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "value"):
        return value.value
    if hasattr(value, "fields"):
        return tuple(plain(part) for part in value.fields)
    if hasattr(value, "values"):
        return tuple(plain(part) for part in value.values)
    if hasattr(value, "__iter__"):
        return tuple(plain(part) for part in value)
    return str(value)
