"""The instructions and vectors of a processor, by what Linux says of it: flags and vendor, never a model number.

A hypervisor may give any model number, and may hide instructions that such a model has; code for the model then does
not run, or does not use what is there. Flags say what may be used. LLVM is told a microarchitecture (`mcpu`), whose
costs it knows, and what the flags have beside it or lack of it (`mattr`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chanas.errors import TargetError, unknown_name

if TYPE_CHECKING:
    from archspec.cpu import Microarchitecture

_LLVM = "22"
"""The version of LLVM inside the pinned TVM, by which archspec gives microarchitectures their names."""

CPUINFO = Path("/proc/cpuinfo")
"""Linux's description of the processors. Tests replace it to run as on other machines."""

# What tells processors apart in /proc/cpuinfo, beside their names.
_X86_IDENTITY = ("cpu family", "model", "stepping")
_ARM_IDENTITY = ("CPU implementer", "CPU variant", "CPU part", "CPU revision")

# The flags on which code depends that LLVM makes of tensor programs: LLVM's name, then the flags that LLVM takes for
# granted with it. Cryptography, system calls and the like are left out: no code of ours has such instructions.
# Flags: Linux, arch/x86/include/asm/cpufeatures.h; LLVM: llvm/lib/Target/X86/X86.td.
_X86_FEATURES: dict[str, tuple[str, ...]] = {
    "sse3": ("sse3",),
    "ssse3": ("ssse3", "sse3"),
    "sse4_1": ("sse4.1", "ssse3"),
    "sse4_2": ("sse4.2", "sse4_1"),
    "sse4a": ("sse4a", "sse3"),
    "popcnt": ("popcnt",),
    "abm": ("lzcnt",),
    "bmi1": ("bmi",),
    "bmi2": ("bmi2",),
    "tbm": ("tbm",),
    "movbe": ("movbe",),
    "gfni": ("gfni",),
    "avx": ("avx", "sse4_2"),
    "avx2": ("avx2", "avx"),
    "fma": ("fma", "avx"),
    "f16c": ("f16c", "avx"),
    "fma4": ("fma4", "avx", "sse4a"),
    "xop": ("xop", "fma4"),
    "vaes": ("vaes", "avx2"),
    "vpclmulqdq": ("vpclmulqdq", "avx"),
    "avx_vnni": ("avxvnni", "avx2"),
    "avx_vnni_int8": ("avxvnniint8", "avx2"),
    "avx_vnni_int16": ("avxvnniint16", "avx2"),
    "avx_ifma": ("avxifma", "avx2"),
    "avx_ne_convert": ("avxneconvert", "avx2"),
    "avx512f": ("avx512f", "avx2", "fma", "f16c"),
    "avx512bw": ("avx512bw", "avx512f"),
    "avx512cd": ("avx512cd", "avx512f"),
    "avx512dq": ("avx512dq", "avx512f"),
    "avx512vl": ("avx512vl", "avx512f"),
    "avx512ifma": ("avx512ifma", "avx512f"),
    "avx512vbmi": ("avx512vbmi", "avx512bw"),
    "avx512_vbmi2": ("avx512vbmi2", "avx512bw"),
    "avx512_vnni": ("avx512vnni", "avx512f"),
    "avx512_bitalg": ("avx512bitalg", "avx512bw"),
    "avx512_vpopcntdq": ("avx512vpopcntdq", "avx512f"),
    "avx512_bf16": ("avx512bf16", "avx512bw"),
    "avx512_fp16": ("avx512fp16", "avx512bw"),
    "amx_tile": ("amx-tile",),
    "amx_bf16": ("amx-bf16", "amx_tile"),
    "amx_int8": ("amx-int8", "amx_tile"),
    "amx_fp16": ("amx-fp16", "amx_tile"),
    "amx_complex": ("amx-complex", "amx_tile"),
}
# Flags: Linux, Documentation/arch/arm64/elf_hwcaps.rst; LLVM: llvm/lib/Target/AArch64/AArch64Features.td.
_ARM_FEATURES: dict[str, tuple[str, ...]] = {
    "atomics": ("lse",),
    "uscat": ("lse2",),
    "lrcpc": ("rcpc",),
    "ilrcpc": ("rcpc-immo", "lrcpc"),
    "asimdhp": ("fullfp16",),
    "asimdfhm": ("fp16fml", "asimdhp"),
    "asimdrdm": ("rdm",),
    "asimddp": ("dotprod",),
    "fcma": ("complxnum",),
    "jscvt": ("jsconv",),
    "frint": ("fptoint",),
    "flagm": ("flagm",),
    "flagm2": ("altnzcv", "flagm"),
    "bf16": ("bf16",),
    "i8mm": ("i8mm",),
    "sve": ("sve", "asimdhp"),
    "sve2": ("sve2", "sve"),
    "cssc": ("cssc",),
    "mops": ("mops",),
}
_FEATURES = {"x86_64": _X86_FEATURES, "aarch64": _ARM_FEATURES}
_GENERIC_LEVELS = {"x86_64": ("x86_64", "x86_64_v2", "x86_64_v3", "x86_64_v4"), "aarch64": ("aarch64",)}

