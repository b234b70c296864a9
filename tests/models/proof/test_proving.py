"""Programs compared with their framework: what is right passes, and what is wrong is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from chanas.compiler.program import Program, TunedOperation
from chanas.devices.host import load_target
from chanas.errors import MeasureError
from chanas.models.folding import simplify
from chanas.models.graph import Graph
from chanas.models.lowering import lower
from chanas.models.proof.proving import Proof, prove
from chanas.models.proof.reference import reference_of
from chanas.models.reading.reader import read_graph

from ..default_programs import default_module
from ..onnx_files import onnx_model, opened_and_read

HOST = load_target("cpu")
IMAGE = ("x", "float32", [1, 3, 12, 12])
node = helper.make_node


def weight(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    values = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return (scale * values).astype(np.float32)


Prove = Callable[[Any, Callable[[Graph], Program]], Proof]


@pytest.fixture
def proven(tmp_path: Path) -> Prove:
    """Prove a program that a function makes of a model's graph, and of other graphs if it likes."""

    def run(proto: Any, make: Callable[[Graph], Program]) -> Proof:
        opened, graph = opened_and_read(proto, tmp_path)
        return prove(
            default_module(make(graph), HOST), reference_of(opened, graph), HOST, tmp_path / "module.so", num_rounds=1
        )

    return run


def as_read(graph: Graph) -> Program:
    return lower(graph, HOST)


def chain() -> Any:
    """Four convolutions in a row, each with an activation."""
    nodes, source = [], "x"
    for i in range(4):
        nodes += [
            node("Conv", [source, f"w{i}", f"b{i}"], [f"c{i}"], name=f"conv{i}", pads=[1] * 4),
            node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}"),
        ]
        source = f"r{i}"
    weights = {f"w{i}": weight(16, 16 if i else 3, 3, 3, seed=i) for i in range(4)}
    weights |= {f"b{i}": weight(16, seed=i) for i in range(4)}
    return onnx_model(nodes, [IMAGE], [("r3", "float32", [1, 16, 12, 12])], weights)


def with_planted(number: int, change: float) -> Callable[[Graph], Program]:
    """A program whose operator of that number has one other weight."""

    def make(graph: Graph) -> Program:
        program = lower(graph, HOST)
        [place] = [i for i, o in enumerate(program.operations) if o is program.tuned[number]]
        operation = program.operations[place]
        assert isinstance(operation, TunedOperation)
        assert operation.weight is not None
        changed = operation.weight.copy()
        changed.flat[0] += change
        program.operations[place] = dataclasses.replace(operation, weight=changed)
        return program

    return make


def test_a_right_program_is_proven_output_by_output(proven: Prove) -> None:
    proof = proven(chain(), as_read)
    [output] = proof.outputs
    assert output.name == "r3"
    assert output.error <= output.bound < 1e-4
    assert proof.relative_error < 1e-5
    assert proof.draws == ("normal", "0 to 255", "0 to 1", "flat", "nearly flat")
    assert proof.seconds > 0


def test_one_wrong_weight_in_the_middle_is_found_at_its_node(proven: Prove, tmp_path: Path) -> None:
    with pytest.raises(
        MeasureError, match=r"output r3 .* allowed, for inputs .*; the first to differ is Relu \(node "
    ) as e:
        proven(chain(), with_planted(2, 0.1))
    assert "node relu2" in str(e.value)
    assert not (tmp_path / "module.so").exists()


