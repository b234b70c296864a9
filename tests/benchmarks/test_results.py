"""Result files of the benchmarks: one for each kind of machine."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from chanas.core.processor import Processor, parse_cpuinfo

from ..processors import CPUINFO

RESULTS = sorted((Path(__file__).resolve().parents[2] / "benchmarks" / "results").glob("*.json"))


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
    ("vendor", "flags", "family", "kind"),
    [
        ("AuthenticAMD", "sse3 ssse3 sse4_1 sse4_2 popcnt avx", "x86_64", "amd-x86-64-v2"),
        ("SomebodyElse", "sse3 ssse3 sse4_1 sse4_2 popcnt", "x86_64", "somebodyelse-x86-64-v2"),
        ("generic", "", "riscv64", "generic"),
    ],
)
def test_a_processor_that_nobody_knows_has_the_kind_of_what_it_can_do(
    common: ModuleType, vendor: str, flags: str, family: str, kind: str
) -> None:
    assert common.processor_kind(Processor(family, vendor, flags=frozenset(flags.split()))) == kind


def test_a_processors_kind_is_its_maker_and_what_it_can_do(common: ModuleType) -> None:
    kinds = {name: common.processor_kind(parse_cpuinfo(text)) for name, text in CPUINFO.items()}
    assert kinds == {
        "virtual-xeon": "intel-sapphirerapids",
        "xeon-without-fp16": "intel-sapphirerapids",
        "cooper-lake": "intel-cascadelake",
        "alder-lake": "intel-alderlake",
        "ice-lake": "intel-icelake",
        "haswell": "intel-haswell",
        "zen3": "amd-zen3",
        "zen4": "amd-zen4",
        "virtual-zen4": "amd-zen4",
        "zen5": "amd-zen5",
        "unknown-avx512": "some-vendor-x86-64-v4",
        "cortex-a72": "arm-cortex-a72",
        "neoverse-n1": "arm-neoverse-n1",
        "neoverse-v1": "arm-neoverse-v1",
    }


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


def test_bundles_have_results_of_their_own(load: Any) -> None:
    name = load("network_latency").result_name
    assert name("demo", 1, "f32", Path("runs/digits/bundle")) == "network_latency-demo-of-digits"
    assert name("all", 2, "f32", Path("runs/best")) == "network_latency-of-best-2t"


def test_architectures_of_gpus_have_results_of_their_own(load: Any) -> None:
    name = load("cuda_compile").result_name
    assert name("sm_90", "f32,f16,tf32", 1) == "cuda_compile"
    assert name("sm_80", "f32,f16", 32) == "cuda_compile-sm_80-f32-f16-b32"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_lies_under_its_name_and_kind(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert path.stem == f"{content['name']}-{content['kind']}"
