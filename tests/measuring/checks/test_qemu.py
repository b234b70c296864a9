"""chanas/measuring/checks/qemu.py: kernels linked without TVM's runtime, run, and compared with PyTorch.

The C program is the same for every processor, so that most of it is tested on this machine's, with nothing around it.
What QEMU runs is marked `qemu`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.cases import ReferenceCase, block_case, operator_case
from chanas.compiler.cpu.build import build_network, build_object
from chanas.core.arch import SearchSpace
from chanas.core.genome import decode, sample
from chanas.core.target import HardwareTarget
from chanas.devices.target_files import describe_target
from chanas.errors import TargetError
from chanas.measuring.checks import qemu as module
from chanas.measuring.checks.qemu import (
    Call,
    Emulated,
    Emulator,
    compile_block,
    emulator_program,
    find_emulator,
)
from chanas.measuring.checks.qemu import run_emulated as run
from chanas.measuring.checks.target_check import small_block
from chanas.measuring.worker.compiler import open_compiler
from chanas.operators.workload import Operator, Workload
from chanas.testing.families import covering_points

from ...compiler.test_toolchains import having
from ...compiler.workbench import HOST, OPERATORS, random_points

HERE = Emulator("this machine", (), ("gcc",))
PI4 = describe_target("raspberry-pi-4")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
try:
    FOUND, REASON = find_emulator(PI4.mtriple), ""
except TargetError as missing:
    FOUND, REASON = None, str(missing)
SMALL: dict[Operator, Workload] = {
    "conv": Workload("conv", 9, 3, 24, 3, 2, "hswish"),
    "blockconv": Workload("blockconv", 7, 16, 24, 3, 2, "relu"),
    "winograd": Workload("winograd", 7, 16, 24, 3, 1, "none"),
    "winograd2": Workload("winograd2", 7, 16, 24, 3, 1, "none"),
    "pointwise": Workload("pointwise", 6, 24, 40, epilogue="relu", scaled=True, residual=True),
    "depthwise": Workload("depthwise", 9, 24, 24, 5, 2, "hswish"),
    "pool": Workload("pool", 6, 40, 40),
}


def needs_qemu(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test `qemu`, and skips it where there is no emulator."""
    skip = pytest.mark.skipif(FOUND is None, reason=REASON)
    marked: Callable[..., None] = pytest.mark.qemu(skip(test))
    return marked


# ---- the program that calls kernels ---------------------------------------------------------------------------------
PLANTED = """
#include <tvm/ffi/c_api.h>
#define KERNEL(name) int __tvm_ffi_##name(void *self, const TVMFFIAny *a, int32_t count, TVMFFIAny *result)
#define DATA(i) ((float *)((DLTensor *)a[i].v_ptr)->data)
KERNEL(twice) { for (int i = 0; i < 6; ++i) DATA(1)[i] = 2 * DATA(0)[i]; return 0; }
KERNEL(nothing) { return 0; }
KERNEL(refuses) { return -1; }
KERNEL(crashes) { __builtin_trap(); return 0; }
KERNEL(hangs) { for (volatile int i = 0;; ) i = 0; return 0; }
"""


NEGATED = "KERNEL(negated) { for (int i = 0; i < 6; ++i) DATA(1)[i] = ~DATA(0)[i]; return 0; }"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.c").write_text(PLANTED)
    command = ["gcc", "-c", "-w", f"-I{module._headers()}", "-o", str(folder / "planted.o"), str(folder / "planted.c")]
    subprocess.run(command, check=True)
    return folder / "planted.o"


def outcomes(planted: Path, names: Sequence[str], folder: Path, timeout_s: float = 30.0) -> list[Emulated]:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    case = ReferenceCase((x,), (), 2 * x)
    return run(HERE, [Call(name, planted, case) for name in names], folder, timeout_s)


