"""Networks in ONNX files. The answer to compare with comes from ONNX Runtime where it is installed, and from ONNX's own
reference evaluator otherwise."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chanas.errors import ModelError, describe
from chanas.prescheduler.models.sources.model import (
    Answer,
    Array,
    OpenedModel,
    Shapes,
    TensorFacts,
    check_fits,
    checked_facts,
    file_name,
    own_type,
    sha256_of,
)

_SHOWN, _MAX_TEXT = 3, 160
_ONLY_FATAL = 4  # of ONNX Runtime's levels of its log


def open_onnx(path: Path, shapes: Shapes) -> OpenedModel:
    """Open an ONNX file; `shapes` are those of inputs that it leaves open.

    Raises:
        ModelError: the file is damaged, its weights are missing, or a shape is open.
    """
    import onnx

    proto = _loaded(path)
    inputs = checked_facts(_inputs(proto, shapes, path), path.name)
    origin = {"kind": "onnx", "name": path.name, "sha256": sha256_of(path), "onnx": onnx.__version__}
    outputs = tuple(output.name for output in proto.graph.output)
    return OpenedModel(file_name(path.stem), proto, inputs, _answer(path, proto, inputs), origin, outputs=outputs)


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
        dtype = _dtype_of(value)
        found.append(TensorFacts(value.name, given or tuple(e for e in extents if isinstance(e, int)), own_type(dtype)))
    unknown = sorted(set(shapes) - {facts.name for facts in found})
    if unknown:
        raise ModelError(f"{path} has no input {unknown[0]}; its inputs: {', '.join(f.name for f in found)}")
    return found


def _dtype_of(value: Any) -> str:
    """The type of an input as numpy names it; of one that is no tensor, what it is instead."""
    import onnx

    if not value.type.HasField("tensor_type"):
        return str(value.type.WhichOneof("value") or "of no type").removesuffix("_type")
    return str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name)


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
    """The answer of an ONNX model with these of its values as outputs.

    Raises:
        ModelError: it is too large to be copied.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        return _answer(copy.SerializeToString(), copy, inputs)
    except ValueError as error:  # protobuf's, beyond 2 GB
        raise ModelError(f"a network of more than 2 GB is not looked into ({describe(error, _MAX_TEXT)})") from error


def _answer(source: Path | bytes, proto: Any, inputs: Sequence[TensorFacts]) -> Answer:
    """The answer of ONNX Runtime, where it is installed and runs the network; else ONNX's reference evaluator.

    Args:
        source: a file, or its content.
    """
    dtypes = {value.name: _dtype_of(value) for value in proto.graph.input}
    runners = [_runtime] if importlib.util.find_spec("onnxruntime") is not None else []
    opened: dict[str, Any] = {}

    def answer(arrays: Sequence[Array]) -> list[Array]:
        errors = []
        for opener in (*runners, _reference):
            feeds = {facts.name: a.astype(dtypes[facts.name]) for facts, a in zip(inputs, arrays, strict=True)}
            try:
                if opener.__name__ not in opened:
                    opened[opener.__name__] = opener(source, proto)
                with warnings.catch_warnings(), np.errstate(all="ignore"):  # numbers that are none are looked for later
                    warnings.simplefilter("ignore")
                    found = opened[opener.__name__].run(None, feeds)
                return [np.array(value, own_type(str(np.asarray(value).dtype))) for value in found]
            except Exception as error:  # the runtime's own; the next one may know more operators
                errors.append(describe(error, _MAX_TEXT))
        named = source if isinstance(source, Path) else "the network"
        raise ModelError(
            f"{named} is run neither by ONNX Runtime nor by ONNX's reference evaluator ({'; '.join(errors)})"
        )

    return answer


def _runtime(source: Path | bytes, proto: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ONLY_FATAL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _reference(source: Path | bytes, proto: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(proto)
