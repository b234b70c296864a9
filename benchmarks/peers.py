"""The frameworks that single operators are compared with, each in a process of its own.

PyTorch in two memory layouts, OpenVINO with its input and output in two, ONNX Runtime channels first, which is all it
takes; the faster layout counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from contenders import Contender, ContenderError, Timing

from chanas.operators.workload import Workload

PEERS = {"pytorch": "PyTorch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
LAYOUTS = ("", ", channels last")
_ACTIVATIONS = {"relu": "Relu", "hswish": "HardSwish"}


def write_onnx(workload: Workload, path: Path) -> None:
    """A convolution with its bias and activation as an ONNX file.

    Raises:
        ContenderError: onnx is not installed.
    """
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise ContenderError(f"onnx is not installed: {error}") from error
    import numpy as np

    rng, k, pad, out = np.random.default_rng(0), workload.kernel_size, workload.kernel_size // 2, workload.output_size
    groups = workload.in_channels if workload.op == "depthwise" else 1
    weight = rng.standard_normal((workload.out_channels, workload.in_channels // groups, k, k), dtype=np.float32)
    bias = rng.standard_normal(workload.out_channels, dtype=np.float32)
    attributes: dict[str, Any] = {
        "kernel_shape": [k, k],
        "strides": [workload.stride] * 2,
        "pads": [pad] * 4,
        "group": groups,
    }
    nodes = [helper.make_node("Conv", ["x", "weight", "bias"], ["y"], **attributes)]
    if workload.epilogue != "none":
        nodes.append(helper.make_node(_ACTIVATIONS[workload.epilogue], ["y"], ["z"]))
    shape_in = [1, workload.in_channels, workload.input_size, workload.input_size]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape_in)],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [1, workload.out_channels, out, out])],
        [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def open_peers(stack: ExitStack, workloads: Sequence[Workload], folder: Path) -> dict[str, Contender]:
    """Every framework that is there with all `workloads`, by its name; the processes end with `stack`."""
    torch = Contender("PyTorch operators", workloads=[w.to_json() for w in workloads])
    peers = {PEERS["pytorch"]: stack.enter_context(torch)}
    for name in (PEERS["onnxruntime"], PEERS["openvino"]):
        try:
            models = [folder / f"{w.key}.onnx" for w in workloads]
            for workload, path in zip(workloads, models, strict=True):
                write_onnx(workload, path)
            peers[name] = stack.enter_context(Contender(f"{name} operators", models=[str(p) for p in models]))
        except ContenderError as error:
            print(f"{name} takes no part: {error}")
    return peers


def peer_calls(peers: Mapping[str, Contender], num_workloads: int, index: int) -> dict[str, tuple[Contender, int]]:
    """What `time_in_turns` is asked for: workload number `index` in every layout of every framework."""
    calls = {}
    for name, contender in peers.items():
        layouts = contender.num_calls // num_workloads
        calls.update({f"{name}{LAYOUTS[j]}": (contender, layouts * index + j) for j in range(layouts)})
    return calls


def peer_s(timings: Mapping[str, Timing], name: str) -> float | None:
    """Seconds of a framework in the faster of its layouts, None when it took no part."""
    kinds = (f"{name}{layout}" for layout in LAYOUTS)
    return min((timings[k].median_s for k in kinds if k in timings), default=None)
