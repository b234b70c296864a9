"""Shapes that a file's own nodes fit together with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from chanas.errors import ModelError
from chanas.models.importing import import_network
from chanas.models.likely_shapes import describe_likely

from .onnx_files import onnx_model

CONV = helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1])
WEIGHT = {"w": np.ones((4, 3, 3, 3), np.float32)}


def written(folder: Path, extents: Sequence[Any], *more: Any, **weights: Any) -> Path:
    """A file of a convolution of an image with these extents, and of what comes after it."""
    output = ("y", "float32", None) if more else ("a", "float32", None)
    proto = onnx_model([CONV, *more], [("x", "float32", extents)], [output], {**WEIGHT, **weights})
    path = folder / "network.onnx"
    onnx.save(proto, path)
    return path


def dense(inputs: int) -> tuple[list[Any], dict[str, Any]]:
    nodes = [helper.make_node("Flatten", ["a"], ["b"]), helper.make_node("MatMul", ["b", "v"], ["y"])]
    return nodes, {"v": np.ones((inputs, 5), np.float32)}


def test_a_dense_layer_tells_the_size_of_the_image(tmp_path: Path) -> None:
    nodes, weights = dense(4 * 16 * 16)
    assert describe_likely(written(tmp_path, ["n", 3, "h", "w"], *nodes, **weights), {}) == "--shape x=1,3,32,32"


def test_parts_of_one_image_are_not_several_images(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["a", "s"], ["b"]), helper.make_node("MatMul", ["b", "v"], ["y"])]
    weights = {"v": np.ones((4 * 16 * 16, 5), np.float32), "s": np.array([-1, 4 * 16 * 16])}
    path = written(tmp_path, ["n", 3, "h", "w"], *nodes, **weights)
    proto = onnx.load(path)
    proto.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "n"
    proto.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 5
    onnx.save(proto, path)
    assert describe_likely(path, {}) == "--shape x=1,3,32,32"


def test_known_axes_stay_and_lines_of_text_are_tried(tmp_path: Path) -> None:
    nodes, weights = dense(4 * 24 * 160)
    assert describe_likely(written(tmp_path, ["n", 3, 48, "w"], *nodes, **weights), {}) == "--shape x=1,3,48,320"


def test_what_takes_any_size_has_two_examples_and_first_the_size_that_the_file_says(tmp_path: Path) -> None:
    path = written(tmp_path, ["n", 3, "h", "w"])
    assert describe_likely(path, {}) == "--shape x=1,3,224,224 or --shape x=1,3,640,640"
    proto = onnx.load(path)
    for text in ("no sizes", "[320, 352]"):
        entry = proto.metadata_props.add()
        entry.key, entry.value = "imgsz", text
    onnx.save(proto, path)
    assert describe_likely(path, {}) == "--shape x=1,3,320,352 or --shape x=1,3,224,224"


@pytest.mark.parametrize("size", [7, 5000])
def test_nothing_is_said_where_no_size_fits(tmp_path: Path, size: int) -> None:
    nodes, weights = dense(size)
    assert describe_likely(written(tmp_path, ["n", 3, "h", "w"], *nodes, **weights), {}) == ""


def test_an_open_shape_is_refused_with_the_shapes_that_fit(tmp_path: Path) -> None:
    nodes, weights = dense(4 * 16 * 16)
    path = written(tmp_path, ["n", 3, "h", "w"], *nodes, **weights)
    with pytest.raises(ModelError, match=r"open shape .*; its nodes fit together with --shape x=1,3,32,32$"):
        import_network(path)
