"""chanas/devices/cuda_runtime.py: what is timed on a device whose clock is invented, one that does what it is told in
order and waits for the host where the host is slower."""

from __future__ import annotations

import sys
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from chanas.devices import cuda_runtime
from chanas.devices.cuda_runtime import CUDADevice

FLUSH_S, ASKED_S = 30e-6, 1e-6


class Status(IntEnum):
    cudaSuccess = 0  # noqa: N815
    cudaErrorNotReady = 600  # noqa: N815
    cudaErrorIllegalAddress = 700  # noqa: N815


class Runtime:
    """Stands where `cuda.bindings.runtime` stands: `host_s` is the host's clock, `device_s` when the device is done."""

    def __init__(self) -> None:
        self.host_s = self.device_s = 0.0
        self.flushed: list[int] = []
        self.status = Status.cudaSuccess

    def work(self, device_s: float, host_s: float = ASKED_S) -> None:
        """The host asks for something; the device begins once it has been asked and has done all before."""
        self.host_s += host_s
        self.device_s = max(self.device_s, self.host_s) + device_s

    def cudaMalloc(self, size: int) -> tuple[Status, int]:  # noqa: N802
        return Status.cudaSuccess, 1

    def cudaMemsetAsync(self, address: int, value: int, size: int, stream: int) -> tuple[Status]:  # noqa: N802
        self.flushed.append(size)
        self.work(FLUSH_S)
        return (self.status,)

    def cudaEventCreate(self) -> tuple[Status, dict[str, float]]:  # noqa: N802
        return Status.cudaSuccess, {}

    def cudaEventRecord(self, event: dict[str, float], stream: int) -> tuple[Status]:  # noqa: N802
        self.work(0.0)
        event["s"] = self.device_s
        return (Status.cudaSuccess,)

    def cudaEventQuery(self, event: dict[str, float]) -> tuple[Status]:  # noqa: N802
        return (Status.cudaSuccess if event["s"] <= self.host_s else Status.cudaErrorNotReady,)

    def cudaDeviceSynchronize(self) -> tuple[Status]:  # noqa: N802
        self.host_s = self.device_s = max(self.host_s, self.device_s)
        return (Status.cudaSuccess,)

    def cudaEventElapsedTime(self, a: dict[str, float], b: dict[str, float]) -> tuple[Status, float]:  # noqa: N802
        return Status.cudaSuccess, 1e3 * (b["s"] - a["s"])


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    import tvm

    made = Runtime()
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", made)
    monkeypatch.setattr(cuda_runtime, "load_runtime", lambda: None)
    monkeypatch.setattr(tvm, "cuda", lambda _: SimpleNamespace(exist=True))
    return made


def launch(runtime: Runtime, device_s: float, host_s: float) -> tuple[Any, tuple[()]]:
    return (lambda: runtime.work(device_s, host_s)), ()


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(("device_s", "host_s"), [(50e-6, 10e-6), (20e-6, 25e-6), (5e-6, 60e-6)])
def test_the_time_of_calls_is_the_devices_alone(runtime: Runtime, cold: bool, device_s: float, host_s: float) -> None:
    device, calls = CUDADevice(1000), [launch(runtime, device_s, host_s)] * 20
    for _ in range(8):  # how long the host takes is seen as it is timed
        seconds = device.seconds(calls, cold)
    assert seconds == pytest.approx(20 * device_s, rel=1e-6)


def test_what_is_not_queued_has_the_hosts_part_where_the_device_waits_for_it(runtime: Runtime) -> None:
    slow = [launch(runtime, 5e-6, 60e-6)] * 20
    device = CUDADevice(1000)
    assert device.seconds(slow, cold=False, queued=False) >= 20 * 60e-6
    assert not runtime.flushed


def test_a_cold_call_finds_twice_the_cache_written_before_it(runtime: Runtime) -> None:
    CUDADevice(1000).seconds([launch(runtime, 5e-6, 1e-6)] * 3, cold=True, queued=False)
    assert runtime.flushed == [2000] * 3


def test_an_error_of_the_device_names_itself(runtime: Runtime) -> None:
    runtime.status = Status.cudaErrorIllegalAddress
    with pytest.raises(RuntimeError, match=r"^CUDA error: cudaErrorIllegalAddress$"):
        CUDADevice(1000).seconds([launch(runtime, 5e-6, 1e-6)], cold=True)
