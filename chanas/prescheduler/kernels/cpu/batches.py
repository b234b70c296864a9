"""Kernels of one image as kernels of several: the same loops, over images that lie one after the other in memory.

Weights stay in the caches from one image to the next.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any


def over_images(function: Any, num_images: int, common: Collection[int]) -> Any:
    """A scheduled function of one image, as of `blocks.schedule_packed_operator`, over `num_images` of them.

    Args:
        common: positions of arguments that all images have in common, such as weights. The first axis of the others is
            as many times as long.
    """
    import tvm
    from tvm import s_tir, tirx

    if num_images == 1:
        return function
    function = _with_offsets(function, [i for i in range(len(function.params)) if i not in common])
    image = tirx.Var("image", "int32")
    arguments, matches = [], []
    for position, one in enumerate(function.params):
        if position in common:
            arguments.append(one)
            continue
        first, *others = (int(extent) for extent in one.shape)
        whole = tirx.decl_buffer((num_images * first, *others), one.dtype, one.name)
        begin = [tvm.ir.Range.from_min_extent(image * first, first), *(tvm.ir.Range(0, e) for e in others)]
        matches.append(s_tir.MatchBufferRegion(one, tirx.BufferRegion(whole, begin)))
        arguments.append(whole)
    body = s_tir.SBlock([], [], [], "image", function.body, match_buffers=matches)
    loop = tirx.For(image, 0, num_images, tirx.ForKind.SERIAL, s_tir.SBlockRealize([], True, body))
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", loop))
    return tirx.PrimFunc(arguments, root, attrs=function.attrs)


def _with_offsets(function: Any, positions: Collection[int]) -> Any:
    """The function with arguments that may lie inside other buffers. TVM's own ways to change a buffer everywhere in a
    function keep its offset, so it is changed in the function's saved form."""
    import tvm

    saved = json.loads(tvm.ir.save_json(function))
    nodes = saved["nodes"]
    parameters = nodes[nodes[saved["root_index"]]["data"]["params"]]["data"]
    for position in positions:
        buffer = nodes[parameters[position]]["data"]
        offset = nodes[nodes[buffer["ty"]]["data"]["elem_offset"]]
        assert offset["type"] == "ir.IntImm"
        offset["type"] = "ir.Var"
        offset["data"] = {"span": 0, "ty": offset["data"]["ty"], "name": buffer["name"]}
    return tvm.ir.load_json(json.dumps(saved))
