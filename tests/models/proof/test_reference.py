"""What programs are compared with: inputs for which the framework has numbers, and what the comparison can tell."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from chanas.errors import ModelError
from chanas.models.proof import reference
from chanas.models.proof.reference import index_limits, reference_of

from ..onnx_files import onnx_model, opened_and_read

node = helper.make_node
X, Y = ("x", "float32", [2, 4]), ("y", "float32", [2, 4])


def masked(**changes: Any) -> Any:
    """A softmax of numbers that a mask leaves."""
    nodes = [node("Where", ["m", "x", "low"], ["kept"]), node("Softmax", ["kept"], ["y"], axis=-1)]
    return onnx_model(nodes, [X, ("m", "bool", [2, 4])], [Y], {"low": np.float32(-np.inf)})


def embedded(num_rows: int) -> Any:
    """Rows of a table, of which inputs choose; numbers before the first are counted from the end."""
    nodes = [
        node("Less", ["ids", "zero"], ["before"]),
        node("Add", ["ids", "rows"], ["later"]),
        node("Where", ["before", "later", "ids"], ["positive"]),
        node("Gather", ["table", "positive"], ["y"]),
    ]
    table = np.random.default_rng(0).standard_normal((num_rows, 4), dtype=np.float32)
    weights = {"table": table, "zero": np.int64(0), "rows": np.int64(num_rows)}
    return onnx_model(nodes, [("ids", "int64", [8])], [("y", "float32", [8, 4])], weights)


def of_one(op: str, **attributes: Any) -> Any:
    return onnx_model([node(op, ["x"], ["y"], **attributes)], [X], [Y], {})


def test_draws_are_those_for_which_the_framework_has_numbers(tmp_path: Path) -> None:
    found = reference_of(*opened_and_read(of_one("Log"), tmp_path))
    names = [draw.name for draw in found.draws]
    assert "normal" not in names  # it has numbers below 0
    assert {"0 to 1", "flat", "nearly flat"} <= set(names)
    assert all(np.isfinite(draw.outputs[0]).all() for draw in found.draws)


def test_masks_hold_where_the_network_gives_no_number_without(tmp_path: Path) -> None:
    found = reference_of(*opened_and_read(masked(), tmp_path))
    for draw in found.draws:
        np.testing.assert_allclose(draw.outputs[0].sum(-1), 1.0, rtol=1e-5)
    masks = [draw.inputs[1] for draw in found.draws]
    assert any(mask.all() for mask in masks)
    assert not all(mask.all() for mask in masks)


def test_infinity_is_compared_where_there_is_nothing_else(tmp_path: Path) -> None:
    nodes = [node("Mul", ["x", "large"], ["y"])]
    large = np.array([1.0, np.inf, 1.0, 1.0], np.float32)
    found = reference_of(*opened_and_read(onnx_model(nodes, [X], [Y], {"large": large}), tmp_path))
    assert all(np.isinf(draw.outputs[0][:, 1]).all() for draw in found.draws)


def test_a_network_without_numbers_is_refused(tmp_path: Path) -> None:
    nothing = onnx_model([node("Mul", ["x", "nan"], ["y"])], [X], [Y], {"nan": np.float32(np.nan)})
    with pytest.raises(ModelError, match="gives NaN or infinity"):
        reference_of(*opened_and_read(nothing, tmp_path))


@pytest.mark.parametrize("num_rows", [1, 7])
def test_whole_numbers_are_rows_of_their_table(num_rows: int, tmp_path: Path) -> None:
    opened, graph = opened_and_read(embedded(num_rows), tmp_path)
    assert index_limits(graph) == [num_rows]
    found = reference_of(opened, graph)
    assert {int(i) for draw in found.draws for i in draw.inputs[0]} == set(range(num_rows))
    assert found.unproven == ()  # of one row there are no other inputs to tell it by


def test_an_output_that_is_alike_for_all_inputs_is_unproven(tmp_path: Path) -> None:
    nodes = [node("Mul", ["x", "one"], ["y"]), node("Mul", ["x", "zero"], ["z"])]
    weights = {"one": np.float32(1e6), "zero": np.float32(0)}
    both = onnx_model(nodes, [X], [Y, ("z", "float32", [2, 4])], weights)
    assert reference_of(*opened_and_read(both, tmp_path)).unproven == ("z",)


def test_a_framework_that_answers_otherwise_each_time_is_told(tmp_path: Path) -> None:
    opened, graph = opened_and_read(of_one("Relu"), tmp_path)
    rng = np.random.default_rng(0)
    restless = dataclasses.replace(opened, answer=lambda _: [rng.random((2, 4), dtype=np.float32)])
    with pytest.raises(ModelError, match="output y of net is another one"):
        reference_of(restless, graph)


def test_what_the_framework_writes_to_its_arrays_changes_no_draw(tmp_path: Path) -> None:
    opened, graph = opened_and_read(of_one("Relu"), tmp_path)
    kept = np.zeros((2, 4), np.float32)

    def answer(inputs: Any) -> list[Any]:
        np.maximum(inputs[0], 0, out=kept)
        inputs[0][:] = np.nan
        return [kept]

    for draw in reference_of(dataclasses.replace(opened, answer=answer), graph).draws:
        np.testing.assert_array_equal(draw.outputs[0], np.maximum(draw.inputs[0], 0))


def test_a_slow_framework_is_asked_for_one_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_SECONDS", 0.0)
    found = reference_of(*opened_and_read(of_one("Relu"), tmp_path))
    assert [draw.name for draw in found.draws] == ["normal"]
    assert (found.draws[0].allowed[0] > 0).all()