MAX_ISA = "CHANAS_MAX_CPU_ISA"
"""The environment variable that names the newest vectors of x86-64 that code may use, `avx512_bf16` (without matrix
registers), `avx2` or `sse4_2`: for a machine that has more than those which the code is for."""
# The flags that are then as if they were not there, and with them all that need them.
_HIDDEN = {
    "sse4_2": frozenset({"avx", "amx_tile"}),
    "avx2": frozenset({"avx512f", "amx_tile"}),
    "avx512_bf16": frozenset({"avx512_fp16", "amx_tile"}),
}

MATRIX_REQUEST = (158, 0x1023, 18)
"""The system call by which a process asks Linux for the matrix registers of x86-64: arch_prctl, ARCH_REQ_XCOMP_PERM,
XFEATURE_XTILEDATA (Documentation/arch/x86/xstate.rst)."""

# Flags that LLVM takes for granted with a microarchitecture and archspec does not (LLVM 22, archspec 0.2.7).
_ONLY_IN_LLVM = {"sapphirerapids": ("avx512_fp16", "avx_vnni"), "amdfam10": ("popcnt",)}


@dataclass(frozen=True)
class Processor:
    """A processor as Linux tells of it.

    family    `x86_64`, `aarch64`, or "" for others
    vendor    `GenuineIntel`, `AuthenticAMD`, `ARM`, …; "generic" where nobody says
    device    the model's name; "" where Linux has none, as on ARM
    part      number of an ARM core, such as `0xd08`
    identity  numbers by which one model is told from another
    flags     instruction sets, as Linux calls them
    """

    family: str = ""
    vendor: str = "generic"
    device: str = ""
    part: str = ""
    identity: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()

    @property
    def used_flags(self) -> tuple[str, ...]:
        """The flags whose instructions code may use: all that LLVM takes for granted with them is there too."""
        return tuple(sorted(_usable(self.family, self.flags)))

    @property
    def microarchitecture(self) -> str:
        """archspec's name of the one that is compiled for: `zen4`, `x86_64_v3`; "generic" for an unknown family."""
        found = _microarchitecture(self)
        return "generic" if found is None else found.name

    @property
    def mcpu(self) -> str:
        """LLVM's name of the microarchitecture: `znver4`, `x86-64-v3`, `neoverse-n1`; "generic" says nothing."""
        found = _microarchitecture(self)
        return "generic" if found is None else _llvm_name(found)

    @property
    def mattr(self) -> tuple[str, ...]:
        """The features that the processor has beyond `mcpu`, then those of `mcpu` that it lacks: `+avx512bf16`."""
        if self.family not in _FEATURES:
            return ()
        known, used = _FEATURES[self.family], set(self.used_flags)
        taken = _implied_flags(self.family, self.mcpu)
        added = [f"+{known[flag][0]}" for flag in known if flag in used - taken]
        return (*added, *(f"-{known[flag][0]}" for flag in known if flag in taken - used))

    @property
    def compiled_for(self) -> str:
        """The processor as it is given to LLVM, in one line: `icelake-client +avx512bf16`."""
        return " ".join((self.mcpu, *self.mattr))


def host_processor() -> Processor:
    """Detect this machine's processor, up to the vectors that CHANAS_MAX_CPU_ISA names.

    Raises:
        TargetError: the variable names no instruction set of x86-64, or one that this machine has not.
    """
    found, newest = whole_processor(), os.environ.get(MAX_ISA, "")
    return limited(found, newest) if newest else found


def whole_processor() -> Processor:
    """Detect this machine's processor by `/proc/cpuinfo`; an unknown one if there is no such file.

    An emulator of another kind of processor may show the file of the machine that it runs on: nothing of that is used.
    """
    try:
        found = parse_cpuinfo(CPUINFO.read_text())
    except OSError:
        return Processor()
    return found if found.family == platform.machine() else dataclasses.replace(found, family="")


