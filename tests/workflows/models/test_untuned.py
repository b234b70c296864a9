"""A network without schedules is compiled and timed in another process, whose end is a line of the user's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from chanas.devices.host import load_target
from chanas.errors import ModelError
from chanas.models.sources.opening import open_model
from chanas.workflows.models.untuned import untuned_network

ABORTS = """
import os, sys, types
sys.modules["tvm"] = types.ModuleType("tvm")
from chanas.workflows.models import untuned
untuned.time_untuned = lambda _: (os.write(2, b"LLVM ERROR: planted\\n"), os.abort())
untuned.main()
"""


def test_outputs_are_those_of_the_framework(no_build_here: None, tuned_onnx_folder: Path, tmp_path: Path) -> None:
    opened = open_model(tuned_onnx_folder.parent / "other.onnx")
    (got,), seconds = untuned_network(opened, load_target("cpu"), tmp_path)
    (expected,) = opened.answer(opened.random_inputs())
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert seconds > 0


def test_a_compiler_that_aborts_is_one_line(tuned_onnx_folder: Path, tmp_path: Path) -> None:
    opened = open_model(tuned_onnx_folder.parent / "other.onnx")
    with pytest.raises(ModelError, match=r"^did not compile: the compiler ended with signal 6 .*LLVM ERROR: planted$"):
        untuned_network(opened, load_target("cpu"), tmp_path, ("-c", ABORTS))


RAISES = """
import sys, types
sys.modules["tvm"] = types.ModuleType("tvm")
from chanas.errors import ModelError
from chanas.workflows.models import untuned

def refuse(_):
    raise ModelError("other.onnx has no input z")

untuned.time_untuned = refuse
untuned.main()
"""


def test_an_error_of_the_other_process_is_one_line(tuned_onnx_folder: Path, tmp_path: Path) -> None:
    opened = open_model(tuned_onnx_folder.parent / "other.onnx")
    with pytest.raises(ModelError, match=r"^did not compile: ModelError: other\.onnx has no input z$"):
        untuned_network(opened, load_target("cpu"), tmp_path, ("-c", RAISES))


@pytest.mark.slow
def test_a_network_that_the_other_process_does_not_open_is_one_line(tuned_onnx_folder: Path, tmp_path: Path) -> None:
    opened = dataclasses.replace(open_model(tuned_onnx_folder.parent / "other.onnx"), shapes={"z": (1,)})
    with pytest.raises(ModelError, match=r"^did not compile: ModelError: .* has no input z"):
        untuned_network(opened, load_target("cpu"), tmp_path)
