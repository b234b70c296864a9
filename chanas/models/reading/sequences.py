"""Sequences of values, whose length is known: they are put together and taken apart while the network is read."""

from __future__ import annotations

from chanas.models.graph import Constant, Read
from chanas.models.reading.call import Call, Listed, reads
from chanas.models.reading.making import constant
from chanas.models.reading.moving import parts


@reads("SplitToSequence", attributes=["axis", "keepdims"])
def _split(call: Call) -> Listed:
    """Parts along an axis, of one length or of several; of length 1 without that axis, unless it is kept."""
    before = call.shape(0)
    axis = call.axis("axis", 0, len(before))
    extent = before[axis]
    lengths = call.whole(1, "parts") if call.has(1) else (1,)
    if not call.has(1) or not call.shape(1):
        lengths = tuple(min(lengths[0], extent - begin) for begin in range(0, extent, lengths[0]))
    found = parts(call, axis, lengths)
    if not call.has(1) and not call.attribute("keepdims", 1):
        found = [call.make.without_axis(part, axis) for part in found]
    return Listed(tuple(found))


@reads("SequenceConstruct")
def _construct(call: Call) -> Listed:
    return Listed(tuple(call.input(i) for i in range(len(call.inputs))))


@reads("SequenceEmpty", attributes=["dtype"])
def _empty(_call: Call) -> Listed:
    return Listed(())


@reads("SequenceLength")
def _length(call: Call) -> Constant:
    return constant(len(call.items(0)), "int64")


@reads("SequenceAt")
def _at(call: Call) -> Read:
    items = call.items(0)
    return items[_place(call, 1, len(items), len(items) - 1)]


@reads("SequenceInsert")
def _insert(call: Call) -> Listed:
    items = list(call.items(0))
    items.insert(_place(call, 2, len(items), len(items)) if call.has(2) else len(items), call.input(1))
    return Listed(tuple(items))


@reads("SequenceErase")
def _erase(call: Call) -> Listed:
    items = list(call.items(0))
    del items[_place(call, 1, len(items), len(items) - 1) if call.has(1) else -1]
    return Listed(tuple(items))


@reads("ConcatFromSequence", attributes=["axis", "new_axis"])
def _concat(call: Call) -> Read:
    """The values one after the other along an axis, which may be a new one."""
    make, items = call.make, call.items(0)
    is_new = call.attribute("new_axis", 0)
    axis = call.axis("axis", 0, make.rank(items[0]) + is_new)
    return make.stack(items, axis) if is_new else make.concat(items, axis)


def _place(call: Call, position: int, num: int, most: int) -> int:
    """The place in a sequence of `num` values that an input names, up to `most`, counted from the front."""
    place = call.known_number(position, "place in the sequence")
    if not -num <= place <= most:
        raise call.refused(f"names place {place} of a sequence of {num}")
    return place if place >= 0 else place + num
