"""The numbers of a node whose reads are all known: numpy's where it has the operator, and otherwise what its definition
gives, compiled for this machine.

So weights that a network computes from others, and shapes that it reckons, are the numbers that its program would have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from chanas.core.arrays import Array
from chanas.models.elementwise import ELEMENTWISE
from chanas.models.graph import Node

_LANES = 16
_KEPT = 64  # compiled nodes: networks repeat a few of them in each of their blocks


def _slice(node: Node, x: Array) -> Array:
    axis, begin = node.attributes["axis"], node.attributes["begin"]
    return x.take(range(begin, begin + node.shape[axis]), axis)


def _strided_slice(node: Node, x: Array) -> Array:
    parts = zip(node.attributes["begins"], node.attributes["steps"], node.shape, strict=True)
    return x[np.ix_(*(begin + step * np.arange(num) for begin, step, num in parts))]


_NUMPY: Mapping[str, Callable[..., Array]] = {
    "astype": lambda node, x: x.astype(node.dtype),
    "broadcast_to": lambda node, x: np.broadcast_to(x, node.shape),
    "clip": lambda node, x: np.clip(x, node.attributes["low"], node.attributes["high"]).astype(node.dtype),
    "concat": lambda node, *reads: np.concatenate(reads, node.attributes["axis"]),
    "matmul": lambda node, a, b: np.matmul(a, b),
    "permute_dims": lambda node, x: x.transpose(node.attributes["axes"]),
    "reshape": lambda node, x: x.reshape(node.shape),
    "slice": _slice,
    "strided_slice": _strided_slice,
    "take": lambda node, x, numbers: x.take(numbers, node.attributes["axis"], mode="clip"),
    "tile": lambda node, x: np.tile(x, [out // e for out, e in zip(node.shape, x.shape, strict=True)]),
}


def computed(node: Node, arrays: Sequence[Array]) -> Array:
    """The output of a node for what it reads."""
    with np.errstate(all="ignore"):
        if node.op in ELEMENTWISE:
            return np.asarray(ELEMENTWISE[node.op].known(*arrays)).astype(node.dtype)
        if node.op in _NUMPY:
            return np.ascontiguousarray(_NUMPY[node.op](node, *arrays)).reshape(node.shape)
    return compiled(node, arrays)


def compiled(node: Node, arrays: Sequence[Array]) -> Array:
    """The same by its definition."""
    import tvm

    facts = (node.op, node.shape, node.dtype, tuple(node.attributes.items()))
    function = _function(*facts, tuple((a.shape, str(a.dtype)) for a in arrays))
    found = tvm.runtime.tensor(np.empty(node.shape, node.dtype))
    function(*(tvm.runtime.tensor(np.ascontiguousarray(a).reshape(a.shape)) for a in arrays), found)
    return np.asarray(found.numpy())


@functools.lru_cache(_KEPT)
def _function(
    op: str, shape: tuple[int, ...], dtype: str, attributes: tuple[tuple[str, Any], ...], reads: tuple[Any, ...]
) -> Any:
    import tvm
    from tvm import te

    from chanas.models.definitions import define

    tensors = [te.placeholder(*facts, name=f"x{i}") for i, facts in enumerate(reads)]
    node = Node(op, tuple(range(len(reads))), shape, dtype, dict(attributes))
    with tvm.target.Target("llvm"):
        function = te.create_prim_func([*tensors, define(node, _LANES, *tensors)])
        return tvm.compile(function, target="llvm")