@needs_gcc
def test_a_call_is_compared_with_what_it_must_give(planted: Path, tmp_path: Path) -> None:
    right, unwritten, refused = outcomes(planted, ["twice", "nothing", "refuses"], tmp_path)
    assert (right.max_error, right.error, right.is_right) == (0.0, None, True)
    assert (unwritten.max_error, unwritten.is_right) == (math.inf, False)
    assert (refused.error, refused.is_right) == ("the function returned -1", False)


@needs_gcc
def test_a_crash_costs_only_its_own_call(planted: Path, tmp_path: Path) -> None:
    found = outcomes(planted, ["twice", "crashes", "nothing", "twice", "crashes"], tmp_path)
    assert [o.is_right for o in found] == [True, False, False, True, False]
    assert {str(found[i].error)[:13] for i in (1, 4)} == {"crash: signal"}


@needs_gcc
def test_a_call_that_hangs_is_given_up(planted: Path, tmp_path: Path) -> None:
    found = outcomes(planted, ["twice", "hangs", "twice"], tmp_path, timeout_s=1.0)
    assert [o.error for o in found] == [None, "timeout: it ran for more than 1 s", None]


@needs_gcc
def test_a_program_that_cannot_be_made_is_one_line(planted: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"^gcc can't make a program to emulate: .*"):
        outcomes(planted, ["not_there"], tmp_path)


@needs_gcc
def test_numbers_of_other_types_are_given_and_compared(tmp_path: Path) -> None:
    (tmp_path / "negated.c").write_text(
        PLANTED.partition("KERNEL(twice)")[0].replace("float", "unsigned char") + NEGATED
    )
    path = tmp_path / "negated.o"
    command = ["gcc", "-c", "-w", f"-I{module._headers()}", "-o", str(path), str(tmp_path / "negated.c")]
    subprocess.run(command, check=True)
    x = np.arange(6, dtype=np.uint8)
    cases = [ReferenceCase((x,), (), 255 - x), ReferenceCase((x,), (), 254 - x)]
    right, wrong = run(HERE, [Call("negated", path, case) for case in cases], tmp_path)
    assert right.is_right
    assert (wrong.is_right, wrong.max_error) == (False, 1 / 254)


@needs_gcc
def test_a_compiled_block_runs_without_the_compilers_runtime(tmp_path: Path, rng: np.random.Generator) -> None:
    block = small_block()
    with open_compiler(HOST) as compiler:
        path = compile_block(compiler, block, random_points(block, HOST, rng), "block", tmp_path)
    (outcome,) = run(HERE, [Call("block", path, block_case(block, HOST))], tmp_path)
    assert outcome.is_right


@pytest.mark.parametrize(
    ("triple", "program"),
    [
        ("aarch64-unknown-linux-gnu", "/usr/bin/qemu-aarch64-static"),
        ("arm-linux-gnueabihf", "/usr/bin/qemu-arm"),
        ("riscv64-linux-gnu", None),
        ("aarch64-apple-darwin", None),
    ],
)
def test_an_emulator_is_one_of_the_processor(triple: str, program: str | None) -> None:
    assert emulator_program(triple, having("qemu-aarch64-static", "qemu-arm")) == program


@pytest.mark.parametrize(
    ("triple", "there", "missing"),
    [
        (PI4.mtriple, (), "qemu-user-static"),
        (PI4.mtriple, ("qemu-aarch64-static",), "gcc-aarch64-linux-gnu), or `pip install ziglang`"),
        # QEMU lacks instruction sets that real processors have, which would look like code that fails.
        ("x86_64-linux-gnu", ("qemu-x86_64", "gcc", "ar"), "other kinds of processors"),
    ],
)
def test_without_an_emulator_it_says_what_to_install(triple: str, there: tuple[str, ...], missing: str) -> None:
    with pytest.raises(TargetError, match=re.escape(missing)):
        find_emulator(triple, having(*there))


@pytest.mark.parametrize("triple", [PI4.mtriple, "aarch64-linux-android29"])
def test_an_emulator_comes_with_the_compiler_of_its_programs(triple: str) -> None:
    found = find_emulator(triple, having("qemu-aarch64-static", "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-ar"))
    assert found.command == ("/usr/bin/qemu-aarch64-static",)
    assert found.compiler == ("aarch64-linux-gnu-gcc", "-static")


