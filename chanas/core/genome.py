"""Architectures as rows of integers, so that sampling, mutation, crossover and cost sums work on whole populations.

Notation: N architectures, S stages, D = space.max_depth, P = S·D block slots (slot = stage·D + position), Q dtypes that
blocks may be in (1 where there is no choice), and
    genomes  int16[N, L]  columns: resolution, width multiplier, S depths, P kernel sizes, P expand ratios, and where
                          Q > 1 the dtypes of P blocks, then of the stem, the first block, the head and the classifier;
every entry is an index into the space's choices, and -1 in the columns of slots beyond the depth.
A genome with its unused slots at -1 is canonical: equal architectures have equal rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chanas.core.arch import NUM_FIXED, Architecture, SearchSpace, SubSpace
from chanas.core.arrays import BoolArray, FloatArray, IntArray
from chanas.core.blocks import BlockConfig
from chanas.errors import ArchitectureError

Genomes = npt.NDArray[np.int16]


@dataclass(frozen=True)
class GenomeLayout:
    """The position of each choice of a space in a genome, and its number of values."""

    space: SearchSpace

    @property
    def num_stages(self) -> int:
        return self.space.num_stages

    @property
    def num_slots(self) -> int:
        return self.space.num_stages * self.space.max_depth

    @property
    def num_dtypes(self) -> int:
        """Q."""
        return len(self.space.dtypes) or 1

    @property
    def plain_length(self) -> int:
        """Columns before those of dtypes."""
        return 2 + self.num_stages + 2 * self.num_slots

    @property
    def length(self) -> int:
        """L."""
        return self.plain_length + (self.num_slots + NUM_FIXED if self.space.dtypes else 0)

    @property
    def depths(self) -> slice:
        return slice(2, 2 + self.num_stages)

    @property
    def kernels(self) -> slice:
        start = 2 + self.num_stages
        return slice(start, start + self.num_slots)

    @property
    def expands(self) -> slice:
        start = 2 + self.num_stages + self.num_slots
        return slice(start, start + self.num_slots)

    @property
    def dtypes(self) -> slice:
        """Columns of the dtypes of blocks in slots; none where there is no choice."""
        return slice(self.plain_length, min(self.plain_length + self.num_slots, self.length))

    @property
    def fixed_dtypes(self) -> slice:
        """Columns of the dtypes of stem, first block, head and classifier; none where there is no choice."""
        return slice(self.dtypes.stop, self.length)

    @property
    def num_choices(self) -> IntArray:
        """int64[L]: how many values each column has."""
        s = self.space
        return np.array(
            [len(s.resolutions), len(s.width_multipliers)]
            + [len(s.depths)] * self.num_stages
            + [len(s.kernel_sizes)] * self.num_slots
            + [len(s.expand_ratios)] * self.num_slots
            + [self.num_dtypes] * (self.length - self.plain_length)
        )

    def active(self, genomes: Genomes) -> BoolArray:
        """bool[N, P]: which block slots are in use."""
        depth = np.asarray(self.space.depths)[genomes[:, self.depths]]
        position = np.arange(self.space.max_depth)
        used: BoolArray = (position < depth[:, :, None]).reshape(len(genomes), self.num_slots)
        return used


def canonical(space: SearchSpace, genomes: Genomes) -> Genomes:
    """A copy with -1 in the columns of unused slots."""
    layout = GenomeLayout(space)
    unused = ~layout.active(genomes)
    out = genomes.copy()
    for columns in (layout.kernels, layout.expands, layout.dtypes):
        if columns.stop > columns.start:
            out[:, columns][unused] = -1
    return out


def plain(space: SearchSpace, genomes: Genomes) -> Genomes:
    """A copy with all blocks in the first dtype: of what accuracies in float32 are known and predicted."""
    layout = GenomeLayout(space)
    out = genomes.copy()
    out[:, layout.plain_length :] = 0
    return canonical(space, out)


def dtypes_in_order(space: SearchSpace, genomes: Genomes) -> IntArray:
    """int64[N, P + 4]: the dtypes of stem, first block, slots, head and classifier; an unused slot has that of the one
    before."""
    layout = GenomeLayout(space)
    slots, fixed = genomes[:, layout.dtypes], genomes[:, layout.fixed_dtypes]
    at = np.maximum.accumulate(np.where(slots >= 0, np.arange(layout.num_slots), 0), axis=1)  # a stage has a first one
    used = np.take_along_axis(slots, at, axis=1)
    found: IntArray = np.concatenate([fixed[:, :2], used, fixed[:, 2:]], axis=1).astype(np.int64)
    return found


def encode(space: SearchSpace, architectures: Sequence[Architecture]) -> Genomes:
    """int16[N, length] from architectures.

    Of a space whose blocks may be in several dtypes, blocks of an architecture without any are in the first.

    Raises:
        ArchitectureError: one of them is not in `space`, or has dtypes where that has none.
    """
    layout = GenomeLayout(space)
    out = np.full((len(architectures), layout.length), -1, dtype=np.int16)
    named = {dtype: i for i, dtype in enumerate(space.dtypes)}
    for row, a in zip(out, architectures, strict=True):
        space.check(a)
        row[0] = space.resolutions.index(a.resolution)
        row[1] = space.width_multipliers.index(a.width_multiplier)
        row[layout.depths] = [space.depths.index(d) for d in a.depths]
        for stage, blocks in enumerate(a.stages):
            for position, (kernel_size, expand_ratio) in enumerate(blocks):
                slot = stage * space.max_depth + position
                row[layout.kernels.start + slot] = space.kernel_sizes.index(kernel_size)
                row[layout.expands.start + slot] = space.expand_ratios.index(expand_ratio)
        if a.dtypes and not named:
            raise ArchitectureError(f"architecture {a.key} has dtypes of blocks, and space '{space.name}' has none")
        if named:
            dtypes = [named[d] for d in a.dtypes] or [0] * (sum(a.depths) + NUM_FIXED)
            in_use = row[layout.kernels] >= 0
            row[layout.dtypes][in_use] = dtypes[2:-2]
            row[layout.fixed_dtypes] = [*dtypes[:2], *dtypes[-2:]]
    return out


def decode(space: SearchSpace, genomes: Genomes) -> list[Architecture]:
    """Inverse of `encode`; entries of unused slots are ignored. With all blocks in the first dtype an architecture has
    none.

    Raises:
        ArchitectureError: the rows have the wrong length or an index is out of range.
    """
    layout = GenomeLayout(space)
    genomes = np.asarray(genomes)
    if genomes.ndim != 2 or genomes.shape[1] != layout.length or not np.issubdtype(genomes.dtype, np.integer):
        raise ArchitectureError(
            f"expected genomes of {layout.length} integers for space '{space.name}', "
            f"got {genomes.dtype} of shape {genomes.shape}"
        )
    depths, kernels, expands = layout.depths, layout.kernels.start, layout.expands.start
    architectures = []
    for row in genomes.tolist():
        try:
            if min(row[:kernels]) < 0:
                raise IndexError
            stages, used = [], list[int]()
            for stage, depth in enumerate(row[depths]):
                slots = range(stage * space.max_depth, stage * space.max_depth + space.depths[depth])
                pairs = [(row[kernels + s], row[expands + s]) for s in slots]
                if any(min(pair) < 0 for pair in pairs):
                    raise IndexError
                stages.append(tuple((space.kernel_sizes[k], space.expand_ratios[e]) for k, e in pairs))
                used += slots
            dtypes: list[int] = []
            if space.dtypes:
                before, after = row[layout.fixed_dtypes][:2], row[layout.fixed_dtypes][2:]
                dtypes = [*before, *(row[layout.dtypes.start + s] for s in used), *after]
                if min(dtypes) < 0:
                    raise IndexError
            architectures.append(
                Architecture(
                    space.resolutions[row[0]],
                    space.width_multipliers[row[1]],
                    tuple(stages),
                    tuple(space.dtypes[i] for i in dtypes) if any(dtypes) else (),
                )
            )
        except IndexError:
            raise ArchitectureError(f"genome {row} has an index that space '{space.name}' lacks") from None
    return architectures


def sample(space: SearchSpace, num: int, rng: np.random.Generator, sub_space: SubSpace | None = None) -> Genomes:
    """`num` canonical genomes with every choice drawn uniformly, inside `sub_space` when one is given.

    Raises:
        ArchitectureError: `sub_space` is not one of the space.
    """
    if sub_space is not None and sub_space not in space.sub_spaces:
        raise ArchitectureError(f"sub-space {sub_space.key} is not in space '{space.name}'")
    layout = GenomeLayout(space)
    out = rng.integers(0, layout.num_choices, size=(num, layout.length)).astype(np.int16)
    if sub_space is not None:
        out[:, 0] = space.resolutions.index(sub_space.resolution)
        out[:, 1] = space.width_multipliers.index(sub_space.width_multiplier)
    return canonical(space, out)


def mutate(
    space: SearchSpace, genomes: Genomes, probability: float, rng: np.random.Generator, fix_sub_space: bool = True
) -> Genomes:
    """Each entry redrawn with `probability`; resolution and width are kept when `fix_sub_space`.

    A block that a deeper stage wakes up gets a random kernel size and expand ratio.
    """
    layout = GenomeLayout(space)
    fresh = rng.integers(0, layout.num_choices, size=genomes.shape).astype(np.int16)
    redraw = rng.random(genomes.shape) < probability
    if fix_sub_space:
        redraw[:, :2] = False
    return canonical(space, np.where(redraw | (genomes < 0), fresh, genomes))


def crossover(space: SearchSpace, mothers: Genomes, fathers: Genomes, rng: np.random.Generator) -> Genomes:
    """Uniform crossover stage by stage: a stage's depth and blocks come together from one parent.

    Resolution and width multiplier, and the dtypes of blocks that are in no stage, come from the mother.
    """
    layout = GenomeLayout(space)
    from_father = rng.random((len(mothers), layout.num_stages)) < 0.5
    by_slot = np.repeat(from_father, space.max_depth, axis=1)
    taken = np.zeros((len(mothers), layout.length), dtype=bool)
    taken[:, layout.depths] = from_father
    for columns in (layout.kernels, layout.expands, layout.dtypes):
        if columns.stop > columns.start:
            taken[:, columns] = by_slot
    return np.where(taken, fathers, mothers)


def with_random_dtypes(space: SearchSpace, genomes: Genomes, rng: np.random.Generator) -> Genomes:
    """A copy with random dtypes of blocks: of each row a random share of them in others than the first."""
    layout, out = GenomeLayout(space), genomes.copy()
    drawn = rng.integers(1, layout.num_dtypes, size=(len(out), layout.length - layout.plain_length))
    shares = rng.random((len(out), 1))
    out[:, layout.plain_length :] = np.where(rng.random(drawn.shape) < shares, drawn, 0)
    return canonical(space, out)


def sample_known(table: CostTable, num: int, rng: np.random.Generator) -> Genomes:
    """About `num` genomes as `sample` draws them, without those of an infinite cost."""
    is_known = np.isfinite(table.smallest()[0])
    rows = sample(table.space, math.ceil(num * is_known.size / max(int(is_known.sum()), 1)), rng)
    return rows[np.isfinite(table.of(rows))]


class CostTable(Protocol):
    """Any cost of architectures that is computed for whole populations, and whose smallest value is known exactly."""

    space: SearchSpace

    def of(self, genomes: Genomes) -> FloatArray:
        """float64[N]: the cost of each genome int16[N, L]."""
        ...

    def smallest(self) -> tuple[FloatArray, Genomes]:
        """The least cost in each sub-space, float64[R, W], and an architecture that has it, int16[R, W, L]."""
        ...


def filled_genomes(
    space: SearchSpace,
    depths: IntArray,
    choice: IntArray,
    fixed_dtypes: IntArray | None = None,
) -> Genomes:
    """Canonical int16[R, W, L] from depth indices [R, W, S]; per slot, (kernel · E + expand) · Q + dtype index
    [R, W, P]; and, where there is a choice, dtype indices of blocks that are in no stage [R, W, 4]."""
    layout, num_e = GenomeLayout(space), len(space.expand_ratios)
    genomes = np.empty((*depths.shape[:2], layout.length), dtype=np.int16)
    genomes[..., 0] = np.arange(depths.shape[0])[:, None]
    genomes[..., 1] = np.arange(depths.shape[1])
    genomes[..., layout.depths] = depths
    choice, dtype = np.divmod(choice, layout.num_dtypes)
    genomes[..., layout.kernels] = choice // num_e
    genomes[..., layout.expands] = choice % num_e
    if fixed_dtypes is not None:
        genomes[..., layout.dtypes], genomes[..., layout.fixed_dtypes] = dtype, fixed_dtypes
    return canonical(space, genomes.reshape(-1, layout.length)).reshape(genomes.shape)


class BlockTable:
    """A cost that is a sum over blocks, as dense arrays: `sum(genomes)` is a few gathers, whatever the population.

    Notation: R resolutions, W widths, P slots, K kernel sizes, E expand ratios, Q dtypes, B = S + 3 places between
    blocks: after the stem, the first block, a block of each stage, the head.
        offset  float64[R, W]              what every architecture has
        fixed   float64[R, W, 4, Q]        stem, first block, head and classifier
        cost    float64[R, W, P, K, E, Q]  one MBConv
        change  float64[R, W, B, Q, Q]     conversions of what is written there, in one dtype, to another
    """

    def __init__(
        self, space: SearchSpace, num_classes: int, cost: Callable[[BlockConfig], float], offset: float = 0.0
    ) -> None:
        self.space = space
        self.layout = layout = GenomeLayout(space)
        shape = (len(space.resolutions), len(space.width_multipliers))
        sizes = (layout.num_slots, len(space.kernel_sizes), len(space.expand_ratios), layout.num_dtypes)
        self.offset = np.full(shape, offset)
        self.fixed = np.zeros((*shape, NUM_FIXED, layout.num_dtypes))
        self.cost = np.zeros((*shape, *sizes))
        self.change = np.zeros((*shape, space.num_stages + 3, layout.num_dtypes, layout.num_dtypes))

        def each(block: BlockConfig) -> list[float]:
            return [cost(replace(block, dtype=dtype)) for dtype in space.dtypes] or [cost(block)]

        for r, w in np.ndindex(shape):
            sub_space = SubSpace(space.resolutions[r], space.width_multipliers[w])
            self.fixed[r, w] = [each(block) for block in space.fixed_blocks(sub_space, num_classes)]
            for slot, k, e in np.ndindex(sizes[:3]):
                stage, position = divmod(slot, space.max_depth)
                block = space.block(sub_space, stage, position, space.kernel_sizes[k], space.expand_ratios[e])
                self.cost[r, w, slot, k, e] = each(block)
            for place, before, after in itertools.product(range(space.num_stages + 3), space.dtypes, space.dtypes):
                at = place, space.dtypes.index(before), space.dtypes.index(after)
                self.change[r, w][at] = sum(map(cost, space.conversions_at(sub_space, place, before, after)))
        padded = np.zeros((*shape, sizes[0], sizes[1] + 1, sizes[2] + 1, sizes[3]))
        padded[..., :-1, :-1, :] = self.cost
        self._padded, self._flat = padded, padded.ravel()  # the second is a view of the first
        self._strides = np.array(padded.strides) // padded.itemsize
        self._slot_place = [
            s + 1 + (position > 0) for s in range(space.num_stages) for position in range(space.max_depth)
        ]

    def gather(self, genomes: Genomes) -> FloatArray:
        """float64[N, P]: the cost in each slot (index -1 of unused slots falls on a padding of zeros)."""
        k, e = genomes[:, self.layout.kernels], genomes[:, self.layout.expands]
        num_k, num_e = len(self.space.kernel_sizes), len(self.space.expand_ratios)
        r, w, p, sk, se, sq = self._strides
        base = genomes[:, :1] * r + genomes[:, 1:2] * w + np.arange(self.layout.num_slots) * p
        index = base + np.where(k < 0, num_k, k) * sk + np.where(e < 0, num_e, e) * se
        if self.space.dtypes:
            index += np.maximum(genomes[:, self.layout.dtypes], 0) * sq
        out: FloatArray = self._flat[index]
        return out

    def of(self, genomes: Genomes) -> FloatArray:
        """float64[N]: the cost of each genome, summed over its blocks."""
        r, w = genomes[:, 0], genomes[:, 1]
        total: FloatArray = self.offset[r, w] + self.gather(genomes).sum(axis=1)
        if not self.space.dtypes:
            total += self.fixed.sum(axis=(2, 3))[r, w]
            return total
        dtypes, stages = dtypes_in_order(self.space, genomes), self.space.num_stages
        places = np.array([0, *self._slot_place, stages + 1, stages + 2])
        r, w = r[:, None], w[:, None]
        total += self.fixed[r, w, np.arange(NUM_FIXED), genomes[:, self.layout.fixed_dtypes]].sum(axis=1)
        total += self.change[r, w, places, dtypes[:, :-1], dtypes[:, 1:]].sum(axis=1)
        return total

    def by_dtype(self, genomes: Genomes) -> tuple[FloatArray, FloatArray]:
        """float64[N, P + 4, Q] and float64[N, P + 3, Q, Q]: costs of blocks in order (stem, first block, slots, head,
        classifier) in each dtype, 0 in unused slots, and of conversions before each but the first."""
        r, w, stages = genomes[:, :1], genomes[:, 1:2], self.space.num_stages
        k, e = genomes[:, self.layout.kernels], genomes[:, self.layout.expands]
        slots = self._padded[r, w, np.arange(self.layout.num_slots), k, e]  # an index of -1 falls on the padding
        fixed = self.fixed[r[:, 0], w[:, 0]]
        own: FloatArray = np.concatenate([fixed[:, :2], slots, fixed[:, 2:]], axis=1)
        return own, self.change[r, w, np.array([0, *self._slot_place, stages + 1, stages + 2])]

    def replace_nan(self, value: float) -> None:
        """Give blocks whose cost is unknown (NaN) a cost."""
        for costs in (self.fixed, self.cost, self.change, self._flat):
            costs[np.isnan(costs)] = value

    def leave_out(self, sub_spaces: Iterable[SubSpace]) -> None:
        """Give the architectures of some sub-spaces an infinite cost, known or not."""
        for sub_space in sub_spaces:
            r = self.space.resolutions.index(sub_space.resolution)
            w = self.space.width_multipliers.index(sub_space.width_multiplier)
            self.offset[r, w] = np.inf
            for costs in (self.fixed, self.cost, self.change, self._padded):
                costs[r, w] = 0.0

    def smallest(self) -> tuple[FloatArray, Genomes]:
        """The least sum of each sub-space, float64[R, W], and an architecture that has it, int16[R, W, L]; exact:
        the best block per slot and dtype, the best depth per stage, and of dtypes the shortest path."""
        space, num_dtypes, shape = self.space, self.layout.num_dtypes, self.offset.shape
        per_choice = self.cost.reshape(*shape, self.layout.num_slots, -1, num_dtypes)
        best, best_choice = per_choice.min(axis=3), per_choice.argmin(axis=3)  # [R, W, P, Q]

        def step(before: FloatArray, place: int, own: FloatArray) -> tuple[FloatArray, IntArray]:
            """Least cost of all until a block, by its dtype, and the dtype before it; each [R, W, Q]."""
            ways = before[..., None] + self.change[:, :, place]
            return ways.min(axis=2) + own, ways.argmin(axis=2)

        least, first_from = step(self.offset[..., None] + self.fixed[:, :, 0], 0, self.fixed[:, :, 1])
        stages = []
        for stage in range(space.num_stages):
            ends, came_from = [], []
            for slot in range(stage * space.max_depth, (stage + 1) * space.max_depth):
                least, before = step(least, self._slot_place[slot], best[:, :, slot])
                ends.append(least)
                came_from.append(before)
            by_depth = np.stack([ends[depth - 1] for depth in space.depths], axis=-1)  # [R, W, Q, depths]
            least = by_depth.min(axis=-1)
            stages.append((by_depth.argmin(axis=-1), came_from))
        least, head_from = step(least, space.num_stages + 1, self.fixed[:, :, 2])
        least, classifier_from = step(least, space.num_stages + 2, self.fixed[:, :, 3])

        def of_dtype(values: IntArray, dtype: IntArray) -> IntArray:
            found: IntArray = np.take_along_axis(values, dtype[..., None], axis=-1)[..., 0]
            return found

        fixed_dtypes = np.empty((*shape, NUM_FIXED), np.int64)
        depths = np.empty((*shape, space.num_stages), np.int64)
        choice = np.empty((*shape, self.layout.num_slots), np.int64)
        fixed_dtypes[..., 3] = dtype = least.argmin(axis=-1)
        fixed_dtypes[..., 2] = dtype = of_dtype(classifier_from, dtype)
        dtype = of_dtype(head_from, dtype)
        for stage, (depth_of, came_from) in reversed(list(enumerate(stages))):
            depths[..., stage] = of_dtype(depth_of, dtype)
            for position in reversed(range(space.max_depth)):
                slot = stage * space.max_depth + position
                choice[..., slot] = of_dtype(best_choice[:, :, slot], dtype) * num_dtypes + dtype
                is_used = position < np.asarray(space.depths)[depths[..., stage]]
                dtype = np.where(is_used, of_dtype(came_from[position], dtype), dtype)
        fixed_dtypes[..., 1] = dtype
        fixed_dtypes[..., 0] = of_dtype(first_from, dtype)
        value: FloatArray = least.min(axis=-1)
        return value, filled_genomes(space, depths, choice, fixed_dtypes if space.dtypes else None)
