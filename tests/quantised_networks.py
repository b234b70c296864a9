"""Small networks in ONNX that are quantised already: values rounded to grids, weights of whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from chanas.core.arrays import Float32Array

SIZE = 12


class QuantisedNetwork:
    """An ONNX graph so far, whose values go by name; `whole` has the whole numbers of weights, `steps` theirs.

    Args:
        dtype: of rounded values.
        most: the largest whole weight.
    """

    def __init__(self, dtype: str = "uint8", most: int = 60, seed: int = 0) -> None:
        self.dtype, self.most, self.rng = dtype, most, np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.whole: dict[str, Float32Array] = {}
        self.steps: dict[str, Float32Array] = {}

    def constant(self, value: Any, dtype: str = "float32") -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, op: str, reads: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, reads, [name], **attributes))
        return name

    def rounded(self, x: str, step: Any, zero: Any, name: str = "", dtype: str = "", back: Any = None) -> str:
        """A value rounded to a grid; zero is that of uint8."""
        dtype = dtype or self.dtype
        scale = self.constant(step)
        shift = self.constant(np.asarray(zero) - {"uint8": 0, "int8": 128}.get(dtype, 0), dtype)
        whole = self.add("QuantizeLinear", [x, scale, shift], f"{x}_whole")
        scale = scale if back is None else self.constant(back)
        return self.add("DequantizeLinear", [whole, scale, shift], name or f"{x}_rounded")

    def weights(self, name: str, shape: Sequence[int], *, by_channel: bool = True) -> str:
        """Weights float32 of whole numbers, with a step for each output channel or one for all; sums stay about 1."""
        whole = self.rng.integers(-self.most, self.most + 1, shape).astype(np.int8)
        whole.reshape(shape[0], -1)[:, 0] = self.most
        step = 1.5 / (self.most * np.sqrt(np.prod(shape[1:])))
        steps = (step * self.rng.uniform(0.7, 1.4, shape[0] if by_channel else ())).astype(np.float32)
        self.whole[name], self.steps[name] = whole, np.broadcast_to(steps, shape[0])
        reads = [self.constant(whole, "int8"), self.constant(steps), self.constant(np.zeros(steps.shape), "int8")]
        return self.add("DequantizeLinear", reads, name, **({"axis": 0} if by_channel else {}))

    def bias(self, weight: str, step: float) -> str:
        """A bias of whole numbers of 32 bits, of as many steps as sums have."""
        steps = (np.float32(step) * self.steps[weight]).astype(np.float32)
        whole = np.rint(self.rng.uniform(-0.3, 0.3, len(steps)) / steps)
        reads = [self.constant(whole, "int32"), self.constant(steps), self.constant(np.zeros(len(steps)), "int32")]
        return self.add("DequantizeLinear", reads, f"{weight}_bias", axis=0)

    def conv(self, x: str, step: float, shape: Sequence[int], name: str, **attributes: Any) -> str:
        """A convolution of a value whose grid has this step."""
        by_channel = attributes.pop("by_channel", True)
        weight = self.weights(f"{name}_weight", shape, by_channel=by_channel)
        return self.add("Conv", [x, weight, self.bias(weight, step)], name, **attributes)

    def save(self, path: Path, shape: Sequence[int], outputs: Sequence[str], opset: int = 21) -> Path:
        """Write the network of one input `x`."""
        graph = helper.make_graph(
            self.nodes,
            path.stem,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.constants,
        )
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        made = helper.make_model(graph, opset_imports=imports, ir_version=10)
        onnx.save(onnx.shape_inference.infer_shapes(made), path)
        return path


def save_gated(path: Path, dtype: str = "uint8", most: int = 60) -> Path:
    """A block with squeeze-excite and a residual between two convolutions, and a classifier, as ONNX Runtime quantises
    them: every value, and activations left out where roundings do the same."""
    net = QuantisedNetwork(dtype, most)
    x = net.rounded("x", 0.04, 128)
    x = net.rounded(net.conv(x, 0.04, (16, 3, 3, 3), "first", pads=[1, 1, 1, 1], strides=[2, 2]), 6 / 255, 0)
    inner = net.rounded(net.conv(x, 6 / 255, (32, 16, 1, 1), "expand"), 0.05, 128)
    gate = net.rounded(net.add("HardSigmoid", [inner], "expand_gate", alpha=1 / 6), 1 / 255, 0)
    inner = net.rounded(net.add("Mul", [inner, gate], "swish"), 0.03, 20)
    inner = net.conv(inner, 0.03, (32, 1, 3, 3), "spatial", pads=[1, 1, 1, 1], group=32)
    inner = net.rounded(inner, 0.02, 0)
    mean = net.rounded(net.add("GlobalAveragePool", [inner], "mean"), 0.01, 0)
    few = net.rounded(net.conv(mean, 0.01, (8, 32, 1, 1), "squeeze", by_channel=False), 0.02, 0)
    gate = net.rounded(net.conv(few, 0.02, (32, 8, 1, 1), "excite"), 0.02, 128)
    gate = net.rounded(net.add("HardSigmoid", [gate], "gate", alpha=1 / 6), 1 / 255, 0)
    inner = net.rounded(net.add("Mul", [inner, gate], "gated"), 0.02, 0)
    inner = net.rounded(net.conv(inner, 0.02, (16, 32, 1, 1), "project"), 0.03, 128)
    x = net.rounded(net.add("Add", [x, inner], "sum"), 0.04, 100)
    x = net.rounded(net.conv(x, 0.04, (24, 16, 3, 3), "last", pads=[1, 1, 1, 1], strides=[2, 2]), 0.03, 0)
    x = net.rounded(net.add("GlobalAveragePool", [x], "pooled"), 0.01, 0)
    x = net.rounded(net.add("Flatten", [x], "flat"), 0.01, 0)
    weight = net.weights("classes_weight", (5, 24))
    x = net.add("Gemm", [x, weight, net.bias(weight, 0.01)], "classes", transB=1)
    net.rounded(x, 0.01, 128, "y")
    return net.save(path, (1, 3, SIZE, SIZE), ["y"])


def save_pooled(path: Path, *, of_operators: bool) -> Path:
    """A residual around a convolution, between pools, and a classifier: with roundings between operators on floats, or
    the same of operators on whole numbers, as ONNX Runtime's `QuantFormat.QOperator` writes it."""
    net = QuantisedNetwork()
    grids = {"x": (0.04, 128), "first": (0.03, 0), "second": (0.02, 128), "sum": (0.04, 100), "mean": (0.02, 128)}
    first = {"pads": [1, 1, 1, 1], "strides": [2, 2]}
    pool = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}
    if not of_operators:
        x = net.rounded("x", *grids["x"])
        x = net.rounded(net.conv(x, 0.04, (16, 3, 3, 3), "first", **first), *grids["first"])
        x = net.rounded(net.add("MaxPool", [x], "pooled", **pool), *grids["first"])
        inner = net.rounded(net.conv(x, 0.03, (16, 16, 1, 1), "second"), *grids["second"])
        x = net.rounded(net.add("Add", [inner, x], "sum"), *grids["sum"])
        x = net.rounded(net.add("GlobalAveragePool", [x], "mean"), *grids["mean"])
        x = net.rounded(net.add("Flatten", [x], "flat"), *grids["mean"])
        weight = net.weights("classes_weight", (5, 16))
        net.rounded(net.add("Gemm", [x, weight, net.bias(weight, 0.02)], "classes", transB=1), 0.01, 128, "y")
        return net.save(path, (1, 3, SIZE, SIZE), ["y"])

    def grid(step: float, zero: int) -> list[str]:
        return [net.constant(step), net.constant(zero, "uint8")]

    def weights(name: str, shape: Sequence[int], step: float) -> list[str]:
        """The whole weights of a layer with their steps and zeros, and its whole bias."""
        net.bias(net.weights(name, shape), step)
        *_, whole, steps, zeros, bias, _, _ = (tensor.name for tensor in net.constants)
        net.nodes = [node for node in net.nodes if not node.output[0].startswith(name)]
        return [whole, steps, zeros, bias]

    def own(op: str, reads: Sequence[str], name: str, **attributes: Any) -> str:
        return net.add(op, reads, name, domain="com.microsoft", **attributes)

    x = net.add("QuantizeLinear", ["x", *grid(*grids["x"])], "x_whole")
    *weight, bias = weights("first_weight", (16, 3, 3, 3), 0.04)
    reads = [x, *grid(*grids["x"]), *weight, *grid(*grids["first"]), bias]
    x = net.add("QLinearConv", reads, "first", **first)
    x = net.add("MaxPool", [x], "pooled", **pool)
    *weight, bias = weights("second_weight", (16, 16, 1, 1), 0.03)
    inner = net.add("QLinearConv", [x, *grid(*grids["first"]), *weight, *grid(*grids["second"]), bias], "second")
    x = own("QLinearAdd", [inner, *grid(*grids["second"]), x, *grid(*grids["first"]), *grid(*grids["sum"])], "sum")
    x = own("QLinearGlobalAveragePool", [x, *grid(*grids["sum"]), *grid(*grids["mean"])], "mean", channels_last=0)
    x = net.add("Flatten", [x], "flat")
    *weight, bias = weights("classes_weight", (5, 16), 0.02)
    x = own("QGemm", [x, *grid(*grids["mean"]), *weight, bias, *grid(0.01, 128)], "classes", transB=1)
    net.add("DequantizeLinear", [x, *grid(0.01, 128)], "y")
    return net.save(path, (1, 3, SIZE, SIZE), ["y"])
