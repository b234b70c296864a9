"""A GPU schedule carried out by one processor: every block and thread after the other, shared memory and registers in
ordinary memory, so that tiles, caches, loads and epilogues can be compared with PyTorch where there is no GPU.

A thread loads the whole tile into shared memory, as if it were the last of its block to arrive; so the result is the
GPU's if its barriers are right. Barriers, sums over threads, and what the CUDA compiler makes of it are not tested.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.errors import MeasureError
from chanas.folding import unpack_channels
from chanas.prescheduler.cuda_operators import num_rows, output_shape, parameter_shapes
from chanas.prescheduler.cuda_schedules import schedule_gpu_operator
from chanas.prescheduler.reference import ReferenceCase, operator_case
from chanas.prescheduler.space import Point
from chanas.prescheduler.workload import Workload
from chanas.target import HardwareTarget, host_llvm_cpu

Array = npt.NDArray[np.float32]

_BOUND = re.compile(r'T\.thread_binding\((?P<extent>[^,()]+), thread="[^"]+"\)')
_SCOPE = re.compile(r', scope="(?:shared|local)"')


def sequential(function: Any) -> Any:
    """The scheduled function with plain loops for blocks and threads, and plain memory."""
    import tvm

    text = _SCOPE.sub("", _BOUND.sub(r"T.serial(\g<extent>)", function.script()))
    if "thread_binding" in text:
        raise MeasureError("a bound loop of a GPU schedule could not be made sequential")
    return tvm.script.from_source(text)


def gpu_case(workload: Workload) -> ReferenceCase:
    """`operator_case` with its arrays as GPU kernels read them (`cuda_operators`)."""
    case = operator_case(workload, 1)
    kept = list(case.arguments)
    first = _plain(kept.pop(0)) if workload.op == "conv" else _rows(kept.pop(0), workload.input_size)
    arguments = [first]
    if workload.op != "pool":
        weights, bias = kept.pop(0), kept.pop(0)
        arguments += [_weights(workload, weights), _plain(bias).reshape(-1)]
    if workload.scaled:
        arguments.append(_plain(kept.pop(0)).reshape(-1))
    if workload.residual:
        arguments.append(_rows(kept.pop(0), workload.output_size))
    expected = unpack_channels(_plain(case.expected), workload.out_channels).T
    return ReferenceCase(tuple(arguments), case.weights, np.ascontiguousarray(expected), case.tolerance)


def _plain(values: Any) -> Array:
    return np.ascontiguousarray(values, dtype=np.float32)


def _rows(values: Any, size: int) -> Array:
    """[C, M, 1] -> [R, C]; the rows beyond the map's pixels are not a number, to be found out if they are used."""
    rows = np.full((num_rows(size), values.shape[0]), np.nan, dtype=np.float32)
    rows[: size**2] = _plain(values).reshape(values.shape[0], -1).T
    return rows


def _weights(workload: Workload, values: Any) -> Array:
    """[N, C·k·k, 1] -> [k·k, C, N]; depthwise [C, k·k, 1] -> [k·k, C]."""
    shape = parameter_shapes(workload)[0]
    taps = shape[0]
    by_channel = _plain(values).reshape(values.shape[0], -1, taps)
    return np.ascontiguousarray(by_channel.transpose(2, 1, 0)).reshape(shape)


def sequential_error(workload: Workload, point: Point, target: HardwareTarget) -> float:
    """Largest error of a schedule carried out here, relative to the largest magnitude that PyTorch gives."""
    import tvm

    case, plain = gpu_case(workload), sequential(schedule_gpu_operator(workload, point, target))
    # not optimised: buffers that are allocated inside loops, as these are, come out wrong at LLVM's higher levels
    here = tvm.target.Target({"kind": "llvm", "mcpu": host_llvm_cpu(), "opt-level": 0})
    function = tvm.tirx.build(plain, here)["main"]
    output = tvm.runtime.tensor(np.full(output_shape(workload), np.nan, dtype=np.float32))
    function(*(tvm.runtime.tensor(a) for a in case.arguments), output)
    pixels = workload.output_size**2
    got = output.numpy().reshape(-1, workload.out_channels)[:pixels]
    error = float(np.abs(got - case.expected).max())
    return error / max(1.0, float(np.abs(case.expected).max())) if np.isfinite(error) else float("inf")
