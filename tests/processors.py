"""Made-up machines: what `/proc/cpuinfo` says of their first processor. The flags are those of real ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

from chanas.core import processor
from chanas.devices import host

_BASE = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx "
    "pdpe1gb rdtscp lm constant_tsc rep_good nopl xtopology cpuid pni pclmulqdq ssse3 fma cx16 pcid sse4_1 sse4_2 "
    "movbe popcnt aes xsave avx f16c rdrand lahf_lm abm fsgsbase bmi1 avx2 smep bmi2 erms invpcid"
)
_INTEL = f"{_BASE} dts acpi ss tm pbe art arch_perfmon vmx est tm2 sdbg xtpr pdcm x2apic tsc_deadline_timer epb"
_SKYLAKE = "3dnowprefetch rdseed adx smap clflushopt xsaveopt xsavec xgetbv1 xsaves"
_ALDER_LAKE = "clwb sha_ni user_shstk avx_vnni umip pku ospke waitpkg gfni vaes vpclmulqdq rdpid movdiri fsrm serialize"
_AVX512 = "avx512f avx512dq avx512cd avx512bw avx512vl"
_ICE_LAKE = "avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq gfni vaes vpclmulqdq sha_ni"
_SAPPHIRE_RAPIDS = "avx_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"
_ZEN3 = (
    f"{_BASE} mmxext fxsr_opt misalignsse sse4a cmp_legacy 3dnowprefetch osvw topoext rdseed adx smap clflushopt clwb "
    "sha_ni xsaveopt xsavec xgetbv1 xsaves mwaitx clzero wbnoinvd umip vaes vpclmulqdq rdpid"
)
_ZEN4 = (
    f"{_ZEN3} {_AVX512} avx512ifma avx512_bf16 avx512vbmi avx512_vbmi2 gfni avx512_vnni avx512_bitalg avx512_vpopcntdq "
    "fsrm"
)
_NEOVERSE_N1 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
_NEOVERSE_V1 = (
    f"{_NEOVERSE_N1} jscvt fcma sha3 sm3 sm4 sha512 sve asimdfhm dit uscat ilrcpc flagm paca pacg dcpodp svei8mm "
    "svebf16 i8mm bf16 dgh rng"
)


def x86_text(vendor: str, family: int, model: int, name: str, flags: str) -> str:
    return (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: {name}\n"
        f"stepping\t: 1\ncache size\t: 1024 KB\nflags\t\t: {flags}\nbugs\t\t: spectre_v1 spectre_v2\n\n"
        f"processor\t: 1\nvendor_id\t: {vendor}\nmodel name\t: {name}\nflags\t\t: {flags}\n"
    )


def arm_text(part: str, variant: str, flags: str, implementer: str = "0x41") -> str:
    return (
        f"processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: {flags}\nCPU implementer\t: {implementer}\n"
        f"CPU architecture: 8\nCPU variant\t: {variant}\nCPU part\t: {part}\nCPU revision\t: 1\n\nprocessor\t: 1\n"
    )


def _intel(model: int, name: str, flags: str) -> str:
    return x86_text("GenuineIntel", 6, model, name, f"{_INTEL} {flags}")


VIRTUAL_XEON = _intel(
    167, "Intel(R) Xeon(R) Processor", f"hypervisor {_SKYLAKE} {_AVX512} {_ICE_LAKE} {_SAPPHIRE_RAPIDS}"
)
"""A Sapphire Rapids whose hypervisor gives the model number of a Rocket Lake, which has neither bfloat16 nor AMX."""

CPUINFO = {
    "virtual-xeon": VIRTUAL_XEON,
    "xeon-without-fp16": VIRTUAL_XEON.replace(" avx512_fp16", ""),
    "cooper-lake": _intel(85, "Intel(R) Xeon(R) 8380H", f"{_SKYLAKE} clwb pku {_AVX512} avx512_vnni avx512_bf16"),
    "alder-lake": _intel(151, "Intel(R) Core(TM) i7-12700", f"{_SKYLAKE} {_ALDER_LAKE}"),
    "ice-lake": _intel(106, "Intel(R) Xeon(R) Platinum 8380", f"{_SKYLAKE} clwb pku {_AVX512} {_ICE_LAKE}"),
    "haswell": _intel(63, "Intel(R) Xeon(R) CPU E5-2680 v3 @ 2.50GHz", "xsaveopt"),
    "zen3": x86_text("AuthenticAMD", 25, 33, "AMD Ryzen 9 5950X 16-Core Processor", _ZEN3),
    "zen4": x86_text("AuthenticAMD", 25, 17, "AMD EPYC 9654 96-Core Processor", f"{_ZEN4} pku ospke flush_l1d"),
    "virtual-zen4": x86_text("AuthenticAMD", 25, 17, "AMD EPYC", f"{_ZEN4} hypervisor"),
    "zen5": x86_text(
        "AuthenticAMD",
        26,
        68,
        "AMD Ryzen 9 9950X 16-Core Processor",
        f"{_ZEN4} pku ospke flush_l1d avx_vnni avx512_vp2intersect movdiri movdir64b",
    ),
    "unknown-avx512": x86_text("Some Vendor", 7, 1, "Fast Processor", f"{_BASE} {_SKYLAKE} {_AVX512} avx512_bf16"),
    "cortex-a72": arm_text("0xd08", "0x0", "fp asimd evtstrm crc32 cpuid"),
    "neoverse-n1": arm_text("0xd0c", "0x3", _NEOVERSE_N1),
    "neoverse-v1": arm_text("0xd40", "0x1", _NEOVERSE_V1),
}
"""Texts by the names of their machines."""


def plant(text: str) -> None:
    """Make this process believe that it runs on the processor of `text`, to its end."""
    with tempfile.NamedTemporaryFile("w", prefix="cpuinfo-", delete=False) as file:
        file.write(text)
    processor.CPUINFO = Path(file.name)
    host.may_use_matrices = lambda: True
    host._host_cpu.cache_clear()
