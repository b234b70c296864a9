"""One contender of a comparison in a process of its own, as a user's process would be: `contenders.py` starts it.

    python contender_worker.py CORE[,CORE…]

pins itself to the cores, of which there are as many as it has threads, then reads one JSON request per line and answers
with one JSON line on the descriptor that standard output was. Requests: `setup` (kind and arguments; makes the calls),
`run` (seconds per call of so many calls in a row, after one that brings caches back), `output` (what a call gives,
flat), `remark` (what is to be known beside its times; empty for most).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Calls = list[Callable[[], Any]]
REMARKS: dict[str, str] = {}
"""What the contender says of itself, by its name."""


def _num_threads() -> int:
    """One for each core that the process is pinned to."""
    return len(sys.argv[1].split(","))


def _image(shape: Sequence[int]) -> Any:
    """The image that every contender gets: float32[3, R, R] with values like a normalised photograph's."""
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _torch(stack: contextlib.ExitStack) -> Any:
    """PyTorch on as many threads as cores, in inference mode until the process ends."""
    import torch

    torch.set_num_threads(_num_threads())
    torch.set_num_interop_threads(1)
    stack.enter_context(torch.inference_mode())
    return torch


def chanas_network(stack: contextlib.ExitStack, subject: str) -> Calls:
    """The network as chanas compiled it."""
    from subjects import load_subject

    loaded = load_subject(subject)
    return [functools.partial(loaded.compiled(), _image(loaded.image_shape))]


def eager_network(stack: contextlib.ExitStack, subject: str) -> Calls:
    """The network in PyTorch: contiguous, then channels last."""
    torch = _torch(stack)
    from subjects import load_subject

    loaded = load_subject(subject)
    x, last = torch.from_numpy(_image(loaded.image_shape))[None], loaded.torch_module()
    return [
        functools.partial(loaded.torch_module(), x),
        functools.partial(last.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)),
    ]


def untuned_network(stack: contextlib.ExitStack, onnx: str, target: dict[str, Any], inputs: str | None = None) -> Calls:
    """The network's ONNX file through TVM's own passes, nothing scheduled; image in, logits out, as ours. `inputs`: a
    file of those that it gets instead of the image."""
    from chanas.devices.lean_tvm import hide_torch

    hide_torch()
    import onnx as format
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    from chanas.compiler.cpu.untuned import stock_build
    from chanas.core.target import HardwareTarget

    model = format.load(onnx)
    executable = stock_build(from_onnx(model, keep_params_in_input=False), HardwareTarget.from_json(target))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    extents = model.graph.input[0].type.tensor_type.shape.dim
    arrays = _load_arrays(inputs) if inputs else [_image([d.dim_value for d in extents][1:])[None]]
    return [functools.partial(_run_relax, machine, arrays)]


def _run_relax(machine: Any, arrays: Sequence[Any]) -> Any:
    """The first output of a Relax machine for arrays of the host's."""
    import tvm

    found = machine["main"](*(tvm.runtime.tensor(array) for array in arrays))
    return (found if hasattr(found, "numpy") else found[0]).numpy()


def metaschedule_network(stack: contextlib.ExitStack, library: str, inputs: str) -> Calls:
    """A network that MetaSchedule tuned and TVM compiled."""
    from chanas.devices.lean_tvm import hide_torch

    hide_torch()
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
    return [functools.partial(_run_relax, machine, _load_arrays(inputs))]


def compiled_network(stack: contextlib.ExitStack, subject: str) -> Calls:
    """The network through torch.compile, weights frozen."""
    torch = _torch(stack)
    import torch._inductor.config as inductor
    from subjects import load_subject

    stack.enter_context(inductor.patch(freezing=True))
    loaded = load_subject(subject)
    compiled = torch.compile(loaded.torch_module())
    x = torch.from_numpy(_image(loaded.image_shape))[None]
    compiled(x)
    return [functools.partial(compiled, x)]


def _onnxruntime_session(onnx: str) -> Any:
    """An ONNX file in ONNX Runtime with all its graph optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = _num_threads(), 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])


def onnxruntime_network(stack: contextlib.ExitStack, onnx: str) -> Calls:
    """The network's ONNX file in ONNX Runtime."""
    session = _onnxruntime_session(onnx)
    (taken,) = session.get_inputs()
    return [functools.partial(session.run, None, {taken.name: _image(taken.shape[1:])[None]})]


