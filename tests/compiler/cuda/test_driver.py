"""chanas/compiler/cuda/driver.py: libraries for GPUs elsewhere hold machine code, where no driver is."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.cuda.nvrtc import why_no_nvrtc
from chanas.compiler.toolchains import find_linker
from chanas.core.target import this_machine
from chanas.devices.cores import split_cores
from chanas.measuring.messages import Build, OperatorAt
from chanas.measuring.worker.process import WorkerProcess, worker_command

from ..cuda_cases import GPU, WORKLOADS

REASON = why_no_nvrtc()
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine (System V ABI)

pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    """One that compiles for GPUs."""
    process = WorkerProcess(1, split_cores(1)[0], worker_command(GPU))
    yield process
    process.close()


@pytest.mark.parametrize("machine", [this_machine(), "aarch64"])
def test_a_library_for_a_gpu_elsewhere_holds_its_machine_code(
    worker: WorkerProcess, tmp_path: Path, machine: str
) -> None:
    if find_linker(f"{machine}-linux-gnu") is None:
        pytest.skip(f"no linker for {machine} is installed")
    target = dataclasses.replace(GPU, mcpu="generic", mtriple=f"{machine}-linux-gnu")
    library = tmp_path / "kernel.so"
    (point,) = schedule_space(WORKLOADS[1], GPU).sample(1, np.random.default_rng(0))
    build = Build(target=target, what=OperatorAt(WORKLOADS[1], point), path=library)
    assert worker.call(build, 120.0).error is None
    content = library.read_bytes()
    assert struct.unpack_from("<H", content, 18) == (MACHINES[machine],)
    assert b".text.kernel0_kernel" in content
    assert b"sm_90" in content
