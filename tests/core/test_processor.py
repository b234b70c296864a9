"""chanas/core/processor.py: a processor is what its flags say, whatever model number a hypervisor gives it."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
import sys

import archspec.cpu
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chanas.core import processor as module
from chanas.core.processor import Processor, host_processor, limited, parse_cpuinfo
from chanas.errors import TargetError

from ..processors import CPUINFO, VIRTUAL_XEON, arm_text

CORES = [m for m in archspec.cpu.TARGETS.values() if str(m.family) in module._FEATURES]


def of(text: str, **flags: bool) -> Processor:
    """The processor of a text, with some flags more or less."""
    found = parse_cpuinfo(text)
    added, removed = ({flag for flag, there in flags.items() if there is value} for value in (True, False))
    return dataclasses.replace(found, flags=found.flags - removed | added)


def llvm_features(processor: Processor) -> set[str]:
    """LLVM's own list of what it may use when it compiles for the processor."""
    from tvm.target import Target, codegen

    options = {"kind": "llvm", "mcpu": processor.mcpu, "mtriple": f"{processor.family}-linux-gnu"}
    mattr = {"mattr": list(processor.mattr)} if processor.mattr else {}
    return {str(name) for name in codegen.llvm_get_cpu_features(Target(options | mattr))}


# ---- /proc/cpuinfo --------------------------------------------------------------------------------------------------
def test_the_first_processor_of_an_x86_text_is_read() -> None:
    found = parse_cpuinfo(VIRTUAL_XEON)
    assert (found.family, found.vendor, found.device) == ("x86_64", "GenuineIntel", "Intel(R) Xeon(R) Processor")
    assert found.identity == ("6", "167", "1")
    assert {"avx512_bf16", "amx_tile", "sse3"} <= found.flags


def test_the_first_processor_of_an_arm_text_is_read() -> None:
    found = parse_cpuinfo(CPUINFO["neoverse-n1"])
    assert (found.family, found.vendor, found.device, found.part) == ("aarch64", "ARM", "", "0xd0c")
    assert found.identity == ("0x41", "0x3", "0xd0c", "1")
    assert "asimddp" in found.flags


def test_a_text_that_says_nothing_is_of_a_processor_that_nothing_is_known_of() -> None:
    found = parse_cpuinfo("")
    assert (found.family, found.flags, found.used_flags, found.compiled_for) == ("", frozenset(), (), "generic")
    assert Processor() == dataclasses.replace(found, identity=())


@pytest.mark.parametrize(("newest", "mcpu"), [("avx2", "znver3"), ("sse4_2", "x86-64-v2")])
def test_a_processor_up_to_some_vectors_is_an_older_one(newest: str, mcpu: str) -> None:
    whole = parse_cpuinfo(CPUINFO["zen4"])
    found = limited(whole, newest)
    assert (found.mcpu, newest in found.used_flags) == (mcpu, True)
    assert set(found.used_flags) < set(whole.used_flags)
    assert not {flag for flag in found.flags if flag.startswith(("avx512", "amx"))}
    assert (found.identity, found.device) == (whole.identity, whole.device)


@given(text=st.sampled_from([VIRTUAL_XEON, CPUINFO["zen4"]]), newest=st.sampled_from(["avx2", "sse4_2"]))
def test_no_flag_stays_that_needs_one_which_is_hidden(text: str, newest: str) -> None:
    found = limited(parse_cpuinfo(text), newest)
    assert found.flags.intersection(module._X86_FEATURES) == set(found.used_flags)
    assert limited(found, newest) == found


def test_this_machine_is_limited_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANAS_MAX_CPU_ISA", "avx9")
    with pytest.raises(TargetError, match="unknown CHANAS_MAX_CPU_ISA 'avx9'; known: avx2, avx512_bf16, sse4_2"):
        host_processor()


@pytest.mark.parametrize("name", ["neoverse-n1"])
def test_vectors_that_are_not_there_are_not_limited_to(name: str) -> None:
    with pytest.raises(TargetError, match="of this machine's processor, got avx2; its vectors are of another kind"):
        limited(parse_cpuinfo(CPUINFO[name]), "avx2")


def test_a_text_is_read_without_a_look_at_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: pytest.fail("this machine was looked at"))
    text = CPUINFO["zen3"].replace("5950X", "5900X")  # one that no other test has read
    assert parse_cpuinfo(text).compiled_for == "znver3"


