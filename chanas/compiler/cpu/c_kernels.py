"""A scheduled Relax module as kernels in object code and a list of their calls, for C programs: what TVM's virtual
machine does with the module, without it.

Kernels look up by name what they need of a runtime (`_RUNTIME`), and LLVM adds functions of a compiler's library, such
as conversions of half floats. All names that an object file offers get the network's own in front, so that several
networks fit into one program and replace nothing of it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chanas.compiler import elf
from chanas.compiler.cpu.build import load_module
from chanas.compiler.cpu.lowering import pipeline
from chanas.core.target import HardwareTarget
from chanas.errors import TargetError

ALIGNMENT = 64
"""Bytes: what compiled code may take for granted of tensors, and more than any vector has."""

# What TVM's code generator calls (include/tvm/runtime/base.h, tvm/ffi/c_api.h), and what run.c calls it.
_RUNTIME = {
    "__TVMBackendAllocWorkspace": "allocate",
    "__TVMBackendFreeWorkspace": "give_back",
    "__TVMBackendParallelLaunch": "launch",
    "TVMFFIErrorSetRaisedFromCStr": "raise",
    "TVMFFIErrorSetRaisedFromCStrParts": "raise_parts",
}
_TAKES_WORKSPACE = "__TVMBackendAllocWorkspace"
_KERNEL_PREFIX = "__tvm_ffi_"
_LOOKED_UP = ".tvm_func."
"""Symbols that keep functions of TVM's runtime which code has looked up by name."""
# `%7 = tail call ptr %6(i32 1, i32 %dev_id, i64 4608, i32 2, i32 32)`: device, bytes, type of the elements
_ALLOCATION = re.compile(r"call ptr %\S+\(i32 \S+, i32 \S+, i64 (\d+), i32 \d+, i32 \d+\)")
_ALLOCATES, _RESHAPES = "relax.builtin.alloc_tensor", "relax.reshape"


@dataclass(frozen=True)
class Place:
    """A tensor in memory: an input or a parameter of the network, a constant in its code, or a buffer of its own."""

    kind: Literal["input", "parameter", "constant", "buffer"]
    index: int


@dataclass(frozen=True)
class KernelCall:
    """A kernel and its arguments: what it reads, then what it writes."""

    symbol: str
    arguments: tuple[Place, ...]


@dataclass(frozen=True)
class CallList:
    """A compiled network.

    calls            in an order in which they can run
    outputs          of the network, in order, and the bytes of each
    buffer_bytes     bytes of each buffer
    constants        a file for each constant
    objects          an object file for each kernel
    workspace_bytes  most that a kernel takes at once for what is inside it
    features         of LLVM that the code may use
    """

    calls: tuple[KernelCall, ...]
    outputs: tuple[Place, ...]
    output_bytes: tuple[int, ...]
    buffer_bytes: tuple[int, ...]
    constants: tuple[Path, ...]
    objects: tuple[Path, ...]
    workspace_bytes: int
    features: tuple[str, ...]


def build_calls(name: str, module: Path, num_inputs: int, target: HardwareTarget, folder: Path) -> CallList:
    """Compile a stored module to object files in `folder` in the calling process; symbols begin with `name`.

    Raises:
        TargetError: it does something that takes TVM's runtime; the message names it.
    """
    lowered = _lowered(load_module(module), target)
    listed = _Listing(name, num_inputs, folder)
    listed.read(lowered["main"])
    objects, workspace_bytes = [], ALIGNMENT
    for function, symbol in listed.symbols.items():
        objects.append(folder / f"{symbol}.o")
        what = f"function {function.name_hint}"
        num_bytes = compile_kernel(name, symbol, lowered[function], target, objects[-1], what)
        workspace_bytes = max(workspace_bytes, num_bytes)
    return CallList(
        calls=tuple(listed.calls),
        outputs=tuple(place for place, _ in listed.outputs),
        output_bytes=tuple(num_bytes for _, num_bytes in listed.outputs),
        buffer_bytes=tuple(listed.buffer_bytes),
        constants=tuple(listed.constants),
        objects=tuple(objects),
        workspace_bytes=workspace_bytes,
        features=target.llvm_features(),
    )


def _lowered(module: Any, target: HardwareTarget) -> Any:
    """The module as `tvm.relax.build` lowers it, up to where memory is planned."""
    import tvm
    from tvm import relax

    passes = [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        relax.transform.LegalizeOps(),
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
    ]
    with target.tvm_target(), tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(module)


Value = Place | list[Any]
"""The memory of an expression: of a tensor, or of each member of a tuple."""