def onnxruntime_operators(stack: contextlib.ExitStack, models: Sequence[str]) -> Calls:
    """One ONNX file per operator, its output written to memory that stays: nothing is copied to numpy."""
    import onnxruntime

    calls: Calls = []
    for model in models:
        session = _onnxruntime_session(model)
        (taken,), (given,) = session.get_inputs(), session.get_outputs()
        x = np.random.default_rng(0).standard_normal(taken.shape, dtype=np.float32)
        binding = session.io_binding()
        binding.bind_ortvalue_input(taken.name, onnxruntime.OrtValue.ortvalue_from_numpy(x))
        binding.bind_ortvalue_output(given.name, onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(given.shape, "f4")))
        calls.append(functools.partial(session.run_with_iobinding, binding))
    return calls


def _openvino_request(onnx: str, channels_last: bool = False, precision: str = "f32") -> Any:
    """An ONNX file in OpenVINO, latency mode; pinning is ours.

    `channels_last`: input and output are NHWC. `precision`: "f32", or "bf16" for what it may compute in bfloat16.
    """
    import openvino
    from openvino.preprocess import PrePostProcessor

    options = {
        "INFERENCE_NUM_THREADS": _num_threads(),
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "ENABLE_CPU_PINNING": False,
    }
    core = openvino.Core()
    model = core.read_model(onnx)
    if channels_last:
        processor = PrePostProcessor(model)
        for side in (processor.input(), processor.output()):
            side.tensor().set_layout(openvino.Layout("NHWC"))
            side.model().set_layout(openvino.Layout("NCHW"))
        model = processor.build()
    return core.compile_model(model, "CPU", options).create_infer_request()


def openvino_network(stack: contextlib.ExitStack, onnx: str, precision: str = "f32") -> Calls:
    """The network's ONNX file in OpenVINO."""
    request = _openvino_request(onnx, precision=precision)
    image = _image(tuple(request.get_input_tensor(0).shape)[1:])[None]
    return [functools.partial(request.infer, {0: image}, share_inputs=True, share_outputs=True)]


def openvino_operators(stack: contextlib.ExitStack, models: Sequence[str]) -> Calls:
    """One ONNX file per operator, channels first, then channels last; inputs and outputs stay where they are."""
    calls: Calls = []
    for model in models:
        for channels_last in (False, True):
            request = _openvino_request(model, channels_last)
            x = np.random.default_rng(0).standard_normal(tuple(request.get_input_tensor(0).shape), dtype=np.float32)
            calls.append(functools.partial(request.infer, {0: x}, share_inputs=True, share_outputs=True))
    return calls


def _load_arrays(path: str) -> list[Any]:
    """Arrays that were saved in order, without names."""
    with np.load(path, allow_pickle=False) as data:
        return [data[f"arr_{i}"] for i in range(len(data.files))]


def tuned_network(stack: contextlib.ExitStack, folder: str, inputs: str) -> Calls:
    """A network that `chanas tune` made: inputs in, outputs out."""
    from chanas.bundle.tuned import TunedNetwork

    return [functools.partial(TunedNetwork.open(folder).run, *_load_arrays(inputs))]


def finished_network(
    stack: contextlib.ExitStack, contender: str, inputs: str, program: str | None = None, onnx: str | None = None
) -> Calls:
    """A network that was tuned, in another runtime: its `program` of torch.export or its ONNX file. PyTorch eager is
    there a second time, channels last, unless the program does not take that."""
    from chanas.workflows.models.contenders import CONTENDERS, Subject

    opened, arrays = None, _load_arrays(inputs)
    if program is not None:
        torch = _torch(stack)
        opened = torch.export.load(program)
    calls = [CONTENDERS[contender](Subject(opened, Path(onnx or ""), arrays, _num_threads(), remarks=REMARKS))]
    if contender == "PyTorch eager":
        # opened again: layouts are changed in place, and the modules of a program share its weights
        last = torch.export.load(program).module().to(memory_format=torch.channels_last).forward
        tensors = [torch.from_numpy(array) for array in arrays]
        taken = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in tensors]
        with contextlib.suppress(RuntimeError):  # a view that the program was exported with is none in this layout
            last(*taken)
            calls.append(functools.partial(last, *taken))
    return calls


