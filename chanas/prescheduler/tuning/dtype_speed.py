"""Check that a dtype pays on a device: one middle layer is timed in it and in float32, at the best of a few schedules.

Half as many bytes are moved, but some processors have slow instructions for products of such numbers, or few: where
bfloat16 is slower than float32 this is told before hours go into its table. It is no more than one operator's word.
"""

from __future__ import annotations

import dataclasses
import sys
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from chanas.compiler.backends import backend_of, case_of
from chanas.core.target import HardwareTarget
from chanas.core.units import format_latency
from chanas.devices.timing import TimingSettings
from chanas.measuring.canary import NOISE
from chanas.measuring.fleet import Pool
from chanas.measuring.messages import Answer, Build, Measure, OperatorAt
from chanas.operators.workload import Workload
from chanas.prescheduler.ideas import ranked_points

WORKLOAD = Workload("pointwise", 14, 80, 480, epilogue="hswish")
"""An expansion of MobileNetV3's middle stages: its kind takes most of the time of such networks."""
# Of the 74 points of that operator in float32, and the 88 in bfloat16, the best of four was within 3 % of the best one
# (Zen 4).
_NUM_POINTS = 4
_SETTINGS, _TIMEOUT_S = TimingSettings(repeats=7, min_repeat_s=0.001), 20.0


@dataclass(frozen=True)
class DtypeSpeed:
    """Seconds of the operator in a dtype (`f32`, `bf16`, as commands call it), and in float32."""

    dtype: str
    seconds: float
    float32_s: float

    @property
    def is_slower(self) -> bool:
        """True if it is slower than float32 by more than noise."""
        return self.seconds > (1.0 + NOISE) * self.float32_s

    def describe(self) -> str:
        """`bf16 is slower than f32 here: 41.2 us against 23.9 us of a 1×1 convolution`."""
        is_faster = self.float32_s > (1.0 + NOISE) * self.seconds
        how = "slower than" if self.is_slower else "faster than" if is_faster else "as fast as"
        mine, other = format_latency(self.seconds), format_latency(self.float32_s)
        return f"{self.dtype} is {how} f32 here: {mine} against {other} of a 1×1 convolution"


def dtype_speed(target: HardwareTarget, pool: Pool, scratch: Path) -> DtypeSpeed | None:
    """The operator in the target's dtype beside float32; None where one of the two can't be built or timed.

    Args:
        target: a processor in another dtype than float32.
        scratch: an existing folder for files; they stay there.
    """
    plain = dataclasses.replace(target, dtype="float32")
    builds = {device.dtype: _build(device, pool, scratch) for device in (plain, target)}
    seconds: dict[str, list[float]] = {dtype: [] for dtype in builds}
    for turn in range(_NUM_POINTS):  # float32 and the other by turns: a slow moment hits both
        for dtype, built in builds.items():
            if turn < len(built) and built[turn][1].result().error is None:
                answer = pool.measure(built[turn][0], _TIMEOUT_S).result()
                if answer.error is None:
                    seconds[dtype].append(answer.timing.seconds)
    if not all(seconds.values()):
        return None
    return DtypeSpeed(target.dtype_name, min(seconds[target.dtype]), min(seconds["float32"]))


def _build(target: HardwareTarget, pool: Pool, scratch: Path) -> list[tuple[Measure, Future[Answer]]]:
    """Start the builds of a few points; each comes with the request that times it."""
    workload = dataclasses.replace(WORKLOAD, dtype=target.dtype)
    case = scratch / f"speed-{target.dtype}.npz"
    case_of(workload, target).save(case)
    started = []
    for i, point in enumerate(ranked_points(workload, target, _NUM_POINTS)):
        library = scratch / f"speed-{target.dtype}-{i}.so"
        build = Build(target=target, what=OperatorAt(workload, point), path=library)
        timing = Measure(library=library, case=case, settings=_SETTINGS)
        started.append((timing, pool.build(build, _TIMEOUT_S)))
    return started


def tell_if_slower(target: HardwareTarget, pool: Pool, scratch: Path, is_first: bool) -> DtypeSpeed | None:
    """Print one line on standard error if float32 is faster, before the first tuning of a processor in another
    dtype."""
    if not is_first or not backend_of(target).has_slow_dtypes or target.dtype == "float32":
        return None
    speed = dtype_speed(target, pool, scratch)
    if speed is not None and speed.is_slower:
        tqdm.write(f"{speed.describe()}; going on", file=sys.stderr)
    return speed
