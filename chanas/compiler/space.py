"""The vocabulary of schedule spaces: every schedule of a workload as one vector of integers (paper, section 3.5,
figure 8, table 1).

A point lists, in the paper's order, the split factors of each loop, outer to inner, then loop order, fusion, unrolling,
and where producers are computed. Factors divide their loop; those of a loop over tiles may leave a smaller last tile.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, get_type_hints

import numpy as np

from chanas.errors import ScheduleError
from chanas.files.writing import parse_json
from chanas.operators.workload import Workload

# Combinations of a space whose points are listed; of a larger one so many are drawn, in so many attempts for each.
_MAX_LISTED, _MAX_DRAWN, _MAX_DRAWS_EACH = 1 << 18, 2048, 64

# Steps of equal tiles over those of a loop that they do not divide, at most: a last tile that is much smaller leaves
# registers, and multiply-add units, idle.
_MAX_UNEVEN = 1.25

Point = tuple[int, ...]
Named = dict[str, tuple[int, ...]]
"""The groups of a point by the names of their coordinates, as tuning sees it."""
EXTRA_KNOBS = ("auto_unroll", "unroll_explicit")
"""Choices that any schedule of a processor has besides those of its family, in the order in which they follow in a
point; a point without them has 0. Inner loops of up to so many steps in all are written out (0: none but those that the
family writes out), by LLVM or, with `unroll_explicit`, in the program."""
Decoded = TypeVar("Decoded")
"""A point as its family's schedules see it: a dataclass whose fields declare their coordinates (`loop`, `choice`)."""


class Split(NamedTuple):
    """Factors of a loop that is split in two."""

    outer: int
    inner: int


def loop(name: str) -> Any:
    """A field of a point that has the factors of a loop, as a named tuple."""
    return field(metadata={"coordinate": f"split_{name}", "absent": None})


def choice(name: str, absent: int = 0) -> Any:
    """A field of a point that has a choice, as a number, an enumeration or a truth; `absent` where a space does not
    have the coordinate."""
    return field(metadata={"coordinate": name, "absent": (absent,)})


def read_point(text: str) -> Point:
    """A point from JSON. Raises ValueError: the text is no list of whole numbers."""
    point = parse_json(text)
    if not isinstance(point, list) or not all(type(n) is int for n in point):
        raise ValueError(f"expected a schedule point, got {text[:40]}")
    return tuple(point)


