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

from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget, in_dtype
from chanas.errors import ScheduleError
from chanas.operators.precision import FLOAT32, INT8, precision_of
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
    """The operators of a block in order of execution, in its own dtype or else in `dtype`, for `batch` images; logits
    are float32 in any dtype. In int8 so are means over a map, and what is computed from them.

    mbconv: expand (unless the expand ratio is 1), depthwise, [pool, reduce, gate], project.
    encode, decode: none.
    """
    dtype = block.dtype or dtype
    if block.converts:
        return ()
    steps = _float32_steps(block)
    if dtype == INT8.dtype:
        return _in_int8(block, steps, batch)
    last = len(steps) - 1 if block.kind == "classifier" and dtype != "float32" else -1
    typed = (dataclasses.replace(s.workload, dtype=dtype, batch=batch, wide=i == last) for i, s in enumerate(steps))
    return tuple(Step(workload, step.reads) for workload, step in zip(typed, steps, strict=True))


def _in_int8(block: BlockConfig, steps: Sequence[Step], batch: int) -> tuple[Step, ...]:
    """Steps in int8, but for those that compute with means over a map: these are float32."""
    means, found = {INPUT} if block.kind == "classifier" else set[int](), []
    for number, step in enumerate(steps, 1):
        has_mean, is_float32 = step.workload.op == "pool", step.reads[0] in means
        dtype = FLOAT32.dtype if is_float32 else INT8.dtype
        found.append(Step(dataclasses.replace(step.workload, dtype=dtype, batch=batch, wide=has_mean), step.reads))
        means |= {number} if has_mean or is_float32 else set()
    return tuple(found)


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


def block_target(block: BlockConfig, target: HardwareTarget) -> HardwareTarget:
    """The target in a block's own dtype, where it has one.

    Raises:
        TargetError: the target has no such dtype.
    """
    return in_dtype(target, block.dtype) if block.dtype else target


def network_tolerance(blocks: Iterable[BlockConfig], dtype: str) -> float:
    """The largest error of a network that is right, by its dtypes; of blocks without one of their own it is `dtype`."""
    return max(precision_of(block.dtype or dtype).network_tolerance for block in blocks)


def device_steps(block: BlockConfig, target: HardwareTarget) -> tuple[Step, ...]:
    """The steps of a block as a target executes them, each tuned by itself.

    On GPUs squeeze-excite of one image is two kernels; of several it is three, since the mean of all of them is enough
    work to be shared out by itself, and its dense layers are products of matrices.
    """
    steps = block_steps(block, target.dtype, target.batch)  # in its own dtype where it has one
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
