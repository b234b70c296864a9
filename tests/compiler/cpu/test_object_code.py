"""What is compiled for a processor has no instruction that its flags lack, and uses those that they have."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import capstone
import iced_x86
import pytest

from chanas.core.processor import Processor, parse_cpuinfo
from chanas.core.target import HardwareTarget, has_dots, has_matrices, in_several
from chanas.core.usage import DTYPES
from chanas.export.instructions import needed_flags

from ...processors import CPUINFO

SCRIPT = Path(__file__).parents[2] / "object_code.py"
WITH_BF16 = ("virtual-xeon", "xeon-without-fp16", "cooper-lake", "zen5")
LANES = dict.fromkeys(WITH_BF16, 16) | {"alder-lake": 8, "haswell": 8, "zen3": 8}
"""Machines by the float32 values that a vector of theirs has."""
NEON = ("neoverse-n1", "neoverse-v1")
CASES = [*((name, "f32") for name in (*LANES, *NEON)), *((name, "bf16") for name in WITH_BF16)]
IN_INT8 = [(name, "int8") for name in (*LANES, *NEON)]
SEVERAL = ("virtual-xeon", "cooper-lake")
KINDS = {
    "f32": ("mbconv", "stem"),
    "bf16": ("mbconv", "stem", "encode", "decode"),
    "int8": ("pointwise", "blockconv", "depthwise", "encode", "decode"),
}
# What every x86-64 processor has.
BASELINE = {
    "SYSCALL",
    "INTEL8086",
    "INTEL186",
    "INTEL286",
    "INTEL386",
    "INTEL486",
    "X64",
    "CPUID",
    "CMOV",
    "SSE",
    "SSE2",
}
BASELINE |= {"FPU", "FPU387", "MMX", "MULTIBYTENOP"}
# Those that iced calls otherwise than Linux.
FLAGS = {"LZCNT": "abm", "AVX512_VBMI": "avx512vbmi", "AVX512_IFMA": "avx512ifma"}


@dataclass(frozen=True)
class Code:
    """Machine code of one target: how often each mnemonic occurs, all its text, and the flags that it needs."""

    mnemonics: Counter[str]
    text: str
    needs: frozenset[str]


def target_of(name: str, dtype: str) -> HardwareTarget:
    processor, lanes = parse_cpuinfo(CPUINFO[name]), LANES.get(name, 4)
    return HardwareTarget(
        name=name,
        kind="llvm",
        num_threads=1,
        vector_lanes=lanes,
        num_vector_registers=16 if lanes == 8 else 32,
        l1_bytes=32 << 10,
        l2_bytes=1 << 20,
        l3_bytes=0,
        device=processor.device,
        fingerprint="0123456789ab",
        dtype=DTYPES[dtype],
        mcpu=processor.mcpu,
        mattr=processor.mattr,
        mtriple=f"{processor.family}-linux-gnu",
        has_matrices=has_matrices(processor, dtype),
        has_dots=dtype == "int8" and has_dots(processor),
    )


def of_several(name: str) -> HardwareTarget:
    return in_several(target_of(name, "f32"), [target_of(name, dtype) for dtype in ("bf16", "int8")])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Object files of two blocks, or of operators in int8, for every case, made by a process that may come to an end
    without harm."""
    folder = tmp_path_factory.mktemp("objects")
    targets = {f"{name}-{dtype}": target_of(name, dtype).to_json() for name, dtype in (*CASES, *IN_INT8)}
    targets |= {f"{name}-several": of_several(name).to_json() for name in SEVERAL}
    command = [sys.executable, str(SCRIPT), str(folder)]
    subprocess.run(command, input=json.dumps(targets), text=True, check=True, timeout=250)
    return folder


def sections(content: bytes) -> Iterator[bytes]:
    """The parts of an ELF file that are code."""
    (table,) = struct.unpack_from("<Q", content, 0x28)
    size, number = struct.unpack_from("<HH", content, 0x3A)
    for entry in range(table, table + size * number, size):
        _, _, flags, _, start, length = struct.unpack_from("<IIQQQQ", content, entry)
        if flags & 4:
            yield content[start : start + length]


def x86_code(parts: list[bytes]) -> Code:
    formatter = iced_x86.Formatter(iced_x86.FormatterSyntax.NASM)
    names = {value: name for name, value in vars(iced_x86.CpuidFeature).items() if isinstance(value, int)}
    mnemonics, lines, features = Counter[str](), [], set()
    for part in parts:
        for instruction in iced_x86.Decoder(64, part):
            assert not instruction.is_invalid
            lines.append(formatter.format(instruction))
            mnemonics[lines[-1].split()[0]] += 1
            features |= {names[feature] for feature in instruction.cpuid_features()}
    needs = frozenset(FLAGS.get(feature, feature.lower()) for feature in features - BASELINE)
    return Code(mnemonics, "\n".join(lines), needs)


def arm_code(parts: list[bytes]) -> Code:
    decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    decoded = [one for part in parts for one in decoder.disasm(part, 0)]
    assert len(decoded) * 4 == sum(map(len, parts))
    text = "\n".join(f"{one.mnemonic} {one.op_str}" for one in decoded)
    return Code(Counter(one.mnemonic for one in decoded), text, frozenset())


