"""Files of strangers: whatever they do to the process that opens them first, this one gets a network or one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from chanas.core.arrays import Array
from chanas.errors import ModelError
from chanas.models import importing
from chanas.models.importing import check_values, import_network
from chanas.models.reading.reader import read_graph
from chanas.models.sources.model import TensorFacts
from tests.networks import save_onnx

from .onnx_files import onnx_model

pytestmark = pytest.mark.usefixtures("real_workers")
OWN = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def network(nodes: list[onnx.NodeProto], weights: Mapping[str, Array] | None = None, *functions: Any) -> Any:
    """Nodes from `x`, float32[2, 3], to `y`."""
    return onnx_model(nodes, [("x", "float32", [2, 3])], ["y"], weights, functions=functions)


def expanded() -> onnx.ModelProto:
    nodes = [helper.make_node("Expand", ["w", "s"], ["a"], name="grow"), helper.make_node("Add", ["x", "a"], ["y"])]
    return network(nodes, {"w": np.ones(1, np.float32), "s": np.array([10**6, 10**6])})


def padded() -> onnx.ModelProto:
    return network([helper.make_node("Pad", ["x", "p"], ["y"])], {"p": np.array([0, 0, 10**9, 10**9])})


def calling(name: str, *called: str) -> onnx.FunctionProto:
    nodes = [helper.make_node(c, [f"v{i}"], [f"v{i + 1}"], domain="own") for i, c in enumerate(called)]
    return helper.make_function("own", name, ["v0"], [f"v{len(called)}"], nodes, OWN)


def endless() -> onnx.ModelProto:
    return network([helper.make_node("F", ["x"], ["y"], domain="own")], None, calling("F", "G"), calling("G", "F"))


def doubling() -> onnx.ModelProto:
    functions = [calling(f"F{i}", f"F{i + 1}", f"F{i + 1}") for i in range(30)]
    last = helper.make_function("own", "F30", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], OWN)
    return network([helper.make_node("F0", ["x"], ["y"], domain="own")], None, *functions, last)


def declared() -> onnx.ModelProto:
    made = network([helper.make_node("Add", ["x", "w"], ["y"])], {"w": np.ones((2, 3), np.float32)})
    made.graph.initializer[0].dims[0] = 10**12
    return made


def sparse() -> onnx.ModelProto:
    made = network([helper.make_node("Add", ["x", "w"], ["y"])])
    values, places = numpy_helper.from_array(np.ones(1, np.float32), "w"), numpy_helper.from_array(np.array([5]))
    made.graph.sparse_initializer.add(values=values, indices=places, dims=[10**6, 10**7])
    return made


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (expanded, r"Expand \(node grow\)"),
        (padded, r"y \(pad\) .* a worker may allocate"),
        (endless, "function F of .* calls itself"),
        (doubling, "more than 50000 nodes"),
        (declared, "tensor w of .* do not fit its shape"),
        (sparse, "memory"),
    ],
)
def test_a_small_file_of_a_large_network_is_one_line(
    tmp_path: Path, make: Callable[[], onnx.ModelProto], message: str
) -> None:
    (tmp_path / "net.onnx").write_bytes(make().SerializeToString())
    with pytest.raises(ModelError, match=message):
        import_network(tmp_path / "net.onnx")


def test_a_good_file_opens(tmp_path: Path) -> None:
    opened = import_network(save_onnx(tmp_path / "net.onnx"))
    assert opened.answer(opened.random_inputs())[0].dtype == np.float32


WORKER = (
    "import os, time; from chanas.models import importing\n"
    "from chanas.models.sources import opening\n"
    "def bad(*_): {}\n"
    "importing.open_model = bad; importing.main()"
)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("os.kill(os.getpid(), 11)", r"net\.onnx cannot be opened \(crash: .*SIGSEGV"),
        ("time.sleep(60)", r"net\.onnx took more than 0\.5 s"),
        ("bytearray(1 << 45)", r"net\.onnx cannot be opened \(out of memory: a worker may allocate \d"),
        ("raise RuntimeError('std::bad_alloc')", r"net\.onnx cannot be opened \(out of memory"),
        ("raise importing.ModelError(400 * 'long ')", "^(long ){400}$"),
        ("1 / 0", r"net\.onnx cannot be opened \(ZeroDivisionError"),
    ],
)
def test_what_becomes_of_the_other_process_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str, message: str
) -> None:
    monkeypatch.setattr(importing, "_TIMEOUT_S", 0.5 if "sleep" in bad else 60.0)
    with pytest.raises(ModelError, match=message):
        import_network(save_onnx(tmp_path / "net.onnx"), command=("-c", WORKER.format(bad)))


def test_weights_that_are_no_numbers_are_named() -> None:
    made = network([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": np.full((3, 4), np.nan, np.float32)})
    graph = read_graph(made, (TensorFacts("x", (2, 3), "float32"),))
    with pytest.raises(ModelError, match="weights of y of net are NaN"):
        check_values(graph, "net")
