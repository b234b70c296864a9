"""Result files of the benchmarks: one for each kind of machine."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RESULTS = sorted((Path(__file__).resolve().parents[2] / "benchmarks" / "results").glob("*.json"))
V3 = (
    "fpu cx8 cx16 cmov mmx fxsr sse sse2 sse3 pni ssse3 sse4_1 sse4_2 popcnt movbe avx avx2 fma f16c bmi1 bmi2 abm aes "
    "pclmulqdq xsave xsavec xsaveopt rdrand rdseed adx fsgsbase lahf_lm"
)
ZEN3 = f"{V3} sse4a clzero clflushopt clwb rdpid sha_ni vaes vpclmulqdq"
AVX512 = "avx512f avx512bw avx512cd avx512dq avx512vl"
ICE_LAKE = "avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq gfni"
ZEN4 = f"{ZEN3} {AVX512} {ICE_LAKE} avx512_bf16"
SAPPHIRE_RAPIDS = (
    f"{V3} 3dnowprefetch clflushopt clwb rdpid sha_ni vaes vpclmulqdq {AVX512} {ICE_LAKE} avx512_bf16 avx512_fp16 "
    "avx_vnni amx_tile amx_bf16 amx_int8"
)


@pytest.fixture
def common(load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """`common`, with its results in a temporary folder."""
    module: ModuleType = load("common")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return module


def write_on(common: ModuleType, kind: str, speed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "machine_kind", lambda: kind)
    common.finish("some", {"speed": common.Figure(speed)}, False, {})


def test_results_of_another_kind_of_machine_stand_beside_those_that_are_there(
    common: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_on(common, "amd-zen4", 1.0, monkeypatch)
    write_on(common, "intel-sapphirerapids", 2.0, monkeypatch)
    write_on(common, "amd-zen4", 3.0, monkeypatch)
    assert sorted(path.name for path in common.RESULTS.iterdir()) == [
        "some-amd-zen4.json",
        "some-intel-sapphirerapids.json",
    ]
    assert common.read_result("some", "amd-zen4")["figures"]["speed"]["value"] == 3.0
    assert common.read_result("some", "intel-sapphirerapids")["figures"]["speed"]["value"] == 2.0


def test_a_result_that_is_not_there_is_an_error_with_the_kinds_that_are(
    common: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="a result of some on amd-zen4, got results on: none; run "):
        common.read_result("some", "amd-zen4")
    write_on(common, "amd-zen5", 1.0, monkeypatch)
    with pytest.raises(SystemExit, match="got results on: amd-zen5;"):
        common.read_result("some", "amd-zen4")


def test_results_of_other_options_are_not_taken_for_those_of_a_kind(common: ModuleType) -> None:
    common.write_result("some", {}, {}, "amd-zen4")
    common.write_result("some-bf16", {}, {}, "amd-zen5")
    assert list(common.read_results("some")) == ["amd-zen4"]


@pytest.mark.parametrize(
    ("vendor", "flags", "machine", "part", "kind"),
    [
        ("AuthenticAMD", ZEN3, "x86_64", "", "amd-zen3"),
        ("AuthenticAMD", ZEN4, "x86_64", "", "amd-zen4"),
        ("AuthenticAMD", f"{ZEN4} avx_vnni", "x86_64", "", "amd-zen5"),
        ("GenuineIntel", V3, "x86_64", "", "intel-broadwell"),
        ("GenuineIntel", SAPPHIRE_RAPIDS, "x86_64", "", "intel-sapphirerapids"),
        ("GenuineIntel", "fpu sse sse2", "x86_64", "", "intel-x86-64"),
        ("SomebodyElse", V3, "x86_64", "", "somebodyelse-x86-64-v3"),
        ("ARM", "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid", "aarch64", "0xd08", "arm-cortex-a72"),
        ("generic", "", "riscv64", "", "riscv64"),
    ],
)
def test_a_processors_kind_is_what_it_can_do(
    common: ModuleType, vendor: str, flags: str, machine: str, part: str, kind: str
) -> None:
    assert common.processor_kind(vendor, flags.split(), machine, part) == kind


def test_this_machine_has_a_kind(common: ModuleType) -> None:
    kind = common.machine_kind()
    assert kind
    assert set(kind) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
    assert common.machine_kind("NVIDIA H200") == f"{kind}-nvidia-h200"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "nvidia-h100"),
        ("NVIDIA H100 PCIe", "nvidia-h100-pcie"),
        ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
        ("Tesla V100-SXM2-16GB", "nvidia-tesla-v100-sxm2"),
    ],
)
def test_a_gpus_kind_is_its_name(common: ModuleType, name: str, kind: str) -> None:
    assert common.gpu_kind(name) == kind


def test_types_and_threads_have_results_of_their_own(load: Any) -> None:
    name = load("network_latency").result_name
    assert name("all", 1, "f32") == "network_latency"
    assert name("all", 1, "bf16") == "network_latency-bf16"
    assert name("mobilenetv3", 2, "bf16") == "network_latency-mobilenetv3-2t-bf16"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_lies_under_its_name_and_kind(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert path.stem == f"{content['name']}-{content['kind']}"
