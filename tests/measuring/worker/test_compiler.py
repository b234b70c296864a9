"""chanas/measuring/worker/compiler.py: what is compiled once is compiled elsewhere, and an abort there is
one line here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chanas.core.arch import SearchSpace
from chanas.core.blocks import BlockConfig
from chanas.devices.target_files import describe_target
from chanas.errors import ScheduleError, TargetError
from chanas.export.driver import build_calls
from chanas.measuring.checks.target_check import check_processor
from chanas.measuring.messages import BlockAt, Build, WorkerError
from chanas.measuring.worker.compiler import Compiler, open_compiler, readable
from chanas.prescheduler.tables.networks import compile_networks

from ...compiler.workbench import HOST, NUM_CLASSES, network_job, random_lut, random_points, save_module

STEM = BlockConfig("stem", 12, 3, 0, 16, 3, 2, "relu")
BLOCK = BlockConfig("mbconv", 6, 16, 32, 16, 3, 1, "relu", residual=True)
PI4 = describe_target("raspberry-pi-4")
# Its processor is said to lack what products of bfloat16 need, for which LLVM knows no way round.
ABORTS = dataclasses.replace(
    HOST,
    name="old",
    dtype="bfloat16",
    mcpu="skylake-avx512",
    mtriple="x86_64-linux-gnu",
    vector_lanes=16,
    num_vector_registers=32,
)


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with open_compiler(HOST) as opened:
        yield opened


def request(folder: Path, num_points: int = 3) -> Build:
    points = random_points(BLOCK, HOST, np.random.default_rng(0))[:num_points]
    return Build(target=HOST, what=BlockAt(BLOCK, points), path=folder / "block.o", form="object")


def test_an_object_file_comes_from_another_process(no_build_here: None, compiler: Compiler, tmp_path: Path) -> None:
    compiler.result(request(tmp_path), "the block")
    assert (tmp_path / "block.o").read_bytes()[:4] == b"\x7fELF"


def test_an_error_over_there_is_the_same_error_here(compiler: Compiler, tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=rf"^expected 3 points for block {BLOCK.key}, got 2$"):
        compiler.result(request(tmp_path, 2), "the block")


def test_an_error_of_the_compilers_own_names_what_failed(compiler: Compiler, tmp_path: Path) -> None:
    elsewhere = request(tmp_path / "not_there")
    with pytest.raises(TargetError, match=r"^the block can't be compiled for cpu \(.*\): \w+Error: "):
        compiler.result(elsewhere, "the block")


def test_a_compiler_that_is_slow_is_given_up(compiler: Compiler, tmp_path: Path) -> None:
    answer = compiler.call(request(tmp_path), timeout_s=1e-4)
    assert str(answer.error).startswith("timeout: build took more than ")


def test_an_abort_is_one_line(tmp_path: Path) -> None:
    module = save_module([STEM, BLOCK], ABORTS, tmp_path)
    with pytest.raises(TargetError, match=r"^the network can't be compiled for old \(skylake-avx512\): ") as told:
        build_calls("net", module, 1, ABORTS, tmp_path)
    assert "the compiler ended with signal 6 (SIGABRT)" in str(told.value)
    assert "\n" not in str(told.value)


def test_an_abort_is_a_step_of_a_check_that_fails() -> None:
    (step,) = check_processor(ABORTS, "this machine is another one")
    assert (step.what, step.works) == ("compile", False)
    assert "the compiler ended with signal 6 (SIGABRT)" in step.detail


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("crash: the worker ended with exit code 3 in ping", "the compiler ended with exit code 3 in ping"),
        ("timeout: ping took more than 1 s", "timeout: ping took more than 1 s"),
        ("ScheduleError: the worker", "ScheduleError: the worker"),
    ],
)
def test_a_crash_is_told_in_the_users_words(error: str, expected: str) -> None:
    assert readable(WorkerError.read(error)) == expected


# ---- nothing is compiled in this process ----------------------------------------------------------------------------
def test_a_check_compiles_elsewhere(no_build_here: None) -> None:
    assert all(step.works for step in check_processor(HOST, None))
    first = next(check_processor(PI4, "this machine is another one"))
    assert (first.what, first.works) == ("compile", True)


@pytest.mark.usefixtures("in_one_process")
def test_finalists_of_a_search_are_compiled_elsewhere(
    no_build_here: None, tiny_space: SearchSpace, tmp_path: Path
) -> None:
    blocks = tiny_space.smallest.blocks(tiny_space, NUM_CLASSES)
    job, lut = network_job(blocks, tmp_path / "network.so"), random_lut(tiny_space, blocks, HOST)
    (outcome,) = compile_networks(lut, HOST, [job], progress=False)
    assert outcome.error is None
