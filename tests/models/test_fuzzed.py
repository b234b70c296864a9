"""Small ONNX graphs changed at random: each is read and computed right, or refused in one line."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import tvm
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from chanas.compiler.cpu.module import ProgramModule
from chanas.devices.host import load_target
from chanas.errors import ChanasError
from chanas.models.folding import simplify
from chanas.models.importing import check_values
from chanas.models.lowering import lower
from chanas.models.reading.reader import read_graph
from chanas.models.sources.model import OpenedModel
from chanas.models.sources.opening import open_model

from .default_programs import default_module, outputs_of
from .onnx_files import onnx_model

HOST = load_target("cpu")
OPSETS = range(7, 23)
TYPES = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.FLOAT16)
IMAGE, ROWS = (1, 3, 6, 5), (2, 4, 6)
Array = npt.NDArray[np.generic]
Weights = dict[str, Array]
node = helper.make_node


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def whole(*values: int) -> Array:
    return np.array(values, np.int64)


Parts = tuple[tuple[int, ...], list[NodeProto], Weights]
"""Shape of the input `x`, nodes up to `y`, and weights."""
GRAPHS: dict[str, Parts] = {
    "convolution": (
        IMAGE,
        [
            node("Conv", ["x", "w", "b"], ["c"], pads=[1, 0, 1, 2], strides=[2, 1], group=1, dilations=[1, 1]),
            node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], epsilon=1e-3),
            node("Relu", ["n"], ["y"]),
        ],
        {"w": numbers(4, 3, 3, 3), **{k: np.abs(numbers(4)) + 0.5 for k in "bsmv"}},
    ),
    "transposed": (
        IMAGE,
        [
            node("ConvTranspose", ["x", "w"], ["t"], strides=[2, 2], output_padding=[1, 0], pads=[0, 1, 1, 0]),
            node("LeakyRelu", ["t"], ["y"], alpha=0.1),
        ],
        {"w": numbers(3, 2, 3, 2)},
    ),
    "pooling": (
        IMAGE,
        [
            node("MaxPool", ["x"], ["p"], kernel_shape=[3, 2], strides=[1, 2], pads=[1, 0, 1, 1]),
            node("AveragePool", ["p"], ["y"], kernel_shape=[2, 2], count_include_pad=1),
        ],
        {},
    ),
    "dense": (
        (2, 6),
        [
            node("Gemm", ["x", "w", "b"], ["g"], alpha=0.5, beta=2.0, transA=0, transB=1),
            node("Softmax", ["g"], ["y"], axis=1),
        ],
        {"w": numbers(4, 6), "b": numbers(4)},
    ),
    "attention": (
        ROWS,
        [
            node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
            node("MatMul", ["x", "t"], ["s"]),
            node("Softmax", ["s"], ["p"], axis=-1),
            node("MatMul", ["p", "x"], ["y"]),
        ],
        {},
    ),
    "attention of maps": (
        (1, 24, 2, 2),
        [
            node("Reshape", ["x", "heads"], ["r"]),
            *(node("Gather", ["r", f"i{i}"], [name], axis=0) for i, name in enumerate("qkv")),
            node("Transpose", ["q"], ["qt"], perm=[0, 2, 1]),
            node("Transpose", ["v"], ["vt"], perm=[0, 2, 1]),
            node("MatMul", ["qt", "k"], ["s"]),
            node("Softmax", ["s"], ["p"], axis=-1),
            node("MatMul", ["p", "vt"], ["y"]),
        ],
        {"heads": whole(3, 2, 4, 4), **{f"i{i}": np.int64(i).reshape(()) for i in range(3)}},
    ),
    "standardised": (
        IMAGE,
        [
            node("BatchNormalization", ["w", "s", "b", "m", "v"], ["n"], training_mode=1, epsilon=1e-3),
            node("Conv", ["x", "n"], ["y"], pads=[1, 1, 1, 1]),
        ],
        {"w": numbers(4, 3, 3, 3), **{k: np.abs(numbers(3)) + 0.5 for k in "sbmv"}},
    ),
    "moves": (
        ROWS,
        [
            node("Slice", ["x", "starts", "ends", "axes"], ["a"]),
            node("Concat", ["a", "x"], ["c"], axis=1),
            node("Reshape", ["c", "shape"], ["r"]),
            node("Transpose", ["r"], ["t"], perm=[1, 0]),
            node("Flatten", ["t"], ["y"], axis=1),
        ],
        {"starts": whole(1), "ends": whole(3), "axes": whole(1), "shape": whole(2, -1)},
    ),
    "gathered": (
        ROWS,
        [
            node("Gather", ["x", "i"], ["g"], axis=2),
            node("Unsqueeze", ["g", "axes"], ["u"]),
            node("Squeeze", ["u", "axes"], ["q"]),
            node("Pad", ["q", "pads", "fill"], ["y"], mode="constant"),
        ],
        {"i": whole(0, -1, 2), "axes": whole(0), "pads": whole(0, 1, 0, 1, 0, 2), "fill": numbers()},
    ),
    "sums": (
        ROWS,
        [
            node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
            node("Sub", ["x", "m"], ["d"]),
            node("ReduceL2", ["d"], ["e"], axes=[-1], keepdims=0),
            node("ArgMax", ["e"], ["i"], axis=1, keepdims=0),
            node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
        ],
        {},
    ),
    "resized": (
        IMAGE,
        [
            node("Resize", ["x", "", "scales"], ["z"], mode="linear", coordinate_transformation_mode="half_pixel"),
            node("Clip", ["z", "low", "high"], ["y"]),
        ],
        {"scales": np.array([1, 1, 2, 1.5], np.float32), "low": np.float32(-1).reshape(()), "high": numbers() + 2},
    ),
    "chosen": (
        ROWS,
        [
            node("Greater", ["x", "w"], ["g"]),
            node("Where", ["g", "x", "w"], ["c"]),
            node("CumSum", ["c", "axis"], ["s"], exclusive=0, reverse=1),
            node("Mod", ["s", "w"], ["y"], fmod=1),
        ],
        {"w": np.abs(numbers(6)) + 0.5, "axis": np.int64(1).reshape(())},
    ),
    "normalised": (
        ROWS,
        [
            node("LayerNormalization", ["x", "s", "b"], ["n"], axis=-1, epsilon=1e-4),
            node("Split", ["n", "parts"], ["p", "q"], axis=2),
            node("Mul", ["p", "q"], ["y"]),
        ],
        {"s": numbers(6), "b": numbers(6), "parts": whole(3, 3)},
    ),
    "recurrent": (
        (3, 1, 4),
        [node("LSTM", ["x", "w", "r", "b"], ["y", "h"], hidden_size=2, direction="forward")],
        {"w": numbers(1, 8, 4), "r": numbers(1, 8, 2), "b": numbers(1, 16)},
    ),
}


def model_of(name: str) -> ModelProto:
    shape, nodes, weights = GRAPHS[name]
    copy = ModelProto()
    copy.CopyFrom(onnx_model(nodes, [("x", "float32", shape)], ["y"], weights))
    return copy


# ---- changes ---------------------------------------------------------------------------------------------------------
def other_whole(rng: random.Random, value: int) -> int:
    return rng.choice([value + 1, value - 1, -value, 0, 1, -1, 2, 7, 1 << 40])


def changed_attribute(rng: random.Random, model: ModelProto) -> None:
    """Another value of an attribute: a number, a text, a list that is longer or shorter; or none."""
    chosen = rng.choice(model.graph.node)
    if not chosen.attribute:
        return
    index = rng.randrange(len(chosen.attribute))
    attribute = chosen.attribute[index]
    if rng.random() < 0.2:
        del chosen.attribute[index]
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = other_whole(rng, attribute.i)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = rng.choice([0.0, -attribute.f, 1.0, 1e-5, float("nan"), float("inf")])
    elif attribute.type == onnx.AttributeProto.STRING:
        attribute.s = rng.choice(
            [b"", b"SAME_UPPER", b"nearest", b"cubic", b"reflect", b"reverse", b"align_corners", b"\xff"]
        )
    elif attribute.ints and rng.random() < 0.6:
        place = rng.randrange(len(attribute.ints))
        attribute.ints[place] = other_whole(rng, attribute.ints[place])
    elif rng.random() < 0.5:
        attribute.ints.append(1)
    elif attribute.ints:
        del attribute.ints[-1]


def added_attribute(rng: random.Random, model: ModelProto) -> None:
    """An attribute that the operator has or has not."""
    chosen = rng.choice(model.graph.node)
    name, value = rng.choice(
        [
            ("axis", 1),
            ("axes", [0]),
            ("auto_pad", "SAME_LOWER"),
            ("auto_pad", "VALID"),
            ("ceil_mode", 1),
            ("keepdims", 0),
            ("group", 3),
            ("dilations", [2, 1]),
            ("exclude_outside", 1),
            ("noop_with_empty_axes", 1),
            ("select_last_index", 1),
            ("made_up", 3),
        ]
    )
    if all(a.name != name for a in chosen.attribute):
        chosen.attribute.append(helper.make_attribute(name, value))


def changed_opset(rng: random.Random, model: ModelProto) -> None:
    model.opset_import[0].version = rng.choice(OPSETS)


def changed_shape(rng: random.Random, model: ModelProto) -> None:
    """An axis more or less of the input, or another extent."""
    shape = model.graph.input[0].type.tensor_type.shape
    place = rng.randrange(len(shape.dim))
    if rng.random() < 0.3:
        del shape.dim[place]
    elif rng.random() < 0.3:
        shape.dim.add().dim_value = rng.choice([1, 2])
    else:
        shape.dim[place].dim_value = rng.choice([1, 2, 3, 7])


def changed_type(rng: random.Random, model: ModelProto) -> None:
    """Another type of the input, or of a weight's numbers."""
    weights = model.graph.initializer
    if weights and rng.random() < 0.5:
        chosen = rng.choice(weights)
        dtype = helper.tensor_dtype_to_np_dtype(rng.choice(TYPES))
        chosen.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(chosen).astype(dtype), chosen.name))
    else:
        model.graph.input[0].type.tensor_type.elem_type = rng.choice(TYPES)