@dataclass
class _Listing:
    """Reading of a function's bindings.

    symbols  of the kernels, by the functions that they are compiled from
    """

    name: str
    num_inputs: int
    folder: Path
    symbols: dict[Any, str] = field(default_factory=dict)
    calls: list[KernelCall] = field(default_factory=list)
    outputs: list[tuple[Place, int]] = field(default_factory=list)
    buffer_bytes: list[int] = field(default_factory=list)
    constants: list[Path] = field(default_factory=list)
    _values: dict[Any, Value] = field(default_factory=dict)

    def read(self, main: Any) -> None:
        for i, variable in enumerate(main.params):
            is_input = i < self.num_inputs
            place = Place("input", i) if is_input else Place("parameter", i - self.num_inputs)
            self._values[variable] = place
        for block in main.body.blocks:
            for binding in block.bindings:
                self._values[binding.var] = self._value(binding.value, binding.var)
        found = self._value(main.body.body, main.body.body)
        of_body = main.body.body.ty
        types = list(of_body.fields) if isinstance(found, list) else [of_body]
        places = found if isinstance(found, list) else [found]
        for place, type_ in zip(places, types, strict=True):
            if isinstance(place, list):
                raise _refused("a tuple inside a tuple")
            self.outputs.append((place, _num_bytes(type_)))

    def _value(self, expression: Any, variable: Any) -> Value:
        import tvm
        from tvm import relax

        match expression:
            case relax.Var():
                return self._values[expression]
            case tvm.ir.GenericConst():
                return self._constant(expression)
            case relax.Tuple():
                return [self._value(member, member) for member in expression.fields]
            case relax.TupleGetItem():
                members = self._value(expression.tuple_value, expression.tuple_value)
                assert isinstance(members, list)
                found: Value = members[expression.index]
                return found
            case relax.Call():
                return self._call(expression, variable)
        raise _refused(type(expression).__name__)

    def _call(self, call: Any, variable: Any) -> Value:
        import tvm

        if isinstance(call.op, tvm.ir.GlobalVar):
            arguments = tuple(self._tensor(argument) for argument in call.args)
            symbol = self.symbols.setdefault(call.op, f"{self.name}_kernel{len(self.symbols)}")
            self.calls.append(KernelCall(symbol, arguments))
            return []  # kernels give nothing back: they write
        name = str(getattr(call.op, "name", None) or getattr(call.op, "global_symbol", call.op))
        if name == _ALLOCATES:
            self.buffer_bytes.append(_num_bytes(variable.ty))
            return Place("buffer", len(self.buffer_bytes) - 1)
        if name == _RESHAPES:
            return self._value(call.args[0], call.args[0])
        raise _refused(name)

    def _tensor(self, argument: Any) -> Place:
        found = self._value(argument, argument)
        if isinstance(found, list):
            raise _refused("a kernel that takes a tuple")
        return found

    def _constant(self, constant: Any) -> Place:
        path = self.folder / f"constant{len(self.constants)}.bin"
        path.write_bytes(constant.value.numpy().tobytes())
        self.constants.append(path)
        return Place("constant", len(self.constants) - 1)


def _refused(what: str) -> TargetError:
    return TargetError(f"the network's program has {what}, which takes TVM's runtime; it can't be exported to C")


def _num_bytes(type_: Any) -> int:
    """Bytes of a tensor of a Relax type."""
    import tvm

    dtype = tvm.runtime.DataType(str(type_.dtype))
    return math.prod(int(extent) for extent in type_.shape) * max(1, int(dtype.bits) // 8)


# ---- object code ----------------------------------------------------------------------------------------------------
def compile_kernel(name: str, symbol: str, function: Any, target: HardwareTarget, path: Path, what: str) -> int:
    """Compile a scheduled function of a network, which messages call `what`, in the calling process; returns the bytes
    that it takes of the workspace.

    Raises:
        TargetError: it calls something that only TVM's runtime has, or does not tell its memory.
    """
    import tvm

    module = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True}):
        library = tvm.tirx.build(module, target.tvm_target(), pipeline())
    library.write_to_file(str(path))
    text = library.inspect_source("ll")
    sizes, num_asked = _ALLOCATION.findall(text), text.count(f"load ptr, ptr @{_TAKES_WORKSPACE},")

    def rename(found: str, is_offered: bool) -> str:
        if found == _TAKES_WORKSPACE and len(sizes) < max(1, num_asked):
            raise TargetError(f"how much memory {what} takes can't be read from its code; export needs to know")
        if found.startswith(_LOOKED_UP):
            raise TargetError(
                f"{what} calls {found.removeprefix(_LOOKED_UP)} of TVM's runtime, which a C library does not have; the "
                "network can't be exported"
            )
        if found == f"{_KERNEL_PREFIX}{symbol}":
            return symbol
        if found in _RUNTIME:
            return f"{name}_{_RUNTIME[found]}"
        return f"{name}_{found}" if is_offered else found

    path.write_bytes(elf.rename_symbols(path.read_bytes(), rename))
    return sum(aligned(int(size)) for size in sizes)


def aligned(num_bytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