def limited(processor: Processor, newest: str) -> Processor:
    """The same processor without instructions that are newer than a set: of a Zen 4 up to `avx2`, a Zen 3.

    Raises:
        TargetError: the set is unknown, or the processor has not got it.
    """
    if newest not in _HIDDEN:
        raise TargetError(unknown_name(MAX_ISA, newest, _HIDDEN))
    if newest not in processor.used_flags:
        raise TargetError(
            f"expected {MAX_ISA} to name instructions of this machine's processor, got {newest}; its vectors are "
            f"{', '.join(flag for flag in _HIDDEN if flag in processor.used_flags) or 'of another kind'}"
        )
    flags = processor.flags - _HIDDEN[newest]
    lost = set(_FEATURES[processor.family]) - _usable(processor.family, flags)
    return dataclasses.replace(processor, flags=flags - lost)


@functools.cache
def parse_cpuinfo(text: str) -> Processor:
    """The first processor of a `/proc/cpuinfo` text, of x86-64 or aarch64."""
    lines = (line.partition(":") for line in text.strip().split("\n\n")[0].splitlines())
    info = {name.strip(): value.strip() for name, _, value in lines}
    flags = set((info.get("flags") or info.get("Features") or "").split())
    if "pni" in flags:
        flags.add("sse3")  # Linux calls it by the name of the processor that had it first
    family = "x86_64" if "flags" in info else "aarch64" if "asimd" in flags else ""
    identity = [info[k] for k in _ARM_IDENTITY if k in info] or [info.get(k, "") for k in _X86_IDENTITY]
    return Processor(
        family=family,
        vendor=info.get("vendor_id") or _arm_vendor(info.get("CPU implementer")),
        device=info.get("model name", ""),
        part=info.get("CPU part", ""),
        identity=tuple(identity),
        flags=frozenset(flags),
    )


def flags_of(family: str, features: Collection[str]) -> list[str]:
    """The flags of which LLVM's features are some: `["abm"]` of `{"lzcnt", "fast-lzcnt"}`."""
    return [flag for flag, (feature, *_) in _FEATURES.get(family, {}).items() if feature in features]


def _arm_vendor(implementer: str | None) -> str:
    from archspec.cpu.schema import TARGETS_JSON

    vendors: dict[str, str] = TARGETS_JSON["conversions"]["arm_vendors"]
    return "generic" if implementer is None else vendors.get(implementer, implementer)


def _usable(family: str, flags: Iterable[str]) -> set[str]:
    known, present = _FEATURES.get(family, {}), set(flags)
    usable = {flag for flag in known if flag in present}
    while lacking := {flag for flag in usable if not usable.issuperset(known[flag][1:])}:
        usable -= lacking
    return usable


@functools.cache
def _microarchitecture(processor: Processor) -> Microarchitecture | None:
    """The most specific one of the processor's vendor all of whose instructions are there that code may use.

    Of several with the same instructions the one that lacks fewest of the other flags, and of these the newest. A
    vendor that archspec does not know has the generic levels. None: the family is unknown.
    """
    used = set(processor.used_flags)

    def rank(one: Microarchitecture) -> tuple[int, bool, int, int]:
        missing = len(one.features - processor.flags)
        return len(used & one.features), one.vendor != "generic", -missing, len(one.ancestors)

    fitting = [
        one
        for one in _known_to_llvm(processor.family)
        if one.vendor in (processor.vendor, "generic") and _code_features(one) <= used
    ]
    return max(fitting, key=rank, default=None)


@functools.cache
def _known_to_llvm(family: str) -> tuple[Microarchitecture, ...]:
    from archspec.cpu import TARGETS

    levels = _GENERIC_LEVELS.get(family, ())
    of_family = (m for m in TARGETS.values() if levels and str(m.family) == family)
    return tuple(m for m in of_family if (m.vendor != "generic" or m.name in levels) and _llvm_name(m))


@functools.cache
def _llvm_name(one: Microarchitecture) -> str:
    """LLVM's name; "" where this version knows none.

    archspec has it among clang's options, but for cores of ARM that it describes by their instructions: `neoverse_n1`
    is `neoverse-n1`.
    """
    from archspec.cpu import UnsupportedMicroarchitecture

    try:
        options = one.optimization_flags("clang", _LLVM)
    except UnsupportedMicroarchitecture:
        return ""
    found = re.search(r"-mcpu=(\S+)" if str(one.family) == "aarch64" else r"-march=(\S+)", options)
    if found is not None:
        return found[1]
    return "generic" if one.vendor == "generic" else one.name.replace("_", "-")


def _code_features(one: Microarchitecture) -> set[str]:
    return {flag for flag in _FEATURES[str(one.family)] if flag in one.features}


@functools.cache
def _implied_flags(family: str, mcpu: str) -> frozenset[str]:
    """The flags that LLVM takes for granted with `mcpu`: of microarchitectures that share it, those of the oldest."""
    named = [_code_features(m) for m in _known_to_llvm(family) if _llvm_name(m) == mcpu]
    return frozenset(set.intersection(*named).union(_ONLY_IN_LLVM.get(mcpu, ())) if named else ())
