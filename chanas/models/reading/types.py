"""The types of what a node reads, beside those that ONNX allows its operator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chanas.errors import ModelError
from chanas.models.reading.call import Call, Listed
from chanas.models.sources.model import own_type


def check_types(call: Call) -> None:
    """Check that a node's inputs have types that its operator takes, and the same where these have to be.

    Types are those of the graph, so that floats of all widths count as one.

    Raises:
        ModelError: they are others; names the input and what is allowed.
    """
    import onnx

    try:
        schema = onnx.defs.get_schema(call.op, call.opset, "")
    except onnx.defs.SchemaError:  # newer than the file says, or older than anything that is described
        return
    allowed = {c.type_param_str: _tensor_types(c.allowed_type_strs) for c in schema.type_constraints}
    bound: dict[str, tuple[str, str]] = {}
    for position, value in enumerate(call.inputs):
        formal = _formal(schema, position)
        if value is None or formal is None or isinstance(value, Listed):
            continue
        dtype, wanted = call.make.dtype_of(value), formal.type_str
        known = allowed.get(wanted, _tensor_types([wanted]))
        if not known:  # a sequence, which the operator's entry asks for
            continue
        if dtype not in known:
            raise _refused(call, f"takes {', '.join(sorted(known))} as {formal.name}, got {dtype}")
        if wanted in allowed and formal.is_homogeneous:
            first, name = bound.setdefault(wanted, (dtype, formal.name))
            if first != dtype:
                raise _refused(call, f"takes {name} and {formal.name} of one type, got {first} and {dtype}")


def _refused(call: Call, why: str) -> ModelError:
    return call.refused(f"{why}; convert one of them (Cast) before")


def _formal(schema: Any, position: int) -> Any:
    """The schema's words about an input; the last one may stand for any number. None beyond the last."""
    import onnx

    formals = schema.inputs
    if position < len(formals):
        return formals[position]
    is_open = formals and formals[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return formals[-1] if is_open else None


def _tensor_types(texts: Iterable[str]) -> set[str]:
    """The graph's names of the tensors among types that ONNX writes as `tensor(float)`."""
    inner = (t.removeprefix("tensor(").removesuffix(")") for t in texts if t.startswith("tensor("))
    return {own_type({"float": "float32", "double": "float64"}.get(name, name)) for name in inner}
