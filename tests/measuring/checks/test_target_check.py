"""chanas/measuring/checks/target_check.py: what works is tried, what was not tried says so."""

from __future__ import annotations

from typing import Any

import pytest

from chanas.compiler.toolchains import CrossLinker, find_linker
from chanas.devices.target_files import describe_target
from chanas.errors import TargetError
from chanas.measuring.checks import target_check as module
from chanas.measuring.checks.qemu import Emulated, Emulator
from chanas.measuring.checks.target_check import Step, check_processor, small_block
from chanas.operators.steps import block_workloads

from ...compiler.workbench import HOST
from .test_qemu import needs_qemu

PI4 = describe_target("raspberry-pi-4")


def test_the_small_block_has_everything_that_a_block_can_have() -> None:
    workloads = block_workloads(small_block())
    assert {w.op for w in workloads} == {"pointwise", "depthwise", "pool"}
    assert any(w.scaled and w.residual for w in workloads)


def test_this_machine_compiles_runs_and_equals_pytorch() -> None:
    steps = list(check_processor(HOST, None))
    assert [(s.what, s.works) for s in steps] == [("compile", True), ("run", True), ("compare", True)]


def steps_of_a_board(patch: pytest.MonkeyPatch, ran: Emulated | None = None, **tools: Any) -> dict[str, Step]:
    """Steps for a board, by name, with a `linker`, if one is given, and without an emulator unless something `ran`."""

    def find_emulator(_triple: str) -> Emulator:
        if ran is None:
            raise TargetError("qemu is not there")
        return Emulator("an emulator", (), ())

    if "linker" in tools:
        patch.setattr(module, "find_linker", lambda _triple: tools["linker"])
    patch.setattr(module, "find_emulator", find_emulator)
    patch.setattr(module, "run_emulated", lambda *_: [ran])
    return {s.what: s for s in check_processor(PI4, "this machine is another one")}


def test_a_board_gets_object_code_and_nothing_is_said_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of_a_board(monkeypatch, linker=None)
    assert {name: s.works for name, s in steps.items()} == {"compile": True, "link": None, "run": None, "compare": None}
    assert "AArch64" in steps["compile"].detail
    assert steps["link"].detail.startswith("no cross linker for aarch64-linux-gnu was found; `pip install ziglang`")
    assert steps["run"].detail == "this machine is another one, and none is emulated: qemu is not there"


@pytest.mark.skipif(find_linker(PI4.mtriple) is None, reason="no linker for aarch64 is installed")
def test_a_board_gets_a_library_from_the_cross_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    link = steps_of_a_board(monkeypatch)["link"]
    assert link.works
    assert link.detail.startswith("shared library for AArch64, by ")


def test_a_linker_that_refuses_is_a_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of_a_board(monkeypatch, linker=CrossLinker("a linker", ("false",)))
    assert {name: s.works for name, s in steps.items()} == {"compile": True, "link": False}
    assert "a linker cannot link block.o: code 1, no message" in steps["link"].detail


@pytest.mark.parametrize(
    ("ran", "expected"),
    [
        (Emulated(1e-7, 1e-4), {"run": True, "compare": True}),
        (Emulated(0.5, 1e-4), {"run": True, "compare": False}),
        (Emulated(error="crash: signal 11 (SIGSEGV)"), {"run": False}),
    ],
)
def test_what_is_emulated_counts_as_run(
    monkeypatch: pytest.MonkeyPatch, ran: Emulated, expected: dict[str, bool]
) -> None:
    steps = steps_of_a_board(monkeypatch, ran, linker=None)
    assert {name: steps[name].works for name in [*steps][2:]} == expected
    assert "an emulator" in steps["run"].detail


@needs_qemu
@pytest.mark.parametrize("name", ["raspberry-pi-4", "pixel-6"])
def test_a_described_processor_runs_emulated_and_equals_pytorch(name: str) -> None:
    steps = {s.what: s.works for s in check_processor(describe_target(name), "this machine is another one")}
    assert steps["run"] is steps["compare"] is True
