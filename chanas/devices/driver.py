"""The NVIDIA GPU that this machine has, asked of its driver."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from chanas.core.gpu import GPUFeatures

# CUdevice_attribute of the driver's interface (CUDA Driver API reference, section "Data types used by CUDA driver").
_ATTRIBUTES = {
    "max_threads_per_block": 1,
    "max_shared_bytes_per_block": 8,
    "warp_size": 10,
    "registers_per_block": 12,
    "num_sms": 16,
    "l2_bytes": 38,
    "major": 75,
    "minor": 76,
    "shared_bytes_per_sm": 81,
    "registers_per_sm": 82,
}
_DRIVERS = ("libcuda.so.1", "libcuda.so")
_NAME_BYTES = 256


@dataclass(frozen=True)
class FoundGPU:
    """The GPU of this machine: its own name, its features, and its L2 cache."""

    name: str
    features: GPUFeatures
    l2_bytes: int


def find_gpu(driver: Any = None) -> FoundGPU | None:
    """The first GPU that the driver shows; None where there is no driver or no GPU.

    Args:
        driver: libcuda, opened; this machine's by default.
    """
    cuda = driver or _open_driver()
    count, device = ctypes.c_int(), ctypes.c_int()
    if cuda is None or cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or count.value < 1:
        return None
    name = ctypes.create_string_buffer(_NAME_BYTES)
    if cuda.cuDeviceGet(ctypes.byref(device), 0) or cuda.cuDeviceGetName(name, _NAME_BYTES, device):
        return None
    values: dict[str, int] = {}
    for key, attribute in _ATTRIBUTES.items():
        value = ctypes.c_int()
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        values[key] = value.value
    l2_bytes = values.pop("l2_bytes")
    arch = f"sm_{values.pop('major')}{values.pop('minor')}"
    return FoundGPU(name.value.decode(errors="replace"), GPUFeatures(arch=arch, **values), l2_bytes)


def _open_driver() -> Any:
    for library in _DRIVERS:
        try:
            return ctypes.CDLL(library)
        except OSError:
            continue
    return None
