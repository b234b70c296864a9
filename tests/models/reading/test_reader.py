"""chanas/models/reading: nodes of ONNX whose inputs are known are computed as ONNX defines them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from chanas.core.arrays import Array
from chanas.errors import ModelError
from chanas.models.graph import Constant
from chanas.models.reading.reader import read_graph
from chanas.models.sources.model import TensorFacts

from ..onnx_files import onnx_model

OPSET = 24
RNG = np.random.default_rng(0)


def model_of(
    nodes: Sequence[Any], weights: Mapping[str, Any], outputs: Sequence[str], inputs: Sequence[Any] = (), **facts: Any
) -> Any:
    return onnx_model(nodes, inputs, outputs, weights, opset=OPSET, **facts)


def assert_computed(made: Any) -> None:
    """Assert that all outputs are known, and what ONNX's reference evaluator gives."""
    found = read_graph(made, ()).outputs
    for value, expected in zip(found, ReferenceEvaluator(made).run(None, {}), strict=True):
        assert isinstance(value, Constant)
        np.testing.assert_allclose(value.value, expected, rtol=1e-4, atol=1e-5)
        assert value.shape == np.shape(expected)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def wholes(low: int, high: int, *shape: int, dtype: str = "int64") -> Array:
    return RNG.integers(low, high, shape).astype(dtype)


def number(value: float, dtype: str = "int64") -> Array:
    return np.array(value, dtype)


SCALE = np.float32(0.05)
CASES: Mapping[str, tuple[str, Sequence[Array | None], Mapping[str, Any]]] = {
    "a transform": ("DFT", [floats(2, 6, 3, 1), number(8), number(1)], {}),
    "a transform of complex numbers": ("DFT", [floats(2, 6, 2), None, number(1)], {"inverse": 1}),
    "a real inverse": ("DFT", [floats(2, 5, 2), None, number(1)], {"inverse": 1, "onesided": 1}),
    "frames": ("STFT", [floats(2, 20, 1), number(4), floats(8)], {"onesided": 1}),
    "mel filters": (
        "MelWeightMatrix",
        [number(8), number(64), number(8192), number(0.0, "float32"), number(4096.0, "float32")],
        {},
    ),
    "determinants": ("Det", [floats(3, 5, 5)], {}),
    "a matrix without an inverse": ("Det", [np.ones((1, 3, 3), np.float32)], {}),
    "columns": (
        "Col2Im",
        [floats(2, 12, 16), np.array([5, 7]), np.array([2, 3])],
        {"strides": [1, 2], "pads": [0, 1, 0, 1]},
    ),
    "moved taps": (
        "DeformConv",
        [floats(1, 4, 5, 6), floats(6, 2, 3, 3), 2 * floats(1, 36, 3, 4), floats(6), floats(1, 18, 3, 4)],
        {"group": 2, "offset_group": 2},
    ),
    "an unpooled map": (
        "MaxUnpool",
        [floats(1, 2, 2, 2), np.array([5, 7, 13, 15, 16, 19, 24, 31]).reshape(1, 2, 2, 2)],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    "a cache": ("TensorScatter", [floats(2, 3, 6, 4), floats(2, 3, 2, 4), np.array([1, 4])], {}),
    "a cache that goes round": (
        "TensorScatter",
        [floats(2, 3, 6, 4), floats(2, 3, 3, 4), np.array([1, 5])],
        {"mode": "circular"},
    ),
    "a recurrence of a linear function": (
        "RNN",
        [floats(3, 2, 4), floats(1, 5, 4), floats(1, 5, 5) / 4],
        {"hidden_size": 5, "activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]},
    ),
    "bits": ("BitCast", [floats(7)], {"to": onnx.TensorProto.INT32}),
    "unsorted numbers, each once": ("Unique", [np.float32([3, 1, 3, 2, 1])], {"sorted": 0}),
    "places that are not zero": ("NonZero", [np.float32([[0, 2], [3, 0]])], {}),
    "sums of nothing": ("ReduceSum", [np.zeros((3, 0), np.float32), np.array([1])], {}),
    "blocks of scales": (
        "DequantizeLinear",
        [wholes(0, 255, 4, 6, dtype="uint8"), np.abs(floats(4, 3)), wholes(0, 255, 4, 3, dtype="uint8")],
        {"axis": 1, "block_size": 2},
    ),
    "few bits beyond their type": (
        "QuantizeLinear",
        [100 * floats(5, 6), SCALE, np.int8(3)],
        {"saturate": 0, "precision": onnx.TensorProto.FLOAT},
    ),
    "whole products": (
        "MatMulInteger",
        [wholes(0, 255, 3, 40, dtype="uint8"), wholes(-128, 127, 40, 5, dtype="int8"), np.uint8([12]), np.int8([3])],
        {},
    ),
    "products of few bits": (
        "QLinearMatMul",
        [
            *(wholes(0, 255, 3, 9, dtype="uint8"), SCALE, np.uint8(120)),
            *(wholes(0, 255, 9, 5, dtype="uint8"), SCALE, np.uint8(9), np.float32(1.3), np.uint8(3)),
        ],
        {},
    ),
    "a convolution of few bits": (
        "QLinearConv",
        [
            *(wholes(0, 255, 1, 4, 6, 6, dtype="uint8"), SCALE, np.uint8(120)),
            *(wholes(-128, 127, 6, 2, 3, 3, dtype="int8"), np.abs(floats(6)), np.zeros(6, np.int8)),
            *(np.float32(4.0), np.uint8(100), wholes(-9, 9, 6, dtype="int32")),
        ],
        {"group": 2, "pads": [1, 1, 1, 1]},
    ),
}
NUM_OUTPUTS = {"Unique": 4}


@pytest.mark.parametrize("name", CASES)
def test_what_is_known_is_what_onnx_says(name: str) -> None:
    op, arrays, attributes = CASES[name]
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    outputs = [f"y{i}" for i in range(NUM_OUTPUTS.get(op, 1))]
    node = helper.make_node(op, names, outputs, **attributes)
    assert_computed(model_of([node], {n: np.asarray(a) for n, a in zip(names, arrays, strict=True) if n}, outputs))


# ---- control flow ---------------------------------------------------------------------------------------------------
def loop(limit: int, last: str) -> tuple[Any, dict[str, Array]]:
    """A loop that adds a step to what goes round and gives what each round has, with its weights; whether it goes on is
    the value `last` of its body."""
    any_shape = {name: helper.make_tensor_value_info(name, 1, None) for name in ("state", "next", "given")}
    truths = [helper.make_tensor_value_info(n, onnx.TensorProto.BOOL, []) for n in ("goes_on", "goes_on_then")]
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "step"], ["next"]),
            helper.make_node("Identity", ["next"], ["given"]),
            helper.make_node("ReduceMax", ["next"], ["top"], keepdims=0),
            helper.make_node("Less", ["top", "most"], ["is_less"]),
            helper.make_node("Identity", [last], ["goes_on_then"]),
        ],
        "body",
        [helper.make_tensor_value_info("round", onnx.TensorProto.INT64, []), truths[0], any_shape["state"]],
        [truths[1], any_shape["next"], any_shape["given"]],
    )
    node = helper.make_node("Loop", ["limit" if limit else "", "first", "start"], ["end", "all"], body=body)
    weights = {"first": np.array(True), "start": np.float32([0.0, 0.3]), "most": np.float32(2)}
    return node, weights | ({"limit": number(limit)} if limit else {})


