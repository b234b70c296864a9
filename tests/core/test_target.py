"""chanas/core/target.py: a device is known by what it is, and a name that is not there says which ones are."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from chanas.core.gpu import GPUFeatures
from chanas.core.processor import host_processor, parse_cpuinfo
from chanas.core.target import (
    LAYOUTS,
    HardwareTarget,
    differences,
    has_dots,
    has_matrices,
    in_batches,
    in_blocks,
    in_dtype,
    in_several,
    processor_dtypes,
    tvm_version,
)
from chanas.core.usage import DTYPES
from chanas.devices.driver import FoundGPU
from chanas.devices.host import Machine, load_target
from chanas.devices.target_files import describe_target
from chanas.errors import TargetError

from ..processors import CPUINFO, VIRTUAL_XEON, arm_text, x86_text

ROOT = Path(__file__).resolve().parents[2]

SSE = "fpu pni ssse3 sse4_1 sse4_2 popcnt"
AVX2 = f"{SSE} sse4a avx avx2 fma f16c bmi1 bmi2 abm movbe"
AVX512 = x86_text(
    "AuthenticAMD", 25, 97, "Fast Processor", f"{AVX2} avx512f avx512cd avx512bw avx512dq avx512vl avx512_bf16"
)
INFO = {
    "avx512": AVX512,
    "avx2": x86_text("AuthenticAMD", 25, 97, "Fast Processor", AVX2),
    "sse": x86_text("AuthenticAMD", 25, 97, "Fast Processor", SSE),
    "arm": "processor\t: 0\nFeatures\t: fp asimd evtstrm\nCPU part\t: 0xd08\n",
    "nothing": "",
}


CACHES = {1: 32 << 10, 2: 512 << 10, 3: 16 << 20}
"""Bytes of each level, of every made-up machine."""

NVIDIA_A100 = GPUFeatures("sm_80", 108, 32, 1024, 48 << 10, 164 << 10, 65536, 65536)
WITH_A100 = Machine(gpu=lambda: FoundGPU("NVIDIA A100", NVIDIA_A100, 40 << 20))


def machine(cpuinfo: str, board: str = "", num_cores: int = 2) -> Machine:
    """One with this text as its `/proc/cpuinfo`."""
    return Machine(
        processor=lambda: parse_cpuinfo(cpuinfo),
        board=lambda: board,
        cache_bytes=lambda level, _default: CACHES[level],
        num_cores=lambda: num_cores,
    )


def on_a_machine(cpuinfo: str) -> HardwareTarget:
    """The processor of such a machine."""
    return load_target("cpu", machine=machine(cpuinfo))


# ---- names ----------------------------------------------------------------------------------------------------------
def test_the_gpu_that_is_there_is_a_target() -> None:
    target = load_target("cuda", machine=WITH_A100)
    assert (target.name, target.kind, target.device, target.gpu) == ("cuda", "cuda", "NVIDIA A100", NVIDIA_A100)
    assert target.l2_bytes == 40 << 20
    assert describe_target("cuda", WITH_A100) == target


@pytest.mark.parametrize("dtype", ["f16", "tf32"])
def test_a_gpu_in_another_type_is_a_target_of_its_own(dtype: str) -> None:
    target = load_target("cuda", dtype=dtype, machine=WITH_A100)
    assert (target.name, target.dtype_name) == (f"cuda-{dtype}", dtype)
    assert target.fingerprint == load_target("cuda", machine=WITH_A100).fingerprint


def test_a_gpu_that_takes_several_images_at_once_is_a_target_of_its_own() -> None:
    plain = load_target("cuda", machine=WITH_A100)
    target = load_target("cuda", dtype="f16", batch=32, machine=WITH_A100)
    assert (target.name, target.batch) == ("cuda-f16-b32", 32)
    assert HardwareTarget.from_json(json.loads(json.dumps(target.to_json()))) == target
    assert target.fingerprint == plain.fingerprint
    assert load_target("cuda", batch=1, machine=WITH_A100) == plain
    assert "batch" not in plain.to_json()


@pytest.mark.parametrize(
    "used",
    [{"name": "cpu", "batch": 2}, {"name": "cpu", "batch": 0}]
    + [{"name": "cuda"} | change for change in ({"batch": -1}, {"num_threads": 2}, {"dtype": "bf16"}, {"dtype": "i4"})],
)
def test_a_device_that_is_not_used_in_this_way_is_refused(used: dict[str, Any]) -> None:
    with pytest.raises(TargetError):
        load_target(**used, machine=WITH_A100)


def test_the_batch_of_a_device_elsewhere_stands_before_its_place() -> None:
    elsewhere = dataclasses.replace(load_target("cuda", machine=WITH_A100), name="cuda@lab")
    assert in_batches(elsewhere, 8).name == "cuda-b8@lab"


@pytest.mark.parametrize("name", ["raspberry-pi-4", "h100", "some/file.yaml"])
def test_nothing_is_measured_on_a_described_device(name: str) -> None:
    with pytest.raises(TargetError, match=f"`chanas target check {name}`"):
        load_target(name)


@pytest.mark.parametrize("num_threads", [-1, 0, 4, 1000])
def test_threads_are_at_most_the_cores_that_may_be_used(num_threads: int) -> None:
    with pytest.raises(TargetError, match=f"between 1 and 3 .* {num_threads}$"):
        load_target("cpu", num_threads, machine=Machine(num_cores=lambda: 3))


@pytest.mark.parametrize(("num_threads", "name"), [(1, "cpu"), (2, "cpu-2t"), (3, "cpu-3t")])
def test_a_target_is_called_after_its_threads(num_threads: int, name: str) -> None:
    target = load_target("cpu", num_threads, machine=Machine(num_cores=lambda: 3))
    assert (target.name, target.num_threads) == (name, num_threads)


@pytest.mark.parametrize(("num_threads", "name"), [(1, "cpu-bf16"), (2, "cpu-2t-bf16")])
def test_a_target_is_called_after_its_dtype(num_threads: int, name: str) -> None:
    plain = on_a_machine(INFO["avx512"])
    target = load_target("cpu", num_threads, "bf16", machine=machine(INFO["avx512"]))
    assert (target.name, target.dtype, target.dtype_name) == (name, "bfloat16", "bf16")
    assert target.fingerprint == plain.fingerprint
    assert HardwareTarget.from_json(target.to_json()) == target


def test_bfloat16_needs_its_instructions() -> None:
    with pytest.raises(TargetError, match="AVX512_BF16, got Fast Processor"):
        load_target("cpu", 1, "bf16", machine=machine(INFO["avx2"]))


def test_a_target_of_a_file_without_a_dtype_is_float32() -> None:
    data = load_target("cpu").to_json()
    del data["dtype"]
    assert HardwareTarget.from_json(data) == load_target("cpu")


# ---- detection ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("machine", "lanes", "registers"),
    [("avx512", 16, 32), ("avx2", 8, 16), ("sse", 4, 16), ("arm", 4, 32), ("nothing", 4, 16)],
)
def test_vectors_are_those_of_the_instruction_set(machine: str, lanes: int, registers: int) -> None:
    target = on_a_machine(INFO[machine])
    assert (target.vector_lanes, target.num_vector_registers) == (lanes, registers)


def test_a_board_is_called_by_its_name() -> None:
    board = "Raspberry Pi 4 Model B Rev 1.4"
    assert load_target("cpu", machine=machine(INFO["arm"], board)).device == board


def test_arm_cores_are_told_apart_by_part_and_revision() -> None:
    info = INFO["arm"] + "CPU revision\t: 3\n"
    others = (info.replace("0xd08", "0xd0b"), info.replace(": 3", ": 4"))
    assert len({on_a_machine(text).fingerprint for text in (info, *others)}) == 3


@pytest.mark.parametrize(
    ("machine", "device"), [("avx512", "Fast Processor"), ("arm", "0xd08"), ("nothing", "unknown processor")]
)
def test_a_device_has_the_name_that_it_gives_itself(machine: str, device: str) -> None:
    assert on_a_machine(INFO[machine]).device == device


def test_caches_have_a_size() -> None:
    target = load_target("cpu")
    assert 4 << 10 <= target.l1_bytes < target.l2_bytes
    assert target.l3_bytes > 0


def test_a_target_of_several_dtypes_has_the_instructions_of_each() -> None:
    plain = load_target("cpu")
    bf16, int8 = (in_dtype(plain, dtype) for dtype in ("bfloat16", "int8"))
    matrices, dots = (dataclasses.replace(bf16, has_matrices=True), dataclasses.replace(int8, has_dots=True))
    assert in_several(plain, [bf16, int8]) == plain
    assert in_several(plain, [matrices, int8]) == dataclasses.replace(plain, has_matrices=True)
    assert in_several(plain, [matrices, dots]) == dataclasses.replace(plain, has_matrices=True, has_dots=True)
    assert in_several(matrices, []) == matrices
    assert in_dtype(matrices, "float32") == dataclasses.replace(plain, has_matrices=True)


# ---- fingerprint ----------------------------------------------------------------------------------------------------
@pytest.mark.real_processor
def test_the_fingerprint_is_the_same_in_every_process() -> None:
    program = "from chanas.devices.host import load_target; print(load_target('cpu').fingerprint)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == load_target("cpu").fingerprint


def test_the_fingerprint_does_not_depend_on_threads() -> None:
    first, second = (load_target("cpu", number, machine=Machine(num_cores=lambda: 2)) for number in (1, 2))
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Fast", "Faster"),
        ("stepping\t: 1", "stepping\t: 3"),
        ("avx512_bf16", "avx512_vnni"),
        ("avx512_bf16", "avx512_bf16 avx512_fp16"),
        ("avx512_bf16", "avx512_bf16 amx_tile"),
        ("avx512_bf16", "avx512_bf16 avx_vnni"),
        ("model\t\t: 97", "model\t\t: 98"),
    ],
)
def test_another_processor_has_another_fingerprint(before: str, after: str) -> None:
    assert on_a_machine(AVX512).fingerprint != on_a_machine(AVX512.replace(before, after)).fingerprint


def test_newer_instructions_of_arm_are_in_the_fingerprint() -> None:
    flags = "fp asimd fphp asimdhp"
    more = ("asimddp", "bf16", "i8mm", "sve", "sve sve2")
    texts = [arm_text("0xd0c", "0x3", flags), *(arm_text("0xd0c", "0x3", f"{flags} {each}") for each in more)]
    assert len({on_a_machine(text).fingerprint for text in texts}) == 6


def test_what_is_compiled_for_beside_mcpu_is_in_the_fingerprint() -> None:
    plain = on_a_machine(VIRTUAL_XEON).fingerprint
    without_mattr = VIRTUAL_XEON.replace(" rdseed", "")
    assert plain == on_a_machine(without_mattr).fingerprint
    assert plain != on_a_machine(VIRTUAL_XEON.replace(" gfni", "")).fingerprint


def test_flags_that_change_nothing_are_not_in_the_fingerprint() -> None:
    assert on_a_machine(AVX512).fingerprint == on_a_machine(AVX512.replace("fpu", "fpu hypervisor")).fingerprint


def test_what_tells_two_devices_apart_is_named() -> None:
    here = on_a_machine(AVX512)
    there = dataclasses.replace(here, fingerprint="0123456789ab", l1_bytes=49152, num_threads=2, name="other")
    assert differences(there, here) == "l1_bytes 49152 there, 32768 here"
    stepped = on_a_machine(AVX512.replace("stepping\t: 1", "stepping\t: 3"))
    assert differences(stepped, here) == "the processors' family, model, stepping or instruction sets"


def test_what_two_devices_are_compiled_for_is_among_what_tells_them_apart() -> None:
    here = on_a_machine(AVX512)
    there = dataclasses.replace(here, mcpu="cascadelake", mattr=("+avx512bf16", "-gfni"), mtriple="x86_64-linux-gnu")
    other = dataclasses.replace(there, mcpu="znver4", mattr=())
    text = "mcpu cascadelake there, znver4 here; mattr +avx512bf16 -gfni there, none here"
    assert differences(there, other) == text
    assert "mcpu" not in differences(there, here)


def test_what_tells_two_gpus_apart_is_named() -> None:
    found = differences(describe_target("h100"), describe_target("h200"))
    assert found == "device NVIDIA H100 SXM5 there, NVIDIA H200 here; l2_bytes 52428800 there, 62914560 here"
    assert "arch sm_80 there, sm_90 here; num_sms 108 there" in differences(
        describe_target("a100"), describe_target("h100")
    )


# ---- data -----------------------------------------------------------------------------------------------------------
def test_a_target_survives_json() -> None:
    target = load_target("cpu")
    assert HardwareTarget.from_json(json.loads(json.dumps(target.to_json()))) == target


def test_the_file_of_a_processor_says_nothing_of_other_devices() -> None:
    assert {"gpu", "mcpu", "mattr", "mtriple"}.isdisjoint(load_target("cpu").to_json())


def test_the_compiler_version_is_read_without_the_compiler() -> None:
    program = "import sys, chanas.core.target as t; print(t.tvm_version(), 'tvm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [metadata.version("apache-tvm"), "False"]
    assert done.stdout.split()[0] == tvm_version()


def test_the_compiler_is_told_this_machines_processor() -> None:
    target = load_target("cpu")
    told = target.tvm_target()
    assert told.kind.name == "llvm"
    assert told.attrs["mcpu"] == host_processor().mcpu
    assert told.attrs["num-cores"] == target.num_threads


@pytest.mark.parametrize(
    ("name", "mcpu", "mattr"),
    [("virtual-xeon", "sapphirerapids", []), ("cooper-lake", "cascadelake", ["+avx512bf16"]), ("zen3", "znver3", [])],
)
def test_the_compiler_is_told_what_the_processors_flags_say(name: str, mcpu: str, mattr: list[str]) -> None:
    told = load_target("cpu").tvm_target(parse_cpuinfo(CPUINFO[name])).attrs
    assert (told["mcpu"], list(told.get("mattr", []))) == (mcpu, mattr)


def test_the_compiler_is_told_what_a_target_names() -> None:
    target = dataclasses.replace(on_a_machine(INFO["avx2"]), mcpu="cascadelake", mattr=("+avx512bf16",))
    assert HardwareTarget.from_json(json.loads(json.dumps(target.to_json()))) == target
    assert target.description == "CPU Fast Processor [cascadelake +avx512bf16]"
    told = target.tvm_target().attrs
    assert (told["mcpu"], list(told["mattr"])) == ("cascadelake", ["+avx512bf16"])


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("virtual-xeon", ("f32", "bf16", "int8")),
        ("cooper-lake", ("f32", "bf16", "int8")),
        ("zen3", ("f32", "int8")),
        ("cortex-a72", ("f32",)),
        ("neoverse-n1", ("f32", "int8")),
        ("neoverse-v1", ("f32", "int8")),
    ],
)
def test_a_dtype_is_offered_where_the_compiler_has_instructions_for_it(name: str, dtypes: tuple[str, ...]) -> None:
    processor = parse_cpuinfo(CPUINFO[name])
    assert processor_dtypes(processor) == dtypes
    assert ("+avx512bf16" in processor.mattr or processor.mcpu == "sapphirerapids") == ("bf16" in dtypes)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("virtual-xeon", True),
        ("cooper-lake", True),
        ("zen3", False),
        ("cortex-a72", False),
        ("neoverse-n1", True),
        ("neoverse-v1", True),
    ],
)
def test_products_of_four_bytes_are_one_instruction_where_there_is_one(name: str, expected: bool) -> None:
    assert has_dots(parse_cpuinfo(CPUINFO[name])) is expected


@pytest.mark.parametrize(
    ("name", "dtypes"), [("virtual-xeon", ["bf16", "int8"]), ("cooper-lake", []), ("zen5", []), ("neoverse-v1", [])]
)
def test_matrix_registers_take_the_dtypes_that_the_flags_say(name: str, dtypes: list[str]) -> None:
    processor = parse_cpuinfo(CPUINFO[name])
    assert [dtype for dtype in DTYPES if has_matrices(processor, dtype)] == dtypes


def test_a_device_in_another_layout_has_other_vectors_and_a_fingerprint_of_its_own() -> None:
    device = on_a_machine(INFO["avx512"])
    layouts = {lanes: in_blocks(device, lanes) for lanes in LAYOUTS}
    assert layouts[16] is device
    assert {lanes: (t.vector_lanes, t.num_vector_registers) for lanes, t in layouts.items()} == {
        4: (4, 32),
        8: (8, 32),
        16: (16, 32),
        32: (32, 16),
    }
    assert len({t.fingerprint for t in layouts.values()}) == len(LAYOUTS)
    assert in_blocks(device, 8) == layouts[8]
    two = dataclasses.replace(device, fingerprint="0" * 12)
    assert in_blocks(two, 8).fingerprint != layouts[8].fingerprint


def test_blocks_of_more_registers_than_there_are_are_refused_by_name() -> None:
    device = on_a_machine(INFO["avx2"])
    assert in_blocks(device, 16).num_vector_registers == 8
    for target, lanes, known in ((device, 32, "16, 4, 8"), (device, 5, "16, 4, 8")):
        with pytest.raises(TargetError, match=rf"^unknown layout of Fast Processor '{lanes}'; known: {known}$"):
            in_blocks(target, lanes)
