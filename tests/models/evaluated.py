"""A graph carried out operator by operator with PyTorch: what rewriting must not change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from chanas.core.arrays import Array
from chanas.models.graph import Constant, Graph, Node

ACTIVATIONS = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "hswish": functional.hardswish,
    "hsigmoid": functional.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "swish": functional.silu,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "erf": torch.erf,
}


def evaluate(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a graph."""
    values = [torch.from_numpy(x) for x in inputs]
    for node in graph.nodes:
        reads = [torch.from_numpy(np.array(r.value)) if isinstance(r, Constant) else values[r] for r in node.reads]
        values.append(_computed(node, reads))
    return [o.value if isinstance(o, Constant) else values[o].numpy() for o in graph.outputs]


def _computed(node: Node, reads: Sequence[torch.Tensor]) -> torch.Tensor:
    a, x = node.attributes, reads[0]
    if node.op == "conv2d":
        top, left, bottom, right = a["padding"]
        x = functional.pad(x, (left, right, top, bottom))
        bias = reads[2] if len(reads) == 3 else None
        return functional.conv2d(x, reads[1], bias, a["strides"], 0, a["dilation"], a["groups"])
    if node.op == "matmul":
        return x @ reads[1] + (reads[2] if len(reads) == 3 else 0.0)
    if node.op == "activation":
        name = a["name"]
        return functional.leaky_relu(x, float(name[5:])) if name.startswith("leaky") else ACTIVATIONS[name](x)
    if node.op == "leakyrelu":
        return functional.leaky_relu(x, a["alpha"])
    if node.op in ACTIVATIONS:
        return ACTIVATIONS[node.op](x)
    if node.op in ("max_pool2d", "avg_pool2d"):
        return _pooled(node, x)
    if node.op == "pad":
        return _padded(node, x, reads[1])
    if node.op == "shuffle":
        return functional.channel_shuffle(x, a["groups"])
    if node.op == "slice":
        return x.narrow(a["axis"], a["begin"], node.shape[a["axis"]])
    simple = {
        "add": lambda: x + reads[1],
        "multiply": lambda: x * reads[1],
        "divide": lambda: x / reads[1],
        "subtract": lambda: x - reads[1],
        "clip": lambda: x.clip(a["low"], a["high"]),
        "mean": lambda: x.mean(a["axis"], keepdim=a["keepdims"]),
        "max": lambda: x.amax(a["axis"], keepdim=a["keepdims"]),
        "reshape": lambda: x.reshape(node.shape),
        "permute_dims": lambda: x.permute(a["axes"]).contiguous(),
        "concat": lambda: torch.cat(list(reads), a["axis"]),
    }
    return simple[node.op]()


def _pooled(node: Node, x: torch.Tensor) -> torch.Tensor:
    a, (top, left, bottom, right) = node.attributes, node.attributes["padding"]
    kernel, strides = a["pool_size"], a["strides"]
    reach = [
        (o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(node.shape[2:], strides, kernel, a["dilation"], strict=True)
    ]
    whole = (x.shape[2] + top + bottom, x.shape[3] + left + right)
    down, along = (max(0, r - w) for r, w in zip(reach, whole, strict=True))  # windows beyond the padding are cut off
    sides = (left, right + along, top, bottom + down)
    if node.op == "max_pool2d":
        return functional.max_pool2d(functional.pad(x, sides, value=-math.inf), kernel, strides, 0, a["dilation"])
    counted = functional.pad(torch.ones_like(x), (left, right, top, bottom), value=float(a["count_include_pad"]))
    share = functional.avg_pool2d(functional.pad(counted, (0, along, 0, down)), kernel, strides)
    return functional.avg_pool2d(functional.pad(x, sides), kernel, strides) / share


def _padded(node: Node, x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Constant padding: sides of PyTorch's, from the last axis to the first."""
    before = node.attributes["before"]
    after = [out - e - b for out, e, b in zip(node.shape, x.shape, before, strict=True)]
    sides = [n for pair in reversed(list(zip(before, after, strict=True))) for n in pair]
    return functional.pad(x, sides, value=float(value))


def describe(graph: Graph) -> dict[str, int]:
    """Number of nodes of each kind."""
    return dict(Counter(node.op for node in graph.nodes))
