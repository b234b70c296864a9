"""Concatenations and slices of channels that move nothing: views of memory that other maps are in.

Channel blocks of a map lie one after the other in memory, so that a map of whole blocks is one piece of the map that it
is joined to: what computes it writes it there. It lies in one joined map only; others that it is in copy it. Maps whose
channels are neighbours in some memory are views of that: slices, and concatenations that grow, as each of DenseNet's
is a part of the last one of its stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from chanas.compiler.program import MapView, Part, PartOf, Program, TunedOperation
from chanas.operators.layout import num_blocks

Channels = Sequence[tuple[int, int]]
"""Sources of the channels of a map: the value that each comes from, and its number there."""


def view_maps(program: Program, gathered: Mapping[int, Channels]) -> None:
    """Make maps whose channels come from other values views, where they can be.

    Args:
        gathered: such maps, and their channels
    """
    for number, channels in sorted(gathered.items(), key=lambda item: -len(item[1])):
        copied: dict[int, Part] = {}
        at = _neighbours(channels, program)
        if at is None:
            sources = _whole_sources(channels, program) or {}
            own = {source: place for source, place in sources.items() if source not in program.parts}
            if not any(isinstance(program.operation(source), TunedOperation) for source in own):
                continue  # nothing that can write there
            program.parts |= {source: PartOf(number, place) for source, place in own.items()}
            at = PartOf(number, Part(0, num_blocks(len(channels), program.lanes)))
            copied = {source: place for source, place in sources.items() if source not in own}
        program.parts[number] = at
        reads = tuple(dict.fromkeys(source for source, _ in channels))
        program.operations[number - len(program.inputs)] = MapView(reads, program.value(number), tuple(copied.items()))


def _neighbours(channels: Channels, program: Program) -> PartOf | None:
    """The memory in which all these channels are neighbours, and where they begin; None if there is none."""
    places = [_place(source, number, program) for source, number in channels]
    whole, begin = places[0]
    if begin % program.lanes or places != [(whole, begin + i) for i in range(len(places))]:
        return None
    return PartOf(whole, Part(begin // program.lanes, program.value(whole).blocks))


def _place(source: int, channel: int, program: Program) -> tuple[int, int]:
    """The value whose memory a channel of another one is in, and its number there."""
    at = program.parts.get(source)
    return (source, channel) if at is None else (at.whole, at.place.first * program.lanes + channel)


def _whole_sources(channels: Channels, program: Program) -> dict[int, Part] | None:
    """The values that a map is made of, and the place of each; None unless all channels of each are there, once, and it
    begins a block."""
    found: dict[int, Part] = {}
    begin, blocks = 0, num_blocks(len(channels), program.lanes)
    for source, group in itertools.groupby(channels, key=lambda channel: channel[0]):
        numbers = [number for _, number in group]
        if source in found or begin % program.lanes or numbers != list(range(program.value(source).channels)):
            return None
        found[source] = Part(begin // program.lanes, blocks)
        begin += len(numbers)
    return found
