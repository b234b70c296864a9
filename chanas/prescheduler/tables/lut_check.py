"""Check that a latency table still holds: some of its rows and some whole networks, measured again as they were
before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.core import genome
from chanas.core.latency import LatencyLUT
from chanas.core.progress import progress_bar
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.core.units import format_latency
from chanas.errors import ConfigError, LUTError
from chanas.measuring.fleet import OpenPool, open_workers
from chanas.prescheduler.blocks import BlockTask, surroundings, time_blocks
from chanas.prescheduler.tables.calibrate import draw_architectures, measure_networks
from chanas.prescheduler.tables.networks import check_schedules

# Networks are drawn with other seeds than those of the calibration, so that they were left out of its fit.
_SEED_OFFSET = 7919


@dataclass(frozen=True)
class Tolerances:
    """Limits within which a table holds: the median ratio is within `median` of 1, and `share` of the rows are within
    `row` of 1.

    Raises:
        ConfigError: a tolerance is not above zero, or the share not between 0 and 1.
    """

    median: float = 0.1
    row: float = 0.2
    share: float = 0.9

    def __post_init__(self) -> None:
        for name, value in (("median tolerance", self.median), ("row tolerance", self.row)):
            if not value > 0.0:
                raise ConfigError(f"expected a {name} above 0, such as 0.1 for 10 %, got {value:g}")
        if not 0.0 <= self.share <= 1.0:
            raise ConfigError(f"expected a share of rows between 0 and 1, such as 0.9, got {self.share:g}")


@dataclass(frozen=True)
class Sample:
    """The numbers of rows, and of whole networks where the table is calibrated, that are measured again.

    Raises:
        ConfigError: fewer than one row or a number of networks below zero is asked for.
    """

    num_rows: int = 20
    num_networks: int = 3

    def __post_init__(self) -> None:
        if self.num_rows < 1:
            raise ConfigError(f"expected at least 1 row to measure again, got {self.num_rows}")
        if self.num_networks < 0:
            raise ConfigError(f"expected 0 networks or more, got {self.num_networks}")


@dataclass(frozen=True)
class Remeasured:
    """A block or a network: the table's seconds, which may be predicted, and those of now, or the reason why there are
    none."""

    key: str
    old_s: float
    new_s: float | None
    error: str | None = None
    is_predicted: bool = False

    @property
    def ratio(self) -> float | None:
        return None if self.new_s is None else self.new_s / self.old_s

    def line(self) -> str:
        """One line of a table for people."""
        if self.new_s is None or self.ratio is None:
            return f"{format_latency(self.old_s):>9s} {'-':>9s} {'-':>7s}  {self.key}: {self.error}"
        note = " (predicted)" if self.is_predicted else ""
        return f"{format_latency(self.old_s):>9s} {format_latency(self.new_s):>9s} {self.ratio:7.3f}  {self.key}{note}"


@dataclass(frozen=True)
class TableCheck:
    """Rows and networks that were measured again, and what they say about the table.

    network_tolerance is how far the median of the networks may be from their calibrated prediction.
    """

    rows: tuple[Remeasured, ...]
    networks: tuple[Remeasured, ...]
    tolerances: Tolerances
    network_tolerance: float

    @property
    def median_ratio(self) -> float | None:
        return _median(self.rows)

    @property
    def network_ratio(self) -> float | None:
        return _median(self.networks)

    @property
    def worst(self) -> Remeasured | None:
        """The row that is furthest from what it was, a failed one first of all; None when no row was measured."""
        return max(self.rows, key=lambda r: abs(np.log(r.ratio)) if r.ratio else np.inf, default=None)

    @property
    def num_within(self) -> int:
        return sum(r.ratio is not None and abs(r.ratio - 1.0) <= self.tolerances.row for r in self.rows)

    @property
    def rows_hold(self) -> bool:
        return (
            self.median_ratio is not None
            and abs(self.median_ratio - 1.0) <= self.tolerances.median
            and self.num_within >= self.tolerances.share * len(self.rows) - 1e-9
        )

    @property
    def networks_hold(self) -> bool:
        """True too when no network was asked for."""
        if any(n.new_s is None for n in self.networks):
            return False
        return self.network_ratio is None or abs(self.network_ratio - 1.0) <= self.network_tolerance

    @property
    def holds(self) -> bool:
        return self.rows_hold and self.networks_hold

    def to_json(self) -> dict[str, Any]:
        """The document that `chanas lut check --json` prints."""
        worst = self.worst
        measured = {
            name: [{**dataclasses.asdict(m), "ratio": m.ratio} for m in getattr(self, name)]
            for name in ("rows", "networks")
        }
        return {
            **dataclasses.asdict(self),
            **measured,
            "holds": self.holds,
            "median_ratio": self.median_ratio,
            "num_within": self.num_within,
            "worst": None if worst is None else worst.key,
            "network_ratio": self.network_ratio,
        }

    def lines(self) -> Iterator[str]:
        """The same for people; the last line is the verdict, with what to do."""
        limits = self.tolerances
        yield f"{'table':>9s} {'now':>9s} {'ratio':>7s}  block"
        yield from (row.line() for row in sorted(self.rows, key=lambda r: r.ratio or np.inf))
        if self.networks:
            yield f"\n{'predicted':>9s} {'now':>9s} {'ratio':>7s}  whole network"
            yield from (network.line() for network in self.networks)
        yield ""
        if self.worst is not None:
            median, worst = _text(self.median_ratio), _text(self.worst.ratio)
            yield f"blocks     median ratio {median} (1 ± {limits.median:g}), worst {worst}"
        needed = int(np.ceil(limits.share * len(self.rows) - 1e-9))
        predicted = [r.ratio for r in self.rows if r.is_predicted and r.ratio is not None]
        if predicted:
            error = float(np.mean([abs(1.0 / ratio - 1.0) for ratio in predicted]))
            yield f"predicted  {len(predicted)} of {len(self.rows)} rows, off by {error:.1%} on average"
        yield f"rows       {self.num_within} of {len(self.rows)} within {limits.row:.0%}, {needed} needed"
        if self.networks:
            yield f"networks   median ratio {_text(self.network_ratio)} (1 ± {self.network_tolerance:.2g})"
        yield f"verdict    {self.verdict()}"

    def verdict(self) -> str:
        """One line: whether the table holds, and what to do where it does not."""
        if self.holds:
            return "the table holds"
        if self.rows_hold:
            return "the blocks hold, but whole networks don't; run `chanas lut calibrate`"
        if any(row.is_predicted for row in self.rows):
            return "the table does not hold, of which a part was predicted; run `chanas lut fill` to measure that"
        return (
            "the table does not hold; end what else runs on the machine and check again, and if that does not help, "
            "move the table and records.sqlite away and run `chanas prescheduler`"
        )


def _text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def _median(measured: Sequence[Remeasured]) -> float | None:
    ratios = [m.ratio for m in measured if m.ratio is not None]
    return float(np.median(ratios)) if ratios else None


def check_table(
    lut: LatencyLUT,
    task: Task,
    target: HardwareTarget,
    *,
    sample: Sample,
    tolerances: Tolerances | None = None,
    seed: int = 0,
    progress: bool = True,
    open_pool: OpenPool | None = None,
) -> TableCheck:
    """Time random rows again (all where there are fewer), each with the schedules that it has in the table, and where
    the table is calibrated random networks of what it covers; nothing is stored.

    `open_pool` is for devices that are not this machine.

    Raises:
        LUTError: the table is of another space, device, number of threads or compiler, has no row of a block of this
            space, or has schedules of another version of the spaces.
    """
    lut.check(task.space, target)
    tolerances = tolerances or Tolerances()
    check_schedules(lut)
    rows = _rows_again(lut, task, target, sample.num_rows, seed, progress, open_pool)
    tolerance = max(tolerances.median, 0.0 if lut.calibration is None else lut.calibration.worst)
    covered = lut.covered(task.space, task.num_classes)
    if lut.calibration is None or not covered or not sample.num_networks:
        return TableCheck(rows, (), tolerances, tolerance)
    architectures = draw_architectures(task.space, sample.num_networks, seed + _SEED_OFFSET, covered)
    table = lut.table(task.space, task.num_classes, with_holes=True)
    predicted_s = table.of(genome.encode(task.space, architectures))
    outcomes = measure_networks(lut, task.space, target, task.num_classes, architectures, progress, open_pool)
    networks = tuple(
        Remeasured(a.key, float(old), new.seconds, new.error)
        for a, old, new in zip(architectures, predicted_s, outcomes, strict=True)
    )
    return TableCheck(rows, networks, tolerances, tolerance)


def _rows_again(
    lut: LatencyLUT,
    task: Task,
    target: HardwareTarget,
    num: int,
    seed: int,
    progress: bool,
    open_pool: OpenPool | None,
) -> tuple[Remeasured, ...]:
    """Random rows in the order in which they were drawn."""
    there = [b for b in task.space.all_blocks(task.num_classes) if b.key in lut.rows]
    if not there:
        raise LUTError(
            f"expected rows of space '{task.space.name}' with {task.num_classes} classes, got a table without any; "
            "run `chanas lut fill`"
        )
    drawn = [there[i] for i in np.random.default_rng(seed).permutation(len(there))[:num]]
    todo: list[BlockTask] = [(block, lut.rows[block.key].schedules, 0) for block in drawn]
    around = surroundings(task.space, task.num_classes, dtype=target.dtype)
    found: dict[str, Remeasured] = {}
    with (
        open_workers(target, open_pool) as (pool, scratch),
        progress_bar(len(todo), "timing blocks again", "block", progress) as bar,
    ):
        for (block, _, _), outcome in time_blocks(todo, pool, target, scratch, around):
            is_predicted = lut.rows[block.key].predicted_error is not None
            found[block.key] = Remeasured(block.key, lut.block_s(block), outcome.seconds, outcome.error, is_predicted)
            bar.update()
    return tuple(found[block.key] for block in drawn)
