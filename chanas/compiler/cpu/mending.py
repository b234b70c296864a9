"""Convolutions of maps with NaN or infinity by other sums than the plain one. The outputs of a tile of Winograd's are
sums of the same products, so that NaN among its inputs makes NaN of all of them; a phase of a transposed convolution
multiplies with zeros for the taps that it lacks. The plain sum makes NaN of the outputs that read it.

Some of a map's outputs tell whether it has any: of Winograd's the first ones of tiles, which are sums of all products
that several outputs of their tile are sums of. If it has, outputs that are no finite numbers are computed again by the
plain sum; Winograd's taps are found from the transformed ones.

Notation as in `operators`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import s_tir, tirx

from chanas.compiler.cpu.maps import finish
from chanas.compiler.expressions import float32
from chanas.operators.layout import num_blocks
from chanas.operators.transposed import first_row, num_taps
from chanas.operators.winograd import Transforms, as_array, transforms
from chanas.operators.workload import Workload, winograd_axis, winograd_counts, winograd_plans

Body = Callable[[Any], Any]


def mended(function: Any, workload: Workload, lanes: int) -> Any:
    """A scheduled function of a convolution, as of `blocks.schedule_packed_operator`, with what follows it."""
    if workload.op == "upconv" and not any(axis.kernel % axis.stride for axis in workload.axes):
        return function  # phases lack no taps
    kind = _MendingOfPhases if workload.op == "upconv" else _MendingOfTiles
    root, mend = function.body.block, kind(workload, lanes, *function.params)
    block = s_tir.SBlock([], [], [], "mend", mend.statement(), alloc_buffers=mend.buffers)
    body = tirx.SeqStmt([root.body, s_tir.SBlockRealize([], True, block)])
    changed = s_tir.SBlock(root.iter_vars, root.reads, root.writes, root.name_hint, body, root.init, root.alloc_buffers)
    return tirx.PrimFunc(list(function.params), s_tir.SBlockRealize([], True, changed), attrs=function.attrs)


class _Mending:
    """The statements while they are written, and the buffers that they have.

    depth  weights of an output channel
    taps   rows and columns of the kernel as the plain sum has it
    """

    depth: int
    taps: tuple[int, int]

    def __init__(self, workload: Workload, lanes: int, x: Any, parameters: Any, *extras_and_out: Any) -> None:
        self.workload, self.lanes = workload, lanes
        self.x, self.parameters, self.out = x, parameters, extras_and_out[-1]
        self.residual = extras_and_out[0] if workload.residual else None
        self.blocks = num_blocks(workload.out_channels, lanes)
        self.buffers: list[Any] = []
        self.total, self.weights = (self._new(name, lanes) for name in ("total", "weights"))
        self.found = self._new("found", 1)

    def telling(self) -> list[tuple[int, int]]:
        """First one and step of the rows, then the columns, of those outputs that tell."""
        raise NotImplementedError

    def prepared(self) -> list[Any]:
        """Statements before anything is computed again."""
        return []

    def read(self, h: Any, w: Any, rh: Any, rw: Any) -> tuple[Any, Any, list[Any]]:
        """The input's row and column under a tap of an output, and when there is such a tap."""
        raise NotImplementedError

    def find_weights(self, b: Any, c: Any, h: Any, w: Any, rh: Any, rw: Any) -> Any:
        """weights[v] += the weight of that tap and an input channel"""
        raise NotImplementedError

    def _add_weight(self, b: Any, place: Any, factor: Any) -> Any:
        """weights[v] += factor · the weight of an output channel at a place"""

        def add(v: Any) -> Any:
            weight = self.parameters[(b * self.depth + place) * self.lanes + v]
            return tirx.BufferStore(self.weights, self.weights[v] + factor * weight, [v])

        return self._vector(add)

    def _bias(self, b: Any, v: Any) -> Any:
        return self.parameters[(self.blocks * self.depth + b) * self.lanes + v]

    def _new(self, name: str, size: int) -> Any:
        self.buffers.append(tirx.decl_buffer((size,), "float32", name, layout=None))
        return self.buffers[-1]

    def statement(self) -> Any:
        rows, columns = self.workload.axes
        (top, down), (left, along) = self.telling()

        def tell(h: Any, w: Any) -> Any:
            place = (top + h * down) * columns.output + (left + w * along)
            return self._mark(lambda v: _is_odd(self.out[0, place, v]))

        num = -(-(rows.output - top) // down), -(-(columns.output - left) // along)
        look = _loop(num[0], lambda h: _loop(num[1], lambda w: tell(h, w)))
        each = _loop(rows.output, lambda h: _loop(columns.output, lambda w: self._pixel(h, w)))
        return self._if_marked(look, tirx.SeqStmt([*prepared, each]) if (prepared := self.prepared()) else each, None)

    def _vector(self, body: Body) -> Any:
        return _loop(self.lanes, body, tirx.ForKind.VECTORIZED)

    def _zero(self, vector: Any) -> Any:
        return self._vector(lambda v: tirx.BufferStore(vector, float32(0.0), [v]))

    def _mark(self, is_it: Body) -> Any:
        """Lanes of `total` become 1 where something is so."""
        return self._vector(
            lambda v: tirx.BufferStore(self.total, tirx.Select(is_it(v), float32(1.0), self.total[v]), [v])
        )

    def _if_marked(self, marks: Any, then: Any, otherwise: Any) -> Any:
        """One of two statements: the first one if any lane is marked."""
        any_lane = _loop(self.lanes, lambda v: tirx.BufferStore(self.found, self.found[0] + self.total[v], [0]))
        clear = tirx.BufferStore(self.found, float32(0.0), [0])
        choice = tirx.IfThenElse(self.found[0] > float32(0.0), then, otherwise)
        return tirx.SeqStmt([self._zero(self.total), marks, clear, any_lane, choice])

    def _pixel(self, h: Any, w: Any) -> Any:
        """One pixel computed again, if it has no finite number and its window no NaN."""
        place = h * self.workload.axes[1].output + w
        channels = self.workload.in_channels

        def look(b: Any, y: Any, _: Any, __: Any) -> Any:
            def is_it(v: Any) -> Any:  # what only fills a vector up is not looked at
                found = tirx.isnan(self.x[b, y, v])
                return found if channels % self.lanes == 0 else tirx.all(b * self.lanes + v < channels, found)

            return self._mark(is_it)

        again = _loop(self.blocks, lambda b: self._block(b, h, w, place))
        unless_nan = self._if_marked(
            self._window(h, w, num_blocks(channels, self.lanes), look), tirx.Evaluate(tirx.const(0, "int32")), again
        )
        return self._if_marked(self._mark(lambda v: _is_odd(self.out[0, place, v])), unless_nan, None)

    def _window(self, h: Any, w: Any, num: int, body: Callable[[Any, Any, Any, Any], Any]) -> Any:
        """Loop over so many numbers of each pixel of a window inside the map, with the pixel and its row and column in
        the kernel: one loop, which compilers do not write out."""
        rows, columns = self.workload.axes

        def each(i: Any) -> Any:
            rh, rw = i // num // self.taps[1], i // num % self.taps[1]
            y, z, there = self.read(h, w, rh, rw)
            inside = tirx.all(*there, y >= 0, y < rows.size, z >= 0, z < columns.size)
            return tirx.IfThenElse(inside, body(i % num, y * columns.size + z, rh, rw), None)

        return _loop(self.taps[0] * self.taps[1] * num, each)

    def _block(self, b: Any, h: Any, w: Any, place: Any) -> Any:
        """The plain sum of a vector of output channels."""

        def term(c: Any, y: Any, rh: Any, rw: Any) -> Any:
            value = self.x[c // self.lanes, y, c % self.lanes]
            add = self._vector(lambda v: tirx.BufferStore(self.total, self.total[v] + value * self.weights[v], [v]))
            return tirx.SeqStmt([self._zero(self.weights), self.find_weights(b, c, h, w, rh, rw), add])

        def store(v: Any) -> Any:
            residual = self.residual
            add = None if residual is None else lambda value: value + residual[b, place, v]
            value = finish(self.workload, self.total[v] + self._bias(b, v), add)
            return tirx.BufferStore(self.out, value, [b, place, v])

        return tirx.SeqStmt(
            [self._zero(self.total), self._window(h, w, self.workload.in_channels, term), self._vector(store)]
        )


class _MendingOfTiles(_Mending):
    def __init__(self, workload: Workload, lanes: int, *buffers: Any) -> None:
        super().__init__(workload, lanes, *buffers)
        rows, columns = workload.axes
        self.depth, self.taps = winograd_counts(workload).weights * workload.in_channels, (rows.kernel, columns.kernel)
        self.tiles = _tiles(workload)
        self.inverses: list[Any] = [None if p is None else self._new("inverse", p.taps**2) for p in self.tiles]

    def telling(self) -> list[tuple[int, int]]:
        """The first outputs of tiles; all of them where phases have zeros for taps that they lack."""
        return [
            (0, 1 if plan is None or axis.kernel % axis.stride else plan.outputs)
            for plan, axis in zip(self.tiles, self.workload.axes, strict=True)
        ]

    def prepared(self) -> list[Any]:
        """The matrices that find taps from as many transformed ones: those of the first points and of infinity."""
        stores = []
        for plan, buffer in zip(self.tiles, self.inverses, strict=True):
            if plan is not None:
                found = np.linalg.inv(as_array(plan.taps_in)[[*range(plan.taps - 1), plan.products - 1]])
                stores += [
                    tirx.BufferStore(buffer, float32(value), [i]) for i, value in enumerate(found.ravel().tolist())
                ]
        return stores

    def read(self, h: Any, w: Any, rh: Any, rw: Any) -> tuple[Any, Any, list[Any]]:
        rows, columns = self.workload.axes
        return h * rows.stride + rh - rows.before, w * columns.stride + rw - columns.before, []

    def find_weights(self, b: Any, c: Any, h: Any, w: Any, rh: Any, rw: Any) -> Any:
        (down, along), (rows, columns), channels = self.tiles, self.workload.axes, self.workload.in_channels
        if down is not None and along is not None:

            def in_both(i: Any, j: Any) -> Any:
                factor = self.inverses[0][rh * down.taps + i] * self.inverses[1][rw * along.taps + j]
                return self._add_weight(b, (_row(down, i) * along.products + _row(along, j)) * channels + c, factor)

            return _loop(down.taps, lambda i: _loop(along.taps, lambda j: in_both(i, j)))
        if down is not None:
            plan, inverse, tap, other, across = down, self.inverses[0], rh, rw, columns
        else:
            assert along is not None
            plan, inverse, tap, other, across = along, self.inverses[1], rw, rh, rows

        def in_one(i: Any) -> Any:
            place = ((_row(plan, i) * channels + c) * across.kernel + other) * plan.stride + tap % plan.stride
            return self._add_weight(b, place, inverse[tap // plan.stride * plan.taps + i])

        return _loop(plan.taps, in_one)


class _MendingOfPhases(_Mending):
    def __init__(self, workload: Workload, lanes: int, *buffers: Any) -> None:
        super().__init__(workload, lanes, *buffers)
        rows, columns = workload.axes
        self.taps = (num_taps(rows), num_taps(columns))
        phases = rows.stride * columns.stride
        self.depth = phases * workload.in_channels * self.taps[0] * self.taps[1]

    def telling(self) -> list[tuple[int, int]]:
        """The outputs of the phase that lacks no taps; all outputs where some inputs may be read by no such one."""
        return [
            (-axis.before % axis.stride, axis.stride) if axis.kernel >= axis.stride else (0, 1)
            for axis in self.workload.axes
        ]

    def read(self, h: Any, w: Any, rh: Any, rw: Any) -> tuple[Any, Any, list[Any]]:
        found, there = [], []
        for axis, taps, output, tap in zip(self.workload.axes, self.taps, (h, w), (rh, rw), strict=True):
            reached = output % axis.stride + axis.before % axis.stride
            found.append(output // axis.stride + reached // axis.stride + tap + first_row(axis))
            there.append(reached % axis.stride + axis.stride * (taps - 1 - tap) < axis.kernel)
        return found[0], found[1], there

    def find_weights(self, b: Any, c: Any, h: Any, w: Any, rh: Any, rw: Any) -> Any:
        rows, columns = self.workload.axes
        phase = h % rows.stride * columns.stride + w % columns.stride
        place = ((phase * self.workload.in_channels + c) * self.taps[0] + rh) * self.taps[1] + rw
        return self._add_weight(b, place, float32(1.0))


def _tiles(workload: Workload) -> tuple[Transforms | None, Transforms | None]:
    """The tiles of rows and of columns; None along an axis that has none."""
    if workload.op == "winograd2":
        return winograd_plans(workload)
    axis = winograd_axis(workload)
    plan = transforms(workload.axes[axis].kernel, workload.axes[axis].stride)
    return (plan, None) if axis == 0 else (None, plan)


def _row(plan: Transforms, i: Any) -> Any:
    """The product of the i-th of those that taps are found from."""
    return tirx.Select(i == plan.taps - 1, tirx.const(plan.products - 1, "int32"), i)


def _is_odd(value: Any) -> Any:
    """True of NaN and infinity."""
    return tirx.any(tirx.isnan(value), tirx.abs(value) > tirx.max_value("float32"))


def _loop(extent: int, body: Body, kind: Any = tirx.ForKind.SERIAL) -> Any:
    var = tirx.Var("i", "int32")
    return tirx.For(var, 0, extent, kind, body(var))
