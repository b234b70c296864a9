"""Sums in matrix registers (Intel's AMX): scheduled blocks that are marked so, and the code that takes their place.

The block of a tile of a convolution's sums stays what it is, loops over dot products, until it is lowered: pixels
times channel blocks, all of the reduction. `in_matrix_registers` puts a call in its place, of a function whose text,
in LLVM's language, comes with it.

    a  lines of R pixels of all channels of the input: for each stretch of channels rows of 16 to 64 bytes, a pixel each
    w  words of each channel block of the output, tap after tap: rows of 16 words, of two bfloat16 or four int8, 64
       bytes
    c  lines of R pixels of each channel block of the output: rows of 16 sums, float32 or int32, 64 bytes

An instruction multiplies up to 16 rows of a by as many rows of w as a row of a has words; rows of 64 bytes, which are
packed for it, make the most of it. Where pixels have less, neighbouring taps lie side by side: they are one row then,
and rows overlap. The pixels of a line are shared out among as few row tiles as take them all; where
these don't divide R they overlap, and write the same sums twice.

Facts: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18. A
process asks Linux for the registers once, here before they are first used (`MATRIX_REQUEST`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from chanas.core.processor import MATRIX_REQUEST
from chanas.operators.precision import BFLOAT16, INT8, Precision

MARK = "chanas.tiles"
"""Annotation of blocks whose sums are in matrix registers."""
MAX_ROWS, ROW_BYTES, MAX_WORDS = 16, 64, 16
"""Rows of a matrix register, and bytes of a row, and words."""
_LANES, _WORD_BYTES = 16, 4
Value = TypeVar("Value")
# Where a system call has its number, two arguments and its answer, and what it changes.
_CALL_REGISTERS = "={ax},{ax},{di},{si},~{rcx},~{r11},~{memory},~{dirflag},~{fpsr},~{flags}"
# Registers of sums, then of the input and of weights; the last two where a reduction has a rest.
_SUMS, _NUM_REGISTERS = 4, 8


INSTRUCTIONS = {BFLOAT16: "tdpbf16ps", INT8: "tdpbusd"}
"""Instructions that multiply, by precision; in int8 the input's numbers have no sign, and weights have one."""
_BY_STORAGE = {precision.storage: precision for precision in INSTRUCTIONS}


class RowTiles(NamedTuple):
    """Tiles of so many pixels, by the first pixel of each."""

    rows: int
    firsts: tuple[int, ...]