@functools.lru_cache(maxsize=4096)
def factorisations(extent: int, parts: int, innermost_max: int) -> tuple[tuple[int, ...], ...]:
    """All tuples of `parts` positive factors with product `extent` and a last factor of at most `innermost_max`."""
    if parts == 1:
        return ((extent,),) if extent <= innermost_max else ()
    found = []
    for last in range(1, min(extent, innermost_max) + 1):
        if extent % last == 0:
            found += [(*head, last) for head in factorisations(extent // last, parts - 1, extent)]
    return tuple(found)


def with_smaller_last(extent: int, inner: Iterable[int]) -> tuple[Split, ...]:
    """The splits of a loop into tiles of some sizes, the last of which is smaller: 17 → (3, 6), tiles of 6, 6 and 5."""
    return tuple(Split(-(-extent // size), size) for size in inner if size < extent and extent % size)


@dataclass(frozen=True)
class Coordinate:
    """One part of a point: a group of integers that takes one of `options`. Splits have one integer per sub-loop; their
    first option divides the loop.

    cuts_last  a split in two whose last tile may be smaller than the others
    """

    name: str
    options: tuple[tuple[int, ...], ...]
    cuts_last: bool = False

    @property
    def width(self) -> int:
        return len(self.options[0])

    @property
    def extent(self) -> int | None:
        """The extent of the loop that a split divides; None of a choice."""
        return math.prod(self.options[0]) if self.name.startswith("split_") else None

    def means(self, group: tuple[int, ...]) -> bool:
        """True if a group of integers is an option, or for a split any factors of the loop."""
        if self.extent is None:
            return group in self.options
        if len(group) != self.width or min(group) < 1:
            return False
        return math.prod(group) == self.extent or (self.cuts_last and group[0] == -(-self.extent // group[1]))

    @classmethod
    def split(cls, name: str, extent: int, parts: int = 2, innermost_max: int = 1 << 30) -> Coordinate:
        """The factorisations of a loop."""
        return cls(f"split_{name}", factorisations(extent, parts, innermost_max))

    @classmethod
    def tiles(cls, name: str, extent: int, innermost_max: int, sizes: Collection[int]) -> Coordinate:
        """The factorisations of a loop over tiles; where none has one of the `sizes`, as of a prime number, also splits
        with a smaller last tile: tiles of the least of the sizes or more, of `_MAX_UNEVEN` times the steps at most."""
        even = factorisations(extent, 2, innermost_max)
        uneven: tuple[Split, ...] = ()
        if not any(inner in sizes for _, inner in even):
            found = with_smaller_last(extent, range(min(sizes, default=1), innermost_max + 1))
            uneven = tuple(split for split in found if math.prod(split) <= _MAX_UNEVEN * extent)
        return cls(f"split_{name}", (*even, *uneven), cuts_last=True)

    @classmethod
    def choice(cls, name: str, *values: int) -> Coordinate:
        """A free choice among a few integers."""
        return cls(name, tuple((int(v),) for v in values))


@dataclass(frozen=True)
class ScheduleSpace(Generic[Decoded]):
    """The points of one workload on one target.

    point_type  the dataclass of a point as its schedules see it
    is_legal    rules out combinations (too many accumulators, say)
    only        of a space of given points, these (`restricted`)
    """

    workload: Workload
    coordinates: tuple[Coordinate, ...]
    point_type: type[Decoded] = field(compare=False)
    is_legal: Callable[[Decoded], bool] = field(compare=False)
    only: tuple[Point, ...] | None = None

    extra_knobs: ClassVar[tuple[str, ...]] = EXTRA_KNOBS

    @property
    def length(self) -> int:
        """Integers in a point."""
        return sum(c.width for c in self.coordinates)

    @functools.cached_property
    def _declared(self) -> tuple[tuple[str, Callable[..., Any], tuple[int, ...] | None], ...]:
        """Coordinate, type, and what stands in place of an absent coordinate, of each field of a point."""
        types = get_type_hints(self.point_type)
        fields: Sequence[dataclasses.Field[Any]] = dataclasses.fields(self.point_type)  # type: ignore[arg-type]
        return tuple((f.metadata["coordinate"], types[f.name], f.metadata["absent"]) for f in fields)

    def read(self, named: Named) -> Decoded:
        """A point as its schedules see it, from its groups."""
        return self.point_type(
            *[
                make(*(named[name] if absent is None else named.get(name, absent)))
                for name, make, absent in self._declared
            ]
        )

    def legal(self, named: Named) -> bool:
        """True if options of the coordinates, one of each, are a point together."""
        if self.only is not None:
            return self.encode(named) in self._only
        return self.is_legal(self.read(named))

    def decode(self, point: Point) -> Decoded:
        """A point as its schedules see it.

        Raises:
            ScheduleError: as for `groups`.
        """
        return self.read(self.groups(point))

    def takes(self, coordinate: Coordinate, group: tuple[int, ...]) -> bool:
        """True if a group of integers means something for a coordinate, whether it is an option or not."""
        return coordinate.means(group)

    def groups(self, point: Point) -> Named:
        """The groups of a point by name. It need not be in the space: whatever divides the loops is a schedule, and
        further integers are those of `EXTRA_KNOBS`.

        Raises:
            ScheduleError: the point has the wrong length, or a group that means nothing.
        """
        further = [name for name in self.extra_knobs if name not in {c.name for c in self.coordinates}]
        if not self.length <= len(point) <= self.length + len(further):
            raise ScheduleError(
                f"expected a point of {self.length} integers for workload {self.workload.key}, got {len(point)}"
            )
        named: Named = {}
        start = 0
        for coordinate in self.coordinates:
            group = tuple(point[start : start + coordinate.width])
            if not self.takes(coordinate, group):
                raise ScheduleError(f"{coordinate.name}={list(group)} is not an option of workload {self.workload.key}")
            named[coordinate.name] = group
            start += coordinate.width
        for name, value in zip(further, point[start:], strict=False):
            if value < 0:
                raise ScheduleError(f"{name}={value} is not an option of workload {self.workload.key}")
            named[name] = (value,)
        return named

    def encode(self, named: Named) -> Point:
        """Inverse of `groups`."""
        return tuple(itertools.chain.from_iterable(named[c.name] for c in self.coordinates))

    def restricted(self, points: Iterable[Point]) -> Self:
        """The same space of which only some points are legal, in the order of its coordinates' options."""
        places = [{group: i for i, group in enumerate(c.options)} for c in self.coordinates]

        def place(point: Point) -> list[int]:
            return [known[group] for known, group in zip(places, self.groups(point).values(), strict=True)]

        return dataclasses.replace(self, only=tuple(sorted(set(points), key=place)))

    @functools.cached_property
    def _only(self) -> frozenset[Point]:
        return frozenset(self.only or ())

    def means(self, point: Point) -> bool:
        """True if a point is a schedule of the workload, in the space or not (`groups`)."""
        try:
            self.groups(point)
        except ScheduleError:
            return False
        return True

    def contains(self, point: Point) -> bool:
        """True if a point is in the space: its groups are options, and all of them together legal."""
        if len(point) != self.length:
            return False
        try:
            named = self.groups(point)
        except ScheduleError:
            return False
        return all(named[c.name] in c.options for c in self.coordinates) and self.legal(named)

    @functools.cached_property
    def points(self) -> tuple[Point, ...]:
        """All legal points; the spaces of these operators are small enough to be listed (at most a few thousand)."""
        if self.only is not None:
            return self.only
        every = zip(itertools.product(*(c.options for c in self.coordinates)), self._read_all(), strict=True)
        return tuple(tuple(itertools.chain.from_iterable(groups)) for groups, read in every if self.is_legal(read))

    def _read_all(self) -> Iterator[Decoded]:
        """All combinations of options, in their order, as schedules see them; each option is read once."""
        options = {c.name: c.options for c in self.coordinates}
        columns: dict[str, Sequence[Any]] = dict(options)
        for name, make, absent in self._declared:
            groups = options[name] if absent is None else options.get(name, (absent,))
            columns[name] = [make(*group) for group in groups]
        places = [list(columns).index(name) for name, _, _ in self._declared]
        for values in itertools.product(*columns.values()):
            yield self.point_type(*[values[i] for i in places])

    @property
    def num_combinations(self) -> int:
        """Combinations of options, legal or not."""
        return math.prod(len(c.options) for c in self.coordinates)

    @property
    def is_listed(self) -> bool:
        """False of a space that is too large for all its points to be listed."""
        return self.only is not None or self.num_combinations <= _MAX_LISTED

    @property
    def num_points(self) -> int:
        """Count the legal points; for a space that is too large to be listed, an upper bound."""
        return len(self.points) if self.is_listed else self.num_combinations

    @property
    def middle(self) -> Point:
        """A fixed point in the middle of the space."""
        if not self.is_listed:
            return self.sample(1, np.random.default_rng(0))[0]
        return self.points[len(self.points) // 2]

    def shuffled(self, rng: np.random.Generator) -> list[Point]:
        """All points in random order; of a space that is too large to be listed, some."""
        return self.sample(len(self.points) if self.is_listed else _MAX_DRAWN, rng)

    def sample(self, num: int, rng: np.random.Generator) -> list[Point]:
        """Up to `num` distinct random points."""
        if self.is_listed:
            return [self.points[i] for i in rng.permutation(len(self.points))[:num]]
        found: dict[Point, None] = {}
        for _ in range(_MAX_DRAWS_EACH * num):
            if len(found) >= num:
                break
            named = {c.name: c.options[rng.integers(len(c.options))] for c in self.coordinates}
            if self.legal(named):
                found[self.encode(named)] = None
        return list(found)
