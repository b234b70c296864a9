"""chanas/compiler/cpu/static_library.py: one object file for each different block, under names of the
network's own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.cpu import static_library
from chanas.compiler.cpu.static_library import Kernels, aligned, build_kernel
from chanas.compiler.elf import rename_symbols
from chanas.core.arch import BlockConfig
from chanas.devices.target_files import describe_target
from chanas.errors import TargetError
from chanas.export.kernels import build_kernels
from chanas.operators.memory import inner_bytes

from ..workbench import HOST, random_points

FIRST = BlockConfig("mbconv", 6, 16, 48, 16, 3, 1, "relu", use_se=True, residual=True)
SECOND = BlockConfig("mbconv", 6, 16, 32, 16, 3, 1, "relu", residual=True)
BLOCKS = (FIRST, SECOND, FIRST)


pytestmark = pytest.mark.usefixtures("one_compiler")


def kernels_of(blocks: tuple[BlockConfig, ...], folder: Path, target: str = "cpu") -> Kernels:
    device = HOST if target == "cpu" else describe_target(target)
    points = {block: random_points(block, device, np.random.default_rng(0)) for block in dict.fromkeys(blocks)}
    return build_kernels("net", blocks, [points[block] for block in blocks], device, folder)


@pytest.mark.parametrize("target", ["cpu", "raspberry-pi-4"])
def test_equal_blocks_share_a_kernel_and_names_are_the_networks(target: str, tmp_path: Path) -> None:
    kernels = kernels_of(BLOCKS, tmp_path, target)
    assert kernels.symbols == ("net_block0", "net_block1", "net_block0")
    assert kernels.objects == (tmp_path / "net_block0.o", tmp_path / "net_block1.o")
    for path, symbol in zip(kernels.objects, kernels.symbols, strict=False):
        names = set(re.findall(rb"\0(\w*(?:TVM|tvm|net)\w*)(?=\0)", path.read_bytes()[-400:]))
        assert symbol.encode() in names
        assert b"net_allocate" in names


@pytest.mark.parametrize("target", ["cpu", "raspberry-pi-4"])
def test_a_kernel_offers_nothing_but_what_is_named_after_the_network(target: str, tmp_path: Path) -> None:
    offered = []
    for path in kernels_of(BLOCKS, tmp_path, target).objects:
        rename_symbols(path.read_bytes(), lambda name, is_offered: offered.append(name) or name if is_offered else name)
    assert "net_block0" in offered
    assert [name for name in offered if not name.startswith("net_")] == []


def test_a_kernel_says_which_instructions_it_may_have(tmp_path: Path) -> None:
    assert "neon" in kernels_of((SECOND,), tmp_path, "raspberry-pi-4").features


def test_the_workspace_holds_what_is_inside_the_largest_block(tmp_path: Path) -> None:
    most = max(sum(inner_bytes(block, HOST)) for block in BLOCKS)
    # beside the operators' outputs: padded rows, accumulators, scaled inputs of a tile; without the smallest outputs
    assert 0.7 * most < kernels_of(BLOCKS, tmp_path).workspace_bytes < 2 * most


def test_a_kernel_alone_needs_no_library(tmp_path: Path) -> None:
    (path,) = kernels_of((SECOND,), tmp_path).objects
    try:
        listed = subprocess.run(["nm", "-u", path], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("nm (binutils) is not installed")
    assert {line.split()[-1] for line in listed.splitlines()} <= {"memset", "memcpy", "_GLOBAL_OFFSET_TABLE_"}


@pytest.mark.parametrize("told", ["(nothing like this)", r"%op0_out = .*call ptr .*, i64 (\d+),"], ids=["none", "one"])
def test_code_that_does_not_tell_all_its_memory_is_refused(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_library, "_ALLOCATION", re.compile(told))
    points = random_points(FIRST, HOST, np.random.default_rng(0))
    with pytest.raises(TargetError, match=f"how much memory block {FIRST.key} takes"):
        build_kernel("net", "net_block0", FIRST, points, HOST, tmp_path / "block.o")


@pytest.mark.parametrize(("num_bytes", "result"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_sizes_are_multiples_of_the_alignment(num_bytes: int, result: int) -> None:
    assert aligned(num_bytes) == result
