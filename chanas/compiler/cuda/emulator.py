"""A GPU kernel's lowered program, the very one that is printed as CUDA, carried out in numpy: every statement by all
threads of all blocks at once. So what a thread gets from others is tested where there is no GPU: barriers, sums over
threads, and which thread holds what of a tensor core's operands. What the CUDA compiler makes of it is not tested.

What is found beside a wrong result: a read of what another thread of the block wrote with no barrier in between (and a
write over what another one read), a barrier that some threads of a block don't reach, an access outside a buffer.

Notation: T threads of the grid (blocks one after the other, in a block x fastest), l values of a vector. Values are
arrays that broadcast to [T, l].
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.compiler.cases import operator_case, relative_error
from chanas.compiler.cuda.build import kernel_program, verify
from chanas.compiler.cuda.emulator_memory import KernelError, Memory, Moment
from chanas.compiler.cuda.families import FAMILIES
from chanas.compiler.cuda.intrinsics import INTRINSICS, WARP
from chanas.compiler.cuda.operators import output_shape
from chanas.compiler.space import Point
from chanas.core.arrays import Array
from chanas.core.target import HardwareTarget
from chanas.errors import MeasureError
from chanas.operators.workload import Workload

Thunk = Callable[[], Array]
Action = Callable[[], object]

_AXES = ("x", "y", "z")


def kernel_error(function: Any, workload: Workload, target: HardwareTarget, odd: Sequence[float] = ()) -> float:
    """Largest error of a kernel, carried out here, relative to the largest magnitude that PyTorch gives; the input has
    numbers such as NaN if `odd` has some.

    Raises:
        KernelError: its threads get in each other's way.
    """
    output = np.full(output_shape(workload), np.nan, dtype=workload.output_storage)
    case = operator_case(workload, target, odd)
    arguments = dict(zip((str(p.name) for p in function.params), [*case.arguments, output], strict=True))
    run_kernel(kernel_program(verify(function, target), target), arguments)
    got = output.astype(np.float32).reshape(-1, workload.out_channels)[: len(case.expected)]
    return relative_error(got, case.expected)


def sequential_error(workload: Workload, point: Point, target: HardwareTarget, odd: Sequence[float] = ()) -> float:
    """`kernel_error` of a schedule point.

    Raises:
        ScheduleError: the point is not in the workload's space.
        KernelError: the kernel's threads get in each other's way.
    """
    return kernel_error(FAMILIES.program(workload, point, target), workload, target, odd)


def run_kernel(kernel: Any, arguments: Mapping[str, Array]) -> None:
    """Carry out a device function on its buffers, by name; outputs are written in place.

    Raises:
        KernelError: a race, a barrier in divergent code, or an access outside a buffer.
        MeasureError: the program has something that is not known here.
    """
    with np.errstate(all="ignore"):
        _Machine(kernel, arguments).run()


class _Machine:
    def __init__(self, kernel: Any, arguments: Mapping[str, Array]) -> None:
        self.body = kernel.body
        extents = _thread_extents(self.body)
        self.grid = [extents.get(f"blockIdx.{a}", 1) for a in _AXES]
        self.block = [extents.get(f"threadIdx.{a}", 1) for a in _AXES]
        self.num_threads = math.prod(self.block)
        self.total = math.prod(self.grid) * self.num_threads
        index = np.arange(self.total)
        self.thread_in_block, self.block_index = index % self.num_threads, index // self.num_threads
        self.mask = np.ones(self.total, dtype=bool)
        self.values: dict[Any, Array] = {}
        self.memories: dict[Any, Memory] = {}
        self.barriers = 0
        for param in kernel.params:
            name = str(param.name).removesuffix("_ptr")
            if name not in arguments:
                raise MeasureError(f"a kernel wants argument '{name}', got {', '.join(arguments)}")
            array = np.ascontiguousarray(arguments[name])
            self._add_memory(param, array.reshape(1, -1), np.zeros(self.total, dtype=np.int64), False)

    def run(self) -> None:
        self._statement(self.body)()

    def _add_memory(self, var: Any, values: Array, owner: Array, is_shared: bool) -> None:
        self.memories[var] = Memory(str(var.name), values, owner, is_shared)

    def _of(self, node: Any) -> Any:
        """The method that is called after a node's kind, of it: a statement carried out, or an expression's value."""
        kind = type(node).__name__
        build = getattr(self, f"_of_{_snake_case(kind)}", None)
        if build is None:
            raise MeasureError(f"a kernel's {kind} cannot be carried out in numpy")
        return build(node)

    # ---- statements -------------------------------------------------------------------------------------------------
    def _statement(self, node: Any) -> Action:
        done: Action = self._of(node)
        return done

    def _of_seq_stmt(self, node: Any) -> Action:
        parts = [self._statement(part) for part in node.seq]

        def do() -> None:
            for part in parts:
                part()

        return do

    def _of_attr_stmt(self, node: Any) -> Action:
        if str(node.attr_key) == "thread_extent":
            self.values[node.node.var] = self._thread_index(str(node.node.thread_tag))
        return self._statement(node.body)

    def _thread_index(self, tag: str) -> Array:
        kind, _, axis = tag.partition(".")
        extents, index = (self.grid, self.block_index) if kind == "blockIdx" else (self.block, self.thread_in_block)
        place = _AXES.index(axis)
        below = math.prod(extents[:place])
        return (index // below % extents[place])[:, None]

    def _of_for(self, node: Any) -> Action:
        extent, start = self._expression(node.extent), self._expression(node.min)
        body, var = self._statement(node.body), node.loop_var

        def do() -> None:
            num = extent()
            if num.size != 1 and not (num == num.flat[0]).all():
                raise MeasureError("a loop's length differs from thread to thread")
            first = start()
            for i in range(int(num.flat[0])):
                self.values[var] = first + i
                body()

        return do

    def _of_if_then_else(self, node: Any) -> Action:
        condition, then = self._expression(node.condition), self._statement(node.then_case)
        other = self._statement(node.else_case) if node.else_case is not None else None

        def do() -> None:
            outer, taken = self.mask, self._per_thread(condition()).astype(bool)
            for branch, chosen in ((then, taken), (other, ~taken)):
                self.mask = outer & chosen
                if branch is not None and self.mask.any():
                    branch()
            self.mask = outer

        return do

    def _of_bind(self, node: Any) -> Action:
        value, var = self._expression(node.value), node.var
        return lambda: self.values.update({var: value()})

    def _of_alloc_buffer(self, node: Any) -> Action:
        buffer = node.buffer
        kind, size = buffer.ty, math.prod(int(n) for n in buffer.ty.shape)
        scope, dtype = str(kind.storage_scope), _numpy_type(kind.dtype)
        shared = scope.startswith("shared")
        if not shared and not scope.startswith("local"):
            raise MeasureError(f"a buffer of scope '{scope}' in a kernel")
        owner = self.block_index if shared else np.arange(self.total)
        unset = np.nan if dtype.kind == "f" else np.array(-1).astype(dtype)
        values = np.full((int(owner.max()) + 1, size), unset, dtype=dtype)
        self._add_memory(buffer, values, owner, shared)
        return lambda: None

    def _of_decl_buffer(self, node: Any) -> Action:
        """Another view of the same memory."""
        known = self._memory(_underlying(node.data))
        dtype = _numpy_type(node.buffer.ty.dtype)
        if dtype == known.values.dtype:
            self.memories[node.buffer] = known
        elif known.is_shared:
            raise MeasureError("shared memory that is read as two types")
        else:
            self._add_memory(node.buffer, known.values.view(dtype), known.owner, False)
        return lambda: None

    def _of_buffer_store(self, node: Any) -> Action:
        memory, value = self._memory(node.buffer), self._expression(node.value)
        (index,) = [self._expression(i) for i in node.indices]
        return lambda: self._write(memory, index(), value())

    def _of_evaluate(self, node: Any) -> Action:
        return self._expression(node.value)

    # ---- memory -----------------------------------------------------------------------------------------------------
    def _memory(self, var: Any) -> Memory:
        if var not in self.memories:
            raise MeasureError(f"a kernel uses buffer '{var.name}', which it was not given")
        return self.memories[var]

    def _moment(self) -> Moment:
        return Moment(self.mask, self.thread_in_block, self.barriers)

    def _read(self, memory: Memory, index: Array) -> Array:
        return memory.read(index, self._moment())

    def _write(self, memory: Memory, index: Array, value: Array) -> None:
        memory.write(index, value, self._moment())

    # ---- expressions ------------------------------------------------------------------------------------------------
    def _per_thread(self, value: Array) -> Array:
        return np.broadcast_to(value, (self.total, 1))[:, 0]

    def _expression(self, node: Any) -> Thunk:
        if (combine := _BINARY.get(type(node).__name__)) is not None:
            left, right = self._expression(node.a), self._expression(node.b)
            return lambda: combine(left(), right())
        thunk: Thunk = self._of(node)
        return thunk

    def _of_int_imm(self, node: Any) -> Thunk:
        value = np.array([[node.value]]).astype(_numpy_type(node.ty))
        return lambda: value

    _of_float_imm = _of_int_imm

    def _of_var(self, node: Any) -> Thunk:
        return lambda: self.values[node]

    def _of_not(self, node: Any) -> Thunk:
        value = self._expression(node.a)
        return lambda: ~value()

    def _of_cast(self, node: Any) -> Thunk:
        value, dtype = self._expression(node.value), _numpy_type(node.ty)
        return lambda: value().astype(dtype)

    def _of_ramp(self, node: Any) -> Thunk:
        base, stride = self._expression(node.base), self._expression(node.stride)
        steps = np.arange(int(node.lanes))[None]
        return lambda: base() + stride() * steps

    def _of_broadcast(self, node: Any) -> Thunk:
        value, lanes = self._expression(node.value), int(node.lanes)
        return lambda: np.repeat(value(), lanes, axis=1)

    def _of_shuffle(self, node: Any) -> Thunk:
        vectors, picked = [self._expression(v) for v in node.vectors], [int(i) for i in node.indices]

        def value() -> Array:
            parts = [np.broadcast_to(p, (self.total, p.shape[1])) for p in (v() for v in vectors)]
            return np.concatenate(parts, axis=1)[:, picked]

        return value

    def _of_let(self, node: Any) -> Thunk:
        bound, body, var = self._expression(node.value), self._expression(node.body), node.var

        def value() -> Array:
            self.values[var] = bound()
            return body()

        return value

    def _of_select(self, node: Any) -> Thunk:
        """Printed as C's `?:`, which reads one side; of vectors, one for each value, both are read."""
        condition, *sides = (self._expression(e) for e in (node.condition, node.true_value, node.false_value))
        lazy = self._choice(condition, *sides)
        return lambda: lazy() if condition().shape[1] == 1 else np.where(condition(), sides[0](), sides[1]())

    def _of_tensor_load(self, node: Any) -> Thunk:
        memory = self._memory(node.source)
        (index,) = [self._expression(i) for i in node.indices]
        return lambda: self._read(memory, index())

    def _of_call(self, node: Any) -> Thunk:
        name = str(node.op.name).partition(".")[2]
        if name == "cuda.func_call":
            return self._intrinsic(node)
        if name == "if_then_else":
            return self._choice(*(self._expression(a) for a in node.args))
        if name == "tvm_storage_sync":
            return self._barrier if node.args[0].value == "shared" else self._warp_barrier
        if name.endswith("activemask"):
            return lambda: np.array([[0xFFFFFFFF]], dtype=np.int64)
        if name.startswith(("tvm_warp_shuffle", "cuda.__shfl_")):
            return self._shuffle("down" in name, node)
        if name == "reinterpret":
            value, dtype = self._expression(node.args[0]), _numpy_type(node.ty)
            return lambda: np.ascontiguousarray(value()).view(dtype)
        if name not in _FUNCTIONS:
            raise MeasureError(f"a kernel's call of {node.op.name} cannot be evaluated in numpy")
        function, arguments = _FUNCTIONS[name], [self._expression(a) for a in node.args]
        return lambda: function(*(a() for a in arguments))

    def _choice(self, condition: Thunk, then: Thunk, other: Thunk) -> Thunk:
        """One of two values; the other one is not read."""

        def value() -> Array:
            outer, taken = self.mask, self._per_thread(condition()).astype(bool)
            self.mask = outer & taken
            first = then()
            self.mask = outer & ~taken
            second = other()
            self.mask = outer
            return np.where(taken[:, None], first, second)

        return value

    def _barrier(self) -> Array:
        here = self.mask.reshape(-1, self.num_threads)
        if (here.any(axis=1) != here.all(axis=1)).any():
            raise KernelError("a barrier that some threads of a block do not reach")
        self.barriers += 1
        return np.zeros((1, 1), dtype=np.int64)

    def _warp_barrier(self) -> Array:
        """A barrier of the threads of one warp, which run in step; no code is printed for it."""
        here = self.mask.reshape(-1, self.num_threads)
        reached = np.flatnonzero(here.any(axis=0)) // WARP
        if len(set(reached.tolist())) > 1 and not here.all():
            raise KernelError("a barrier of a warp that threads of several warps reach, and others do not")
        self.barriers += 1
        return np.zeros((1, 1), dtype=np.int64)

    def _shuffle(self, down: bool, node: Any) -> Thunk:
        """`__shfl_sync` and `__shfl_down_sync`: another lane's value, of the same group of `width` lanes."""
        value, other, width = (self._expression(a) for a in list(node.args)[1:4])
        thread = np.arange(self.total)
        lane = self.thread_in_block % WARP

        def shuffled() -> Array:
            given, num = np.broadcast_to(value(), (self.total, 1)), int(width().flat[0])
            group, wanted = lane // num * num, self._per_thread(other())
            source = lane + wanted if down else group + wanted % num
            inside = source < np.minimum(group + num, WARP)
            source = np.where(inside, thread + source - lane, thread)
            return given[np.minimum(source, self.total - 1)]

        return shuffled

    def _intrinsic(self, node: Any) -> Thunk:
        """A function of `cuda.intrinsics`: its arguments are values, or places in memory."""
        name = str(node.args[0].value)
        if name not in INTRINSICS:
            raise MeasureError(f"a kernel calls {name}, which is not known here")
        arguments = [self._argument(a) for a in list(node.args)[1:-1]]
        meaning = INTRINSICS[name].meaning

        def value() -> Array:
            if INTRINSICS[name].of_a_warp and (self.num_threads % WARP or not self._whole_warps()):
                raise KernelError(f"{name} is called by a part of a warp")
            result = meaning(*(a() for a in arguments))
            return np.zeros((1, 1), dtype=np.int64) if result is None else result

        return value

    def _whole_warps(self) -> bool:
        warps = self.mask.reshape(-1, WARP)
        return bool((warps.any(axis=1) == warps.all(axis=1)).all())

    def _argument(self, node: Any) -> Callable[[], Any]:
        if type(node).__name__ != "Call" or not str(node.op.name).endswith("address_of"):
            return self._expression(node)
        load = node.args[0]
        memory = self._memory(load.source)
        (index,) = [self._expression(i) for i in load.indices]
        return lambda: _Pointer(self, memory, index())