@needs_gcc
def test_a_program_that_writes_nothing_is_an_outcome(planted: Path, tmp_path: Path) -> None:
    x = np.zeros((2, 3), dtype=np.float32)
    calls = [Call("twice", planted, ReferenceCase((x,), (), x))] * 2
    found = run(Emulator("one that fails", ("false",), ("gcc",)), calls, tmp_path)
    assert [o.error for o in found] == ["exit code 1", "exit code 1"]


# ---- another processor ----------------------------------------------------------------------------------------------
def run_operator(workload: Workload, target: HardwareTarget, folder: Path, rng: np.random.Generator) -> list[Emulated]:
    """Points that take every option of the workload's space, in one program."""
    from chanas.compiler.backends import schedule_operator

    assert FOUND is not None
    case, calls = operator_case(workload, target), []
    for i, point in enumerate(covering_points(schedule_space(workload, target), rng)):
        function = schedule_operator(workload, point, target).with_attr("global_symbol", f"point{i}")
        build_object(function, target, folder / f"point{i}.o")
        calls.append(Call(f"point{i}", folder / f"point{i}.o", case))
    return run(FOUND, calls, folder)


@needs_qemu
@pytest.mark.parametrize("op", OPERATORS)
def test_every_choice_of_a_schedule_is_right_on_arm(op: Operator, tmp_path: Path, rng: np.random.Generator) -> None:
    found = run_operator(SMALL[op], PI4, tmp_path, rng)
    assert len(found) >= 2
    assert [o for o in found if not o.is_right] == []


IN_INT8 = [
    *(dataclasses.replace(SMALL[op], dtype="int8") for op in ("conv", "blockconv", "pointwise", "depthwise", "pool")),
    Workload("pointwise", 5, 37, 23, epilogue="hswish", dtype="int8", wide=True),
]


@needs_qemu
@pytest.mark.parametrize("feature", ["+i8mm", "+dotprod"])
@pytest.mark.parametrize("workload", IN_INT8, ids=lambda workload: workload.key)
def test_every_choice_of_a_schedule_is_right_on_arm_in_int8(
    workload: Workload, feature: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    target = dataclasses.replace(PI4, mattr=("+dotprod", feature), dtype="int8", has_dots=True)
    found = run_operator(workload, target, tmp_path, rng)
    assert len(found) >= 2
    assert [o for o in found if not o.is_right] == []


PARTS = 8


@needs_qemu
@pytest.mark.parametrize("part", range(PARTS))
def test_all_blocks_of_mbv3_32_equal_pytorch_on_arm(part: int, tmp_path: Path) -> None:
    assert FOUND is not None
    blocks = SearchSpace.load("mbv3-32").all_blocks(10)[part::PARTS]
    rng, calls = np.random.default_rng(part), []
    with open_compiler(PI4) as compiler:
        for i, block in enumerate(blocks):
            path = compile_block(compiler, block, random_points(block, PI4, rng), f"block{i}", tmp_path)
            calls.append(Call(f"block{i}", path, block_case(block, PI4)))
    wrong = {b.key: o for b, o in zip(blocks, run(FOUND, calls, tmp_path), strict=True) if not o.is_right}
    assert wrong == {}


@needs_qemu
def test_a_whole_network_compiles_and_links_for_arm(tmp_path: Path, rng: np.random.Generator) -> None:
    """Its blocks are run by the test above; what calls them in turn is TVM's virtual machine, which is not here."""
    space = SearchSpace.load("mbv3-32")
    (architecture,) = decode(space, sample(space, 1, rng))
    blocks = architecture.blocks(space, 10)
    build_network(blocks, [random_points(b, PI4, rng) for b in blocks], PI4, tmp_path / "network.so")
    header = (tmp_path / "network.so").read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == 183  # AArch64
