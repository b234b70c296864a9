"""chanas/devices/target_files.py: a description says everything that schedules depend on. What is refused is in
tests/commands/golden/target.txt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from chanas.core.processor import Processor
from chanas.core.target import HardwareTarget
from chanas.devices.host import Machine, load_target, named_targets
from chanas.devices.target_files import arch_target, describe_target, read_target_file
from chanas.errors import TargetError

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "chanas" / "configs" / "targets"

BOARD: dict[str, Any] = {
    "kind": "cpu",
    "name": "board",
    "device": "A board",
    "mtriple": "aarch64-linux-gnu",
    "mcpu": "cortex-a72",
    "num_cores": 4,
    "vector_lanes": 4,
    "num_vector_registers": 32,
    "l1_bytes": 32768,
    "l2_bytes": 1048576,
}


def written(folder: Path, facts: dict[str, Any]) -> str:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(facts), encoding="utf-8")
    return str(path)


# ---- the described devices ------------------------------------------------------------------------------------------
def test_the_devices_of_the_readme_are_described() -> None:
    wanted = {
        "raspberry-pi-4",
        "raspberry-pi-5",
        "jetson-nano",
        "pixel-6",
        "xeon-avx512",
        "p100",
        "a100",
        "h100",
        "h200",
    }
    assert wanted <= set(named_targets())


@pytest.mark.parametrize("name", named_targets())
def test_a_described_device_has_its_files_name_and_survives_json(name: str) -> None:
    target = describe_target(name)
    assert target.name == name
    assert HardwareTarget.from_json(target.to_json()) == target
    assert (target.kind == "cuda") == (target.gpu is not None)


@pytest.mark.parametrize("name", named_targets())
def test_the_numbers_of_a_described_device_fit_each_other(name: str) -> None:
    target = describe_target(name)
    gpu = target.gpu
    if gpu is None:
        file = read_target_file(name)
        assert file.kind == "cpu"
        assert target.l1_bytes < target.l2_bytes
        assert target.l3_bytes == 0 or target.l2_bytes < target.l3_bytes
        assert (target.vector_lanes, target.num_vector_registers) == (16 if "avx512f" in file.needs else 4, 32)
        assert file.mtriple.startswith("aarch64-") == ("asimd" in file.needs)
        sizes = [target.l1_bytes, target.l2_bytes, target.l3_bytes]
    else:
        assert gpu.max_threads_per_block % gpu.warp_size == 0
        assert gpu.max_threads_per_block * 16 <= gpu.registers_per_block <= gpu.registers_per_sm
        assert gpu.max_shared_bytes_per_block <= gpu.shared_bytes_per_sm < target.l2_bytes
        common = arch_target(gpu.arch).required_gpu
        assert common.registers_per_block == gpu.registers_per_block
        assert common.max_shared_bytes_per_block <= gpu.max_shared_bytes_per_block
        sizes = [gpu.max_shared_bytes_per_block, gpu.shared_bytes_per_sm, target.l2_bytes]
    assert all(size % 1024 == 0 for size in sizes)


@pytest.mark.parametrize("name", named_targets())
def test_facts_carry_their_source(name: str) -> None:
    comments = [line for line in (FOLDER / f"{name}.yaml").read_text().splitlines() if line.startswith("#")]
    assert re.search(r"Guide|Manual|white paper|documentation", " ".join(comments))


def test_described_devices_have_different_fingerprints() -> None:
    prints = [describe_target(name).fingerprint for name in (*named_targets(), "cpu")]
    assert len(set(prints)) == len(prints)


def test_the_cpu_is_the_detected_one() -> None:
    assert describe_target("cpu") == load_target("cpu")


def test_the_limits_of_an_architecture_are_no_larger_than_those_of_its_devices() -> None:
    common, h100 = arch_target("sm_90").required_gpu, describe_target("h100").required_gpu
    assert common.arch == h100.arch
    assert all(value <= getattr(h100, name) for name, value in vars(common).items() if name != "arch")


def test_a_processor_is_no_gpu() -> None:
    with pytest.raises(TargetError, match=r"^expected a GPU, got target 'cpu'"):
        _ = load_target("cpu").required_gpu


# ---- a file of one's own --------------------------------------------------------------------------------------------
def test_a_file_of_ones_own_describes_a_device(tmp_path: Path) -> None:
    target = describe_target(written(tmp_path, BOARD))
    assert (target.name, target.vector_lanes, target.mcpu, target.l3_bytes) == ("board", 4, "cortex-a72", 0)


def test_a_description_names_instruction_sets_beside_those_of_its_mcpu(tmp_path: Path) -> None:
    plain = describe_target(written(tmp_path, BOARD))
    assert describe_target(written(tmp_path, {**BOARD, "mattr": []})) == plain
    target = describe_target(written(tmp_path, {**BOARD, "mattr": ["+dotprod", "-crc"]}))
    assert (target.mattr, target.compiled_for) == (("+dotprod", "-crc"), "cortex-a72 +dotprod -crc")
    assert target.fingerprint != plain.fingerprint
    assert HardwareTarget.from_json(target.to_json()) == target


# ---- whether a processor's code runs here ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arch", "flags", "missing"),
    [("x86_64", {"avx512f"}, None), ("aarch64", {"asimd"}, ()), ("aarch64", set(), ("asimd",))],
)
def test_code_runs_where_the_machine_has_what_it_needs(
    arch: str, flags: set[str], missing: tuple[str, ...] | None
) -> None:
    file = read_target_file("raspberry-pi-4")
    assert file.kind == "cpu"
    machine = Machine(arch=lambda: arch, processor=lambda: Processor(flags=frozenset(flags)))
    assert file.missing_flags(machine) == missing
