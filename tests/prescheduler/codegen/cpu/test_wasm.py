"""chanas/prescheduler/codegen/cpu/wasm.py: symbols of WebAssembly objects get other names, and nothing else changes."""

from __future__ import annotations

import pytest

from chanas.core.arch import SearchSpace
from chanas.devices.target_files import describe_target
from chanas.errors import TargetError
from chanas.prescheduler.codegen.cpu.lowering import pipeline
from chanas.prescheduler.codegen.cpu.wasm import rename_symbols
from chanas.prescheduler.kernels.cpu.blocks import schedule_block
from chanas.prescheduler.tuning.default_points import default_points

KERNEL, ALLOCATE = "__tvm_ffi_kernel", "__TVMBackendAllocWorkspace"


@pytest.fixture(scope="module")
def kernel(tiny_space: SearchSpace, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A block that takes memory, and rounds with functions of elsewhere, as an object file."""
    import tvm

    target = describe_target("wasm32")
    block = tiny_space.largest.blocks(tiny_space, 5)[2]
    function = schedule_block(block, tuple(default_points(block, target)), target).with_attr("global_symbol", "kernel")
    library = tvm.tirx.build(tvm.IRModule({"kernel": function}), target.tvm_target(), pipeline())
    assert "f32x4.mul" in library.inspect_source("asm")
    file = tmp_path_factory.mktemp("wasm") / "kernel.o"
    library.write_to_file(str(file))
    return file.read_bytes()


def names_of(content: bytes) -> list[str]:
    found: list[str] = []
    rename_symbols(content, lambda name, _: found.append(name) or name)  # type: ignore[func-returns-value]
    return found


def test_a_file_with_the_names_that_it_has_is_the_same_file(kernel: bytes) -> None:
    assert rename_symbols(kernel, lambda name, _: name) == kernel
    assert {KERNEL, ALLOCATE} <= set(names_of(kernel))


@pytest.mark.parametrize("length", [1, 200, 20_000])
def test_every_kind_of_symbol_gets_its_new_name(kernel: bytes, length: int) -> None:
    front = "n" * length + "_"
    renamed = rename_symbols(kernel, lambda name, _: front + name)
    assert names_of(renamed) == [front + name for name in names_of(kernel)]
    assert rename_symbols(renamed, lambda name, _: name) == renamed


def test_other_files_are_refused() -> None:
    with pytest.raises(TargetError, match="WebAssembly"):
        rename_symbols(b"\x7fELF\2\1", lambda name, _: name)
