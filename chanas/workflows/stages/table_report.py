"""The contents of a latency table for people and for other tools: one table summed up, and two side by side."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.core import genome
from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.arrays import FloatArray
from chanas.core.blocks import CONVERSIONS
from chanas.core.latency import Calibration, LatencyLUT, LUTHeader
from chanas.core.statistics import kendall_tau
from chanas.core.units import format_latency
from chanas.errors import LUTError

_KINDS = ("stem", "mbconv", "head", "classifier", *CONVERSIONS)
NUM_SAMPLES = 500
NUM_COMPARED = 1000
NUM_LISTED = 10
_QUANTILES = {"min": 0.0, "q10": 0.1, "median": 0.5, "q90": 0.9, "max": 1.0}


# ---- one table ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SubSpaceSummary:
    """The share of a sub-space that a table covers, and seconds of sampled architectures (None where blocks are
    missing)."""

    key: str
    num_blocks: int
    num_measured: int
    min_s: float | None = None
    median_s: float | None = None
    max_s: float | None = None


@dataclass(frozen=True)
class TableSummary:
    """A table in numbers.

    rows_by_kind        stem, mbconv, head, classifier -> how many
    measured            when the first and the last row were measured; empty without rows
    median_spread       of the measured rows, relative to their seconds; None without any
    num_predicted       rows that were not measured
    predicted_error     median of their relative standard deviations; None without any
    sub_spaces          empty where the search space is not at hand
    num_blocks          of the whole space, of which the table has `num_measured`; None where the space is not at hand
    slowest             blocks with their seconds, the slowest first
    """

    header: LUTHeader
    rows_by_kind: dict[str, int]
    measured: tuple[str, str]
    median_spread: float | None
    num_classes: int
    num_blocks: int | None
    num_measured: int | None
    num_samples: int
    sub_spaces: tuple[SubSpaceSummary, ...]
    slowest: tuple[tuple[str, float], ...]
    calibration: Calibration | None
    num_predicted: int = 0
    predicted_error: float | None = None

    @property
    def num_rows(self) -> int:
        return sum(self.rows_by_kind.values())

    @property
    def covered(self) -> list[str]:
        """Names of the sub-spaces whose blocks are all there."""
        return [s.key for s in self.sub_spaces if s.num_blocks == s.num_measured]

    def to_json(self) -> dict[str, Any]:
        """The document that `chanas lut show --json` prints."""
        slowest = [{"block": key, "median_s": seconds} for key, seconds in self.slowest]
        return {**dataclasses.asdict(self), "num_rows": self.num_rows, "slowest": slowest}

    def lines(self) -> Iterator[str]:
        """The same for people."""
        header, target = self.header, self.header.target
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.rows_by_kind.items())
        spread = "" if self.median_spread is None else f"; spread {self.median_spread:.1%} (median)"
        yield f"device     {target.device} (fingerprint {target.fingerprint})"
        matrices = ", matrix registers" if target.has_matrices else ""
        yield f"target     {target.name}: {target.num_threads} thread(s), vectors of {target.vector_lanes}{matrices}"
        yield f"measured   {header.dtype}, batch {header.batch}, TVM {header.compiler}"
        yield f"space      {header.space} ({header.space_digest}), {self.num_classes} classes"
        for start in header.warm_starts:
            came = f"{start['num_operators']} operators, dropped for {start['num_dropped']}"
            yield f"warm start {start['source']}, records {start['digest']}: {came}"
        yield f"made       {header.created or '-'}, seed {header.seed}; rows {' to '.join(self.measured) or '-'}"
        yield f"rows       {self.num_rows}: {kinds}{spread}" if self.num_rows else "rows       0"
        if self.predicted_error is not None:
            origin = ", ".join(f"{source['target']} ({source['device']})" for source in header.adapted_from)
            some = self.covered if len(self.covered) < len(self.sub_spaces) else []
            command = " ".join(["chanas lut fill", *(f"--sub-space {key}" for key in some)])
            doubt = f"± {self.predicted_error:.1%} (median); `{command}` measures them"
            yield f"predicted  {self.num_predicted} of {self.num_rows} rows, from {origin or '-'}: {doubt}"
        if self.num_blocks is None:
            yield "covered    unknown: the search space is not at hand; name it with --space"
        else:
            yield (
                f"covered    {self.num_measured} of {self.num_blocks} blocks, "
                f"{len(self.covered)} of {len(self.sub_spaces)} sub-spaces"
            )
        yield f"sum        {describe_calibration(self.calibration)}"
        if self.sub_spaces:
            of = f"of {self.num_samples} random architectures{', calibrated' if self.calibration else ''}"
            yield ""
            yield f"{'sub-space':14s} {'blocks':>9s} {'min':>9s} {'median':>9s} {'max':>9s}  ({of})"
            for sub_space in self.sub_spaces:
                times = (sub_space.min_s, sub_space.median_s, sub_space.max_s)
                texts = " ".join(f"{'-' if t is None else format_latency(t):>9s}" for t in times)
                yield f"{sub_space.key:14s} {f'{sub_space.num_measured}/{sub_space.num_blocks}':>9s} {texts}"
        if self.slowest:
            yield ""
            yield "slowest blocks"
            yield from (f"{format_latency(seconds):>9s}  {key}" for key, seconds in self.slowest)


def describe_calibration(calibration: Calibration | None) -> str:
    """One line about how far the table's sums are from whole networks."""
    if calibration is None:
        return "not calibrated: the plain sum of blocks, most likely too low; `chanas lut calibrate` corrects it"
    return calibration.describe()


