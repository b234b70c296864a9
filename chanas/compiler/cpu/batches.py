"""Kernels of one image as kernels of several, and of maps that are parts of others: the same loops, over images that
lie one after the other in memory.

Weights stay in the caches from one image to the next.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from chanas.compiler.cpu.generic import MIN_PARALLEL
from chanas.compiler.program import Part, Value

NO_PARTS: Mapping[int, Part] = MappingProxyType({})


def over_images(function: Any, num_images: int, common: Collection[int], parts: Mapping[int, Part] = NO_PARTS) -> Any:
    """A scheduled function of one image, as of `blocks.schedule_packed_operator`, over `num_images` of them.

    Args:
        common: positions of arguments that all images have in common, such as weights. The first axis of the others is
            as many times as long.
        parts: of arguments, by their positions, that are parts of other maps: these are the arguments then
    """
    import tvm
    import tvm_ffi
    from tvm import s_tir, tirx

    if num_images == 1 and not parts:
        return function
    image = tirx.Var("image", "int32")
    arguments, matches, ones = list(function.params), [], {}
    for position, given in enumerate(function.params):
        if position in common:
            continue
        own, *others = (int(extent) for extent in given.shape)
        part = parts.get(position, Part(0, own))
        whole = tirx.decl_buffer((num_images * part.blocks, *others), given.dtype, given.name, layout=None)
        begin = tirx.Var(f"{given.name}_begin", "int32")  # without, TVM takes it that an image is at the buffer's start
        one = tirx.decl_buffer(given.shape, given.dtype, given.name, elem_offset=begin, layout=None)
        begin_block = image * part.blocks + part.first
        place = [tvm.ir.Range.from_min_extent(begin_block, own), *(tvm.ir.Range(0, e) for e in others)]
        matches.append(s_tir.MatchBufferRegion(one, tirx.BufferRegion(whole, place)))
        arguments[position], ones[given] = whole, one
    each = tvm_ffi.structural_map(function.body, (tirx.Buffer, lambda buffer: ones.get(buffer, buffer)), order="pre")
    body = s_tir.SBlock([], [], [], "image", each, match_buffers=matches)
    loop = tirx.For(image, 0, num_images, tirx.ForKind.SERIAL, s_tir.SBlockRealize([], True, body))
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", loop))
    return tirx.PrimFunc(arguments, root, attrs=function.attrs)


def take_part(builder: Any, whole: Any, part: Part, blocks: int) -> Any:
    """The expression of a map of so many channel blocks of each image, from the memory that it is in."""
    if (part.first, part.blocks) == (0, blocks):
        return whole
    from tvm import te

    images = int(whole.ty.shape[0]) // part.blocks

    def compute(x: Any) -> Any:
        shape = (images * blocks, *x.shape[1:])
        return te.compute(
            shape, lambda b, m, v: x[b // blocks * part.blocks + part.first + b % blocks, m, v], name="part"
        )

    return builder.emit_te(compute, whole, primfunc_name_hint="part")


def copying(value: Value, part: Part, parallel: bool) -> Any:
    """A scheduled function from a map to its place in another one's memory."""
    from tvm import s_tir, te

    rows, pixels, lanes = value.memory_shape
    x = te.placeholder((rows // value.images, pixels, lanes), value.dtype, name="x")
    copy = te.compute(x.shape, lambda *indices: x[indices], name="copy")
    sch = s_tir.Schedule(te.create_prim_func([x, copy]), error_render_level="none")
    b, m, v = sch.get_loops(sch.get_sblock("copy"))
    sch.vectorize(v)
    if parallel and rows * pixels * lanes >= MIN_PARALLEL:
        sch.parallel(sch.fuse(b, m))
    return over_images(sch.mod["main"], value.images, (), {1: part})
