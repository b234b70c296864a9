"""The numbers of a node whose reads are all known: what its definition gives, compiled for this machine.

So weights that a network computes from others, and shapes that it reckons, are the numbers that its program would have.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.models.graph import Node
from chanas.models.sources.model import Array

_LANES = 16
_KEPT = 64  # compiled nodes: networks repeat a few of them in each of their blocks


def computed(node: Node, arrays: Sequence[Array]) -> Array:
    """The output of a node for what it reads."""
    import tvm

    facts = (node.op, node.shape, node.dtype, tuple(node.attributes.items()))
    compiled = _compiled(*facts, tuple((a.shape, str(a.dtype)) for a in arrays))
    found = tvm.runtime.tensor(np.empty(node.shape, node.dtype))
    compiled(*(tvm.runtime.tensor(np.ascontiguousarray(a).reshape(a.shape)) for a in arrays), found)
    return np.asarray(found.numpy())


@functools.lru_cache(_KEPT)
def _compiled(
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
