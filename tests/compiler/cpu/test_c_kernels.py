"""chanas/compiler/cpu/c_kernels.py: a Relax function as calls of kernels, an object file for each different one, under
names of the network's own; and what it must not contain."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from chanas.compiler.cpu import c_kernels
from chanas.compiler.cpu.c_kernels import CallList, KernelCall, Place, aligned, build_calls
from chanas.compiler.elf import rename_symbols
from chanas.core.blocks import BlockConfig
from chanas.devices.target_files import describe_target
from chanas.errors import TargetError
from chanas.operators.memory import inner_bytes

from ..workbench import HOST, save_module

Body = Callable[[Any, Any, Any], Any]
"""The result of a function from a block builder, an input float32[4], and a parameter float32[4]."""


def listed(body: Body, folder: Path) -> CallList:
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
    found = listed(lambda b, x, w: b.emit(relax.op.reshape(add(b, x, w), (2, 2))), tmp_path)
    assert found.outputs == found.calls[-1].arguments[-1:]


def test_several_outputs_are_told_with_their_sizes(tmp_path: Path) -> None:
    def outputs(builder: Any, x: Any, w: Any) -> Any:
        return relax.Tuple([builder.emit(relax.op.greater(x, w)), add(builder, x, w), x])

    found = listed(outputs, tmp_path)
    assert found.output_bytes == (4, 16, 16)
    assert found.outputs[2] == X
    assert len({*found.outputs}) == 3


def test_a_kernel_with_two_outputs_gives_each_to_whom_reads_it(tmp_path: Path) -> None:
    def swapped(builder: Any, x: Any, w: Any) -> Any:
        halves = builder.emit(relax.op.split(x, 2))
        first, second = (builder.emit(relax.TupleGetItem(halves, i)) for i in (0, 1))
        return add(builder, second, first)

    split, total = listed(swapped, tmp_path).calls
    assert split.arguments == (X, FIRST, SECOND)
    assert total.arguments == (SECOND, FIRST, Place("buffer", 2))


def test_a_tuple_inside_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="the network's program has a tuple inside a tuple"):
        listed(lambda b, x, w: relax.Tuple([x, relax.Tuple([x, w])]), tmp_path)


def test_constants_in_the_code_are_files(tmp_path: Path) -> None:
    value = np.arange(4, dtype=np.float32)
    found = listed(lambda b, x, w: add(b, x, relax.const(value)), tmp_path)
    assert found.calls[0].arguments[1] == Place("constant", 0)
    np.testing.assert_array_equal(np.fromfile(found.constants[0], np.float32), value)


def test_functions_of_the_runtime_in_a_kernel_are_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"function argsort calls tvm\.contrib\.sort\.argsort of TVM's runtime"):
        listed(lambda b, x, w: b.emit(relax.op.argsort(x)), tmp_path)


def test_other_functions_of_the_runtime_are_named(tmp_path: Path) -> None:
    tensor = relax.TensorType((4,), "float32")
    with pytest.raises(TargetError, match=r"the network's program has some\.function, .* can't be exported to C"):
        listed(lambda b, x, w: b.emit(relax.call_dps_packed("some.function", [x], tensor)), tmp_path)


# ---- object code ----------------------------------------------------------------------------------------------------
STEM = BlockConfig("stem", 12, 3, 0, 16, 3, 2, "relu")
GATED = BlockConfig("mbconv", 6, 16, 48, 16, 3, 1, "relu", use_se=True, residual=True)
PLAIN = BlockConfig("mbconv", 6, 16, 32, 16, 3, 1, "relu", residual=True)
BLOCKS = (STEM, GATED, PLAIN, GATED)


@pytest.fixture(scope="module", params=["cpu", "raspberry-pi-4"])
def calls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CallList:
    """A searched network, compiled for a processor."""
    target = HOST if request.param == "cpu" else describe_target(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    return build_calls("net", save_module(BLOCKS, target, folder), 1, target, folder)


def test_equal_blocks_share_a_kernel_and_names_are_the_networks(calls: CallList) -> None:
    first, second, third = (f"net_kernel{i}" for i in range(3))
    assert [call.symbol for call in calls.calls] == [first, second, third, second]
    assert [path.name for path in calls.objects] == [f"{first}.o", f"{second}.o", f"{third}.o"]
    for path in calls.objects:
        names = set(re.findall(rb"\0(\w*(?:TVM|tvm|net)\w*)(?=\0)", path.read_bytes()[-400:]))
        assert path.stem.encode() in names
        assert path.stem == first or b"net_allocate" in names


def test_a_block_reads_what_the_one_before_wrote_and_weights_of_its_own(calls: CallList) -> None:
    before = X
    for i, call in enumerate(calls.calls):
        assert call.arguments == (before, Place("parameter", i), Place("buffer", i))
        before = call.arguments[-1]
    assert calls.outputs == (before,)


def test_a_kernel_offers_nothing_but_what_is_named_after_the_network(calls: CallList) -> None:
    offered: list[str] = []
    for path in calls.objects:
        rename_symbols(path.read_bytes(), lambda name, is_offered: offered.append(name) or name if is_offered else name)
    assert {path.stem for path in calls.objects} <= set(offered)
    assert [name for name in offered if not name.startswith("net_")] == []


def test_kernels_say_which_instructions_they_may_have(tmp_path: Path) -> None:
    target = describe_target("raspberry-pi-4")
    assert "neon" in build_calls("net", save_module([STEM], target, tmp_path), 1, target, tmp_path).features


def test_the_workspace_holds_what_is_inside_the_largest_block(tmp_path: Path) -> None:
    most = max(sum(inner_bytes(block, HOST)) for block in BLOCKS)
    calls = build_calls("net", save_module(BLOCKS, HOST, tmp_path), 1, HOST, tmp_path)
    # beside the operators' outputs: padded rows, accumulators, scaled inputs of a tile; without the smallest outputs
    assert 0.7 * most < calls.workspace_bytes < 2 * most


def test_kernels_alone_need_no_library(tmp_path: Path) -> None:
    found = build_calls("net", save_module([STEM, PLAIN], HOST, tmp_path), 1, HOST, tmp_path)
    try:
        listed = subprocess.run(["nm", "-u", *found.objects], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("nm (binutils) is not installed")
    needed = {line.split()[-1] for line in listed.splitlines() if " U " in line}
    assert needed <= {"memset", "memcpy", "_GLOBAL_OFFSET_TABLE_"}


@pytest.mark.parametrize(
    ("told", "blocks"),
    [("(nothing like this)", "[01]"), (rf"(?s)^.*?{c_kernels._ALLOCATION.pattern}", "1")],
    ids=["none", "one"],
)
def test_code_that_does_not_tell_all_its_memory_is_refused(
    told: str, blocks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first block takes memory once where there are long vectors, the second more often."""
    monkeypatch.setattr(c_kernels, "_ALLOCATION", re.compile(told))
    with pytest.raises(TargetError, match=f"how much memory function block{blocks} takes"):
        build_calls("net", save_module([STEM, GATED], HOST, tmp_path), 1, HOST, tmp_path)


@pytest.mark.parametrize(("num_bytes", "result"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_sizes_are_multiples_of_the_alignment(num_bytes: int, result: int) -> None:
    assert aligned(num_bytes) == result