def changed_weight(rng: random.Random, model: ModelProto) -> None:
    """Another shape of a weight, or other whole numbers."""
    if not model.graph.initializer:
        return
    chosen = rng.choice(model.graph.initializer)
    value = numpy_helper.to_array(chosen).copy()
    if value.dtype == np.int64 and value.size and rng.random() < 0.7:
        value.ravel()[rng.randrange(value.size)] = other_whole(rng, int(value.ravel()[0]))
    else:
        value = rng.choice([value.ravel(), value[..., None], value.ravel()[:1], value.ravel()[:0]])
    chosen.CopyFrom(numpy_helper.from_array(value, chosen.name))


def changed_inputs(rng: random.Random, model: ModelProto) -> None:
    """An input of a node dropped, left empty, taken from elsewhere, or one too many."""
    chosen = rng.choice(model.graph.node)
    how = rng.randrange(4) if chosen.input else 3
    place = rng.randrange(len(chosen.input) or 1)
    if how == 0:
        del chosen.input[place]
    elif how == 1:
        chosen.input[place] = ""
    elif how == 2:
        chosen.input[place] = "x"
    else:
        chosen.input.append("x")


def changed_operator(rng: random.Random, model: ModelProto) -> None:
    """Another operator with the same inputs and attributes."""
    others = ("Relu", "Mul", "MatMul", "MaxPool", "ReduceSum", "Softmax", "Transpose", "Reshape", "Conv", "Gemm", "Pow")
    rng.choice(model.graph.node).op_type = rng.choice(others)