@dataclass
class _Pointer:
    """The pointer that an intrinsic gets to a buffer: a place of each thread, and the values after it."""

    machine: _Machine
    memory: Memory
    index: Array

    def read(self, num: int) -> Array:
        """[T, num]"""
        return np.broadcast_to(self.machine._read(self.memory, self.index + np.arange(num)), (self.machine.total, num))

    def write(self, values: Array) -> None:
        self.machine._write(self.memory, self.index + np.arange(values.shape[1]), values)


def _divide(a: Array, b: Array) -> Array:
    """Divide as C does: integers are rounded towards zero."""
    return a / b if a.dtype.kind == "f" else np.trunc(a / b).astype(np.result_type(a, b))


_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": _divide,
    "Mod": np.fmod,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Min": np.fmin,  # as CUDA's, of NaN the other one
    "Max": np.fmax,
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "And": operator.and_,
    "Or": operator.or_,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
    "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_,
    "BitwiseXor": operator.xor,
}
_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "shift_left": operator.lshift,
    "shift_right": operator.rshift,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "likely": lambda a: a,
    "fabs": np.abs,
}


@functools.cache
def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _thread_extents(node: Any) -> dict[str, int]:
    """The extents of blockIdx and threadIdx, which stand around a kernel's body."""
    found: dict[str, int] = {}
    while type(node).__name__ in ("AttrStmt", "SeqStmt"):
        if type(node).__name__ == "SeqStmt":
            node = node.seq[len(node.seq) - 1]
            continue
        if str(node.attr_key) == "thread_extent":
            found[str(node.node.thread_tag)] = int(node.value)
        node = node.body
    return found


def _underlying(data: Any) -> Any:
    """The buffer that a data pointer belongs to."""
    while type(data).__name__ == "Call":
        data = data.args[0]
    return data


@functools.cache
def _named_type(name: str) -> np.dtype[Any]:
    scalar = name.partition("x")[0]
    return np.dtype({"int32": "int64", "bool": "bool_"}.get(scalar, scalar))


def _numpy_type(kind: Any) -> np.dtype[Any]:
    """Return numpy's type for a type's scalars; indices are computed in 64 bits."""
    return _named_type(str(getattr(kind, "dtype", kind)))
