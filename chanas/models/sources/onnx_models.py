"""Networks in ONNX files. The answer to compare with comes from ONNX Runtime where it is installed, and from ONNX's own
reference evaluator otherwise."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chanas.core.arrays import Array
from chanas.errors import ModelError, describe
from chanas.files.writing import sha256_of
from chanas.models.sources.model import Answer, OpenedModel, Shapes, TensorFacts, checked_facts, file_name, own_type
from chanas.models.sources.onnx_files import load_onnx

_ONLY_FATAL = 4  # of ONNX Runtime's levels of its log


def open_onnx(path: Path, shapes: Shapes) -> OpenedModel:
    """Open an ONNX file; `shapes` are those of inputs that it leaves open.

    Raises:
        ModelError: as `load_onnx` says, or a shape is open or of a type that is not there.
    """
    import onnx

    proto = load_onnx(path)
    inputs = inputs_of(proto, shapes, path)
    origin = {"kind": "onnx", "name": path.name, "sha256": sha256_of(path), "onnx": onnx.__version__}
    outputs = tuple(output.name for output in proto.graph.output)
    return OpenedModel(file_name(path.stem), proto, inputs, _answer(str(path), proto, inputs), origin, outputs=outputs)


class OpenShapeError(ModelError):
    """An input has an open shape that was not given."""


def open_extents(proto: Any) -> dict[str, list[int | str]]:
    """Inputs with axes whose extent is open: a name, or `?`, stands for it. No axes: their number is open."""
    weights = {t.name for t in proto.graph.initializer}
    found: dict[str, list[int | str]] = {}
    for value in proto.graph.input:
        tensor = value.type.tensor_type
        extents = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
        is_known = tensor.HasField("shape") and all(isinstance(e, int) and e > 0 for e in extents)
        if value.name not in weights and not is_known:
            found[value.name] = extents
    return found


def inputs_of(proto: Any, shapes: Shapes, path: Path) -> tuple[TensorFacts, ...]:
    """Inputs of a file's model that are no weights, with their shapes; `shapes` has those that it leaves open.

    Raises:
        OpenShapeError: a shape is open and not given.
        ModelError: a shape is given for an input that is not there, or as `checked_facts` says.
    """
    weights, open_ones = {t.name for t in proto.graph.initializer}, open_extents(proto)
    found = []
    for value in proto.graph.input:
        if value.name in weights:
            continue
        given, extents = shapes.get(value.name), open_ones.get(value.name)
        if given is None and extents is not None:
            raise OpenShapeError(
                f"input {value.name} of {path} has an open shape [{', '.join(map(str, extents))}]; a network is tuned "
                f"for one: give it as --shape {value.name}={_wanted(extents)}, with your own numbers for words"
            )
        shape = given or tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        found.append(TensorFacts(value.name, shape, own_type(_dtype_of(value))))
    unknown = sorted(set(shapes) - {facts.name for facts in found})
    if unknown:
        raise ModelError(f"{path} has no input {unknown[0]}; its inputs: {', '.join(f.name for f in found)}")
    return checked_facts(found, path.name)


def _dtype_of(value: Any) -> str:
    """The type of an input as numpy names it; of one that is no tensor, what it is instead."""
    import onnx

    if not value.type.HasField("tensor_type"):
        return str(value.type.WhichOneof("value") or "of no type").removesuffix("_type")
    kind = value.type.tensor_type.elem_type
    if kind not in onnx.TensorProto.DataType.values()[1:]:
        return f"of type {kind}"
    return str(onnx.helper.tensor_dtype_to_np_dtype(kind).name)


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


def values_of(proto: Any, names: Sequence[str], inputs: Sequence[TensorFacts]) -> Answer:
    """The answer of an ONNX model with these of its values as outputs."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return _answer("the network", copy, inputs)


def _answer(name: str, proto: Any, inputs: Sequence[TensorFacts]) -> Answer:
    """The answer of ONNX Runtime, where it is installed and runs the network; else ONNX's reference evaluator."""
    dtypes = {value.name: _dtype_of(value) for value in proto.graph.input}
    runners = [_runtime] if importlib.util.find_spec("onnxruntime") is not None else []
    opened: dict[str, Any] = {}

    def answer(arrays: Sequence[Array]) -> list[Array]:
        errors = []
        for opener in (*runners, _reference):
            feeds = {facts.name: a.astype(dtypes[facts.name]) for facts, a in zip(inputs, arrays, strict=True)}
            try:
                if opener.__name__ not in opened:
                    opened[opener.__name__] = opener(proto)
                with warnings.catch_warnings(), np.errstate(all="ignore"):  # numbers that are none are looked for later
                    warnings.simplefilter("ignore")
                    found = opened[opener.__name__].run(None, feeds)
                return [np.array(value, own_type(str(np.asarray(value).dtype))) for value in found]
            except Exception as error:  # the runtime's own; the next one may know more operators
                errors.append(describe(error))
        runtime = "ONNX Runtime" if runners else "ONNX Runtime, which is not installed (pip install onnxruntime),"
        raise ModelError(f"{name} is run neither by {runtime} nor by ONNX's reference evaluator ({'; '.join(errors)})")

    return answer


def _runtime(proto: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ONLY_FATAL
    options.intra_op_num_threads = 1
    # The checked model, not the file: its weights may lie anywhere, even at an address in memory.
    content = proto.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _reference(proto: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    from chanas.models.sources.reference_operators import OPERATORS

    return ReferenceEvaluator(proto, new_ops=list(OPERATORS))