def code_of(folder: Path, name: str, dtype: str) -> Code:
    made = folder / f"{name}-{dtype}"
    error = made / "error"
    assert not error.exists(), error.read_text()
    parts = [part for kind in KINDS[dtype] for part in sections((made / f"{kind}.o").read_bytes())]
    return (arm_code if name in NEON else x86_code)(parts)


def flags_of(name: str) -> frozenset[str]:
    processor: Processor = parse_cpuinfo(CPUINFO[name])
    return processor.flags


@pytest.mark.parametrize(("name", "dtype"), [case for case in (*CASES, *IN_INT8) if case[0] in LANES])
def test_code_has_no_instruction_that_the_flags_lack(folder: Path, name: str, dtype: str) -> None:
    needs = code_of(folder, name, dtype).needs
    assert needs - flags_of(name) == set()
    assert "avx" in needs


@pytest.mark.parametrize(("name", "dtype"), [case for case in CASES if case[0] in LANES])
def test_an_exported_network_asks_for_all_that_code_needs(folder: Path, name: str, dtype: str) -> None:
    target = target_of(name, dtype)
    objects = [folder / f"{name}-{dtype}" / f"{kind}.o" for kind in ("mbconv", "stem")]
    asked = set(needed_flags(target, target.llvm_features(), objects))
    assert code_of(folder, name, dtype).needs <= asked <= flags_of(name)
    assert not asked & {"sse4a", "gfni", "avx512ifma"}  # the processor has them, the code does not


@pytest.mark.parametrize("name", LANES)
def test_code_multiplies_in_the_widest_vectors(folder: Path, name: str) -> None:
    code = code_of(folder, name, "f32")
    register = {16: "zmm", 8: "ymm"}[LANES[name]]
    assert len(re.findall(rf"^vfn?madd\d+ps {register}", code.text, re.MULTILINE)) > 20
    assert ("zmm" in code.text) == ("avx512f" in flags_of(name))


@pytest.mark.parametrize("name", WITH_BF16)
def test_code_in_bfloat16_multiplies_pairs(folder: Path, name: str) -> None:
    code = code_of(folder, name, "bf16")
    assert len(re.findall(r"^vdpbf16ps zmm", code.text, re.MULTILINE)) > 20
    assert "avx512_bf16" in code.needs


@pytest.mark.parametrize("name", WITH_BF16)
def test_code_multiplies_matrices_where_the_processor_has_registers_for_them(folder: Path, name: str) -> None:
    for dtype, instruction, flag in (("bf16", "tdpbf16ps", "amx_bf16"), ("int8", "tdpbusd", "amx_int8")):
        code = code_of(folder, name, dtype)
        assert (flag in code.needs) == (flag in flags_of(name)) == (code.mnemonics[instruction] > 0)
        assert code.mnemonics["ldtilecfg"] == code.mnemonics["tilerelease"]


@pytest.mark.parametrize("name", LANES)
def test_code_in_int8_adds_up_four_products_at_once_where_it_can(folder: Path, name: str) -> None:
    code, has_instruction = code_of(folder, name, "int8"), has_dots(parse_cpuinfo(CPUINFO[name]))
    register = {16: "zmm", 8: "ymm"}[LANES[name]] if has_instruction else "ymm"
    if "amx_int8" in flags_of(name):  # a register's worth at once
        assert code.mnemonics["tdpbusd"] > 3
    else:
        assert len(re.findall(f"{'vpdpbusd' if has_instruction else 'vpmaddubsw'} {register}", code.text)) > 20
    assert (code.mnemonics["vpmaddubsw"] > 0) is not has_instruction


@pytest.mark.parametrize("name", SEVERAL)
def test_a_network_of_several_dtypes_has_the_instructions_of_each(folder: Path, name: str) -> None:
    made, target = folder / f"{name}-several", of_several(name)
    assert not (made / "error").exists(), (made / "error").read_text()
    text = x86_code([*sections((made / "network.so").read_bytes())]).text
    products = ("tdpbf16ps", "tdpbusd") if target.has_matrices else ("vdpbf16ps zmm", "vpdpbusd zmm")
    for instruction in (r"vfn?madd\d+ps zmm", *products):
        assert re.search(rf"^{instruction}", text, re.MULTILINE)
    assert target.has_matrices == ("amx_bf16" in flags_of(name))


@pytest.mark.parametrize("name", NEON)
def test_code_for_arm_in_int8_adds_up_four_products_at_once(folder: Path, name: str) -> None:
    code = code_of(folder, name, "int8")
    own, other = ("usdot", "sdot") if "i8mm" in flags_of(name) else ("sdot", "usdot")
    assert (code.mnemonics[own] > 20, code.mnemonics[other]) == (True, 0)


@pytest.mark.parametrize("name", NEON)
def test_code_for_arm_multiplies_in_neon(folder: Path, name: str) -> None:
    code = code_of(folder, name, "f32")
    assert code.mnemonics["fmla"] > 20
    assert "sve" in flags_of(name) or not re.search(r"\b[zp]\d+\b", code.text)