def chanas_operators(stack: contextlib.ExitStack, operators: Sequence[dict[str, str]]) -> Calls:
    """Compiled operators, each a `library` and the reference `case` with its arguments."""
    from chanas.devices.lean_tvm import hide_torch

    hide_torch()
    import tvm

    calls: Calls = []
    for operator in operators:
        with np.load(operator["case"], allow_pickle=False) as data:
            count = sum(name.startswith("argument") for name in data.files)
            arrays = [*(data[f"argument{i}"] for i in range(count)), np.zeros_like(data["expected"])]
        function = tvm.runtime.load_module(operator["library"])["main"]
        calls.append(functools.partial(function, *(tvm.runtime.tensor(a) for a in arrays)))
    return calls


def torch_operators(stack: contextlib.ExitStack, workloads: Sequence[dict[str, Any]]) -> Calls:
    """PyTorch's convolution with bias and activation: each workload contiguous, then channels last."""
    torch = _torch(stack)
    from chanas.operators.workload import Workload

    calls: Calls = []
    for data in workloads:
        w = Workload.from_json(data)
        groups = w.in_channels if w.op == "depthwise" else 1
        x = torch.randn(1, w.in_channels, w.input_size, w.input_size)
        weight = torch.randn(w.out_channels, w.in_channels // groups, w.kernel_size, w.kernel_size)
        bias = torch.randn(w.out_channels)
        for layout in (torch.contiguous_format, torch.channels_last):
            tensors = (x.to(memory_format=layout), weight.to(memory_format=layout), bias)
            calls.append(functools.partial(_torch_operator, torch, w, groups, *tensors))
    return calls


def _torch_operator(torch: Any, workload: Any, groups: int, x: Any, weight: Any, bias: Any) -> Any:
    y = torch.conv2d(x, weight, bias, workload.stride, workload.kernel_size // 2, 1, groups)
    if workload.epilogue == "none":
        return y
    return torch.relu_(y) if workload.epilogue == "relu" else torch.nn.functional.hardswish(y, inplace=True)


SETUPS: dict[str, Callable[..., Calls]] = {
    "chanas": chanas_network,
    "TVM untuned": untuned_network,
    "MetaSchedule": metaschedule_network,
    "PyTorch eager": eager_network,
    "torch.compile": compiled_network,
    "ONNX Runtime": onnxruntime_network,
    "OpenVINO": openvino_network,
    "tuned network": tuned_network,
    "finished network": finished_network,
    "OpenVINO bf16": functools.partial(openvino_network, precision="bf16"),
    "chanas operators": chanas_operators,
    "PyTorch operators": torch_operators,
    "ONNX Runtime operators": onnxruntime_operators,
    "OpenVINO operators": openvino_operators,
}


def _run(call: Callable[[], Any], num_calls: int) -> float:
    call()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(num_calls):
            call()
        return (time.perf_counter() - start) / num_calls
    finally:
        gc.enable()


def _flat(value: Any) -> list[float]:
    if isinstance(value, list | tuple):
        value = value[0]
    elif hasattr(value, "values") and not hasattr(value, "shape"):
        value = next(iter(value.values()))
    return [float(v) for v in np.asarray(value).ravel()]


def main() -> None:
    """Serve requests until standard input closes."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    calls: Calls = []
    with contextlib.ExitStack() as stack:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if request["do"] == "setup":
                    calls = SETUPS[request["kind"]](stack, **request["arguments"])
                    result: Any = len(calls)
                elif request["do"] == "run":
                    result = _run(calls[request["call"]], request["num_calls"])
                elif request["do"] == "remark":
                    result = "; ".join(REMARKS.values())
                else:
                    result = _flat(calls[request["call"]]())
                answer = {"result": result}
            except Exception as error:
                text = " ".join(str(error).split())
                answer = {"error": f"{type(error).__name__}: {text[:300]}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