def two_heads() -> Any:
    """Boxes of some thousand and scores of some millionths."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="shared", pads=[1] * 4),
        node("Conv", ["c", "boxes_w"], ["boxes"], name="boxes"),
        node("Conv", ["c", "scores_w"], ["scores"], name="scores"),
    ]
    weights = {"w": weight(16, 3, 3, 3), "boxes_w": weight(8, 16, 1, 1, scale=1e3)}
    weights["scores_w"] = weight(8, 16, 1, 1, seed=1, scale=1e-6)
    heads = [("boxes", "float32", [1, 8, 12, 12]), ("scores", "float32", [1, 8, 12, 12])]
    return onnx_model(nodes, [IMAGE], heads, weights)


def test_a_small_output_is_not_right_because_a_large_one_is(proven: Prove) -> None:
    proof = proven(two_heads(), as_read)
    assert [o.name for o in proof.outputs] == ["boxes", "scores"]
    assert all(o.bound < 1e-4 for o in proof.outputs)
    with pytest.raises(MeasureError, match=r"output scores .*the first to differ is Conv \(node scores"):
        proven(two_heads(), with_planted(2, 1e-8))


def test_numbers_that_cancel_are_as_uncertain_as_in_the_framework(proven: Prove) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        node("Conv", ["x", "v"], ["b"], pads=[1] * 4),
        node("Sub", ["a", "b"], ["y"]),
    ]
    weights = {"w": weight(16, 3, 3, 3), "v": weight(16, 3, 3, 3) * np.float32(1 + 1e-6)}
    proven(onnx_model(nodes, [IMAGE], [("y", "float32", [1, 16, 12, 12])], weights), as_read)


def cancelling(moved: bool = False) -> Any:
    """A mean picture, of which two layers make 0 for equal numbers, as the difference of sums of a million and more,
    and a sigmoid of that. Every other weight of the last layer may be the next larger number."""
    nodes = [
        node("GlobalAveragePool", ["x"], ["m"]),
        node("Conv", ["m", "w0"], ["a"]),
        node("Conv", ["a", "w1"], ["b"], name="last"),
        node("Sigmoid", ["b"], ["y"]),
    ]
    first, last = weight(64, 3, 1, 1), weight(32, 64, 1, 1, seed=1).astype(np.float64)
    flat = first.astype(np.float64).sum(axis=1).ravel()
    last -= (last[:, :, 0, 0] @ flat / (flat @ flat))[:, None, None, None] * flat[None, :, None, None]
    weights = {"w0": first, "w1": (1e7 * last).astype(np.float32)}
    if moved:
        weights["w1"][:, ::2] = np.nextafter(weights["w1"][:, ::2], np.float32(np.inf))
    return onnx_model(nodes, [("x", "float32", [1, 3, 96, 96])], [("y", "float32", [1, 32, 1, 1])], weights)


def test_numbers_that_cancel_within_a_network_are_as_uncertain_as_its_weights(proven: Prove) -> None:
    proof = proven(cancelling(), of(cancelling(moved=True)))
    assert proof.outputs[0].bound > 1e-2


def chosen_class(op: str = "ArgMax", last: int = 0) -> Any:
    """The class of each pixel; the first two are always equal, and the largest in about half of them."""
    weights = {"w": weight(8, 3, 3, 3)}
    weights["w"][1] = weights["w"][0] = 2 * weights["w"][0]
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        node(op, ["c"], ["long"], axis=1, keepdims=1, select_last_index=last),
        node("Cast", ["long"], ["y"], to=6),
    ]
    return onnx_model(nodes, [IMAGE], [("y", "int32", [1, 1, 12, 12])], weights)


def of(proto: Any) -> Callable[[Graph], Program]:
    """The program of another model with the same inputs."""
    return lambda graph: lower(simplify(read_graph(proto, graph.inputs)), HOST)


def test_places_of_equal_numbers_are_as_good_as_each_other(proven: Prove) -> None:
    assert proven(chosen_class(), of(chosen_class(last=1))).outputs[0].name == "y"
    with pytest.raises(MeasureError, match="output y of the compiled network"):
        proven(chosen_class(), of(chosen_class("ArgMin")))


def test_a_model_that_was_exported_wrongly_is_told_from_a_wrong_program(tmp_path: Path) -> None:
    opened, graph = opened_and_read(chain(), tmp_path)
    framework = dataclasses.replace(opened, answer=lambda inputs: [1.5 * o for o in opened.answer(inputs)])
    with pytest.raises(MeasureError, match="differs already as it was exported to ONNX"):
        prove(default_module(lower(graph, HOST), HOST), reference_of(framework, graph), HOST, tmp_path / "module.so")
