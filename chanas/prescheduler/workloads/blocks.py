"""The operators that a block consists of: workloads that are tuned one by one (paper, section 3.5, figure 7)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from chanas.core.arch import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.prescheduler.workloads.workload import Workload


def block_workloads(block: BlockConfig, dtype: str = "float32", batch: int = 1) -> tuple[Workload, ...]:
    """The operators of a block in order of execution, in `dtype`, for `batch` images; logits are float32 in any dtype.

    mbconv: expand (unless the expand ratio is 1), depthwise, [pool, reduce, gate], project.
    """
    operators = _block_operators(block)
    if (dtype, batch) == ("float32", 1):
        return operators
    last = len(operators) - 1 if block.kind == "classifier" and dtype != "float32" else -1
    return tuple(dataclasses.replace(w, dtype=dtype, batch=batch, wide=i == last) for i, w in enumerate(operators))


def _block_operators(block: BlockConfig) -> tuple[Workload, ...]:
    size, out_size, act = block.input_size, block.output_size, block.activation
    if block.kind == "stem":
        return (Workload("conv", size, block.in_channels, block.out_channels, block.kernel_size, block.stride, act),)
    if block.kind == "head":
        return (
            Workload("pointwise", size, block.in_channels, block.out_channels, epilogue=act),
            Workload("pool", size, block.out_channels, block.out_channels),
        )
    if block.kind == "classifier":
        return (
            Workload("pointwise", 1, block.in_channels, block.mid_channels, epilogue=act),
            Workload("pointwise", 1, block.mid_channels, block.out_channels),
        )
    mid = block.mid_channels
    operators = []
    if block.has_expand:
        operators.append(Workload("pointwise", size, block.in_channels, mid, epilogue=act))
    operators.append(Workload("depthwise", size, mid, mid, block.kernel_size, block.stride, act))
    if block.use_se:
        operators.append(Workload("pool", out_size, mid, mid))
        operators.append(Workload("pointwise", 1, mid, block.se_channels, epilogue="relu"))
        operators.append(Workload("pointwise", 1, block.se_channels, mid, epilogue="hsigmoid"))
    operators.append(
        Workload("pointwise", out_size, mid, block.out_channels, scaled=block.use_se, residual=block.residual)
    )
    return tuple(operators)


def fuse_squeeze(workloads: Sequence[Workload]) -> tuple[Workload, ...]:
    """The same operators with each pooling and the dense layer after it as one: squeeze-excite in two instead of three.

    Parameters are the same ones in the same order, since pooling has none.
    """
    found: list[Workload] = []
    for workload in workloads:
        is_dense = workload.op == "pointwise" and workload.input_size == 1 and not workload.scaled
        if found and found[-1].op == "pool" and is_dense and not workload.residual:
            pool = found.pop()
            found.append(dataclasses.replace(workload, op="squeeze", input_size=pool.input_size))
        else:
            found.append(workload)
    return tuple(found)


def device_workloads(block: BlockConfig, target: HardwareTarget) -> tuple[Workload, ...]:
    """The operators of a block that are tuned for a target, each by itself.

    On GPUs squeeze-excite of one image is two kernels; of several it is three, since the mean of all of them is enough
    work to be shared out by itself, and its dense layers are products of matrices.
    """
    workloads = block_workloads(block, target.dtype, target.batch)
    return workloads if target.gpu is None or target.batch > 1 else fuse_squeeze(workloads)


def tuned_workloads(blocks: Iterable[BlockConfig], target: HardwareTarget) -> list[Workload]:
    """The distinct operators of some blocks, as they are tuned for a target, in the blocks' order."""
    return list(dict.fromkeys(w for block in blocks for w in device_workloads(block, target)))
