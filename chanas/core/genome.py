"""Architectures as rows of integers, so that sampling, mutation, crossover and cost sums work on whole populations.

Notation: N architectures, S stages, D = space.max_depth, P = S·D block slots (slot = stage·D + position), and
    genomes  int16[N, 2 + S + 2P]  columns: resolution, width multiplier, S depths, P kernel sizes, P expand ratios;
every entry is an index into the space's choices, and -1 in the kernel and expand columns of slots beyond the depth.
A genome with its unused slots at -1 is canonical: equal architectures have equal rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chanas.core.arch import Architecture, BlockConfig, SearchSpace, SubSpace
from chanas.errors import ArchitectureError

Genomes = npt.NDArray[np.int16]
FloatArray = npt.NDArray[np.float64]


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
    def length(self) -> int:
        return 2 + self.num_stages + 2 * self.num_slots

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
    def num_choices(self) -> npt.NDArray[np.int64]:
        """int64[length]: how many values each column has."""
        s = self.space
        return np.array(
            [len(s.resolutions), len(s.width_multipliers)]
            + [len(s.depths)] * self.num_stages
            + [len(s.kernel_sizes)] * self.num_slots
            + [len(s.expand_ratios)] * self.num_slots
        )

    def active(self, genomes: Genomes) -> npt.NDArray[np.bool_]:
        """bool[N, P]: which block slots are in use."""
        depth = np.asarray(self.space.depths)[genomes[:, self.depths]]
        position = np.arange(self.space.max_depth)
        used: npt.NDArray[np.bool_] = (position < depth[:, :, None]).reshape(len(genomes), self.num_slots)
        return used


def canonical(space: SearchSpace, genomes: Genomes) -> Genomes:
    """A copy with -1 in the kernel and expand columns of unused slots."""
    layout = GenomeLayout(space)
    unused = ~layout.active(genomes)
    out = genomes.copy()
    out[:, layout.kernels][unused] = -1
    out[:, layout.expands][unused] = -1
    return out


def encode(space: SearchSpace, architectures: Sequence[Architecture]) -> Genomes:
    """int16[N, length] from architectures.

    Raises:
        ArchitectureError: one of them is not in `space`.
    """
    layout = GenomeLayout(space)
    out = np.full((len(architectures), layout.length), -1, dtype=np.int16)
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
    return out


def decode(space: SearchSpace, genomes: Genomes) -> list[Architecture]:
    """Inverse of `encode`; entries of unused slots are ignored.

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
            stages = []
            for stage, depth in enumerate(row[depths]):
                slots = range(stage * space.max_depth, stage * space.max_depth + space.depths[depth])
                pairs = [(row[kernels + s], row[expands + s]) for s in slots]
                if any(min(pair) < 0 for pair in pairs):
                    raise IndexError
                stages.append(tuple((space.kernel_sizes[k], space.expand_ratios[e]) for k, e in pairs))
            architectures.append(
                Architecture(space.resolutions[row[0]], space.width_multipliers[row[1]], tuple(stages))
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

    Resolution and width multiplier come from the mother.
    """
    layout = GenomeLayout(space)
    from_father = rng.random((len(mothers), layout.num_stages)) < 0.5
    by_slot = np.repeat(from_father, space.max_depth, axis=1)
    keep = np.zeros((len(mothers), 2), dtype=bool)
    return np.where(np.concatenate([keep, from_father, by_slot, by_slot], axis=1), fathers, mothers)


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


def filled_genomes(space: SearchSpace, depths: npt.NDArray[np.int64], choice: npt.NDArray[np.int64]) -> Genomes:
    """Canonical int16[R, W, L] from depth indices [R, W, S] and, per slot, kernel · E + expand index [R, W, P]."""
    layout, num_e = GenomeLayout(space), len(space.expand_ratios)
    genomes = np.empty((*depths.shape[:2], layout.length), dtype=np.int16)
    genomes[..., 0] = np.arange(depths.shape[0])[:, None]
    genomes[..., 1] = np.arange(depths.shape[1])
    genomes[..., layout.depths] = depths
    genomes[..., layout.kernels] = choice // num_e
    genomes[..., layout.expands] = choice % num_e
    return canonical(space, genomes.reshape(-1, layout.length)).reshape(genomes.shape)


class BlockTable:
    """A cost that is a sum over blocks, as dense arrays: `sum(genomes)` is one gather, whatever the population.

    Notation: R resolutions, W widths, P slots, K kernel sizes, E expand ratios.
        fixed  float64[R, W]           offset + stem + first block + head + classifier
        cost   float64[R, W, P, K, E]  one MBConv
    """

    def __init__(
        self, space: SearchSpace, num_classes: int, cost: Callable[[BlockConfig], float], offset: float = 0.0
    ) -> None:
        self.space = space
        self.layout = GenomeLayout(space)
        shape = (len(space.resolutions), len(space.width_multipliers))
        self.fixed = np.zeros(shape)
        self.cost = np.zeros((*shape, self.layout.num_slots, len(space.kernel_sizes), len(space.expand_ratios)))
        for (r, w), _ in np.ndenumerate(self.fixed):
            sub_space = SubSpace(space.resolutions[r], space.width_multipliers[w])
            self.fixed[r, w] = offset + sum(cost(b) for b in space.fixed_blocks(sub_space, num_classes))
            for slot, k, e in np.ndindex(self.cost.shape[2:]):
                stage, position = divmod(slot, space.max_depth)
                block = space.block(sub_space, stage, position, space.kernel_sizes[k], space.expand_ratios[e])
                self.cost[r, w, slot, k, e] = cost(block)
        padded = np.zeros((*shape, self.layout.num_slots, len(space.kernel_sizes) + 1, len(space.expand_ratios) + 1))
        padded[..., :-1, :-1] = self.cost
        self._padded, self._flat = padded, padded.ravel()  # the second is a view of the first
        self._strides = np.array(padded.strides) // padded.itemsize

    def gather(self, genomes: Genomes) -> FloatArray:
        """float64[N, P]: the cost in each slot (index -1 of unused slots falls on a padding of zeros)."""
        k, e = genomes[:, self.layout.kernels], genomes[:, self.layout.expands]
        num_k, num_e = len(self.space.kernel_sizes), len(self.space.expand_ratios)
        r, w, p, sk, se = self._strides
        base = genomes[:, :1] * r + genomes[:, 1:2] * w + np.arange(self.layout.num_slots) * p
        index = base + np.where(k < 0, num_k, k) * sk + np.where(e < 0, num_e, e) * se
        out: FloatArray = self._flat[index]
        return out

    def sum(self, genomes: Genomes) -> FloatArray:
        """float64[N]: the summed cost of each genome."""
        total: FloatArray = self.fixed[genomes[:, 0], genomes[:, 1]] + self.gather(genomes).sum(axis=1)
        return total

    def replace_nan(self, value: float) -> None:
        """Give blocks whose cost is unknown (NaN) a cost."""
        for costs in (self.fixed, self.cost, self._flat):
            costs[np.isnan(costs)] = value

    def leave_out(self, sub_spaces: Iterable[SubSpace]) -> None:
        """Give the architectures of some sub-spaces an infinite cost, known or not."""
        for sub_space in sub_spaces:
            r = self.space.resolutions.index(sub_space.resolution)
            w = self.space.width_multipliers.index(sub_space.width_multiplier)
            self.fixed[r, w] = np.inf
            self.cost[r, w], self._padded[r, w] = 0.0, 0.0

    def of(self, genomes: Genomes) -> FloatArray:
        """Same as `sum`, under the name that a `CostTable` has for it."""
        return self.sum(genomes)

    def smallest(self) -> tuple[FloatArray, Genomes]:
        """The least sum of each sub-space, float64[R, W], and an architecture that has it, int16[R, W, L]; exact:
        the best block per slot, the best depth per stage."""
        space = self.space
        per_choice = self.cost.reshape(*self.cost.shape[:3], -1)  # [R, W, P, K·E]
        shape = (*self.fixed.shape, space.num_stages, space.max_depth)
        by_depth = per_choice.min(axis=-1).reshape(shape).cumsum(axis=-1)[..., np.asarray(space.depths) - 1]
        value: FloatArray = self.fixed + by_depth.min(axis=-1).sum(axis=-1)
        return value, filled_genomes(space, by_depth.argmin(axis=-1), per_choice.argmin(axis=-1))
