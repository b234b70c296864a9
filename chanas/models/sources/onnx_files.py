"""An ONNX file of a stranger as a model with its weights inside, checked before anything is made of it.

What is looked at: every tensor, however deep (graphs, branches, functions, attributes, sparse ones, training), names,
the order of the nodes, and how many of them there are once functions are expanded.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chanas.errors import ModelError, describe, printable
from chanas.models.sources.external_data import check_stored, read_stored, stored_part
from chanas.models.sources.model import check_fits

_SHOWN, _MAX_TEXT = 3, 160
_MAX_NODES = 50_000
"""The largest networks, unrolled, have some ten thousand."""
_MAX_DEPTH = 50
"""Functions within functions; exporters write three or four."""
DOMAINS = ("", "ai.onnx")
_NARROW = {"uint2": 2, "int2": 2, "uint4": 4, "int4": 4, "float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}
"""Bits of numbers that files pack more closely than numpy."""


def load_onnx(path: Path) -> Any:
    """The `onnx.ModelProto` of a file, with the weights that lie beside it, and nodes in an order in which they run.

    Raises:
        ModelError: it is no ONNX file, cut short, of a version that is not known, too large, or contradicts itself; or
            weights are missing, lie beyond its folder, or have another size than their shape.
    """
    proto = parse_onnx(path)
    _check_version(path, proto)
    _check_size(path, proto)
    _check_names(path, proto.graph)
    _take_weights_in(path, proto)
    _order(path, proto.graph)
    return proto


def parse_onnx(path: Path) -> Any:
    """The content of a file; weights beside it stay there.

    Raises:
        ModelError: it is no ONNX file, or cut short.
    """
    import onnx

    try:
        proto = onnx.ModelProto.FromString(path.read_bytes())
    except Exception as error:  # protobuf's own
        raise ModelError(f"{path} is no ONNX file, or cut short ({type(error).__name__}); export it again") from error
    if not proto.graph.node or not proto.graph.output:
        raise ModelError(f"{path} is no ONNX file, or cut short (it has no nodes or no outputs); export it again")
    return proto


def tensors_of(message: Any, holder: Any = None) -> Iterator[tuple[Any, Any]]:
    """All tensors of a protobuf message, however deep, each with the innermost node that it belongs to."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message, holder
        return
    if message.DESCRIPTOR.name == "NodeProto":
        holder = message
    for name, is_repeated in _fields_with_tensors(message.DESCRIPTOR):
        if is_repeated:
            for part in getattr(message, name):
                yield from tensors_of(part, holder)
        elif message.HasField(name):
            yield from tensors_of(getattr(message, name), holder)


@functools.cache
def _fields_with_tensors(descriptor: Any) -> tuple[tuple[str, bool], ...]:
    """Names of a message's fields in which tensors may be, and whether there may be several."""
    return tuple(
        (field.name, field.is_repeated)
        for field in descriptor.fields
        if field.message_type is not None and "TensorProto" in _names_inside(field.message_type)
    )


@functools.cache
def _names_inside(descriptor: Any) -> frozenset[str]:
    """Names of a kind of message, and of all that may be in it."""
    found, todo = {descriptor.full_name: descriptor}, [descriptor]
    while todo:
        for field in todo.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in found:
                found[inner.full_name] = inner
                todo.append(inner)
    return frozenset(inner.name for inner in found.values())


# ---- versions, sizes, names ------------------------------------------------------------------------------------------
def _check_version(path: Path, proto: Any) -> None:
    import onnx

    opset = max((o.version for o in proto.opset_import if o.domain in DOMAINS), default=1)
    if opset > onnx.defs.onnx_opset_version():
        raise ModelError(
            f"{path} is of opset {opset}; onnx {onnx.__version__} knows them up to {onnx.defs.onnx_opset_version()}: "
            "export it with a lower opset_version, or install a newer onnx"
        )
    if opset < 1:
        raise ModelError(f"{path} is of opset {opset}; expected 1 or more: export it again")


def _check_size(path: Path, proto: Any) -> None:
    """
    Raises:
        ModelError: there are too many nodes once functions are expanded, or a function calls itself.
    """
    functions = {(f.domain, f.name): f for f in proto.functions}
    counted: dict[tuple[str, str], int] = {}
    too_many = ModelError(
        f"{path} has more than {_MAX_NODES} nodes, its functions expanded; expected a smaller network"
    )

    def count(nodes: Iterable[Any], depth: int) -> int:
        total = 0
        for node in nodes:
            total += 1
            key = (node.domain, node.op_type)
            if key in functions:
                if key not in counted:
                    if depth == _MAX_DEPTH:
                        raise ModelError(
                            f"function {printable(node.op_type)[:_MAX_TEXT]} of {path} calls itself, or stands in more "
                            f"than {_MAX_DEPTH} others; export the network without"
                        )
                    counted[key] = count(functions[key].node, depth + 1)
                total += counted[key]
            for graph in _graphs(node):
                total += count(graph.node, depth)
            if total > _MAX_NODES:
                raise too_many
        return total

    count(proto.graph.node, 0)


