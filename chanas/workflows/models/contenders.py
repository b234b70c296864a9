"""The runtimes that a tuned network is compared with: the same network in each, as a function to its outputs."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chanas.bundle.benchmark import MAX_TEXT
from chanas.core.processor import host_processor
from chanas.core.target import has_dots
from chanas.errors import ModelError, describe
from chanas.files.scratch import scratch_folder
from chanas.operators.precision import BFLOAT16, FLOAT32, INT8

if TYPE_CHECKING:
    from chanas.core.arrays import Array

Call = Callable[[], Any]
TOLERANCE = 1e-3
"""Largest difference from the framework's outputs that goes without a note, as a share of the largest output."""
_INSTALL = "pip install 'chanas[bench]'"


@dataclass(frozen=True)
class Subject:
    """The network that is compared.

    program      of `torch.export`; None for a network from an ONNX file
    onnx         its ONNX file; written from the program by the first contender that needs it
    inputs       what every contender is called with
    num_threads  of every contender
    dtype        float32; bfloat16 or int8 where the runtime may compute in it
    remarks      what is to be known beside a contender's time, by its name; contenders write it
    """

    program: Any
    onnx: Path
    inputs: Sequence[Array]
    num_threads: int
    dtype: str = FLOAT32.dtype
    remarks: dict[str, str] = field(default_factory=dict)


def run_eager(subject: Subject) -> Call:
    """PyTorch as it is. The caller sets threads and inference mode."""
    network, args, kwargs = _torch_network(subject)
    return _in_dtype(subject, lambda: network(*args, **kwargs))


def run_compiled(subject: Subject) -> Call:
    """PyTorch through torch.compile, weights frozen. The caller sets threads and inference mode."""
    import torch
    import torch._inductor.config as inductor

    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # that there is no GPU is not news
    network, args, kwargs = _torch_network(subject)
    with inductor.patch(freezing=True):
        compiled = torch.compile(network)
        call = _in_dtype(subject, lambda: compiled(*args, **kwargs))
        call()
    return call


def _in_dtype(subject: Subject, call: Call) -> Call:
    """A call of PyTorch under autocast where the subject may be computed in bfloat16."""
    if subject.dtype == FLOAT32.dtype:
        return call
    if subject.dtype != BFLOAT16.dtype:
        raise ModelError(f"PyTorch is not timed in {subject.dtype}")
    import torch

    def cast() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return call()

    return cast


def _torch_network(subject: Subject) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    if subject.program is None:
        raise ModelError("the network comes from an ONNX file")
    from chanas.models.sources.torch_models import call_arguments

    # forward: what is there to be called checks its inputs first, which takes some 60 us
    return subject.program.module().forward, *call_arguments(subject.program, subject.inputs)


