"""Detect this machine as a target, and list the other targets that have names."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chanas.core.processor import MATRIX_REQUEST, Processor, host_processor
from chanas.core.target import (
    LOCAL_TARGETS,
    HardwareTarget,
    fingerprint,
    gpu_in_dtype,
    gpu_target,
    has_dots,
    has_matrices,
    in_batches,
    processor_dtypes,
    scheduling_flags,
    this_machine,
)
from chanas.core.usage import DTYPES, TargetName, Usage
from chanas.devices.cores import usable_cores
from chanas.devices.driver import FoundGPU, find_gpu
from chanas.errors import TargetError, unknown_name
from chanas.files.yaml_files import YAML_SUFFIXES, presets


def host_triple() -> str:
    """LLVM's name of this machine's platform, without a vendor: `aarch64-linux-gnu`."""
    android = getattr(sys, "getandroidapilevel", None)
    return f"{this_machine()}-linux-{f'android{android()}' if android is not None else 'gnu'}"


def _board() -> str:
    """Return the name of a board with an ARM processor, such as `Raspberry Pi 4 Model B Rev 1.4`; "" if unknown."""
    try:
        return Path("/proc/device-tree/model").read_text().rstrip("\0\n")
    except OSError:
        return ""


def _cache_bytes(level: int, default: int) -> int:
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if int((index / "level").read_text()) == level and (index / "type").read_text().strip() != "Instruction":
                number, unit = re.fullmatch(r"(\d+)([KM]?)", (index / "size").read_text().strip()).groups()  # type: ignore[union-attr]
                return int(number) * {"": 1, "K": 1 << 10, "M": 1 << 20}[unit]
        except (OSError, ValueError, AttributeError):
            continue
    return default


def may_use_matrices() -> bool:
    """Ask Linux for matrix registers, which a process has to do before it uses them; false if it refuses."""
    return bool(ctypes.CDLL(None).syscall(*MATRIX_REQUEST) == 0)


@dataclasses.dataclass(frozen=True)
class Machine:
    """Functions that tell what a machine has; this one's unless others are given.

    processor    its processor
    board        name of a board with an ARM processor, "" if unknown
    cache_bytes  bytes of the cache of a level, or the default that is given
    gpu          its first GPU, None where there is none
    num_cores    cores that this process may run on
    matrices     true if the system lets this process use a processor's matrix registers
    arch         its kind of processor, as triples call it
    """

    processor: Callable[[], Processor] = host_processor
    board: Callable[[], str] = _board
    cache_bytes: Callable[[int, int], int] = _cache_bytes
    gpu: Callable[[], FoundGPU | None] = lambda: find_gpu()
    num_cores: Callable[[], int] = lambda: len(usable_cores())
    matrices: Callable[[], bool] = lambda: may_use_matrices()
    arch: Callable[[], str] = this_machine


HOST = Machine()

_LANES = {"avx512f": 16, "avx2": 8}
"""float32 values in a vector of the widest instruction set that is there; 4 without any of these."""


@functools.cache
def _host_cpu(machine: Machine, num_threads: int) -> HardwareTarget:
    processor = machine.processor()
    lanes = next((lanes for flag, lanes in _LANES.items() if flag in processor.used_flags), 4)
    registers = 32 if lanes == 16 or "asimd" in processor.flags else 16
    device = processor.device or machine.board() or processor.part or "unknown processor"
    identity: dict[str, Any] = {
        "device": device,
        "family": list(processor.identity),
        "flags": sorted(scheduling_flags(processor)),
        "caches": [machine.cache_bytes(level, 0) for level in (1, 2, 3)],
    }
    if processor.mattr:  # else family and flags say it all
        identity["compiled for"] = processor.compiled_for
    return HardwareTarget(
        name=str(TargetName("cpu", num_threads)),
        kind="llvm",
        num_threads=num_threads,
        vector_lanes=lanes,
        num_vector_registers=registers,
        l1_bytes=machine.cache_bytes(1, 32 << 10),
        l2_bytes=machine.cache_bytes(2, 512 << 10),
        l3_bytes=machine.cache_bytes(3, 8 << 20),
        device=device,
        fingerprint=fingerprint(identity),
    )


def named_targets() -> tuple[str, ...]:
    """The devices that `configs/targets` describes."""
    return tuple(sorted(presets("targets")))


def known_targets() -> tuple[str, ...]:
    return (*LOCAL_TARGETS, *named_targets())


def local_gpu(machine: Machine = HOST) -> HardwareTarget:
    """The GPU of the machine, detected.

    Raises:
        TargetError: there is none.
    """
    found = machine.gpu()
    if found is None:
        raise TargetError(f"no NVIDIA GPU was found on this machine; {_WITHOUT_GPU}")
    return gpu_target("cuda", found.name, found.features, found.l2_bytes)


_WITHOUT_GPU = (
    "compile without one (`chanas prescheduler --target cuda --arch sm_90 --compile-only`), or time on one elsewhere "
    "(`--target cuda --rpc HOST:PORT --key KEY`; `chanas device serve --target cuda` runs there)"
)


def load_target(
    name: str, num_threads: int = 1, dtype: str = "f32", batch: int = 1, machine: Machine = HOST
) -> HardwareTarget:
    """The target called `name`, detected on this machine to be measured on, used in `dtype` (a processor in f32, bf16
    or int8) with `batch` images at once.

    Raises:
        TargetError: the name or the dtype is unknown, more threads are asked for than there are cores, the processor
            has no instructions for the dtype or is given several images, or nothing can be measured on the device
            from here.
    """
    if name == "cuda":
        if num_threads != 1:
            raise TargetError(f"expected target cuda with 1 thread, got {num_threads}")
        return in_batches(gpu_in_dtype(local_gpu(machine), dtype), batch)
    if name in named_targets() or name.endswith(YAML_SUFFIXES):
        raise TargetError(
            f"target '{name}' describes a device, and a description can't be measured on; see what works for it with "
            f"`chanas target check {name}` (for GPUs also --compile-only), or time on such a device itself: `chanas "
            "device serve` there, --rpc HOST:PORT --key KEY here"
        )
    if name != "cpu":
        raise TargetError(unknown_name("target", name, known_targets()))
    cores = machine.num_cores()
    if not 1 <= num_threads <= cores:
        raise TargetError(f"expected between 1 and {cores} threads on this machine, got {num_threads}")
    if dtype not in DTYPES:
        raise TargetError(unknown_name("dtype", dtype, DTYPES))
    target = in_batches(_host_cpu(machine, num_threads), batch)
    if dtype == "f32":
        return target
    processor = machine.processor()
    if dtype not in processor_dtypes(processor):
        needed = {"bf16": "AVX512_BF16", "int8": "AVX2 or ARM's dot products"}[dtype]
        raise TargetError(f"dtype {dtype} needs a processor with {needed}, got {target.device}; use --dtype f32")
    return dataclasses.replace(
        target,
        name=str(TargetName(target.name, dtype=dtype)),
        dtype=DTYPES[dtype],
        has_matrices=has_matrices(processor, dtype) and machine.matrices(),
        has_dots=dtype == "int8" and has_dots(processor),
    )


def load_used(usage: Usage) -> HardwareTarget:
    """The target of this machine that is asked for; raises what `load_target` does."""
    return load_target(usage.device, usage.threads, usage.dtype, usage.batch)