@pytest.mark.parametrize(("limit", "last"), [(3, "goes_on"), (9, "is_less"), (0, "is_less")])
def test_a_loop_of_known_length_is_written_out(limit: int, last: str) -> None:
    node, weights = loop(limit, last)
    assert_computed(model_of([node], {**weights, "step": np.float32(0.5)}, ["end", "all"]))


DEPENDS = "{} that depends on the network's input, which can't be tuned as one program"
LONG = "has more than 1024 steps, the most that are written out; give a shorter --shape"


def refused(node: Any, weights: Mapping[str, Array], name: str, value: Array, message: str) -> None:
    """Assert that a node is refused which reads a value of the network's input."""
    taken = (name, value.dtype.name, value.shape)
    with pytest.raises(ModelError, match=f"^{node.op_type} .*{message}"):
        read_graph(model_of([node], weights, node.output, [taken]), [TensorFacts(name, value.shape, value.dtype.name)])


def test_a_branch_or_a_loop_that_depends_on_the_input_is_refused() -> None:
    node, weights = loop(9, "is_less")
    refused(node, weights, "step", np.float32(0.5), DEPENDS.format("loop"))
    del weights["limit"]
    refused(node, {**weights, "step": np.float32(0.5)}, "limit", number(3), DEPENDS.format("loop"))
    branch = helper.make_graph([], "branch", [], [helper.make_tensor_value_info("start", 1, [2])])
    node = helper.make_node("If", ["is_less"], ["y"], then_branch=branch, else_branch=branch)
    refused(node, weights, "is_less", np.array(True), DEPENDS.format("branch"))


