"""Hard limits on what an architecture may cost: latency on one or several targets, multiply-accumulates, parameters,
peak memory; several at once.

A cost is an array function of whole populations (`CostTable`), and the smallest value that a space can reach is exact
for each by itself. What can be reached of one while the others hold is found by a search.

Notation: N architectures, L genome length, R resolutions, W widths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.arrays import BoolArray, FloatArray
from chanas.core.genome import BlockTable, CostTable, Genomes, decode
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget
from chanas.core.task import NO_LIMITS, Limits
from chanas.core.units import format_bytes, format_count, format_latency
from chanas.errors import ConfigError, InfeasibleError, LUTError
from chanas.operators.memory import ActivationMemory

_FORMATS: dict[str, Callable[[float], str]] = {"s": format_latency, "B": format_bytes}

NO_LIMIT_S = 1e9
"""No budget: a limit that no architecture with known blocks reaches."""


@dataclass(frozen=True)
class Constraint:
    """The cost `name`, as `table` has it, must not exceed `limit`; both in `unit` ("s", "B" for bytes, else a count).

    `partial` tells that architectures may be left out of a search, which have an infinite cost.

    Raises:
        ConfigError: the limit is not a positive finite number.
    """

    name: str
    limit: float
    table: CostTable
    unit: str
    partial: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite(self.limit) and self.limit > 0):
            raise ConfigError(f"expected a limit above zero for {self.name}, got {self.limit:g} {self.unit}".rstrip())

    @property
    def left_out(self) -> list[Constraint]:
        """No limit, but one that keeps a search away from the architectures that are left out, if there are any."""
        return [replace(self, limit=NO_LIMIT_S)] if self.partial else []

    def cost(self, genomes: Genomes) -> FloatArray:
        """float64[N] in `unit`."""
        return self.table.of(genomes)

    def text(self, value: float) -> str:
        """A value of this cost as people read it."""
        known = _FORMATS.get(self.unit)
        return f"{format_count(value)} {self.unit}".rstrip() if known is None else known(value)

    def enough(self, value: float) -> str:
        """A value as text, rounded up: a limit of that much is met."""
        step = 10.0 ** (math.floor(math.log10(value)) - 2)
        return self.text(math.ceil(value / step) * step)

    @property
    def demand(self) -> str:
        """The limit in words."""
        return f"{self.name} of at most {self.text(self.limit)}"


def latency_constraint(
    lut: LatencyLUT,
    space: SearchSpace,
    num_classes: int,
    budget_s: float,
    *,
    name: str = "latency",
    covered_only: bool = False,
    left_out: Collection[SubSpace] = (),
) -> Constraint:
    """Latency by the look-up table (paper, equation 5) at most `budget_s` seconds.

    Architectures of sub-spaces that are `left_out` take for ever; with `covered_only` those with a block that the table
    lacks do, too.

    Raises:
        LUTError: the table is of another space, lacks blocks that it may not, or knows left-out sub-spaces only.
    """
    table = lut.table(space, num_classes, with_holes=covered_only, left_out=left_out)
    if covered_only:
        table.replace_nan(np.inf)
    if left_out and not np.isfinite(table.smallest()[0]).any():
        wanted = ", ".join(s.key for s in space.sub_spaces if s not in left_out)
        raise LUTError(
            f"the LUT of target '{lut.header.target.name}' covers no sub-space that accuracies are known of "
            f"({wanted}); run `chanas lut fill` to measure their blocks"
        )
    return Constraint(name, budget_s, table, "s", partial=covered_only or bool(left_out))


def macs_constraint(space: SearchSpace, num_classes: int, limit: float) -> Constraint:
    """At most `limit` multiply-accumulates at batch 1."""
    return Constraint("multiply-accumulates", limit, BlockTable(space, num_classes, lambda b: b.num_macs), "MACs")


def params_constraint(space: SearchSpace, num_classes: int, limit: float) -> Constraint:
    """At most `limit` trainable parameters."""
    return Constraint("parameters", limit, BlockTable(space, num_classes, lambda b: b.num_params), "parameters")


def memory_constraint(
    space: SearchSpace, num_classes: int, limit: float, target: HardwareTarget, name: str = "peak memory"
) -> Constraint:
    """At most `limit` bytes of activations at once, as `chanas.operators.memory` counts them."""
    return Constraint(name, limit, ActivationMemory(space, num_classes, target), "B")


def further_constraints(
    space: SearchSpace,
    num_classes: int,
    limits: Limits = NO_LIMITS,
    targets: Sequence[HardwareTarget] = (),
) -> list[Constraint]:
    """The limits that are given, besides latency; that on memory (bytes) once for each kind of activations that one of
    the targets has.

    Raises:
        ConfigError: memory is limited, and blocks may be in several dtypes.
    """
    if limits.peak_memory is not None and space.dtypes:
        raise ConfigError("--peak-memory goes with one dtype, not with --dtypes: leave one of them out")
    given = [macs_constraint(space, num_classes, limits.macs)] if limits.macs is not None else []
    given += [params_constraint(space, num_classes, limits.params)] if limits.params is not None else []
    if limits.peak_memory is not None:
        kinds = {(t.kind, t.vector_lanes, t.dtype, t.batch): t for t in reversed(targets)}
        for target in reversed(kinds.values()):
            name = "peak memory" if len(kinds) == 1 else f"peak memory on {target.name}"
            given.append(memory_constraint(space, num_classes, limits.peak_memory, target, name))
    return given


def violation(constraints: Sequence[Constraint], genomes: Genomes) -> FloatArray:
    """float64[N]: by how much the limits are exceeded, in shares of the limits, summed; 0 where all are met."""
    total = np.zeros(len(genomes))
    for c in constraints:
        total += np.maximum(c.cost(genomes) - c.limit, 0.0) / c.limit
    return total


def feasible(constraints: Sequence[Constraint], genomes: Genomes) -> BoolArray:
    """bool[N]: which rows meet every limit."""
    out = np.ones(len(genomes), dtype=bool)
    for c in constraints:
        out &= c.cost(genomes) <= c.limit
    return out


def least(table: CostTable, sub_space: SubSpace | None = None) -> tuple[float, Genomes]:
    """The least cost in the whole space (or in `sub_space`) and an architecture that has it, int16[1, L]."""
    value, genomes = table.smallest()
    if sub_space is None:
        r, w = np.unravel_index(int(value.argmin()), value.shape)
    else:
        r = np.intp(table.space.resolutions.index(sub_space.resolution))
        w = np.intp(table.space.width_multipliers.index(sub_space.width_multiplier))
    # the cost as every other architecture's is taken, so that a limit equal to it is met to the last bit
    genome = genomes[r, w][None]
    return float(table.of(genome)[0]), genome


def reachable(constraints: Sequence[Constraint], space: SearchSpace) -> BoolArray:
    """bool[R, W]: sub-spaces in which each limit can be met by itself."""
    out = np.ones((len(space.resolutions), len(space.width_multipliers)), dtype=bool)
    for c in constraints:
        value, _ = c.table.smallest()
        out &= value <= c.limit * (1.0 + 1e-12)
    return out


def none_found(constraints: Sequence[Constraint]) -> InfeasibleError:
    """The error of a search that met no architecture inside every limit."""
    demands = " and ".join(c.demand for c in constraints)
    return InfeasibleError(f"no architecture was found that meets {demands} together; each alone can be met: relax one")


def check_reachable(constraints: Sequence[Constraint], sub_space: SubSpace | None = None) -> None:
    """Answers at once whether each limit can be met by itself.

    Raises:
        InfeasibleError: one cannot; names the constraint and the smallest reachable value.
    """
    for c in constraints:
        value, genome = least(c.table, sub_space)
        if value > c.limit:
            where = f"space '{c.table.space.name}'" if sub_space is None else f"sub-space {sub_space.key}"
            if not np.isfinite(value):
                raise InfeasibleError(
                    f"{where} has no architecture whose {c.name} is known: its table lacks blocks; run `chanas lut "
                    "fill` to measure them"
                )
            raise InfeasibleError(
                f"no architecture of {where} meets {c.demand}: the smallest reachable is "
                f"{c.enough(value)} ({decode(c.table.space, genome)[0].key}); raise the limit to at least that"
            )
