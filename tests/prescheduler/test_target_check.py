"""chanas/prescheduler/target_check.py: what works is tried, what was not tried says so."""

from __future__ import annotations

import importlib.util

import pytest

from chanas.prescheduler import target_check as module
from chanas.prescheduler.target_check import check_processor, small_block
from chanas.prescheduler.workload import block_workloads
from chanas.target_files import describe_target

from .cases import HOST


def test_the_small_block_has_everything_that_a_block_can_have() -> None:
    workloads = block_workloads(small_block())
    assert {w.op for w in workloads} == {"pointwise", "depthwise", "pool"}
    assert any(w.scaled and w.residual for w in workloads)


def test_this_machine_compiles_runs_and_equals_pytorch() -> None:
    steps = list(check_processor(HOST, None))
    assert [(s.what, s.works) for s in steps] == [("compile", True), ("run", True), ("compare", True)]


def test_a_board_gets_object_code_and_nothing_is_said_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_cross_linker", lambda _triple: None)
    steps = list(check_processor(describe_target("raspberry-pi-4"), "this machine is another one"))
    assert [(s.what, s.works) for s in steps] == [("compile", True), ("link", None), ("run", None), ("compare", None)]
    assert "AArch64" in steps[0].detail
    assert steps[1].detail == "no cross linker for aarch64-linux-gnu was found; `pip install ziglang` brings one"
    assert steps[2].detail == "this machine is another one"


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
def test_a_board_gets_a_library_from_the_cross_linker() -> None:
    steps = list(check_processor(describe_target("raspberry-pi-4"), "this machine is another one"))
    assert (steps[1].what, steps[1].works) == ("link", True)
    assert steps[1].detail == "shared library for AArch64, by ziglang"


def test_a_linker_that_refuses_is_a_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = module.CrossLinker("a linker", ("false",))
    monkeypatch.setattr(module, "find_cross_linker", lambda _triple: refusing)
    steps = list(check_processor(describe_target("raspberry-pi-4"), "elsewhere"))
    assert [(s.what, s.works) for s in steps] == [("compile", True), ("link", False)]
    assert "a linker cannot link block.o: no message" in steps[1].detail
