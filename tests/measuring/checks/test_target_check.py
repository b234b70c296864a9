"""chanas/measuring/checks/target_check.py: what works is tried, what was not tried says so."""

from __future__ import annotations

import pytest

from chanas.compiler.toolchains import CrossLinker, find_linker
from chanas.devices.target_files import describe_target
from chanas.measuring.checks import target_check as module
from chanas.measuring.checks.qemu import Emulated, Emulator, find_emulator, no_emulator
from chanas.measuring.checks.target_check import check_processor, small_block
from chanas.operators.steps import block_workloads

from ...compiler.workbench import HOST


def test_the_small_block_has_everything_that_a_block_can_have() -> None:
    workloads = block_workloads(small_block())
    assert {w.op for w in workloads} == {"pointwise", "depthwise", "pool"}
    assert any(w.scaled and w.residual for w in workloads)


def test_this_machine_compiles_runs_and_equals_pytorch() -> None:
    steps = list(check_processor(HOST, None))
    assert [(s.what, s.works) for s in steps] == [("compile", True), ("run", True), ("compare", True)]


PI4 = describe_target("raspberry-pi-4")


def test_a_board_gets_object_code_and_nothing_is_said_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_linker", lambda _triple: None)
    monkeypatch.setattr(module, "find_emulator", lambda _triple: None)
    monkeypatch.setattr(module, "no_emulator", lambda _triple: "qemu is not there")
    steps = list(check_processor(PI4, "this machine is another one"))
    assert [(s.what, s.works) for s in steps] == [("compile", True), ("link", None), ("run", None), ("compare", None)]
    assert "AArch64" in steps[0].detail
    assert steps[1].detail.startswith(
        "no cross linker for aarch64-linux-gnu was found; `pip install ziglang` brings one"
    )
    assert steps[2].detail == "this machine is another one, and none is emulated: qemu is not there"


@pytest.mark.skipif(find_linker(PI4.mtriple) is None, reason="no linker for aarch64 is installed")
def test_a_board_gets_a_library_from_the_cross_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_emulator", lambda _triple: None)
    steps = list(check_processor(PI4, "this machine is another one"))
    assert (steps[1].what, steps[1].works) == ("link", True)
    assert steps[1].detail.startswith("shared library for AArch64, by ")


def test_a_linker_that_refuses_is_a_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = CrossLinker("a linker", ("false",))
    monkeypatch.setattr(module, "find_linker", lambda _triple: refusing)
    steps = list(check_processor(PI4, "elsewhere"))
    assert [(s.what, s.works) for s in steps] == [("compile", True), ("link", False)]
    assert "a linker cannot link block.o: code 1, no message" in steps[1].detail


@pytest.mark.parametrize(
    ("ran", "expected"),
    [
        (Emulated(1e-7, 1e-4), [("run", True), ("compare", True)]),
        (Emulated(0.5, 1e-4), [("run", True), ("compare", False)]),
        (Emulated(error="crash: signal 11 (SIGSEGV)"), [("run", False)]),
    ],
)
def test_what_is_emulated_counts_as_run(
    monkeypatch: pytest.MonkeyPatch, ran: Emulated, expected: list[tuple[str, bool]]
) -> None:
    monkeypatch.setattr(module, "find_linker", lambda _triple: None)
    monkeypatch.setattr(module, "find_emulator", lambda _triple: Emulator("an emulator", (), ()))
    monkeypatch.setattr(module, "run_emulated", lambda *_: [ran])
    steps = list(check_processor(PI4, "elsewhere"))[2:]
    assert [(s.what, s.works) for s in steps] == expected
    assert "an emulator" in steps[0].detail


@pytest.mark.qemu
@pytest.mark.skipif(find_emulator(PI4.mtriple) is None, reason=no_emulator(PI4.mtriple))
@pytest.mark.parametrize("name", ["raspberry-pi-4", "pixel-6"])
def test_a_described_processor_runs_emulated_and_equals_pytorch(name: str) -> None:
    steps = {s.what: s.works for s in check_processor(describe_target(name), "this machine is another one")}
    assert steps["run"] is steps["compare"] is True
