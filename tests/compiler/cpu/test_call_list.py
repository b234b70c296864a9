"""chanas/compiler/cpu/call_list.py: a Relax function as calls of kernels, and what it must not contain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.compiler.cpu.call_list import CallList, KernelCall, Place, build_calls
from chanas.errors import TargetError

from ..workbench import HOST

Body = Callable[[Any, Any, Any], Any]
"""The result of a function from a block builder, an input float32[4], and a parameter float32[4]."""


def listed(body: Body, folder: Path) -> CallList:
    import tvm
    from tvm import relax

    tensor = relax.TensorType((4,), "float32")
    x, w = relax.Var("x", tensor), relax.Var("w", tensor)
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            out = builder.emit_output(body(builder, x, w))
        builder.emit_func_output(out)
    (folder / "module.json").write_text(tvm.ir.save_json(builder.get()))
    return build_calls("net", folder / "module.json", 1, HOST, folder)


def add(builder: Any, a: Any, b: Any) -> Any:
    from tvm import relax

    return builder.emit(relax.op.add(a, b))


X, W, FIRST, SECOND = Place("input", 0), Place("parameter", 0), Place("buffer", 0), Place("buffer", 1)


def test_equal_functions_are_one_kernel_and_calls_are_in_order(tmp_path: Path) -> None:
    found = listed(lambda b, x, w: add(b, add(b, x, w), w), tmp_path)
    assert found.calls == (KernelCall("net_kernel0", (X, W, FIRST)), KernelCall("net_kernel0", (FIRST, W, SECOND)))
    assert found.outputs == (SECOND,)
    assert found.output_bytes == (16,)
    assert found.buffer_bytes == (16, 16)
    assert found.objects == (tmp_path / "net_kernel0.o",)
    assert found.objects[0].read_bytes()[:4] == b"\x7fELF"


def test_another_shape_is_the_same_memory(tmp_path: Path) -> None:
    from tvm import relax

    found = listed(lambda b, x, w: b.emit(relax.op.reshape(add(b, x, w), (2, 2))), tmp_path)
    assert found.outputs == found.calls[-1].arguments[-1:]


def test_several_outputs_are_told_with_their_sizes(tmp_path: Path) -> None:
    from tvm import relax

    def outputs(builder: Any, x: Any, w: Any) -> Any:
        return relax.Tuple([builder.emit(relax.op.greater(x, w)), add(builder, x, w), x])

    found = listed(outputs, tmp_path)
    assert found.output_bytes == (4, 16, 16)
    assert found.outputs[2] == X
    assert len({*found.outputs}) == 3


def test_a_kernel_with_two_outputs_gives_each_to_whom_reads_it(tmp_path: Path) -> None:
    from tvm import relax

    def swapped(builder: Any, x: Any, w: Any) -> Any:
        halves = builder.emit(relax.op.split(x, 2))
        first, second = (builder.emit(relax.TupleGetItem(halves, i)) for i in (0, 1))
        return add(builder, second, first)

    split, total = listed(swapped, tmp_path).calls
    assert split.arguments == (X, FIRST, SECOND)
    assert total.arguments == (SECOND, FIRST, Place("buffer", 2))


def test_a_tuple_inside_another_is_refused(tmp_path: Path) -> None:
    from tvm import relax

    with pytest.raises(TargetError, match="the network's program has a tuple inside a tuple"):
        listed(lambda b, x, w: relax.Tuple([x, relax.Tuple([x, w])]), tmp_path)


def test_constants_in_the_code_are_files(tmp_path: Path) -> None:
    from tvm import relax

    value = np.arange(4, dtype=np.float32)
    found = listed(lambda b, x, w: add(b, x, relax.const(value)), tmp_path)
    assert found.calls[0].arguments[1] == Place("constant", 0)
    np.testing.assert_array_equal(np.fromfile(found.constants[0], np.float32), value)


def test_functions_of_the_runtime_in_a_kernel_are_named(tmp_path: Path) -> None:
    from tvm import relax

    with pytest.raises(TargetError, match=r"function argsort calls tvm\.contrib\.sort\.argsort of TVM's runtime"):
        listed(lambda b, x, w: b.emit(relax.op.argsort(x)), tmp_path)


def test_other_functions_of_the_runtime_are_named(tmp_path: Path) -> None:
    from tvm import relax

    tensor = relax.TensorType((4,), "float32")
    with pytest.raises(TargetError, match=r"the network's program has some\.function, .* can't be exported to C"):
        listed(lambda b, x, w: b.emit(relax.call_dps_packed("some.function", [x], tensor)), tmp_path)