def _graphs(node: Any) -> Iterator[Any]:
    """Graphs in a node's attributes: branches and bodies of loops."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _check_names(path: Path, graph: Any) -> None:
    """
    Raises:
        ModelError: two places give a value of the same name.
    """
    names = Counter(name for node in graph.node for name in node.output if name)
    names.update({tensor.name for tensor in graph.initializer} | {value.name for value in graph.input})
    twice = [name for name, num in names.items() if num > 1]
    if twice:
        raise ModelError(f"{path} gives {printable(twice[0])[:_MAX_TEXT]} twice; the file is damaged: export it again")


def _order(path: Path, graph: Any) -> None:
    """Put nodes behind those whose outputs they read, if they are not: ONNX asks for it, and runtimes don't.

    Raises:
        ModelError: nodes read each other in a circle.
    """
    givers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needed = [{givers[name] for name in names_read(node) if name in givers} for node in graph.node]
    if all(max(before, default=-1) < i for i, before in enumerate(needed)):
        return
    readers: dict[int, list[int]] = {}
    for i, before in enumerate(needed):
        for giver in before:
            readers.setdefault(giver, []).append(i)
    left = [len(before) for before in needed]
    order = [i for i, num in enumerate(left) if not num]
    for giver in order:  # it grows meanwhile
        for i in readers.get(giver, ()):
            left[i] -= 1
            if not left[i]:
                order.append(i)
    if len(order) < len(needed):
        circle = [graph.node[i] for i, num in enumerate(left) if num]
        shown = ", ".join(_described(node) for node in circle[:_SHOWN])
        raise ModelError(f"{path} has nodes that read each other in a circle ({shown}); the file is damaged")
    nodes = [graph.node[i] for i in order]
    ordered = type(graph)(node=nodes)
    del graph.node[:]
    graph.node.extend(ordered.node)


def names_read(node: Any) -> Iterator[str]:
    """Names that a node reads, those that its branches read from outside among them."""
    yield from node.input
    for graph in _graphs(node):
        yield from (output.name for output in graph.output)
        for inner in graph.node:
            yield from names_read(inner)


def _described(node: Any) -> str:
    name = node.name or next(iter(node.output), "without a name")
    return f"{printable(node.op_type)[:_MAX_TEXT]} (node {printable(name)[:_MAX_TEXT]})"


# ---- weights ---------------------------------------------------------------------------------------------------------
def _take_weights_in(path: Path, proto: Any) -> None:
    """Read the weights that lie beside a file, after the sizes of all of them are checked.

    Raises:
        ModelError: as `load_onnx` says.
    """
    import onnx

    outside = []
    for tensor, holder in tensors_of(proto):
        of_node = "" if holder is None else f" of {_described(holder)}"
        name = f"tensor {printable(tensor.name)[:_MAX_TEXT] or 'without a name'}{of_node} of {path}"
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            _check_content(tensor, name)
        else:
            stored = stored_part(tensor, name, _num_bytes(tensor, name))
            check_stored(path.parent, stored)
            outside.append((tensor, stored))
    check_fits(path, path.stat().st_size + sum(stored.num_bytes for _, stored in outside))
    for tensor, stored in outside:
        tensor.raw_data = read_stored(path.parent, stored)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _check_content(tensor: Any, name: str) -> None:
    """
    Raises:
        ModelError: a tensor has more or fewer numbers than its shape, or they are of no type.
    """
    from onnx import numpy_helper

    try:
        if min(tensor.dims, default=0) < 0:
            raise ValueError("a negative extent")
        numpy_helper.to_array(tensor)
    except Exception as error:  # numpy's or onnx's own, of whatever kind
        raise ModelError(
            f"{name} is damaged: its numbers do not fit its shape {_shape(tensor.dims)} or its type "
            f"({describe(error)}); export the network again"
        ) from error


def _num_bytes(tensor: Any, name: str) -> int:
    """Bytes that a tensor takes by its shape.

    Raises:
        ModelError: its shape or its type is none, or it is of text.
    """
    import onnx

    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        dtype = np.dtype(object)
    if dtype.kind == "O" or min(tensor.dims, default=0) < 0:
        raise ModelError(
            f"{name} is damaged: expected a shape and numbers, got {_shape(tensor.dims)} of type {tensor.data_type}"
        )
    num_bits: int = math.prod(tensor.dims) * _NARROW.get(dtype.name, 8 * dtype.itemsize)
    return -(-num_bits // 8)


def _shape(dims: Sequence[int]) -> str:
    return f"[{', '.join(map(str, dims[: _SHOWN * 3]))}{', …' if len(dims) > _SHOWN * 3 else ''}]"