def run_onnxruntime(subject: Subject) -> Call:
    """ONNX Runtime with all its graph optimisations, in float32 or quantised by itself."""
    if subject.dtype == BFLOAT16.dtype:
        raise ModelError(f"ONNX Runtime does not compute in {subject.dtype} on processors")
    _require("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = subject.num_threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with _file_in_dtype(subject, quantised_by_onnxruntime, ".onnx") as file:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    feeds = {taken.name: array for taken, array in zip(session.get_inputs(), subject.inputs, strict=True)}
    return lambda: session.run(None, feeds)


def run_openvino(subject: Subject) -> Call:
    """OpenVINO in latency mode, in float32, bfloat16 or quantised by NNCF."""
    _require("openvino")
    import openvino

    core = openvino.Core()
    options = {
        "INFERENCE_NUM_THREADS": subject.num_threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if subject.dtype == BFLOAT16.dtype else "f32",
        "ENABLE_CPU_PINNING": False,
    }
    with _file_in_dtype(subject, quantised_by_nncf, ".xml") as file:
        model = core.read_model(str(file))
        model.reshape({i: list(array.shape) for i, array in enumerate(subject.inputs)})
        request = core.compile_model(model, "CPU", options).create_infer_request()
    feeds = dict(enumerate(subject.inputs))
    return lambda: request.infer(feeds, share_inputs=True, share_outputs=True)


def run_litert(subject: Subject) -> Call:
    """LiteRT with its delegate XNNPACK, converted from PyTorch by litert-torch; a remark where XNNPACK leaves nodes."""
    if subject.dtype != FLOAT32.dtype:
        raise ModelError(f"LiteRT is not timed in {subject.dtype}")
    if subject.program is None:
        raise ModelError("the network comes from an ONNX file")
    for package in ("litert_torch", "ai_edge_litert"):
        _require(package, "pip install litert-torch")
    import torch

    from chanas.models.sources.torch_models import call_arguments, quiet

    with scratch_folder() as scratch:
        file = scratch / "network.tflite"
        try:
            with torch.inference_mode(False), quiet():
                import litert_torch

                args, kwargs = call_arguments(subject.program, subject.inputs)
                litert_torch.convert(module_copy(subject.program), args, kwargs).export(str(file))
        except Exception as error:  # another project's exporter: whatever it raises is the note
            raise ModelError(f"no LiteRT file: {describe(error, MAX_TEXT)}") from error
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model_content=file.read_bytes(), num_threads=subject.num_threads)
    interpreter.allocate_tensors()
    outputs = [entry["index"] for entry in interpreter.get_output_details()]
    left, total = undelegated(interpreter._get_ops_details(), outputs)
    if left:
        subject.remarks["LiteRT"] = (
            f"XNNPACK takes {total - len(left)} of {total} nodes, without {', '.join(dict.fromkeys(left))}"
        )
    feeds = [
        (entry["index"], np.asarray(array, entry["dtype"]))  # 64-bit integers are converted to 32
        for entry, array in zip(interpreter.get_input_details(), subject.inputs, strict=True)
    ]

    def call() -> list[Array]:
        for place, array in feeds:
            interpreter.set_tensor(place, array)
        interpreter.invoke()
        return [interpreter.get_tensor(place) for place in outputs]

    return call


def module_copy(program: Any) -> Any:
    """A copy of a program's module, in evaluation mode. Autograd takes its weights also where the program's, which stay
    as they are, were loaded in inference mode."""
    import torch

    with torch.inference_mode(False):
        module = copy.deepcopy(program.module())
    module.training = False  # it has no eval()
    return module


def undelegated(nodes: Sequence[Mapping[str, Any]], outputs: Sequence[int]) -> tuple[list[str], int]:
    """Operators of a LiteRT network that run outside its delegate, and how many nodes it has.

    Args:
        nodes: all of them, those that were replaced too, then the delegate's, as the interpreter gives them.
        outputs: tensors that the network gives.
    """
    makers = {int(tensor): node for node in nodes for tensor in node["outputs"]}  # the delegate's come last
    tensors, used = [int(tensor) for tensor in outputs], {}
    while tensors:
        node = makers.get(tensors.pop())
        if node is not None and node["index"] not in used:
            used[node["index"]] = node["op_name"]
            tensors += [int(tensor) for tensor in node["inputs"]]
    left = [used[index] for index in sorted(used) if used[index] != "DELEGATE"]
    return left, sum(node["op_name"] != "DELEGATE" for node in nodes)


CONTENDERS: Mapping[str, Callable[[Subject], Call]] = {
    "PyTorch eager": run_eager,
    "torch.compile": run_compiled,
    "ONNX Runtime": run_onnxruntime,
    "OpenVINO": run_openvino,
    "LiteRT": run_litert,
}
IN_OTHER_DTYPES: Mapping[str, tuple[str, ...]] = {
    BFLOAT16.dtype: ("PyTorch eager", "torch.compile", "OpenVINO"),
    INT8.dtype: ("ONNX Runtime", "OpenVINO"),
}
"""Those of them that compute in another dtype, too."""


