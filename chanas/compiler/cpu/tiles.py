"""Sums in matrix registers (Intel's AMX): scheduled blocks that are marked so, and the code that takes their place.

The block of a tile of a 1×1 convolution's sums stays what it is, loops over dot products, until it is lowered: pixels
times channel blocks, all of the reduction. `in_matrix_registers` puts a call in its place, of a function whose text,
in LLVM's language, comes with it.

    a  R pixels of all channel blocks of the input: rows of 16 numbers, bfloat16 or uint8
    w  words of each channel block of the output: rows of 16 words, of two bfloat16 or four int8, 64 bytes
    c  R pixels of each channel block of the output: rows of 16 sums, float32 or int32, 64 bytes

An instruction multiplies up to 16 rows of a by as many rows of w as a row of a has words: the channels of one block of
the input. Pixels are shared out among as few row tiles as take them all; where these don't divide R they overlap, and
write the same sums twice.

Facts: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18. A
process asks Linux for the registers once, here before they are first used (`MATRIX_REQUEST`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from chanas.core.processor import MATRIX_REQUEST
from chanas.operators.precision import BFLOAT16, INT8, Precision

MARK = "chanas.tiles"
"""Annotation of blocks whose sums are in matrix registers."""
MAX_ROWS = 16
"""Pixels of a matrix register."""
_LANES, _WORD_BYTES, _WORD_ROW_BYTES = 16, 4, 64
# Where a system call has its number, two arguments and its answer, and what it changes.
_CALL_REGISTERS = "={ax},{ax},{di},{si},~{rcx},~{r11},~{memory},~{dirflag},~{fpsr},~{flags}"
# Registers of sums, then of the input and of weights; the last two where a reduction has a rest.
_SUMS, _NUM_REGISTERS = 4, 8


class Numbers(NamedTuple):
    """Numbers that matrix registers multiply: bytes of a row of the input, and the instruction."""

    row_bytes: int
    instruction: str

    @property
    def words(self) -> int:
        """Words of a row."""
        return self.row_bytes // _WORD_BYTES


NUMBERS = {BFLOAT16: Numbers(_LANES * BFLOAT16.item_bytes, "tdpbf16ps"), INT8: Numbers(_LANES, "tdpbusd")}
"""By precision; of int8 the numbers of the input have no sign, and weights have one."""
_BY_STORAGE = {precision.storage: precision for precision in NUMBERS}


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
class _Operands(NamedTuple):
    """Registers of the input and of weights, taken in turn, and the words of a product."""

    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    words: int


def name_of(precision: Precision, pixels: int, blocks: int, words: int) -> str:
    """The name of the function of so many pixels, channel blocks, and words of the reduction."""
    return f"chanas_tiles_{precision.dtype}_{pixels}_{blocks}_{words}"


def text_of(precision: Precision, pixels: int, blocks: int, words: int) -> str:
    """The function `(a, bytes from block to block, w, the same, c, the same)` and what it needs."""
    numbers = NUMBERS[precision]
    tiles, (full, rest) = row_tiles(pixels), divmod(words, numbers.words)
    whole = _Operands((4,), (5,), numbers.words) if rest else _Operands((4, 5), (6, 7), numbers.words)
    part = _Operands((6,), (7,), rest)
    lines = _Lines(numbers)
    for rows in _by(2, tiles.firsts):
        for columns in _by(_SUMS // len(rows), range(blocks)):
            lines.sums(rows, columns, full, whole, part)
    request = ", ".join(f"i64 {number}" for number in MATRIX_REQUEST)
    operands = [operand for operand in (whole, part) if operand.words]
    return f"""