def numbers_of_classes(lut: LatencyLUT) -> tuple[int, ...]:
    """The numbers of classes that the table has classifiers of, ascending."""
    keys = [key for key in lut.rows if key.startswith("classifier-")]
    return tuple(sorted({int(key.split("-")[2].rpartition("x")[2]) for key in keys}))


def sampled_latencies(
    lut: LatencyLUT, space: SearchSpace, num_classes: int, sub_spaces: Sequence[SubSpace], num: int, seed: int
) -> FloatArray:
    """float64[len(sub_spaces), num] seconds of random architectures, the same ones for the same seed; NaN where a block
    is missing."""
    rng = np.random.default_rng(seed)
    table = lut.table(space, num_classes, with_holes=True)
    times = [table.of(genome.sample(space, num, rng, sub_space)) for sub_space in sub_spaces]
    return np.array(times).reshape(len(sub_spaces), num)


def summarise(
    lut: LatencyLUT, space: SearchSpace | None, num_classes: int, num_samples: int = NUM_SAMPLES, seed: int = 0
) -> TableSummary:
    """A table in numbers; without its search space nothing is said about what it covers.

    Raises:
        LUTError: the table is of another space.
    """
    sub_spaces: list[SubSpaceSummary] = []
    num_blocks = num_measured = None
    if space is not None:
        lut.check_space(space)
        blocks = space.all_blocks(num_classes)
        num_blocks, num_measured = len(blocks), len(blocks) - len(lut.missing(blocks))
        covered = set(lut.covered(space, num_classes))
        times = sampled_latencies(lut, space, num_classes, space.sub_spaces, num_samples, seed)
        for sub_space, seconds in zip(space.sub_spaces, times, strict=True):
            own = space.all_blocks(num_classes, (sub_space,))
            ends = (seconds.min(), np.median(seconds), seconds.max()) if sub_space in covered else ()
            counts = (len(own), len(own) - len(lut.missing(own)))
            sub_spaces.append(SubSpaceSummary(sub_space.key, *counts, *map(float, ends)))
    rows = lut.rows
    when = sorted(row.measured_at for row in rows.values() if row.measured_at)
    spreads = [row.spread_s / row.median_s for row in rows.values() if row.predicted_error is None]
    errors = [row.predicted_error for row in rows.values() if row.predicted_error is not None]
    kinds = Counter(key.partition("-")[0] for key in rows)
    return TableSummary(
        header=lut.header,
        rows_by_kind={kind: kinds[kind] for kind in _KINDS if kind in kinds},
        measured=(when[0], when[-1]) if when else ("", ""),
        median_spread=float(np.median(spreads)) if spreads else None,
        num_classes=num_classes,
        num_blocks=num_blocks,
        num_measured=num_measured,
        num_samples=num_samples,
        sub_spaces=tuple(sub_spaces),
        slowest=tuple(sorted(((k, r.median_s) for k, r in rows.items()), key=lambda p: (-p[1], p[0]))[:NUM_LISTED]),
        calibration=lut.calibration,
        num_predicted=len(errors),
        predicted_error=float(np.median(errors)) if errors else None,
    )


# ---- two tables -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class BlockChange:
    """A block in both tables: its seconds in each, and whether its schedules differ."""

    block: str
    a_s: float
    b_s: float
    rescheduled: bool

    @property
    def ratio(self) -> float:
        return self.b_s / self.a_s


@dataclass(frozen=True)
class Ratios:
    """Ratios of seconds, B / A, and Kendall's tau between A and B (None where one of them is all alike)."""

    num: int
    geometric_mean: float
    quantiles: dict[str, float]
    kendall_tau: float | None

    def describe(self) -> str:
        """One line for people."""
        q = self.quantiles
        tau = "-" if self.kendall_tau is None else f"{self.kendall_tau:.3f}"
        return (
            f"{self.geometric_mean:.3f}x on average, median {q['median']:.3f}x, 80% in {q['q10']:.3f}x … "
            f"{q['q90']:.3f}x, all in {q['min']:.3f}x … {q['max']:.3f}x; Kendall tau {tau} ({self.num})"
        )