def _require(package: str, install: str = _INSTALL) -> None:
    if importlib.util.find_spec(package) is None:
        raise ModelError(f"{package} is not installed: {install}")


def onnx_file(subject: Subject) -> Path:
    """The network's ONNX file, written by PyTorch where there is none yet.

    Raises:
        ModelError: the exporter is not installed, or does not take the network.
    """
    if not subject.onnx.is_file():
        _require("onnxscript")
        import torch

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exported = torch.onnx.export(subject.program, dynamo=True, external_data=False, verbose=False)
                assert exported is not None
                exported.save(subject.onnx)
        except Exception as error:  # another project's exporter: whatever it raises is the note
            raise ModelError(f"no ONNX file: {describe(error, MAX_TEXT)}") from error
    return subject.onnx


@contextlib.contextmanager
def _file_in_dtype(
    subject: Subject, quantise: Callable[[Path, Sequence[Sequence[Array]], Path], None], suffix: str
) -> Iterator[Path]:
    """The network's file; of a subject in int8 a quantised one, calibrated with the inputs: it is for latencies."""
    if subject.dtype != INT8.dtype:
        yield onnx_file(subject)
        return
    with scratch_folder() as scratch:
        file = scratch / f"quantised{suffix}"
        quantise(onnx_file(subject), [subject.inputs], file)
        yield file


def quantised_by_onnxruntime(onnx: Path, samples: Sequence[Sequence[Array]], out: Path) -> None:
    """Write a network as ONNX Runtime's `quantize_static` makes it of samples, each the inputs of one call: QDQ,
    weights by channel, ranges by min-max; weights have seven bits where the processor has no VNNI, as it advises.

    Raises:
        ModelError: ONNX Runtime is not installed.
    """
    _require("onnxruntime")
    import onnx as onnx_format
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from chanas.models.sources.torch_models import quiet

    given = onnx_format.load(onnx, load_external_data=False).graph
    constants = {tensor.name for tensor in given.initializer}
    names = [taken.name for taken in given.input if taken.name not in constants]

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]  # of a package without types
        def __init__(self) -> None:
            self._left = iter(samples)

        def get_next(self) -> dict[str, Array] | None:
            sample = next(self._left, None)
            return None if sample is None else dict(zip(names, sample, strict=True))

    with scratch_folder() as scratch, quiet():
        prepared = scratch / "prepared.onnx"
        quant_pre_process(str(onnx), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared),
            str(out),
            Samples(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            reduce_range=not has_dots(host_processor()),
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )


def quantised_by_nncf(onnx: Path, samples: Sequence[Sequence[Array]], out: Path) -> None:
    """Write a network as OpenVINO's quantiser NNCF makes it of samples, each the inputs of one call: mixed preset.

    Raises:
        ModelError: OpenVINO or NNCF is not installed.
    """
    _require("openvino")
    _require("nncf")
    from chanas.models.sources.torch_models import quiet

    with quiet():
        import nncf
        import openvino

        model = openvino.Core().read_model(onnx)
        model.reshape({i: list(array.shape) for i, array in enumerate(samples[0])})
        made = nncf.quantize(
            model,
            nncf.Dataset([list(sample) for sample in samples]),
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(samples),
        )
        openvino.save_model(made, out)


def outputs_of(value: Any) -> list[Array]:
    """The outputs of a contender's call, each in the host's memory."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    # of PyTorch's bfloat16 NumPy makes nothing
    return [np.asarray(part.float() if "bfloat16" in str(getattr(part, "dtype", "")) else part) for part in parts]


def relative_error(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """Largest difference as a share of the largest expected magnitude; infinite where the outputs are others."""
    if [a.shape for a in got] != [e.shape for e in expected]:
        return math.inf
    pairs = zip(got, expected, strict=True)
    largest_difference = max(float(np.abs(np.subtract(a, e, dtype=np.float64)).max()) for a, e in pairs)
    return largest_difference / (max(float(np.abs(e).max()) for e in expected) or 1.0)
