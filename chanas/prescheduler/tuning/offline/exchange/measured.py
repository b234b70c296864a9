"""One record of another system, and the device that it was measured on, as a source of records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chanas.compiler.space import Point
from chanas.core.arrays import Float32Array
from chanas.core.gpu import GPUFeatures
from chanas.core.target import HardwareTarget, fingerprint
from chanas.core.units import is_seconds
from chanas.core.usage import TargetName
from chanas.errors import printable
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.tuning.offline.exchange.reading import UnusableError

NO_SPACE = 0
"""Version of the schedule spaces of points that are of none of ours."""
_LANES_OF_A_THREAD = 4
_FAILED_S = 1e10
MAX_DEVICE_NAME = 80


@dataclass(frozen=True, eq=False)
class Measured:
    """A record: where it was measured, the key and operator of its workload (FLOPs 0 where they are not known), its
    seconds, rows of primitives float32[R, WIDTH], and its point in a space of parameters, if it has one."""

    source: Source
    workload: str
    op: str
    seconds: float
    rows: Float32Array
    point: Point = ()
    num_flops: int = 0


def processor(
    system: str, name: str, threads: int, lanes: int, identity: object, dtype: str = "float32", mcpu: str = ""
) -> Source:
    """A processor as another system describes it. Registers (1) and caches (0) are not known."""
    digest = fingerprint({"system": system, "identity": identity})
    known = HardwareTarget(
        name=str(TargetName("cpu", threads)),
        kind="llvm",
        num_threads=max(1, threads),
        vector_lanes=max(1, lanes),
        num_vector_registers=1,
        l1_bytes=0,
        l2_bytes=0,
        l3_bytes=0,
        device=printable(name)[:MAX_DEVICE_NAME],
        fingerprint=digest,
        dtype=dtype,
        mcpu=mcpu,
    )
    return Source(f"{system}/{digest}", known, system, NO_SPACE)


def graphics_processor(
    system: str, name: str, identity: object, gpu: GPUFeatures, dtype: str = "float32", label: str = "cuda"
) -> Source:
    """A GPU as another system describes it; what is not known of it is zero."""
    digest = fingerprint({"system": system, "identity": identity})
    known = HardwareTarget(
        name=label,
        kind="cuda",
        num_threads=1,
        vector_lanes=_LANES_OF_A_THREAD,
        num_vector_registers=gpu.max_registers_per_thread,
        l1_bytes=gpu.shared_bytes_per_sm,
        l2_bytes=0,
        l3_bytes=0,
        device=printable(name)[:MAX_DEVICE_NAME],
        fingerprint=digest,
        dtype=dtype,
        gpu=gpu,
    )
    return Source(f"{system}/{digest}", known, system, NO_SPACE)


def a_gpu(arch: str = "", warp_size: int = 0, max_threads: int = 0, max_shared_bytes: int = 0) -> GPUFeatures:
    """A GPU, as far as records of others describe it."""
    return GPUFeatures(
        arch=arch,
        num_sms=0,
        warp_size=warp_size,
        max_threads_per_block=max_threads,
        max_shared_bytes_per_block=max_shared_bytes,
        shared_bytes_per_sm=0,
        registers_per_block=0,
        registers_per_sm=0,
    )


def mean_seconds(seconds: Iterable[float]) -> float:
    """The mean of several runs, as TenSet and MetaSchedule take it.

    Raises:
        UnusableError: it failed, for which both write 1e10; there is none, or one that nothing can have taken.
    """
    runs = list(seconds)
    if _FAILED_S in runs:
        raise UnusableError("that failed")
    if not runs or not all(map(is_seconds, runs)):
        raise UnusableError("without seconds that something can have taken")
    return sum(runs) / len(runs)
