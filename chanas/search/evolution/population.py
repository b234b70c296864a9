"""Sets of genomes without repeats: hashing whole rows, remembering what was seen, filling a feasible set.

Notation: N rows, L genome length.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.arrays import BoolArray
from chanas.core.genome import Genomes, mutate, plain, sample
from chanas.search.evolution.constraints import Constraint, least, violation

Keys = npt.NDArray[np.uint64]

# Rates of mutation about a known feasible row: from one gene to half of them.
_RATES = (0.02, 0.08, 0.2, 0.5)
_FILL_ROUNDS = 12


def keys(genomes: Genomes) -> Keys:
    """uint64[N]: a hash per row; rows that differ share one with a chance of about 2⁻⁶⁰."""
    out: Keys = genomes.astype(np.uint64) @ _factors(genomes.shape[1])
    return out


@functools.lru_cache(maxsize=8)
def _factors(length: int) -> Keys:
    """uint64[length]: fixed odd multipliers."""
    return np.random.default_rng(0x9E3779B97F4A7C15).integers(1, 2**64, length, dtype=np.uint64) | np.uint64(1)


def unique(genomes: Genomes) -> Genomes:
    """The rows without repeats, in the order of their first appearance."""
    _, first = np.unique(keys(genomes), return_index=True)
    return genomes[np.sort(first)]


def unevaluated(space: SearchSpace, genomes: Genomes, known: Genomes) -> npt.NDArray[np.intp]:
    """Positions of the first rows whose architecture, whatever its dtypes, is not among the `known` ones."""
    row_keys = keys(plain(space, genomes))
    _, first = np.unique(row_keys, return_index=True)
    first = np.sort(first)
    found: npt.NDArray[np.intp] = first[~np.isin(row_keys[first], keys(known))]
    return found


@dataclass
class Seen:
    """The rows met so far, as one sorted array of hashes."""

    sorted_keys: Keys = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))

    def new(self, row_keys: Keys) -> npt.NDArray[np.intp]:
        """Positions of the first appearances of keys that were never added, ascending."""
        distinct, first = np.unique(row_keys, return_index=True)
        if len(self.sorted_keys):
            at = np.minimum(np.searchsorted(self.sorted_keys, distinct), len(self.sorted_keys) - 1)
            first = first[self.sorted_keys[at] != distinct]
        return np.sort(first)

    def add(self, row_keys: Keys) -> None:
        """Remembers keys that `new` has let through."""
        ordered = np.sort(row_keys)
        self.sorted_keys = np.insert(self.sorted_keys, np.searchsorted(self.sorted_keys, ordered), ordered)


def inside(space: SearchSpace, genomes: Genomes, sub_space: SubSpace | None) -> BoolArray:
    """bool[N]: which rows are of `sub_space`; all of them without one."""
    if sub_space is None:
        return np.ones(len(genomes), dtype=bool)
    r = space.resolutions.index(sub_space.resolution)
    w = space.width_multipliers.index(sub_space.width_multiplier)
    at_home: BoolArray = (genomes[:, 0] == r) & (genomes[:, 1] == w)
    return at_home


def feasible_set(
    space: SearchSpace,
    constraints: Sequence[Constraint],
    num: int,
    rng: np.random.Generator,
    sub_space: SubSpace | None = None,
    start: Genomes | None = None,
) -> Genomes:
    """Up to `num` distinct rows that meet every limit: random ones first, then mutations of the cheapest architectures.

    `start` adds rows to begin from; those of another sub-space don't count. The work is bounded; fewer rows, down to
    none, come back when the feasible region is that small. At least one comes back whenever there is a single
    constraint that can be met.
    """
    cheapest = [least(c.table, sub_space)[1] for c in constraints]
    if start is not None:
        cheapest.append(start[inside(space, start, sub_space)])
    pool = unique(np.concatenate([*cheapest, sample(space, 4 * num, rng, sub_space)]))
    num_cheapest = len(unique(np.concatenate(cheapest))) if cheapest else 0
    excess = violation(constraints, pool)
    for _ in range(_FILL_ROUNDS):
        if np.count_nonzero(excess == 0.0) >= num + num_cheapest:
            break
        base = pool[np.argsort(excess, kind="stable")[: max(num // 4, 8)]]
        rows = base[rng.integers(len(base), size=(len(_RATES), num))]
        fresh = [
            mutate(space, r, p, rng, fix_sub_space=sub_space is not None) for r, p in zip(rows, _RATES, strict=True)
        ]
        pool = unique(np.concatenate([pool, *fresh]))
        excess = violation(constraints, pool)
        keep = np.sort(np.argsort(excess, kind="stable")[: 8 * num])
        pool, excess = pool[keep], excess[keep]
    found = pool[excess == 0.0]
    # the cheapest stand first in the pool; as the least random of all they go last, but are never left out
    first = np.isin(keys(found), keys(np.concatenate(cheapest))) if cheapest else np.zeros(len(found), dtype=bool)
    random_rows, cheap_rows = found[~first], found[first]
    return np.concatenate([random_rows[: max(num - len(cheap_rows), 0)], cheap_rows])[:num]