def test_more_steps_than_are_written_out_are_refused() -> None:
    node, weights = loop(2000, "goes_on")
    refused(node, weights, "step", np.float32(0.5), LONG)
    row, out = (helper.make_tensor_value_info(name, 1, None) for name in ("x", "next"))
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["next"])], "body", [row], [out])
    node = helper.make_node("Scan", ["rows"], ["all"], body=body, num_scan_inputs=1)
    refused(node, {}, "rows", floats(1025, 3), LONG)
    node = helper.make_node("RNN", ["rows", "w", "r"], ["all"], hidden_size=2)
    refused(node, {"w": floats(1, 2, 3), "r": floats(1, 2, 2)}, "rows", floats(1025, 1, 3), LONG)


def test_a_scan_goes_along_axes_in_both_directions() -> None:
    info = {n: helper.make_tensor_value_info(n, 1, None) for n in ("state", "one", "two", "next", "given")}
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "one"], ["next"]),
            helper.make_node("Mul", ["next", "two"], ["given"]),
        ],
        "body",
        [info["state"], info["one"], info["two"]],
        [info["next"], info["given"]],
    )
    node = helper.make_node(
        "Scan",
        ["start", "a", "b"],
        ["end", "all"],
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[1, 0],
        scan_input_directions=[0, 1],
        scan_output_axes=[1],
        scan_output_directions=[1],
    )
    weights = {"start": floats(3), "a": floats(3, 4), "b": floats(4, 3)}
    state, a, b = weights.values()
    given = []
    for t in range(4):
        state = state + a[:, t]
        given.append(state * b[3 - t])
    found = read_graph(model_of([node], weights, ["end", "all"]), ()).outputs
    for value, expected in zip(found, (state, np.stack(given[::-1], 1)), strict=True):
        assert isinstance(value, Constant)
        np.testing.assert_allclose(value.value, expected, rtol=1e-5)


# ---- what a file says beside its nodes ------------------------------------------------------------------------------
def test_stored_shapes_of_values_are_not_believed() -> None:
    """Files hold wrong ones, and run in ONNX Runtime all the same."""
    taken = ("x", "float32", [1, 3, 4, 4])
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Flatten", ["y"], ["z"])]
    wrong = [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, [2, 2])]
    graph = read_graph(
        model_of(nodes, {}, ["z"], [taken], value_info=wrong), [TensorFacts("x", (1, 3, 4, 4), "float32")]
    )
    assert [(node.shape, node.dtype) for node in graph.nodes] == [((1, 3, 4, 4), "float32"), ((1, 48), "float32")]


# ---- what is refused ------------------------------------------------------------------------------------------------
REFUSED: dict[str, tuple[Sequence[Any], Mapping[str, Any], Sequence[int], str]] = {
    "a computed bias of another size": (
        [helper.make_node("Conv", ["x", "w", "x"], ["y"])],
        {"w": floats(2, 3, 3, 3)},
        (1, 3, 4, 4),
        r"Conv .*y.* does not fit what it reads",
    ),
    "few bits that are divided in another precision": (
        [helper.make_node("QuantizeLinear", ["x", "s"], ["y"], precision=onnx.TensorProto.FLOAT16)],
        {"s": SCALE},
        (4,),
        r"QuantizeLinear .*y.* has precision float16, which is not there",
    ),
    "an operator of ONNX Runtime itself": (
        [helper.make_node("DynamicQuantizeLSTM", ["x"], ["y"], domain="com.microsoft")],
        {},
        (4,),
        r"is not there; ONNX Runtime's .* take the file that it was given",
    ),
    "operators that are not there, with one that is": (
        [
            helper.make_node("First", ["x"], ["a"]),
            helper.make_node("Constant", [], ["c"], value_float=1.0),
            helper.make_node("Second", ["a", "c"], ["y"]),
        ],
        {},
        (4,),
        r"operator First .*; further on Second;",
    ),
    "an attribute that no version has": (
        [helper.make_node("Relu", ["x"], ["y"], made_up=3)],
        {},
        (4,),
        r"Relu .*y.* has the attribute made_up, which is not there",
    ),
    "an axis beyond the last": (
        [helper.make_node("Softmax", ["x"], ["y"], axis=1)],
        {},
        (4,),
        "has axis 1, of a value",
    ),
    "an activation that is none": (
        [helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=2, activations=["Fancy"])],
        {"w": floats(1, 2, 3), "r": floats(1, 2, 2)},
        (5, 1, 3),
        r"RNN .* has activation Fancy, which is not there",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_there_or_does_not_fit_is_refused_with_its_node(case: str) -> None:
    nodes, weights, shape, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        read_graph(
            model_of(nodes, weights, ["y"], [("x", "float32", shape)]), [TensorFacts("x", tuple(shape), "float32")]
        )
