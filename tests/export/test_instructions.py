"""chanas/export/instructions.py: which instruction sets code needs, and whether this processor has them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import iced_x86
import pytest

from chanas.core.processor import whole_processor
from chanas.devices.target_files import describe_target
from chanas.export import c_sources
from chanas.export.instructions import CPUID, check_in_c, describe_needs, needed_flags

from .test_c_library import needs_compiler

XEON, PI = describe_target("xeon-avx512"), describe_target("raspberry-pi-5")
# An instruction of each rarer set, and the sets' names in LLVM and in iced.
INSTRUCTIONS = {
    "sse4a": ("sse4a", "SSE4A", "66 0f 79 ca"),
    "sse4a, between double words": ("sse4a", "SSE4A", "f2 44 0f 79 ca"),
    "sse4a, without a cache": ("sse4a", "SSE4A", "f3 0f 2b 00"),
    "movbe": ("movbe", "MOVBE", "0f 38 f0 00"),
    "gfni": ("gfni", "GFNI", "66 0f 38 cf ca"),
    "gfni, by 256 bits": ("gfni", "GFNI", "c4 e3 ed ce d9 01"),
    "avx_vnni": ("avxvnni", "AVX_VNNI", "c4 e2 75 50 c2"),
    "avx512_vnni": ("avx512vnni", "AVX512_VNNI", "62 f2 75 48 50 c2"),
    "avx512_bf16": ("avx512bf16", "AVX512_BF16", "62 f2 76 48 52 c2"),
    "avx512vbmi": ("avx512vbmi", "AVX512_VBMI", "62 f2 75 48 8d c2"),
    "avx512ifma": ("avx512ifma", "AVX512_IFMA", "62 f2 f5 48 b4 c2"),
    "avx512_vbmi2": ("avx512vbmi2", "AVX512_VBMI2", "62 f2 75 48 71 c2"),
    "avx512_vbmi2, by a constant": ("avx512vbmi2", "AVX512_VBMI2", "62 f3 75 48 71 c2 01"),
    "avx512_vbmi2, compressed": ("avx512vbmi2", "AVX512_VBMI2", "62 f2 7d 48 63 c8"),
    "avx512_bitalg": ("avx512bitalg", "AVX512_BITALG", "62 f2 7d 48 54 c1"),
    "avx512_vpopcntdq": ("avx512vpopcntdq", "AVX512_VPOPCNTDQ", "62 f2 7d 48 55 c1"),
    "avx512_fp16": ("avx512fp16", "AVX512_FP16", "62 f5 74 48 58 c2"),
    "amx_tile": ("amx-tile", "AMX_TILE", "c4 e2 7b 4b 04 18"),
    "amx_bf16": ("amx-bf16", "AMX_BF16", "c4 e2 6a 5c c1"),
    "amx_int8": ("amx-int8", "AMX_INT8", "c4 e2 69 5e c1"),
}


@pytest.mark.parametrize("case", INSTRUCTIONS)
def test_a_rarer_set_is_needed_where_code_has_its_instructions(case: str, tmp_path: Path) -> None:
    feature, set_name, text = INSTRUCTIONS[case]
    code, flag = bytes.fromhex(text), case.partition(",")[0]
    (found,) = iced_x86.Decoder(64, code)
    assert getattr(iced_x86.CpuidFeature, set_name) in found.cpuid_features()
    (tmp_path / "with.o").write_bytes(b"\x90" + code + b"\x90")
    (tmp_path / "without.o").write_bytes(b"\x90" * 9)
    features = {feature, "avx2", "sse2", "fast-lzcnt", "aes"}
    assert needed_flags(XEON, features, [tmp_path / "without.o"]) == ["avx2"]
    both = [tmp_path / "without.o", tmp_path / "with.o"]
    assert sorted(needed_flags(XEON, features, both)) == sorted(["avx2", flag])


def test_an_arm_core_is_asked_for_what_its_code_was_compiled_for() -> None:
    needed = needed_flags(PI, {"neon", "dotprod", "fullfp16", "mops", "aes"}, [])
    assert describe_needs(PI, needed) == "aarch64 with asimdhp, asimddp, mops"
    template, words = check_in_c(PI, needed)
    assert (template, words) == ("processor-arm.c", f"0x{1 << 10 | 1 << 20:x}, 0x{1 << 43:x}")


def test_nothing_is_asked_for_where_nothing_is_needed() -> None:
    assert describe_needs(PI, []) == "aarch64"
    assert check_in_c(PI, [])[0] == "processor-any.c"


def has(flags: list[str], folder: Path) -> bool:
    """Whether a C program says that this processor has them."""
    template, rows = check_in_c(XEON, flags)
    text = c_sources.filled(template, {"NEEDED": rows})
    main = "int main(void) { return has_instructions() ? 0 : 1; }\n"
    (folder / "main.c").write_text(f"#include <stddef.h>\n#include <stdint.h>\n{text}{main}")
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "main.c", "-o", "main"], cwd=folder, check=True)
    return subprocess.run([folder / "main"], check=False).returncode == 0


@needs_compiler
@pytest.mark.skipif(whole_processor().family != "x86_64", reason="this is no x86-64")
def test_a_program_finds_the_flags_that_linux_finds(tmp_path: Path) -> None:
    assert has([flag for flag in CPUID if flag in whole_processor().flags], tmp_path)
    assert not has(["xop", "avx512_fp16"], tmp_path)  # no processor has both