@dataclass(frozen=True)
class Comparison:
    """Table B against table A.

    differences         field of the header -> its values in A and B, where they differ
    only_a, only_b      rows that the other one lacks
    blocks              of the rows in both; latencies without calibration
    architectures       of random ones from sub-spaces that both cover, calibrated where the table is; None without any
    gained, lost        blocks that are faster or slower in B, those that changed most first
    """

    differences: dict[str, tuple[Any, Any]]
    num_shared: int
    only_a: int
    only_b: int
    num_rescheduled: int
    blocks: Ratios
    architectures: Ratios | None
    gained: tuple[BlockChange, ...]
    lost: tuple[BlockChange, ...]

    def to_json(self) -> dict[str, Any]:
        """The document that `chanas lut compare --json` prints."""
        changes = {
            name: [{**dataclasses.asdict(change), "ratio": change.ratio} for change in getattr(self, name)]
            for name in ("gained", "lost")
        }
        return {**dataclasses.asdict(self), **changes}

    def lines(self) -> Iterator[str]:
        """The same for people."""
        width = max(map(len, self.differences), default=0)
        for number, (field, (a, b)) in enumerate(self.differences.items()):
            yield f"{'' if number else 'differs':14s} {field:{width}s}  {a} | {b}"
        if not self.differences:
            yield f"{'differs':14s} in nothing that the headers say"
        yield (
            f"{'rows':14s} {self.num_shared} in both ({self.num_rescheduled} with other schedules), "
            f"{self.only_a} in A alone, {self.only_b} in B alone"
        )
        yield f"{'blocks B/A':14s} {self.blocks.describe()}"
        architectures = "no sub-space that both cover, or the search space is not at hand (--space)"
        yield f"{'networks B/A':14s} {self.architectures.describe() if self.architectures else architectures}"
        for title, changes in (("faster in B", self.gained), ("slower in B", self.lost)):
            if changes:
                yield ""
                yield f"{title:>11s} {'A':>9s} {'B':>9s}"
            for c in changes:
                note = " (other schedules)" if c.rescheduled else ""
                yield f"{c.ratio:10.3f}x {format_latency(c.a_s):>9s} {format_latency(c.b_s):>9s}  {c.block}{note}"


def header_differences(a: LUTHeader, b: LUTHeader) -> dict[str, tuple[Any, Any]]:
    """Field -> its values in both, where they differ; those of the target are `target.FIELD`."""

    def flat(header: LUTHeader) -> dict[str, Any]:
        data = header.to_json()
        return {f"target.{k}": v for k, v in data.pop("target").items()} | data

    mine, theirs = flat(a), flat(b)
    pairs = {field: (mine.get(field), theirs.get(field)) for field in mine | theirs}
    return {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}


def _ratios(a_s: FloatArray, b_s: FloatArray) -> Ratios:
    ratios = b_s / a_s
    return Ratios(
        len(ratios),
        float(np.exp(np.log(ratios).mean())),
        {name: float(np.quantile(ratios, q)) for name, q in _QUANTILES.items()},
        kendall_tau(a_s, b_s),
    )


def compare(
    a: LatencyLUT,
    b: LatencyLUT,
    space: SearchSpace | None,
    num_classes: int,
    num_architectures: int = NUM_COMPARED,
    seed: int = 0,
) -> Comparison:
    """Two tables of one search space side by side.

    Raises:
        LUTError: they are of different spaces, or share no block.
    """
    mine, theirs = a.header, b.header
    if (mine.space, mine.space_digest) != (theirs.space, theirs.space_digest):
        raise LUTError(
            f"expected two tables of one search space, got '{mine.space}' ({mine.space_digest}) and '{theirs.space}' "
            f"({theirs.space_digest}); blocks of different spaces can't be compared"
        )
    shared = [key for key in a.rows if key in b.rows]
    if not shared:
        raise LUTError(
            f"expected tables with blocks in common, got {len(a.rows)} and {len(b.rows)} rows that share none; "
            "fill both with `chanas lut fill`"
        )
    changes = [
        BlockChange(k, a.rows[k].median_s, b.rows[k].median_s, a.rows[k].schedules != b.rows[k].schedules)
        for k in shared
    ]
    by_ratio = sorted(changes, key=lambda c: (c.ratio, c.block))
    return Comparison(
        differences=header_differences(mine, theirs),
        num_shared=len(shared),
        only_a=len(a.rows) - len(shared),
        only_b=len(b.rows) - len(shared),
        num_rescheduled=sum(c.rescheduled for c in changes),
        blocks=_ratios(np.array([c.a_s for c in changes]), np.array([c.b_s for c in changes])),
        architectures=None if space is None else _compare_networks(a, b, space, num_classes, num_architectures, seed),
        gained=tuple(c for c in by_ratio if c.ratio < 1.0)[:NUM_LISTED],
        lost=tuple(c for c in reversed(by_ratio) if c.ratio > 1.0)[:NUM_LISTED],
    )


def _compare_networks(
    a: LatencyLUT, b: LatencyLUT, space: SearchSpace, num_classes: int, num: int, seed: int
) -> Ratios | None:
    common = [s for s in a.covered(space, num_classes) if s in b.covered(space, num_classes)]
    if not common:
        return None
    each = -(-num // len(common))
    a_s, b_s = (sampled_latencies(t, space, num_classes, common, each, seed).T.ravel()[:num] for t in (a, b))
    return _ratios(a_s, b_s)
