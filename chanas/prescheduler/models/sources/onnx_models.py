"""Networks in ONNX files. The answer to compare with comes from ONNX Runtime where it is installed, and from ONNX's own
reference evaluator otherwise."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chanas.errors import ModelError, describe, one_line
from chanas.prescheduler.models.sources.model import (
    Array,
    OpenedModel,
    Shapes,
    TensorFacts,
    check_fits,
    checked_facts,
    file_name,
    not_float32,
    sha256_of,
    unknown_operators,
)

_SHOWN, _MAX_TEXT = 3, 200


def open_onnx(path: Path, shapes: Shapes) -> OpenedModel:
    """Open an ONNX file; `shapes` are those of inputs that it leaves open.

    Raises:
        ModelError: the file is damaged, its weights are missing, a shape is open, or an operator is not there.
    """
    if importlib.util.find_spec("onnx") is None:
        raise ModelError("ONNX files need the package onnx: pip install 'chanas[onnx]'")
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    proto = _loaded(path)
    inputs = checked_facts(_inputs(proto, shapes, path), path.name)
    _check_operators(proto, path)
    _check_order(proto, path)
    _check_infers(proto, path)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not take
            warnings.simplefilter("ignore")
            module = from_onnx(
                proto,
                {i.name: list(i.shape) for i in inputs},
                {i.name: i.dtype for i in inputs},
                sanitize_input_names=False,
            )
    except Exception as error:  # the importer raises whatever an operator's own checks do
        raise ModelError(f"{path} could not be imported ({describe(error, _MAX_TEXT)}); export it again") from error
    origin = {"kind": "onnx", "name": path.name, "sha256": sha256_of(path), "onnx": onnx.__version__}
    outputs = tuple(output.name for output in proto.graph.output)
    return OpenedModel(file_name(path.stem), module, inputs, _answer(path, proto, inputs), origin, outputs=outputs)


def _loaded(path: Path) -> Any:
    """The file, with weights that lie beside it.

    Raises:
        ModelError: it is no ONNX file, cut short, or weights are missing.
    """
    import onnx

    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's own
        raise ModelError(f"{path} is no ONNX file, or cut short ({type(error).__name__}); export it again") from error
    if not proto.graph.node or not proto.graph.output:
        raise ModelError(f"{path} is no ONNX file, or cut short (it has no nodes or no outputs); export it again")
    opset = max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=1)
    if opset > onnx.defs.onnx_opset_version():
        raise ModelError(
            f"{path} is of opset {opset}; onnx {onnx.__version__} knows them up to {onnx.defs.onnx_opset_version()}: "
            "export it with a lower opset_version, or install a newer onnx"
        )
    names = sorted({e.value for t in proto.graph.initializer for e in t.external_data if e.key == "location"})
    check_fits(path, sum(p.stat().st_size for p in (path.parent / name for name in names) if p.is_file()))
    try:
        onnx.load_external_data_for_model(proto, str(path.parent))
    except Exception as error:
        raise ModelError(
            f"the weights of {path} lie in {', '.join(names[:_SHOWN]) or 'another file'}, which is missing or cut "
            f"short ({type(error).__name__}); keep both in one folder"
        ) from error
    return proto


def _inputs(proto: Any, shapes: Shapes, path: Path) -> list[TensorFacts]:
    """Inputs that are no weights, with their shapes.

    Raises:
        ModelError: a shape is open and not given, or is given for an input that is not there.
    """
    import onnx

    weights = {t.name for t in proto.graph.initializer}
    found = []
    for value in proto.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        extents = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
        given = shapes.get(value.name)
        if given is None and (not tensor.HasField("shape") or not all(isinstance(e, int) and e > 0 for e in extents)):
            raise ModelError(
                f"input {value.name} of {path} has an open shape [{', '.join(map(str, extents))}]; a network is tuned "
                f"for one: give it as --shape {value.name}={_wanted(extents)}, with your own numbers for words"
            )
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        found.append(TensorFacts(value.name, given or tuple(e for e in extents if isinstance(e, int)), dtype))
    unknown = sorted(set(shapes) - {facts.name for facts in found})
    if unknown:
        raise ModelError(f"{path} has no input {unknown[0]}; its inputs: {', '.join(f.name for f in found)}")
    return found


def _wanted(extents: Sequence[int | str]) -> str:
    """The shape to give for an open one: one image, and a word for each other axis that only the user knows."""
    if not extents:
        return "1,3,HEIGHT,WIDTH"
    words = [str(e).upper() if str(e).isidentifier() else f"AXIS{i}" for i, e in enumerate(extents)]
    if len(extents) == 4:
        first = 1 if extents[-1] in (1, 3, 4) else 2  # channels last, or first
        words[first : first + 2] = ["HEIGHT", "WIDTH"]
    if len(extents) > 1:
        words[0] = "1"
    return ",".join(
        str(extent) if isinstance(extent, int) and extent > 0 else word
        for extent, word in zip(extents, words, strict=True)
    )


def _check_operators(proto: Any, path: Path) -> None:
    """Refuse operators that TVM's importer does not know, by name and node.

    Raises:
        ModelError: there is one.
    """
    from tvm.relax.frontend.onnx import onnx_frontend

    known = onnx_frontend._get_convert_map()
    missing = [
        (f"{node.domain + '.' if node.domain else ''}{node.op_type}", _place(node))
        for node in proto.graph.node
        if node.domain not in ("", "ai.onnx") or node.op_type not in known
    ]
    if missing:
        raise ModelError(
            f"{unknown_operators(path, missing)}; export the network with standard operators (torch.onnx.export with a "
            "lower opset_version often does)"
        )


def _check_order(proto: Any, path: Path) -> None:
    """Check that all values are there when they are read.

    Raises:
        ModelError: one is not; names it and the node.
    """
    graph = proto.graph
    known = {
        "",
        *(v.name for v in (*graph.input, *graph.initializer)),
        *(v.values.name for v in graph.sparse_initializer),
    }
    for node in graph.node:
        missing = [name for name in node.input if name not in known]
        if missing:
            raise ModelError(
                f"{path} is damaged: {node.op_type} (node {_place(node)}) reads {missing[0]}, which is no input, no "
                "weight and no output of a node before it; export it again"
            )
        known.update(node.output)


def _place(node: Any) -> str:
    return str(node.name or next(iter(node.output), "without a name"))


def _check_infers(proto: Any, path: Path) -> None:
    """Check what ONNX itself can tell of a file before it is imported.

    Raises:
        ModelError: its shapes contradict each other, or it computes in few bits.
    """
    import onnx

    if proto.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
        return
    try:
        graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
    except Exception as error:
        raise ModelError(f"{path} contradicts itself ({one_line(error, _MAX_TEXT)}); export it again") from error
    for value in (*graph.value_info, *graph.output):
        dtype = value.type.tensor_type.elem_type
        if dtype in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16):
            raise not_float32(str(path), value.name, onnx.TensorProto.DataType.Name(dtype).lower())


def _answer(path: Path, proto: Any, inputs: Sequence[TensorFacts]) -> Callable[[Sequence[Array]], list[Array]]:
    names = [facts.name for facts in inputs]

    def answer(arrays: Sequence[Array]) -> list[Array]:
        feeds = dict(zip(names, arrays, strict=True))
        if importlib.util.find_spec("onnxruntime") is not None:
            import onnxruntime

            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            return list(session.run(None, feeds))
        from onnx.reference import ReferenceEvaluator

        return list(ReferenceEvaluator(proto).run(None, feeds))

    return answer
