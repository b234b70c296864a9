"""ONNX read as a graph of ours, node by node: functions are expanded, what is known is computed, and each operator is
what the table says.

Every shape is known, as those of the inputs are. Floats of other widths become float32. Every attribute of a node is
looked at, or the node is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chanas.core.arrays import Array
from chanas.errors import ChanasError, ModelError, describe
from chanas.models.graph import Constant, Graph, without_unread
from chanas.models.reading import (  # noqa: F401 -- the table
    arithmetic,
    control,
    moving,
    places,
    products,
    quantised,
    recurrent,
    regions,
    resizing,
    sequences,
    signals,
    sums,
)
from chanas.models.reading.call import TABLE, Call, Given, Listed
from chanas.models.reading.making import Maker
from chanas.models.reading.types import check_types
from chanas.models.sources.model import OWN_TYPES, TensorFacts
from chanas.models.sources.onnx_files import DOMAINS, names_read

_RUNTIMES_OWN = ("com.microsoft", "com.ms.")
"""Beginnings of the names of domains that ONNX Runtime has for itself."""
_SHOWN = 3
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def read_graph(proto: Any, inputs: Sequence[TensorFacts]) -> Graph:
    """The graph of an ONNX model for inputs of these shapes.

    Args:
        proto: an `onnx.ModelProto` with its weights inside.

    Raises:
        ModelError: it has control flow, shapes that depend on its input, or an operator, attribute or type that is not
            there; names the node.
    """
    reader = _Reader(proto, inputs)
    known: dict[str, Given] = {facts.name: i for i, facts in enumerate(inputs)}
    scope = _Scope(reader.opset(proto.opset_import), known)
    reader.weights(proto.graph, scope)
    reader.walk(proto.graph.node, scope, {o.name for o in proto.graph.output})
    outputs = []
    for output in proto.graph.output:
        value = scope.value(output.name, "the output")
        if isinstance(value, Listed):
            raise ModelError(f"output {output.name} is a sequence; export the network with its values as outputs")
        outputs.append(value)
    return without_unread(Graph(tuple(inputs), tuple(reader.make.nodes), tuple(outputs)))


@dataclass
class _Scope:
    """Values by their names in a graph, and what a function was called with.

    opset       version of the operators
    attributes  of the call, which nodes of a function refer to
    """

    opset: int
    values: dict[str, Given]
    attributes: Mapping[str, Any] | None = None

    def value(self, name: str, who: str) -> Given:
        """
        Raises:
            ModelError: nothing before has given the value.
        """
        if name not in self.values:
            raise ModelError(
                f"{who} reads {name}, which is no input, weight or output of a node before it; the file is damaged"
            )
        return self.values[name]


class _Reader:
    def __init__(self, proto: Any, inputs: Sequence[TensorFacts]) -> None:
        self.make = Maker(inputs)
        self.functions = {(f.domain, f.name): f for f in proto.functions}
        self.nodes = list(proto.graph.node)

    @staticmethod
    def opset(imports: Iterable[Any]) -> int:
        return max((entry.version for entry in imports if entry.domain in DOMAINS), default=1)

    def weights(self, graph: Any, scope: _Scope) -> None:
        """Add the constants of a graph."""
        from onnx import numpy_helper

        for tensor in graph.initializer:
            scope.values[tensor.name] = Constant(own_array(numpy_helper.to_array(tensor), tensor.name))
        for sparse in graph.sparse_initializer:
            scope.values[sparse.values.name] = Constant(own_array(_dense(sparse), sparse.values.name))

    def walk(self, nodes: Iterable[Any], scope: _Scope, outputs: set[str]) -> None:
        """Read nodes in order; `outputs` are names that the graph gives back."""
        nodes = list(nodes)
        read = {name for node in nodes for name in names_read(node)} | outputs
        for node in nodes:
            used = [i for i, name in enumerate(node.output) if name and name in read]
            if not used:
                continue
            found = self.node(node, scope, used[-1] + 1)
            for i in used:
                value = found[i] if i < len(found) else None
                if value is None:
                    raise ModelError(f"output {i} of {_described(node)} is read, which is not there")
                scope.values[node.output[i]] = value
                self._name(value, node.output[i])

    def _name(self, value: Given, name: str) -> None:
        place = value - len(self.make.inputs) if isinstance(value, int) else -1
        if place >= 0 and not self.make.nodes[place].name:
            self.make.nodes[place] = replace(self.make.nodes[place], name=name)

    # ---- one node ------------------------------------------------------------------------------------------------
    def node(self, node: Any, scope: _Scope, num_outputs: int) -> Sequence[Given | None]:
        """The outputs of a node; None for one that is left out.

        Raises:
            ModelError: as `read_graph` says.
        """
        who = _described(node)
        inputs = tuple(None if not name else scope.value(name, who) for name in node.input)
        given = {a.name: _attribute(a, scope) for a in node.attribute}
        given = {name: value for name, value in given.items() if value is not None}
        if (node.domain, node.op_type) in self.functions:
            return self._function(self.functions[node.domain, node.op_type], inputs, given, num_outputs)
        name = _full_name(node)
        if node.domain not in DOMAINS and name not in TABLE:
            raise self._missing(node)
        if node.op_type in _RANDOM:
            raise ModelError(f"{who} is a random number, which can't be tuned; export the network without")
        if node.op_type == "Constant":
            return [Constant(_constant(given, who))]
        if name in TABLE:
            return self._entry(
                Call(
                    *(name, _place(node), scope.opset, inputs, given, num_outputs, self.make),
                    lambda graph, values: self._body(graph, values, scope, who),
                )
            )
        body = _schema_function(node, given, inputs, scope.opset, self.make)
        if body is None:
            raise self._missing(node)
        return self._function(body, inputs, {**_defaults(node, scope.opset), **given}, num_outputs)

    def _entry(self, call: Call) -> Sequence[Given]:
        entry = TABLE[call.op]
        unknown = sorted(set(call.given) - entry.attributes)
        if unknown:
            raise call.refused(f"has the attribute {unknown[0]}, which is not there")
        check_types(call)
        try:
            found = entry.read(call)
        except ChanasError:
            raise
        except Exception as error:  # a node that contradicts itself in a way that no entry foresees
            raise call.refused(f"does not fit what it reads ({describe(error)})") from error
        return found if isinstance(found, Sequence) else [found]

    def _missing(self, node: Any) -> ModelError:
        """The error about operators that are not there: the first, and others further on."""
        names = [_full_name(node)]
        for other in self.nodes:
            name = _full_name(other)
            is_known = name in (*TABLE, "Constant") or (other.domain, other.op_type) in self.functions
            if name not in names and not is_known and not _has_schema_function(other):
                names.append(name)
        more = f"; further on {', '.join(names[1 : 1 + _SHOWN])}" if len(names) > 1 else ""
        way = "export the network with standard operators (torch.onnx.export with another opset_version often does)"
        if node.domain.startswith(_RUNTIMES_OWN):
            way = "ONNX Runtime's optimizer or quantizer wrote it: take the file that it was given"
        return ModelError(f"operator {names[0]} (node {_place(node)}) is not there{more}; {way}")

    # ---- what a node stands for ------------------------------------------------------------------------------------
    def _function(
        self, body: Any, inputs: Sequence[Given | None], given: Mapping[str, Any], num_outputs: int
    ) -> Sequence[Given | None]:
        """The outputs of a function's nodes; None for those that its call leaves out."""
        defaults = {a.name: _attribute(a, None) for a in body.attribute_proto}
        values = {name: value for name, value in zip(body.input, inputs, strict=False) if value is not None}
        scope = _Scope(self.opset(body.opset_import), values, {**defaults, **given})
        wanted = list(body.output[:num_outputs])
        self.walk(_without_absent(body, values), scope, set(wanted))
        return [scope.values.get(name) for name in wanted]

    def _body(self, graph: Any, values: Sequence[Given], scope: _Scope, who: str) -> list[Given]:
        """The outputs of a graph in a node's attribute, for values of its inputs; it reads those around it, too."""
        names = [value.name for value in graph.input]
        inner = _Scope(scope.opset, {**scope.values, **dict(zip(names, values, strict=True))}, scope.attributes)
        self.weights(graph, inner)
        self.walk(graph.node, inner, {o.name for o in graph.output})
        return [inner.value(o.name, who) for o in graph.output]