def test_no_compiler_is_imported() -> None:
    program = (
        "import sys, chanas.core.processor as p; p.host_processor().mattr; print({'tvm', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# ---- what is compiled for -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "microarchitecture", "compiled_for"),
    [
        ("virtual-xeon", "sapphirerapids", "sapphirerapids"),
        ("xeon-without-fp16", "sapphirerapids", "sapphirerapids -avx512fp16"),
        ("cooper-lake", "cascadelake", "cascadelake +avx512bf16"),
        ("alder-lake", "alderlake", "alderlake"),
        ("haswell", "haswell", "haswell"),
        ("zen3", "zen3", "znver3"),
        ("zen4", "zen4", "znver4"),
        ("virtual-zen4", "zen4", "znver4"),
        ("zen5", "zen5", "znver5"),
        ("unknown-avx512", "x86_64_v4", "x86-64-v4 +avx512bf16"),
        ("cortex-a72", "cortex_a72", "cortex-a72"),
        ("neoverse-n1", "neoverse_n1", "neoverse-n1"),
        ("neoverse-v1", "neoverse_v1", "neoverse-v1"),
    ],
)
def test_code_is_for_the_newest_microarchitecture_that_the_flags_allow(
    name: str, microarchitecture: str, compiled_for: str
) -> None:
    found = parse_cpuinfo(CPUINFO[name])
    assert (found.microarchitecture, found.compiled_for) == (microarchitecture, compiled_for)


def test_the_model_number_changes_nothing() -> None:
    assert parse_cpuinfo(VIRTUAL_XEON.replace("167", "85")).compiled_for == "sapphirerapids"


def test_what_llvm_takes_for_granted_and_the_flags_lack_is_switched_off() -> None:
    assert of(VIRTUAL_XEON, avx512_fp16=False, avx_vnni=False).compiled_for == "sapphirerapids -avxvnni -avx512fp16"


def test_without_a_flag_of_its_own_a_processor_is_the_one_before_with_what_it_has_besides() -> None:
    found = of(VIRTUAL_XEON, gfni=False)
    assert found.mcpu == "cannonlake"
    assert {"+avx512bf16", "+avx512fp16", "+avxvnni", "+amx-tile", "+amx-bf16", "+amx-int8"} <= set(found.mattr)


def test_a_core_whose_vendor_nobody_knows_is_generic_with_what_it_has() -> None:
    found = parse_cpuinfo(arm_text("0x001", "0x0", "fp asimd fphp asimdhp asimddp i8mm", implementer="0xff"))
    assert (found.vendor, found.microarchitecture) == ("0xff", "aarch64")
    assert found.compiled_for == "generic +fullfp16 +dotprod +i8mm"


def test_an_instruction_set_is_used_only_with_those_that_llvm_takes_for_granted_with_it() -> None:
    assert "avx512_bf16" in of(CPUINFO["zen4"]).used_flags
    assert "avx512_bf16" not in of(CPUINFO["zen4"], avx512bw=False).used_flags
    assert "avx512f" not in of(CPUINFO["zen4"], fma=False).used_flags


# ---- against LLVM ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("core", CORES, ids=str)
def test_llvm_knows_every_name(core: archspec.cpu.Microarchitecture) -> None:
    from tvm.target import codegen

    found = Processor(str(core.family), core.vendor, flags=frozenset(core.features))
    assert codegen.llvm_is_valid_cpu(found.mcpu, f"{found.family}-linux-gnu")


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_llvm_uses_what_the_flags_have_and_nothing_else(data: st.DataObject) -> None:
    core = data.draw(st.sampled_from(CORES))
    known = module._FEATURES[str(core.family)]
    some = st.sets(st.sampled_from(sorted(known)), max_size=6)
    flags = (core.features | data.draw(some)) - data.draw(some)
    found = Processor(str(core.family), core.vendor, flags=frozenset(flags))
    expected = {known[flag][0] for flag in found.used_flags}
    assert llvm_features(found) & {llvm for llvm, *_ in known.values()} == expected


@pytest.mark.parametrize("name", CPUINFO)
def test_llvm_uses_what_the_flags_of_a_real_processor_have(name: str) -> None:
    found = parse_cpuinfo(CPUINFO[name])
    known = module._FEATURES[found.family]
    assert set(found.used_flags) == known.keys() & found.flags
    assert llvm_features(found) & {llvm for llvm, *_ in known.values()} == {known[f][0] for f in found.used_flags}


def test_nothing_is_used_of_what_an_emulator_shows_of_the_machine_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    found = host_processor()
    assert (found.used_flags, found.compiled_for) == ((), "generic")


def test_the_family_of_this_machine_is_known() -> None:
    assert host_processor().family == platform.machine()
