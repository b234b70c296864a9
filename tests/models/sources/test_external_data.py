"""Weights beside an ONNX file: read from plain files in its folder, and from nowhere else, however deep they stand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from chanas.errors import ModelError
from chanas.models.sources.onnx_files import load_onnx

NUMBERS = np.arange(6, dtype=np.float32)
value = helper.make_tensor_value_info


def tensor(location: str = "weights.bin", **keys: int | str) -> TensorProto:
    """float32[2, 3] in another file."""
    made = TensorProto(name="w", dims=[2, 3], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, text in {"location": location, **keys}.items():
        made.external_data.add(key=key, value=str(text))
    return made


def graph_of(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, "g", [value("x", 1, [2, 3])], [value("y", 1, [2, 3])])


def constant(made: TensorProto) -> onnx.NodeProto:
    node = helper.make_node("Constant", [], ["w"], name="here")
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(made)
    return node


def in_weights(made: TensorProto) -> onnx.ModelProto:
    graph = graph_of(helper.make_node("Add", ["x", "w"], ["y"]))
    graph.initializer.append(made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def in_a_node(made: TensorProto) -> onnx.ModelProto:
    return helper.make_model(graph_of(constant(made), helper.make_node("Add", ["x", "w"], ["y"])))


def in_a_branch(made: TensorProto) -> onnx.ModelProto:
    branch = helper.make_graph([constant(made)], "branch", [], [value("w", 1, [2, 3])])
    return helper.make_model(graph_of(helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)))


def in_a_function(made: TensorProto) -> onnx.ModelProto:
    model = helper.make_model(graph_of(helper.make_node("F", ["x"], ["y"], domain="own")))
    imports = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "F", ["x"], ["w"], [constant(made)], imports))
    return model


def in_sparse_weights(made: TensorProto) -> onnx.ModelProto:
    model = in_weights(made)
    model.graph.initializer.pop()
    model.graph.sparse_initializer.add(values=made)
    return model


def in_training(made: TensorProto) -> onnx.ModelProto:
    model = helper.make_model(graph_of(helper.make_node("Relu", ["x"], ["y"])))
    model.training_info.add().initialization.initializer.append(made)
    return model


PLACES = [in_weights, in_a_node, in_a_branch, in_a_function, in_sparse_weights, in_training]


def saved(folder: Path, made: TensorProto, place: Callable[[TensorProto], onnx.ModelProto] = in_weights) -> Path:
    """A network with such weights in a folder of its own, and a secret beside that folder."""
    (folder / "net").mkdir()
    (folder / "secret.bin").write_bytes(NUMBERS.tobytes())
    path = folder / "net" / "net.onnx"
    path.write_bytes(place(made).SerializeToString())
    return path


@pytest.mark.parametrize("keys", [{}, {"offset": 8, "length": 24}], ids=["whole", "part"])
def test_weights_are_read_from_a_file_in_the_folder(tmp_path: Path, keys: dict[str, int]) -> None:
    path = saved(tmp_path, tensor("deeper/weights.bin", **keys))
    (path.parent / "deeper").mkdir()
    (path.parent / "deeper/weights.bin").write_bytes(bytes(keys.get("offset", 0)) + NUMBERS.tobytes())
    (read,) = load_onnx(path).graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(read), NUMBERS.reshape(2, 3))


@pytest.mark.parametrize("place", PLACES)
def test_no_tensor_names_a_file_beyond_the_folder(
    tmp_path: Path, place: Callable[[TensorProto], onnx.ModelProto]
) -> None:
    with pytest.raises(ModelError, match=r"tensor w .*'\.\./secret\.bin'.* no file in the folder"):
        load_onnx(saved(tmp_path, tensor("../secret.bin"), place))


@pytest.mark.parametrize(
    "location",
    ["", "/etc/hostname", "net/../../secret.bin", "./weights.bin", "a//b", "a\0b", "*/_ORT_MEM_ADDR_/*"],
)
def test_a_location_is_a_plain_name_below_the_folder(tmp_path: Path, location: str) -> None:
    with pytest.raises(ModelError, match="no file in the folder"):
        load_onnx(saved(tmp_path, tensor(location)))


def to_a_file(folder: Path) -> None:
    (folder / "weights.bin").symlink_to("../secret.bin")


def to_a_folder(folder: Path) -> None:
    (folder / "deeper").symlink_to("..")


def to_the_same_content(folder: Path) -> None:
    os.link(folder.parent / "secret.bin", folder / "weights.bin")


def to_nobody(folder: Path) -> None:
    os.mkfifo(folder / "weights.bin")


@pytest.mark.parametrize(
    ("make", "location"),
    [
        (to_a_file, "weights.bin"),
        (to_a_folder, "deeper/secret.bin"),
        (to_the_same_content, "weights.bin"),
        (to_nobody, "weights.bin"),
    ],
)
def test_no_link_is_followed(tmp_path: Path, make: Callable[[Path], None], location: str) -> None:
    path = saved(tmp_path, tensor(location))
    make(path.parent)
    with pytest.raises(ModelError, match=rf"{location}, which .*link"):
        load_onnx(path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"offset": 4}, "has 20 there"),
        ({"offset": 1 << 62}, "has 0 there"),
        ({"offset": -8}, "no number"),
        ({"length": "8; rm"}, "no number"),
        ({"length": 12}, "12 bytes, and 24 by its shape"),
    ],
)
def test_sizes_are_checked_before_anything_is_read(tmp_path: Path, keys: dict[str, int | str], message: str) -> None:
    path = saved(tmp_path, tensor(**keys))
    (path.parent / "weights.bin").write_bytes(NUMBERS.tobytes())
    with pytest.raises(ModelError, match=message):
        load_onnx(path)


def test_many_tensors_of_one_part_count_each(tmp_path: Path) -> None:
    model = in_weights(tensor())
    for i in range(1, 1000):
        made = tensor()
        made.name, made.dims[0] = f"w{i}", 1 << 20
        model.graph.initializer.append(made)
    path = saved(tmp_path, tensor())
    path.write_bytes(model.SerializeToString())
    with open(path.parent / "weights.bin", "wb") as file:
        file.truncate(12 << 20)
    with pytest.raises(ModelError, match=r"12\.6 GB of weights"):
        load_onnx(path)
