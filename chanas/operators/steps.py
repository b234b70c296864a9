"""Blocks as steps: the operators that a block consists of, which are tuned one by one (paper, section 3.5, figure 7),
and what each of them reads.

Values are numbered: a block's input is value 0, and step i writes value i + 1. Everything that executes, compiles or
counts a block follows these numbers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chanas.core.arch import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.precision import FLOAT32, INT8
from chanas.operators.workload import Workload, extra_names

INPUT = 0
"""The number of a block's input."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operator and the values that it reads: its input, then gate and residual as far as it has them."""

    workload: Workload
    reads: tuple[int, ...]


def step_alone(workload: Workload) -> Step:
    """An operator whose inputs all come from elsewhere."""
    return Step(workload, tuple(range(1 + len(extra_names(workload)))))


def check_points(block: BlockConfig, steps: Sequence[Step], points: Sequence[object]) -> None:
    """
    Raises:
        ScheduleError: there is not one point per operator of a block.
    """
    if len(points) != len(steps):
        raise ScheduleError(f"expected {len(steps)} points for block {block.key}, got {len(points)}")


class _Writer:
    """Steps that are being written down, one after the other."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def add(self, workload: Workload, *reads: int) -> int:
        """Append a step and return the number of the value that it writes."""
        self.steps.append(Step(workload, reads))
        return len(self.steps)


@functools.lru_cache(maxsize=4096)
def block_steps(block: BlockConfig, dtype: str = "float32", batch: int = 1) -> tuple[Step, ...]:
    """The operators of a block in order of execution, in `dtype`, for `batch` images; logits are float32 in any dtype.
    In int8 so are means over a map, and the dense layers that read them.

    mbconv: expand (unless the expand ratio is 1), depthwise, [pool, reduce, gate], project.
    """
    steps = _float32_steps(block)
    last = len(steps) - 1 if block.kind == "classifier" and dtype != "float32" else -1

    def typed(number: int, workload: Workload) -> Workload:
        if dtype != INT8.dtype:
            return dataclasses.replace(workload, dtype=dtype, batch=batch, wide=number == last)
        own = FLOAT32.dtype if workload.input_pixels == 1 else dtype
        return dataclasses.replace(workload, dtype=own, batch=batch, wide=workload.op == "pool")

    return tuple(Step(typed(number, step.workload), step.reads) for number, step in enumerate(steps))


def _float32_steps(block: BlockConfig) -> list[Step]:
    size, act = block.input_size, block.activation
    to = _Writer()
    if block.kind == "stem":
        stem = Workload("conv", size, block.in_channels, block.out_channels, block.kernel_size, block.stride, act)
        to.add(stem, INPUT)
    elif block.kind == "head":
        features = to.add(Workload("pointwise", size, block.in_channels, block.out_channels, epilogue=act), INPUT)
        to.add(Workload("pool", size, block.out_channels, block.out_channels), features)
    elif block.kind == "classifier":
        hidden = to.add(Workload("pointwise", 1, block.in_channels, block.mid_channels, epilogue=act), INPUT)
        to.add(Workload("pointwise", 1, block.mid_channels, block.out_channels), hidden)
    else:
        _add_mbconv(to, block)
    return to.steps


def _add_mbconv(to: _Writer, block: BlockConfig) -> None:
    size, out_size, mid, act = block.input_size, block.output_size, block.mid_channels, block.activation
    current = INPUT
    if block.has_expand:
        current = to.add(Workload("pointwise", size, block.in_channels, mid, epilogue=act), INPUT)
    current = to.add(Workload("depthwise", size, mid, mid, block.kernel_size, block.stride, act), current)
    reads = [current]
    if block.use_se:
        pooled = to.add(Workload("pool", out_size, mid, mid), current)
        squeezed = to.add(Workload("pointwise", 1, mid, block.se_channels, epilogue="relu"), pooled)
        reads.append(to.add(Workload("pointwise", 1, block.se_channels, mid, epilogue="hsigmoid"), squeezed))
    if block.residual:
        reads.append(INPUT)
    project = Workload("pointwise", out_size, mid, block.out_channels, scaled=block.use_se, residual=block.residual)
    to.add(project, *reads)


def fuse_squeeze(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same steps with each pooling and the dense layer after it as one: squeeze-excite in two instead of three.

    Parameters are the same ones in the same order, since pooling has none.
    """
    readers = [value for step in steps for value in step.reads]
    to = _Writer()
    numbers = {INPUT: INPUT}  # of the values as they are now, by what they were
    for before, step in enumerate(steps):  # the step before this one wrote value `before`
        workload, reads = step.workload, step.reads
        pool = steps[before - 1] if before else None
        is_dense = workload.op == "pointwise" and workload.output_size == 1 and reads == (before,)
        if pool is not None and pool.workload.op == "pool" and is_dense and readers.count(before) == 1:
            to.steps.pop()
            workload = dataclasses.replace(workload, op="squeeze", input_size=pool.workload.input_size)
            reads = pool.reads
        numbers[before + 1] = to.add(workload, *(numbers[value] for value in reads))
    return tuple(to.steps)


def device_steps(block: BlockConfig, target: HardwareTarget) -> tuple[Step, ...]:
    """The steps of a block as a target executes them, each tuned by itself.

    On GPUs squeeze-excite of one image is two kernels; of several it is three, since the mean of all of them is enough
    work to be shared out by itself, and its dense layers are products of matrices.
    """
    steps = block_steps(block, target.dtype, target.batch)
    return steps if target.gpu is None or target.batch > 1 else fuse_squeeze(steps)


def block_workloads(block: BlockConfig, dtype: str = "float32", batch: int = 1) -> tuple[Workload, ...]:
    """The operators of `block_steps` alone."""
    return tuple(step.workload for step in block_steps(block, dtype, batch))


def device_workloads(block: BlockConfig, target: HardwareTarget) -> tuple[Workload, ...]:
    """The operators of `device_steps` alone."""
    return tuple(step.workload for step in device_steps(block, target))


def tuned_workloads(blocks: Iterable[BlockConfig], target: HardwareTarget) -> list[Workload]:
    """The distinct operators of some blocks, as they are tuned for a target, in the blocks' order."""
    return list(dict.fromkeys(w for block in blocks for w in device_workloads(block, target)))
