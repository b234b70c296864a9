"""Hard limits on what an architecture may cost: latency, multiply-accumulates, parameters; several at once.

Each cost is a sum over blocks (`BlockTable`), so a population is checked with one gather per constraint, and the
smallest reachable value of a whole space is found exactly: the best block per slot, the best depth per stage, the best
sub-space.

Notation: N architectures, L genome length, R resolutions, W widths, S stages, D the largest depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chanas.arch import SearchSpace, SubSpace
from chanas.errors import ConfigError, InfeasibleError
from chanas.genome import BlockTable, FloatArray, GenomeLayout, Genomes, decode
from chanas.latency import LatencyLUT
from chanas.units import format_count, format_latency


@dataclass(frozen=True)
class Constraint:
    """The cost `name`, summed over `table`, must not exceed `limit`; both in `unit` ("s" for seconds, else a count).

    Raises:
        ConfigError: the limit is not a positive finite number.
    """

    name: str
    limit: float
    table: BlockTable
    unit: str

    def __post_init__(self) -> None:
        if not (np.isfinite(self.limit) and self.limit > 0):
            raise ConfigError(f"expected a limit above zero for {self.name}, got {self.limit:g} {self.unit}".rstrip())

    def cost(self, genomes: Genomes) -> FloatArray:
        """float64[N] in `unit`."""
        return self.table.sum(genomes)

    def text(self, value: float) -> str:
        """A value of this cost as people read it."""
        return format_latency(value) if self.unit == "s" else f"{format_count(value)} {self.unit}".rstrip()


def latency_constraint(lut: LatencyLUT, space: SearchSpace, num_classes: int, budget_s: float) -> Constraint:
    """Latency by the look-up table (paper, equation 5) at most `budget_s` seconds."""
    return Constraint("latency", budget_s, lut.table(space, num_classes), "s")


def macs_constraint(space: SearchSpace, num_classes: int, limit: float) -> Constraint:
    """At most `limit` multiply-accumulates at batch 1."""
    return Constraint("multiply-accumulates", limit, BlockTable(space, num_classes, lambda b: b.num_macs), "MACs")


def params_constraint(space: SearchSpace, num_classes: int, limit: float) -> Constraint:
    """At most `limit` trainable parameters."""
    return Constraint("parameters", limit, BlockTable(space, num_classes, lambda b: b.num_params), "parameters")


def further_constraints(
    space: SearchSpace, num_classes: int, macs: float | None = None, params: float | None = None
) -> list[Constraint]:
    """The limits that are given, besides latency."""
    given = [macs_constraint(space, num_classes, macs)] if macs is not None else []
    return given + ([params_constraint(space, num_classes, params)] if params is not None else [])


def violation(constraints: Sequence[Constraint], genomes: Genomes) -> FloatArray:
    """float64[N]: by how much the limits are exceeded, in shares of the limits, summed; 0 where all are met."""
    total = np.zeros(len(genomes))
    for c in constraints:
        total += np.maximum(c.cost(genomes) - c.limit, 0.0) / c.limit
    return total


def feasible(constraints: Sequence[Constraint], genomes: Genomes) -> npt.NDArray[np.bool_]:
    """bool[N]: which rows meet every limit."""
    out = np.ones(len(genomes), dtype=bool)
    for c in constraints:
        out &= c.cost(genomes) <= c.limit
    return out


def smallest(table: BlockTable) -> tuple[FloatArray, Genomes]:
    """The least sum of each sub-space, float64[R, W], and an architecture that has it, int16[R, W, L]; exact."""
    space, layout = table.space, GenomeLayout(table.space)
    num_e = len(space.expand_ratios)
    per_choice = table.cost.reshape(*table.cost.shape[:3], -1)  # [R, W, S·D, K·E]
    choice = per_choice.argmin(axis=-1)
    shape = (*table.fixed.shape, space.num_stages, space.max_depth)
    by_depth = per_choice.min(axis=-1).reshape(shape).cumsum(axis=-1)[..., np.asarray(space.depths) - 1]
    value = table.fixed + by_depth.min(axis=-1).sum(axis=-1)
    genomes = np.empty((*table.fixed.shape, layout.length), dtype=np.int16)
    genomes[..., 0] = np.arange(shape[0])[:, None]
    genomes[..., 1] = np.arange(shape[1])
    genomes[..., layout.depths] = by_depth.argmin(axis=-1)
    genomes[..., layout.kernels] = choice // num_e
    genomes[..., layout.expands] = choice % num_e
    unused = ~layout.active(genomes.reshape(-1, layout.length)).reshape(*shape[:2], -1)
    genomes[..., layout.kernels][unused] = -1
    genomes[..., layout.expands][unused] = -1
    return value, genomes


def least(table: BlockTable, sub_space: SubSpace | None = None) -> tuple[float, Genomes]:
    """The least sum in the whole space (or in `sub_space`) and an architecture that has it, int16[1, L]."""
    value, genomes = smallest(table)
    if sub_space is None:
        r, w = np.unravel_index(int(value.argmin()), value.shape)
    else:
        r = np.intp(table.space.resolutions.index(sub_space.resolution))
        w = np.intp(table.space.width_multipliers.index(sub_space.width_multiplier))
    # the sum as every other architecture's is taken, so that a limit equal to it is met to the last bit
    genome = genomes[r, w][None]
    return float(table.sum(genome)[0]), genome


def reachable(constraints: Sequence[Constraint], space: SearchSpace) -> npt.NDArray[np.bool_]:
    """bool[R, W]: sub-spaces in which each limit can be met by itself."""
    out = np.ones((len(space.resolutions), len(space.width_multipliers)), dtype=bool)
    for c in constraints:
        value, _ = smallest(c.table)
        out &= value <= c.limit * (1.0 + 1e-12)
    return out


def check_reachable(constraints: Sequence[Constraint], sub_space: SubSpace | None = None) -> None:
    """Answers at once whether each limit can be met by itself.

    Raises:
        InfeasibleError: one cannot; names the constraint and the smallest reachable value.
    """
    for c in constraints:
        value, genome = least(c.table, sub_space)
        if value > c.limit:
            where = f"space '{c.table.space.name}'" if sub_space is None else f"sub-space {sub_space.key}"
            raise InfeasibleError(
                f"no architecture of {where} meets {c.name} of at most {c.text(c.limit)}: the smallest reachable is "
                f"{c.text(value)} ({decode(c.table.space, genome)[0].key}); raise the limit to at least that"
            )