@chanas_tiles_shapes = private unnamed_addr constant [64 x i8] c"{_shapes(tiles.rows, operands)}", align 64
@chanas_tiles_asked = linkonce_odr hidden global i8 0
define linkonce_odr i32 @{name_of(precision, pixels, blocks, words)}(
    ptr %a, i64 %a_block, ptr %w, i64 %w_block, ptr %c, i64 %c_block) {{
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
declare void @llvm.x86.{numbers.instruction}(i8 immarg, i8 immarg, i8 immarg)
"""


def _by(num: int, values: Sequence[int]) -> list[Sequence[int]]:
    """Parts of so many values, the last one of those that are left."""
    return [values[i : i + num] for i in range(0, len(values), num)]


def _shapes(rows: int, operands: Sequence[_Operands]) -> str:
    """The shapes of all registers as the processor reads them, in LLVM's way of writing bytes."""
    shapes = dict.fromkeys(range(_SUMS), (rows, _WORD_ROW_BYTES))
    for operand in operands:
        shapes |= dict.fromkeys(operand.inputs, (rows, _WORD_BYTES * operand.words))
        shapes |= dict.fromkeys(operand.weights, (operand.words, _WORD_ROW_BYTES))
    config = bytearray(64)
    config[0] = 1  # palette
    for register, (num_rows, row_bytes) in shapes.items():
        config[16 + 2 * register : 18 + 2 * register] = row_bytes.to_bytes(2, "little")
        config[48 + register] = num_rows
    return "".join(f"\\{byte:02X}" for byte in config)


class _Lines:
    """The lines of a function, sums after sums, each from label `sumsN` to `sumsN+1`."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self._lines: list[str] = []
        self.num = 0

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    def sums(self, rows: Sequence[int], columns: Sequence[int], full: int, whole: _Operands, part: _Operands) -> None:
        """Sums of row tiles times channel blocks: over `full` blocks of the input, then over what is left of one."""
        me = self.num
        registers = {place: i for i, place in enumerate(itertools.product(rows, columns))}
        self._lines.append(f"sums{me}:")
        self._lines += [f"  call void @llvm.x86.tilezero(i8 {register})" for register in registers.values()]
        last = f"sums{me}"
        if full:
            self._lines += [f"  br label %loop{me}", f"loop{me}:"]
            self._lines.append(f"  %k{me} = phi i64 [ 0, %{last} ], [ %next{me}, %loop{me} ]")
            self._lines += self._products(registers, f"%k{me}", whole, f"{me}")
            self._lines.append(f"  %next{me} = add i64 %k{me}, 1")
            self._lines.append(f"  %more{me} = icmp ult i64 %next{me}, {full}")
            self._lines += [f"  br i1 %more{me}, label %loop{me}, label %end{me}", f"end{me}:"]
        if part.words:
            self._lines += self._products(registers, f"{full}", part, f"{me}r")
        for (first, column), register in registers.items():
            self._lines += _address(f"%c{register}_{me}", "%c", [("%c_block", column)], first * _WORD_ROW_BYTES)
            self._lines.append(
                f"  call void @llvm.x86.tilestored64(i8 {register}, ptr %c{register}_{me}, i64 {_WORD_ROW_BYTES})"
            )
        self._lines.append(f"  br label %sums{me + 1}")
        self.num += 1

    def _products(self, sums: dict[tuple[int, int], int], block: str, operands: _Operands, label: str) -> Iterator[str]:
        """The products of one block of the input; an input's register is loaded again where another one needs it."""
        row_bytes, instruction = self.numbers
        rows, columns = (sorted({place[axis] for place in sums}) for axis in (0, 1))
        loaded: dict[int, int] = {}
        for j, column in enumerate(columns):
            weights, at = operands.weights[j % len(operands.weights)], f"%w{label}_{column}"
            yield from _address(at, "%w", [("%w_block", column), (block, self.numbers.words * _WORD_ROW_BYTES)], 0)
            yield f"  call void @llvm.x86.tileloadd64(i8 {weights}, ptr {at}, i64 {_WORD_ROW_BYTES})"
            for i, first in enumerate(rows):
                inputs = operands.inputs[i % len(operands.inputs)]
                if loaded.get(inputs) != first:
                    at = f"%a{label}_{column}_{first}"
                    yield from _address(at, "%a", [(block, "%a_block")], first * row_bytes)
                    yield f"  call void @llvm.x86.tileloadd64(i8 {inputs}, ptr {at}, i64 {row_bytes})"
                    loaded[inputs] = first
                yield f"  call void @llvm.x86.{instruction}(i8 {sums[first, column]}, i8 {inputs}, i8 {weights})"


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

    x, weights, sums, words = _accesses(block)
    blocks, pixels = (int(extent.extent) for extent in block.writes[0].region[:2])
    row, precision = int(x.buffer.shape[-1]), _BY_STORAGE[str(x.buffer.dtype)]
    if len(x.buffer.shape) == 3:
        matched_x = _matched(x, (int(x.buffer.shape[0]), pixels, row))
    else:  # rows and columns, of which a tile's pixels may be parts: all of them
        matched_x = _matched(x)
    matched_weights, matched_sums = _matched(weights), _matched(sums, (blocks, pixels, row))

    def bytes_between(buffer: Any, item_bytes: int) -> Any:
        return buffer.strides[0].astype("int64") * tirx.const(item_bytes, "int64")

    call = tirx.call_extern(
        "int32",
        name_of(precision, pixels, blocks, words),
        matched_x.address(),
        bytes_between(matched_x.region.buffer, precision.item_bytes),
        matched_weights.address(),
        tirx.const(words * _WORD_ROW_BYTES, "int64"),
        matched_sums.address(),
        bytes_between(matched_sums.region.buffer, 4),
    )
    text = tvm.ir.StringImm(text_of(precision, pixels, blocks, words))
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


def _accesses(block: Any) -> tuple[_Access, _Access, _Access, int]:
    """First elements of input, weights and sums, and words of the reduction, of a block of loops around the update of
    a sum: `sum = dot(sum, pair(value, …, weights))`, of four values in int8."""
    import tvm
    import tvm_ffi
    from tvm import tirx

    body, begins, words = block.body, {}, 0
    while isinstance(body, tirx.For):
        begins[body.loop_var], words = body.min, int(body.extent)
        body = body.body
    inner = body.block
    analyzer = tvm.sym.Analyzer()

    def substituted(expression: Any, values: dict[Any, Any]) -> Any:
        return tvm_ffi.structural_map(expression, (tirx.Var, lambda var: values.get(var, var)))

    own = {var.var: substituted(value, begins) for var, value in zip(inner.iter_vars, body.iter_values, strict=True)}

    def first(buffer: Any, indices: Sequence[Any]) -> _Access:
        return _Access(buffer, tuple(analyzer.simplify(substituted(index, own)) for index in indices))

    store = inner.body
    _, term = store.value.args
    x, weights = (first(load.source, load.indices) for load in (term.args[0], term.args[-1]))
    return x, weights, first(store.buffer, store.indices), words