# ---- protobuf -------------------------------------------------------------------------------------------------------
def _place(node: Any) -> str:
    return str(node.name or next(iter(node.output), "without a name"))


def _described(node: Any) -> str:
    return f"{_full_name(node)} (node {_place(node)})"


def _full_name(node: Any) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in DOMAINS else str(node.op_type)


def _attribute(attribute: Any, scope: _Scope | None) -> Any:
    """An attribute's value: a number, a text, a tuple of these, an array, or a graph; of a function's node, that of the
    call which it refers to."""
    import onnx
    from onnx import numpy_helper

    if attribute.ref_attr_name:
        return None if scope is None or scope.attributes is None else scope.attributes.get(attribute.ref_attr_name)
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return own_array(numpy_helper.to_array(value), attribute.name)
    if isinstance(value, onnx.SparseTensorProto):
        return own_array(_dense(value), attribute.name)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str | int | float | onnx.GraphProto):
        return value
    return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)


def _constant(given: Mapping[str, Any], who: str) -> Array:
    """The array of a `Constant`, however it is written."""
    types = {"value": None, "sparse_value": None, "value_float": np.float32, "value_floats": np.float32}
    for name, dtype in {**types, "value_int": np.int64, "value_ints": np.int64}.items():
        if name in given:
            return np.asarray(given[name], dtype)
    raise ModelError(f"{who} has no number; known: value, value_float(s), value_int(s), sparse_value")


