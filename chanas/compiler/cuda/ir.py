"""Writing a GPU kernel down as TVM's statements: loops, stores, barriers, shared memory and registers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Range

from chanas.compiler.cuda.operators import output_shape
from chanas.operators.layout import ROWS, Argument, operator_inputs
from chanas.operators.workload import Workload

OWN_BARRIERS = "chanas.own_barriers"
"""Attribute of a function whose barriers are all there: the compiler need not look for where they belong."""

Body = Callable[[Any], Any]
_KINDS = {
    "serial": tirx.ForKind.SERIAL,
    "unroll": tirx.ForKind.UNROLLED,
    "vector": tirx.ForKind.VECTORIZED,
}


def loop(name: str, extent: int, body: Body, kind: str = "unroll") -> Any:
    """A loop that is written out, vectorised or kept (`serial`); none where it has one turn."""
    if extent == 1:
        return body(0)
    var = tirx.Var(name, "int32")
    return tirx.For(var, 0, extent, _KINDS[kind], body(var))


def loops(body: Callable[..., Any], *axes: Any) -> Any:
    """Loops inside each other, each with what `loop` takes: its name, its extent and its kind."""
    if not axes:
        return body()
    (name, extent, *kind), *inner = axes
    return loop(name, extent, lambda i: loops(functools.partial(body, i), *inner), *kind)


def sequence(*parts: Any) -> Any:
    """Return the statements one after the other."""
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)


def assign(buffer: Any, place: Sequence[Any] | Any, value: Any) -> Any:
    """buffer[place] = value"""
    return tirx.BufferStore(buffer, value, list(place) if isinstance(place, tuple) else [place])


def new_buffer(shape: Sequence[int], dtype: str, name: str, scope: str) -> Any:
    """A buffer of `shared` memory, or of a thread's own (`local`)."""
    return tirx.decl_buffer(tuple(shape), dtype, name, scope=scope, layout=None)


def operator_buffers(workload: Workload) -> list[Any]:
    """The arguments of an operator's function: `operator_inputs`, then the output."""
    output = Argument("out", output_shape(workload), workload.output_storage)
    return [new_buffer(a.shape, a.dtype, a.name, "") for a in (*operator_inputs(workload, ROWS), output)]


def as_words(buffer: Any, shape: Sequence[int], views: list[Any]) -> Any:
    """A view of float16 as 32-bit words; its declaration is added to `views`."""
    view = new_buffer([int(n) for n in shape], "uint32", f"{buffer.name}_words", "")
    views.append(tirx.DeclBuffer(view, data=tirx.buffer.buffer_data(buffer)))
    return view


def barrier() -> Any:
    """All threads of a block wait for each other."""
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def all_of(conditions: Sequence[Any]) -> Any:
    return conditions[0] if len(conditions) == 1 else tirx.all(*conditions)


def guarded(conditions: Sequence[Any], then: Any) -> Any:
    """A statement for those threads that fulfil all of the conditions."""
    return tirx.IfThenElse(all_of(conditions), then, None) if conditions else then


def kernel(parameters: Sequence[Any], body: Any, axes: Sequence[tuple[Any, int]]) -> Any:
    """A `tirx.PrimFunc` `main`; `axes` are the variables of threads and blocks, which are called after them (innermost
    first), and how many there are."""
    for var, extent in axes:
        axis = tirx.IterVar(Range(0, extent), var, tirx.IterVar.ThreadIndex, str(var.name))
        body = tirx.AttrStmt(axis, "thread_extent", extent, body)
    function = tirx.PrimFunc(list(parameters), body)
    for key, value in {"global_symbol": "main", "tirx.noalias": True, OWN_BARRIERS: True}.items():
        function = function.with_attr(key, value)
    return function