def row_tiles(pixels: int) -> RowTiles:
    """The fewest tiles that take all pixels, of as few rows as that allows."""
    num = -(-pixels // MAX_ROWS)
    rows = -(-pixels // num)
    return RowTiles(rows, tuple(i * (pixels - rows) // max(1, num - 1) for i in range(num)))


# ---- the function of a tile, in LLVM's language ----------------------------------------------------------------------
class Window(NamedTuple):
    """Taps of a kernel along an axis; how far they lie apart, and how far the pixels of neighbouring outputs."""

    taps: int = 1
    dilation: int = 1
    stride: int = 1

    def read_by(self, num: int) -> int:
        """Pixels that so many outputs are computed from."""
        return (num - 1) * self.stride + (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True)
class MatrixTile:
    """The sums of lines of pixels times channel blocks, which one function computes.

    words      of the reduction under each tap
    row_bytes  of a pixel in the input
    """

    precision: Precision
    pixels: int
    blocks: int
    words: int
    row_bytes: int
    lines: int = 1
    windows: tuple[Window, Window] = (Window(), Window())

    @property
    def name(self) -> str:
        """The name of its function."""
        sizes = (self.lines, self.pixels, self.blocks, self.words, self.row_bytes, *itertools.chain(*self.windows))
        return f"chanas_tiles_{self.precision.dtype}_{'_'.join(map(str, sizes))}"

    @property
    def reduction(self) -> _Reduction:
        """The loops over products. Where a pixel has all words of a tap, they are taken in stretches of a register's
        row, with those of the next taps if these lie beside it."""
        along, row_words = self.windows[1], self.row_bytes // _WORD_BYTES
        if self.words != row_words:
            return _Reduction(along.taps, self.words, row_words, "%a_stretch")
        joined = along.taps if along.dilation == 1 else 1
        words = self.words * joined
        return _Reduction(along.taps // joined, words, min(words, MAX_WORDS), f"{ROW_BYTES}")


class _Reduction(NamedTuple):
    """Taps along a row, of which one stands for all where they lie side by side; words under each, of a stretch of
    them, and bytes from stretch to stretch."""

    taps: int
    words: int
    stretch_words: int
    stretch_bytes: str


class _Operands(NamedTuple):
    """Registers of the input and of weights, taken in turn, and the words of a product."""

    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    words: int


class _Rows(NamedTuple):
    """The first pixel of a row tile, and its line."""

    line: int
    first: int


def text_of(tile: MatrixTile) -> str:
    """The function `(a, bytes from stretch to stretch of channels, bytes from line to line, w, bytes from block to
    block, c, the same, bytes from line to line)` and what it needs."""
    tiles, words = row_tiles(tile.pixels), tile.reduction.stretch_words
    full, rest = divmod(tile.reduction.words, words)
    whole = _Operands((4,), (5,), words) if rest else _Operands((4, 5), (6, 7), words)
    part = _Operands((6,), (7,), rest)
    lines = _Lines(tile)
    for rows in _by(2, [_Rows(line, first) for line in range(tile.lines) for first in tiles.firsts]):
        for columns in _by(_SUMS // len(rows), range(tile.blocks)):
            lines.sums(rows, columns, full, whole, part)
    request = ", ".join(f"i64 {number}" for number in MATRIX_REQUEST)
    operands = [operand for operand in (whole, part) if operand.words]
    return f"""
@chanas_tiles_shapes = private unnamed_addr constant [64 x i8] c"{_shapes(tiles.rows, operands)}", align 64
@chanas_tiles_asked = linkonce_odr hidden global i8 0
define linkonce_odr i32 @{tile.name}(
    ptr %a, i64 %a_stretch, i64 %a_line, ptr %w, i64 %w_block, ptr %c, i64 %c_block, i64 %c_line) {{
entry:
  %asked = load i8, ptr @chanas_tiles_asked
  %has_asked = icmp ne i8 %asked, 0
  br i1 %has_asked, label %start, label %ask
ask:
  %answer = call i64 asm sideeffect "syscall", "{_CALL_REGISTERS}"({request})
  store i8 1, ptr @chanas_tiles_asked
  br label %start
start:
  call void @llvm.x86.ldtilecfg(ptr @chanas_tiles_shapes)
  br label %sums0
{lines.text}
sums{lines.num}:
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.{INSTRUCTIONS[tile.precision]}(i8 immarg, i8 immarg, i8 immarg)
"""


def _by(num: int, values: Sequence[Value]) -> list[Sequence[Value]]:
    """Parts of so many values, the last one of those that are left."""
    return [values[i : i + num] for i in range(0, len(values), num)]


def _shapes(rows: int, operands: Sequence[_Operands]) -> str:
    """The shapes of all registers as the processor reads them, in LLVM's way of writing bytes."""
    shapes = dict.fromkeys(range(_SUMS), (rows, ROW_BYTES))
    for operand in operands:
        shapes |= dict.fromkeys(operand.inputs, (rows, _WORD_BYTES * operand.words))
        shapes |= dict.fromkeys(operand.weights, (operand.words, ROW_BYTES))
    config = bytearray(64)
    config[0] = 1  # palette
    for register, (num_rows, row_bytes) in shapes.items():
        config[16 + 2 * register : 18 + 2 * register] = row_bytes.to_bytes(2, "little")
        config[48 + register] = num_rows
    return "".join(f"\\{byte:02X}" for byte in config)


class _Lines:
    """The lines of a function, sums after sums, each from label `sumsN` to `sumsN+1`."""

    def __init__(self, tile: MatrixTile) -> None:
        self.tile = tile
        self._lines: list[str] = []
        self._here = ""
        self.num = 0

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    def sums(self, rows: Sequence[_Rows], columns: Sequence[int], full: int, whole: _Operands, part: _Operands) -> None:
        """Sums of row tiles times channel blocks, tap by tap: over `full` stretches of channels, then over what is left
        of one. That is the order of the weights."""
        me, down, taps = self.num, self.tile.windows[0].taps, self.tile.reduction.taps
        registers = {place: i for i, place in enumerate(itertools.product(rows, columns))}
        self._begin(f"sums{me}")
        self._lines += [f"  call void @llvm.x86.tilezero(i8 {register})" for register in registers.values()]
        with self._loop(f"r{me}", down) as r, self._loop(f"s{me}", taps) as s:
            self._lines.append(f"  %row{me} = mul i64 {r}, {taps}")
            self._lines.append(f"  %tap{me} = add i64 %row{me}, {s}")
            if full:
                with self._loop(f"k{me}", full) as k:
                    self._lines += self._products(registers, whole, (r, s, k), f"%tap{me}", f"{me}")
            if part.words:
                self._lines += self._products(registers, part, (r, s, f"{full}"), f"%tap{me}", f"{me}r")
        for (at, column), register in registers.items():
            terms = [("%c_block", column), ("%c_line", at.line)]
            self._lines += _address(f"%c{register}_{me}", "%c", terms, at.first * ROW_BYTES)
            self._lines.append(
                f"  call void @llvm.x86.tilestored64(i8 {register}, ptr %c{register}_{me}, i64 {ROW_BYTES})"
            )
        self._lines.append(f"  br label %sums{me + 1}")
        self.num += 1

    def _begin(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._here = label

    @contextlib.contextmanager
    def _loop(self, name: str, num: int) -> Iterator[str]:
        """A loop of so many passes around the lines that are added; gives its variable, 0 where there is one pass."""
        if num == 1:
            yield "0"
            return
        before = self._here
        self._lines.append(f"  br label %{name}_loop")
        self._begin(f"{name}_loop")
        self._lines.append(f"  %{name} = phi i64 [ 0, %{before} ], [ %{name}_next, %{name}_last ]")
        yield f"%{name}"
        self._lines.append(f"  br label %{name}_last")
        self._begin(f"{name}_last")
        self._lines.append(f"  %{name}_next = add i64 %{name}, 1")
        self._lines.append(f"  %{name}_more = icmp ult i64 %{name}_next, {num}")
        self._lines.append(f"  br i1 %{name}_more, label %{name}_loop, label %{name}_end")
        self._begin(f"{name}_end")

    def _products(
        self,
        sums: dict[tuple[_Rows, int], int],
        operands: _Operands,
        at: tuple[str, str, str],
        tap: str,
        label: str,
    ) -> Iterator[str]:
        """The products of a stretch of channels under a tap, which is at a row and a column of the kernel; an input's
        register is loaded again where another one needs it."""
        tile, (down, along), (r, s, stretch) = self.tile, self.tile.windows, at
        reduction = tile.reduction
        rows, columns = sorted({row for row, _ in sums}), sorted({column for _, column in sums})
        a_row, loaded = along.stride * tile.row_bytes, dict[int, _Rows]()
        for j, column in enumerate(columns):
            weights, name = operands.weights[j % len(operands.weights)], f"%w{label}_{column}"
            of_tap, of_stretch = (tap, reduction.words * ROW_BYTES), (stretch, reduction.stretch_words * ROW_BYTES)
            yield from _address(name, "%w", [("%w_block", column), of_tap, of_stretch], 0)
            yield f"  call void @llvm.x86.tileloadd64(i8 {weights}, ptr {name}, i64 {ROW_BYTES})"
            for i, place in enumerate(rows):
                inputs = operands.inputs[i % len(operands.inputs)]
                if loaded.get(inputs) != place:
                    name = f"%a{label}_{column}_{place.line}_{place.first}"
                    yield f"  {name}_r = mul i64 {r}, {down.dilation}"
                    yield f"  {name}_l = add i64 {name}_r, {place.line * down.stride}"
                    terms = [(stretch, reduction.stretch_bytes), (f"{name}_l", "%a_line")]
                    terms.append((s, f"{along.dilation * tile.row_bytes}"))
                    yield from _address(name, "%a", terms, place.first * a_row)
                    yield f"  call void @llvm.x86.tileloadd64(i8 {inputs}, ptr {name}, i64 {a_row})"
                    loaded[inputs] = place
                product = f"i8 {sums[place, column]}, i8 {inputs}, i8 {weights}"
                yield f"  call void @llvm.x86.{INSTRUCTIONS[tile.precision]}({product})"


def _address(name: str, base: str, terms: Sequence[tuple[Any, Any]], further: int) -> Iterator[str]:
    """A pointer beyond another one by a sum of products and a number of bytes."""
    total = f"{further}"
    for i, (a, b) in enumerate(terms):
        yield f"  {name}_p{i} = mul i64 {a}, {b}"
        yield f"  {name}_s{i} = add i64 {name}_p{i}, {total}"
        total = f"{name}_s{i}"
    yield f"  {name} = getelementptr i8, ptr {base}, i64 {total}"


# ---- blocks that it takes the place of -------------------------------------------------------------------------------
def in_matrix_registers(function: Any, _module: Any = None, _context: Any = None) -> Any:
    """A scheduled function with calls in place of its marked blocks."""
    import tvm_ffi
    from tvm import s_tir

    def replaced(block: Any) -> Any:
        return _call(block) if MARK in block.annotations else block

    return function.with_body(tvm_ffi.structural_map(function.body, (s_tir.SBlock, replaced)))


class _Access(NamedTuple):
    """The first element of a buffer that a block reads or writes."""

    buffer: Any
    first: tuple[Any, ...]


def _call(block: Any) -> Any:
    """Give the block a call for a body. Buffers are matched, so that it sees them as they are in the end."""
    import tvm
    from tvm import s_tir, tirx

    read = _read(block)
    x, precision = read.x, _BY_STORAGE[str(read.x.buffer.dtype)]
    row = int(x.buffer.shape[-1])
    tile = MatrixTile(
        precision, read.pixels, read.blocks, read.words, row * precision.item_bytes, read.lines, read.windows
    )
    stretches, in_lines = int(x.buffer.shape[0]), len(read.sums.buffer.shape) == 4
    if in_lines:
        outputs = zip((read.lines, read.pixels), read.windows, strict=True)
        matched_x = _matched(x, (stretches, *(window.read_by(num) for num, window in outputs), row))
    elif len(x.buffer.shape) == 3:
        matched_x = _matched(x, (stretches, read.pixels, row))
    else:  # rows and columns, of which a tile's pixels may be parts: all of them
        matched_x = _matched(x)
    lines = (read.lines,) if in_lines else ()
    matched_weights = _matched(read.weights)
    matched_sums = _matched(read.sums, (read.blocks, *lines, read.pixels, _LANES))

    def bytes_between(buffer: Any, item_bytes: int, axis: int = 0) -> Any:
        return buffer.strides[axis].astype("int64") * tirx.const(item_bytes, "int64")

    def line_bytes(matched: _Matched, item_bytes: int) -> Any:
        return bytes_between(matched.region.buffer, item_bytes, 1) if in_lines else tirx.const(0, "int64")

    word_rows = read.words * math.prod(window.taps for window in read.windows)
    call = tirx.call_extern(
        "int32",
        tile.name,
        matched_x.address(),
        bytes_between(matched_x.region.buffer, precision.item_bytes),
        line_bytes(matched_x, precision.item_bytes),
        matched_weights.address(),
        tirx.const(word_rows * ROW_BYTES, "int64"),
        matched_sums.address(),
        bytes_between(matched_sums.region.buffer, _WORD_BYTES),
        line_bytes(matched_sums, _WORD_BYTES),
    )
    text = tvm.ir.StringImm(text_of(tile))
    body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, tirx.Evaluate(call))
    matches = [matched.region for matched in (matched_x, matched_weights, matched_sums)]
    return s_tir.SBlock(
        block.iter_vars,
        [matched_x.region.source, matched_weights.region.source],
        [matched_sums.region.source],
        block.name_hint,
        body,
        match_buffers=matches,
    )


class _Matched(NamedTuple):
    """A part of a buffer as a buffer, and the place of an element in it."""

    region: Any
    first: tuple[Any, ...]

    def address(self) -> Any:
        from tvm import tirx

        return tirx.address_of(tirx.BufferLoad(self.region.buffer, list(self.first)))


def _matched(access: _Access, sizes: Sequence[int] = ()) -> _Matched:
    """Match so many of each axis from the first element on; the whole buffer if no sizes are given."""
    import tvm
    from tvm import s_tir, tirx

    buffer, is_whole = access.buffer, not sizes
    sizes = sizes or [int(extent) for extent in buffer.shape]
    begins = [0] * len(sizes) if is_whole else access.first
    place = [tvm.ir.Range.from_min_extent(begin, size) for begin, size in zip(begins, sizes, strict=True)]
    strides = [tirx.Var(f"{buffer.name}_stride{i}", "int32") for i in range(len(sizes) - 1)]
    own = tirx.decl_buffer(
        list(sizes),
        buffer.dtype,
        f"{buffer.name}_tile",
        strides=[*strides, 1],
        elem_offset=tirx.Var(f"{buffer.name}_begin", "int32"),
        layout=None,
    )
    first = access.first if is_whole else tuple(0 for _ in sizes)
    return _Matched(s_tir.MatchBufferRegion(own, tirx.BufferRegion(buffer, place)), first)


class _Read(NamedTuple):
    """The first reads and writes of a block of sums, and the extents of its loops."""

    x: _Access
    weights: _Access
    sums: _Access
    blocks: int
    lines: int
    pixels: int
    words: int
    windows: tuple[Window, Window]


def _read(block: Any) -> _Read:
    """Read a block of loops around the update of a sum: `sum = dot(sum, pair(value, …, weights))`, of four values in
    int8. The loops are over channel blocks, (lines,) pixels and lanes, then words (and taps of a kernel)."""
    import tvm
    import tvm_ffi
    from tvm import tirx

    body, loops = block.body, []
    while isinstance(body, tirx.For):
        loops.append(body)
        body = body.body
    inner = body.block
    analyzer = tvm.sym.Analyzer()

    def index_at(index: Any, shifted: Any = None) -> Any:
        """An index at the first pass of all loops, or at the second one of a loop."""
        at = {loop.loop_var: loop.min + 1 if loop is shifted else loop.min for loop in loops}
        own = {var.var: substituted(value, at) for var, value in zip(inner.iter_vars, body.iter_values, strict=True)}
        return analyzer.simplify(substituted(index, own))

    def substituted(expression: Any, values: dict[Any, Any]) -> Any:
        return tvm_ffi.structural_map(expression, (tirx.Var, lambda var: values.get(var, var)))

    def first(buffer: Any, indices: Sequence[Any]) -> _Access:
        return _Access(buffer, tuple(map(index_at, indices)))

    store = inner.body
    _, term = store.value.args
    value = term.args[0]
    x, weights = (first(load.source, load.indices) for load in (value, term.args[-1]))
    sums, extents = first(store.buffer, store.indices), [int(loop.extent) for loop in loops]
    if len(extents) == 4:
        blocks, pixels, _, words = extents
        return _Read(x, weights, sums, blocks, 1, pixels, words, (Window(), Window()))

    def steps(index: Any, loop: Any) -> int:
        return int(analyzer.simplify(index_at(index, loop) - index_at(index)))

    windows = [
        Window(extents[tap], steps(value.indices[axis], loops[tap]), steps(value.indices[axis], loops[out]))
        for axis, tap, out in ((1, 5, 1), (2, 6, 2))
    ]
    blocks, lines, pixels, _, words = extents[:5]
    return _Read(x, weights, sums, blocks, lines, pixels, words, (windows[0], windows[1]))
