"""The numbers of a node whose reads are all known: what its definition gives, compiled for this machine.

So weights that a network computes from others, and shapes that it reckons, are the numbers that its program would have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chanas.prescheduler.models.graph import Node
from chanas.prescheduler.models.sources.model import Array

_LANES = 16


def computed(node: Node, arrays: Sequence[Array]) -> Array:
    """The output of a node for what it reads."""
    import tvm
    from tvm import te

    from chanas.prescheduler.models.definitions import define

    tensors = [te.placeholder(a.shape, str(a.dtype), name=f"x{i}") for i, a in enumerate(arrays)]
    with tvm.target.Target("llvm"):
        function = te.create_prim_func([*tensors, define(node, _LANES, *tensors)])
        compiled = tvm.compile(function, target="llvm")
    found = tvm.runtime.tensor(np.empty(node.shape, node.dtype))
    compiled(*(tvm.runtime.tensor(np.ascontiguousarray(a).reshape(a.shape)) for a in arrays), found)
    return np.asarray(found.numpy())
