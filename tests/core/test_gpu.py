"""chanas/core/gpu.py: a GPU is asked what it is through its driver, and none there is no error."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pytest

from chanas.core.gpu import GPUFeatures
from chanas.devices import driver as devices_driver
from chanas.devices.driver import find_gpu

# What the driver of an H100 answers, by the attribute's number.
H100 = {1: 1024, 8: 49152, 10: 32, 12: 65536, 16: 132, 38: 52428800, 75: 9, 76: 0, 81: 233472, 82: 65536}


def _set(pointer: Any, value: int) -> None:
    ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = value


@dataclass
class Driver:
    """Stands where libcuda stands; `failing` names the call that returns an error."""

    count: int = 1
    attributes: dict[int, int] = field(default_factory=lambda: dict(H100))
    failing: str = ""

    def _status(self, call: str) -> int:
        return 999 if call == self.failing else 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self._status("cuInit")

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        _set(count, self.count)
        return self._status("cuDeviceGetCount")

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        _set(device, index)
        return self._status("cuDeviceGet")

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = b"NVIDIA H100 80GB HBM3"
        return self._status("cuDeviceGetName")

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        _set(value, self.attributes[attribute])
        return self._status("cuDeviceGetAttribute")


def test_a_gpu_says_what_it_is_made_of() -> None:
    found = find_gpu(Driver())
    assert found is not None
    assert found.name == "NVIDIA H100 80GB HBM3"
    assert found.l2_bytes == 50 << 20
    assert found.features == GPUFeatures("sm_90", 132, 32, 1024, 48 << 10, 228 << 10, 65536, 65536, 255)


def test_an_architecture_of_two_digits_keeps_them() -> None:
    found = find_gpu(Driver(attributes=H100 | {75: 12, 76: 0}))
    assert found is not None
    assert found.features.arch == "sm_120"


@pytest.mark.parametrize(
    "failing", ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute"]
)
def test_a_driver_that_fails_has_no_gpu(failing: str) -> None:
    assert find_gpu(Driver(failing=failing)) is None


def test_a_number_beyond_the_gpus_is_none() -> None:
    assert find_gpu(Driver(count=0)) is None


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_driver, "_open_driver", lambda: None)
    assert find_gpu() is None


def test_the_drivers_attributes_have_the_numbers_that_its_bindings_give() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    names = {
        "max_threads_per_block": "MAX_THREADS_PER_BLOCK",
        "max_shared_bytes_per_block": "MAX_SHARED_MEMORY_PER_BLOCK",
        "warp_size": "WARP_SIZE",
        "registers_per_block": "MAX_REGISTERS_PER_BLOCK",
        "num_sms": "MULTIPROCESSOR_COUNT",
        "l2_bytes": "L2_CACHE_SIZE",
        "major": "COMPUTE_CAPABILITY_MAJOR",
        "minor": "COMPUTE_CAPABILITY_MINOR",
        "shared_bytes_per_sm": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
        "registers_per_sm": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    }
    numbers = {key: getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}") for key, name in names.items()}
    assert {key: int(value) for key, value in numbers.items()} == devices_driver._ATTRIBUTES
