"""`chanas prescheduler --compile-only`: a space's operators compiled for a GPU that need not be there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chanas.core.arch import SearchSpace
from chanas.core.target import HardwareTarget, gpu_in_dtype, in_batches
from chanas.core.usage import Usage
from chanas.devices.target_files import arch_target, describe_target
from chanas.errors import ConfigError, TargetError
from chanas.files.run import RunDirectory
from chanas.operators.steps import tuned_workloads
from chanas.workflows.stages.stored import DEFAULT_NUM_CLASSES, check_task, stored_task

if TYPE_CHECKING:
    from chanas.measuring.checks.compile_points import CompileSummary

DEFAULT_POINTS = 8
_DEFAULT_SPACE = "mbv3-32"  # what compiles at all is known from any space


def compile_target(name: str, arch: str | None) -> HardwareTarget:
    """The GPU that is compiled for: `cuda` with an architecture, the GPU of this machine without, or a described one.

    Raises:
        TargetError: it is a processor, there is no such target, or an architecture is given beside a described device.
    """
    if name == "cuda" and arch is not None:
        return arch_target(arch)
    target = describe_target(name)
    if target.gpu is None:
        raise TargetError(f"--compile-only is for GPUs, got target '{name}'; use --target cuda --arch sm_90")
    if arch is not None:
        raise TargetError(f"target '{name}' has an architecture ({target.gpu.arch}); leave --arch out")
    return target


@dataclass(frozen=True)
class Points:
    """The schedules to compile: `num` random ones (None: the default) of each operator of some sub-spaces (all where
    none is named), and of the first `limit` operators only."""

    num: int | None = None
    limit: int | None = None
    sub_spaces: Sequence[str] = ()


DEFAULT_CHOICE = Points()


def compile_only(
    run: RunDirectory,
    usage: Usage,
    *,
    arch: str | None = None,
    space: str | Path | None = None,
    num_classes: int | None = None,
    points: Points = DEFAULT_CHOICE,
    seed: int = 0,
    progress: bool = True,
) -> CompileSummary:
    """Compile random schedules of a space's operators for a GPU, and sum up what they use.

    Operators are those that a GPU tunes, in the order of the space's blocks.

    Raises:
        TargetError: the target is no GPU or has no kernels of the dtype, or the compiler does not have its
            architecture.
        ConfigError: a number is below one.
    """
    from chanas.measuring.checks.compile_points import compile_points

    for what, number in (("trials", points.num), ("limit", points.limit)):
        if number is not None and number < 1:
            raise ConfigError(f"expected --{what} of at least 1, got {number}")
    gpu = in_batches(gpu_in_dtype(compile_target(usage.device, arch), usage.dtype), usage.batch)
    loaded = None if space is None else SearchSpace.load(space)
    check_task(run, loaded, num_classes)
    stored = stored_task(run)
    loaded = loaded or (stored[0] if stored else SearchSpace.load(_DEFAULT_SPACE))
    classes = num_classes or (stored[1] if stored else DEFAULT_NUM_CLASSES)
    blocks = loaded.all_blocks(classes, loaded.named_sub_spaces(points.sub_spaces))
    chosen = tuned_workloads(blocks, gpu)[: points.limit]
    num_points = points.num or DEFAULT_POINTS
    return compile_points(chosen, gpu, num_points, seed, progress)