def own_array(value: Array, name: str) -> Array:
    """An array of a type that graphs have: floats become float32.

    Raises:
        ModelError: it is of text or of complex numbers.
    """
    dtype = str(value.dtype)
    if value.dtype.kind in "OSUc" or (value.dtype.kind == "V" and dtype not in OWN_TYPES):
        raise ModelError(f"{name} is of type {dtype}, which is not there; a network is tuned in float32")
    with np.errstate(over="ignore"):
        return value.astype(OWN_TYPES[dtype]) if dtype in OWN_TYPES else value


def _dense(sparse: Any) -> Array:
    from onnx import numpy_helper

    values, where = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    found = np.zeros(tuple(sparse.dims), values.dtype)
    if where.ndim == 1:
        found.ravel()[where] = values
    else:
        found[tuple(where.T)] = values
    return found


# ---- functions that ONNX itself defines -----------------------------------------------------------------------------
def _schema(node: Any, opset: int) -> Any:
    import onnx

    try:
        return onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def _has_schema_function(node: Any) -> bool:
    import onnx

    schema = _schema(node, onnx.defs.onnx_opset_version()) if node.domain in DOMAINS else None
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def _defaults(node: Any, opset: int) -> dict[str, Any]:
    """Attributes of an operator that have a default."""
    found = {}
    for name, attribute in _schema(node, opset).attributes.items():
        if attribute.default_value.name:
            found[name] = _attribute(attribute.default_value, None)
    return found


def _schema_function(
    node: Any, given: Mapping[str, Any], inputs: Sequence[Given | None], opset: int, make: Maker
) -> Any:
    """The body that ONNX gives an operator; None where there is none.

    Args:
        given: the values of the node's attributes, which it may refer to those of a call for.
    """
    import onnx

    schema = _schema(node, opset)
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    if schema.has_function:
        version = max((v for v in schema.function_opset_versions if v <= opset), default=schema.since_version)
        found = schema.get_function_with_opset_version(version)
    else:
        types = []
        for value in inputs:
            kind = onnx.TypeProto()
            if value is not None and not isinstance(value, Listed):
                dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(make.dtype_of(value)))
                kind = onnx.helper.make_tensor_type_proto(dtype, make.shape_of(value))
            types.append(kind.SerializeToString())
        own = onnx.NodeProto()
        own.CopyFrom(node)
        del own.attribute[:]
        own.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in given.items())
        version = max((v for v in schema.context_dependent_function_opset_versions if v <= opset), default=opset)
        found = schema.get_context_dependent_function_with_opset_version(version, own.SerializeToString(), types)
    if not isinstance(found, bytes):
        return found
    body = onnx.FunctionProto()
    body.ParseFromString(found)
    return body


def _without_absent(body: Any, values: Mapping[str, Given]) -> Iterable[Any]:
    """Nodes of a function, without the names of inputs that a call leaves out."""
    import onnx

    absent = set(body.input) - set(values)
    for node in body.node:
        if absent & set(node.input):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            del copy.input[:]
            copy.input.extend("" if name in absent else name for name in node.input)
            node = copy
        yield node
