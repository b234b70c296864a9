"""chanas/commands/target.py: `chanas target` and what it prints."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from chanas.commands import target as target_commands
from chanas.commands.main import app
from chanas.core.processor import parse_cpuinfo
from chanas.core.target import HardwareTarget
from chanas.devices.host import Machine, load_target
from chanas.devices.target_files import describe_target
from chanas.measuring.checks import target_check
from chanas.measuring.checks.target_check import Step

from ..processors import CPUINFO

runner = CliRunner()


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_commands, "HOST", Machine(gpu=lambda: None))


def output(*arguments: str) -> str:
    result = runner.invoke(app, ["target", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_list_has_this_machine_and_the_described_devices() -> None:
    lines = output("list").splitlines()
    assert lines[0].split()[:2] == ["cpu", "CPU"]
    assert lines[1].split(maxsplit=2) == ["cuda", "-", "no NVIDIA GPU was found on this machine"]
    assert any(line.split()[:2] == ["h100", "GPU"] and line.endswith("[sm_90]") for line in lines)


def test_show_has_what_schedules_depend_on() -> None:
    shown = output("show", "h100")
    for fact in (
        "sm_90",
        "132",
        "32 threads",
        "1024",
        "255 per thread",
        "48 KiB per block",
        "L2                  50 MiB",
    ):
        assert fact in shown
    assert "caches              L1 32 KiB, L2 1 MiB, L3 33 MiB" in output("show", "xeon-avx512")


def test_show_as_json_is_the_descriptor() -> None:
    assert HardwareTarget.from_json(json.loads(output("show", "h100", "--json"))) == describe_target("h100")
    shown = json.loads(output("show", "cpu", "--json"))
    shown.pop("processor")
    assert HardwareTarget.from_json(shown) == load_target("cpu")


@pytest.fixture
def cooper_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's processor looks like one for which LLVM has no name with all that it can do."""
    machine = Machine(processor=lambda: parse_cpuinfo(CPUINFO["cooper-lake"]), gpu=lambda: None)
    monkeypatch.setattr(target_commands, "HOST", machine)


@pytest.mark.usefixtures("cooper_lake")
def test_show_has_what_was_found_of_this_processor_and_what_is_used() -> None:
    facts = {line[:19].strip(): line[20:] for line in output("show", "cpu").splitlines()}
    assert facts["microarchitecture"] == "cascadelake (GenuineIntel)"
    assert facts["instruction sets"] == "sse4_2, avx, avx2, fma, avx512f, avx512_vnni, avx512_bf16"
    assert facts["compiled for"] == "cascadelake +avx512bf16"
    assert facts["dtypes"] == "f32, bf16, int8"
    assert facts["vector"] == "16 float32, 32 registers"
    found = json.loads(output("show", "cpu", "--json"))["processor"]
    assert (found["mcpu"], found["mattr"], found["dtypes"]) == ("cascadelake", ["+avx512bf16"], ["f32", "bf16", "int8"])
    assert "processor" not in json.loads(output("show", "xeon-avx512", "--json"))


@pytest.mark.parametrize(("works", "code"), [(True, 0), (None, 0), (False, 1)])
def test_check_fails_where_something_that_was_tried_does(
    monkeypatch: pytest.MonkeyPatch, works: bool | None, code: int
) -> None:
    def steps(target: HardwareTarget, why_not_here: str | None) -> Iterator[Step]:
        yield Step("compile", works, "a block")

    monkeypatch.setattr(target_check, "check_processor", steps)
    result = runner.invoke(app, ["target", "check", "cpu"])
    assert result.exit_code == code
    word = {True: "works", False: "fails", None: "not tried"}[works]
    assert result.output.splitlines()[1].split() == ["compile", *word.split(), "a", "block"]
    document = json.loads(runner.invoke(app, ["target", "check", "cpu", "--json"]).output)
    assert document["steps"] == [{"what": "compile", "works": works, "detail": "a block"}]