CHANGES: Sequence[Callable[[random.Random, ModelProto], None]] = (
    *(changed_attribute, changed_attribute, added_attribute, changed_opset, changed_shape),
    *(changed_type, changed_weight, changed_inputs, changed_operator),
)


def changed(name: str, seed: int) -> ModelProto:
    """A graph after one to three changes."""
    rng, model = random.Random(f"{name} {seed}"), model_of(name)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(CHANGES)(rng, model)
    return model


# ---- right, or one line ----------------------------------------------------------------------------------------------
def expected_outputs(model: ModelProto, inputs: Sequence[Array]) -> list[Array] | None:
    """The outputs of ONNX's own evaluator for a model that is valid; None where there is nothing to go by."""
    try:
        onnx.checker.check_model(model, full_check=True)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        dtype = helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(inferred).run(None, {"x": inputs[0].astype(dtype)})
    except Exception:  # of many kinds: a model may be valid by its types, and not by its numbers
        return None
    return [np.asarray(value) for value in found]


def compiled(opened: OpenedModel, run: bool) -> ProgramModule | None:
    """The module of an opened network; None, and less work, where it is not going to be run."""
    graph = simplify(read_graph(opened.proto, opened.inputs))
    check_values(graph, opened.name)
    program = lower(graph, HOST)
    return default_module(program, HOST) if run else None


def outcome(model: ModelProto, path: Path, run: bool) -> str:
    """`right`, `refused`, or what is wrong with what became of a model."""
    onnx.save(model, path)
    try:
        opened = open_model(path)
        made = compiled(opened, run)
        if made is None:
            return "right"
        with HOST.tvm_target() as device, tvm.transform.PassContext(opt_level=3):
            built = tvm.compile(made.module, device)
        inputs = opened.random_inputs()
        outputs = outputs_of(built, made, inputs)
    except ChanasError as error:
        return "refused" if str(error) and "\n" not in str(error) else f"not one line: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[-300:]}"
    expected = expected_outputs(model, inputs)
    if expected is None:
        return "right"
    for got, wanted in zip(outputs, expected, strict=True):
        if got.shape != wanted.shape:
            return f"{got.shape} instead of {wanted.shape}"
        if not np.allclose(got, wanted, rtol=1e-3, atol=1e-4, equal_nan=True):
            return f"differs: {got.ravel()[:4]} instead of {wanted.ravel()[:4]}"
    return "right"


def faults(name: str, seeds: range, folder: Path, run: bool) -> dict[int, str]:
    """The seeds of changes that were neither right nor refused, with what happened."""
    found = {seed: outcome(changed(name, seed), folder / "net.onnx", run) for seed in seeds}
    return {seed: said for seed, said in found.items() if said not in ("right", "refused")}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_as_it_is_is_right(name: str, tmp_path: Path) -> None:
    assert outcome(model_of(name), tmp_path / "net.onnx", run=True) == "right"


@pytest.mark.parametrize("name", GRAPHS)
def test_a_changed_graph_is_divided_into_operators_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    assert faults(name, range(25), tmp_path, run=False) == {}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_changed_graph_is_right_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    assert faults(name, range(100, 103), tmp_path, run=True) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_many_changed_graphs_are_right_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    assert faults(name, range(1000, 1100), tmp_path, run=True) == {}
