"""The block-latency look-up table (paper, section 3.6, equation 5): seconds of every block of a space on one target,
each measured as a compiled, fused block at its best schedules."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chanas.core.arch import NUM_FIXED, SearchSpace, SubSpace
from chanas.core.arrays import FloatArray
from chanas.core.blocks import BlockConfig
from chanas.core.codec import fields_from_json, fields_to_json
from chanas.core.genome import BlockTable, Genomes
from chanas.core.target import HardwareTarget, differences, tvm_version
from chanas.core.units import is_seconds
from chanas.errors import LUTError, unknown_name
from chanas.files.documents import Document
from chanas.files.writing import write_json

# Tables with predicted rows are of the newer schema; others are written as they always were.
SCHEMA, PREDICTED_SCHEMA = 1, 2
_DISAGREES = 0.05
_ITEM_BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@dataclass(frozen=True)
class LUTHeader:
    """The conditions that a table holds for: two tables with any difference here are different tables."""

    target: HardwareTarget
    compiler: str
    space: str
    space_digest: str
    dtype: str = "float32"
    batch: int = 1
    created: str = ""
    seed: int = 0
    built_in_s: float | None = None
    """Seconds that tuning and timing took, all runs of the prescheduler together; None in tables written before it was
    stored."""
    timing_s: float | None = None
    """Those of them in which the device was timing something."""
    warm_starts: tuple[dict[str, Any], ...] = ()
    """Other devices whose records helped to find the schedules: `source`, `digest` of what was taken from it,
    `num_operators` and `num_dropped`."""
    timing: str = ""
    """The way a GPU was timed: clock, clock rates, caches."""
    space_version: int | None = None
    """Version of the schedule spaces of which the rows' points are; None in tables written before it was stored."""
    adapted_from: tuple[dict[str, Any], ...] = ()
    """Tables of other devices that rows were predicted from: `target`, `device`, `fingerprint`, `num_rows`."""
    taken_over: tuple[dict[str, Any], ...] = ()
    """Operators that were not tuned: `operator`, and `source`, the one whose schedule it took over."""

    def to_json(self) -> dict[str, Any]:
        return fields_to_json(self, ("timing", "adapted_from", "taken_over"))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LUTHeader:
        header: LUTHeader = fields_from_json(cls, data)
        return header


@dataclass(frozen=True)
class LUTRow:
    """One block: seconds (median and spread of the repeats), and the schedule point of each operator in it.

    `schedules` lists, in the block's order of execution, (workload key, schedule point). `predicted_error` is the
    standard deviation of the logarithm of seconds that were predicted; None: they were measured.
    """

    median_s: float
    spread_s: float
    num_trials: int
    schedules: tuple[tuple[str, tuple[int, ...]], ...]
    measured_at: str = ""
    predicted_error: float | None = None

    def to_json(self) -> dict[str, Any]:
        data = {**dataclasses.asdict(self), "schedules": [[key, list(point)] for key, point in self.schedules]}
        return {name: value for name, value in data.items() if value is not None}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LUTRow:
        """Inverse of `to_json`; by hand, as a table has thousands."""
        return cls(**{**data, "schedules": tuple((key, tuple(point)) for key, point in data["schedules"])})


@dataclass(frozen=True)
class CacheMisses:
    """Seconds that the weights of a network cost beyond what the table's rows have of it, by how many there are.

    A network is called again and again. While its weights fit into a cache they are still there at the next call; when
    there are more, an ever larger share of them comes from further away, and all of them from twice the size on:
    share(W) = W / knee_bytes − 1, kept in [0, 1]. Rows were timed among `typical_bytes` of weights, with the share of
    those in them.

    s_per_byte     seconds of a byte that comes from further away
    knee_bytes     weights that still fit
    typical_bytes  weights of the space's mean network
    """

    s_per_byte: float
    knee_bytes: float
    typical_bytes: float

    def missed_bytes(self, weight_bytes: FloatArray) -> FloatArray:
        """float64[N] bytes that miss the cache beyond those in the rows (below zero: fewer), of networks with
        `weight_bytes` float64[N]."""
        return missed_bytes(weight_bytes, self.knee_bytes, self.typical_bytes)

    def seconds(self, weight_bytes: FloatArray) -> FloatArray:
        """float64[N] seconds of those."""
        return self.s_per_byte * self.missed_bytes(weight_bytes)

    def seconds_in_rows(self, weight_bytes: FloatArray) -> FloatArray:
        """float64[N] seconds of bytes that miss the cache in the rows of networks with `weight_bytes` float64[N]."""
        share = float(np.clip(self.typical_bytes / self.knee_bytes - 1.0, 0.0, 1.0))
        return self.s_per_byte * share * weight_bytes


def missed_bytes(weight_bytes: FloatArray, knee_bytes: float, typical_bytes: float) -> FloatArray:
    """float64[N]: see `CacheMisses`."""
    share, typical = (np.clip(size / knee_bytes - 1.0, 0.0, 1.0) for size in (weight_bytes, np.float64(typical_bytes)))
    missed: FloatArray = weight_bytes * (share - typical)
    return missed


@dataclass(frozen=True)
class Calibration:
    """Seconds of a network ≈ start_s + scale · Σ blocks + boundary_s · (number of blocks), plus those of weights that
    no longer fit into a cache where `misses` is not None; and the error that remains.

    Errors are relative, of networks that were left out of the fit; `uncorrected_mape` is that of the plain sum.
    `disagreement` is the largest relative spread of one network's timings in different processes (None: one process).
    """

    start_s: float
    scale: float
    boundary_s: float
    num_networks: int
    mape: float
    worst: float
    kendall_tau: float
    uncorrected_mape: float
    misses: CacheMisses | None = None
    disagreement: float | None = None

    def to_json(self) -> dict[str, Any]:
        return fields_to_json(self, ("misses", "disagreement"))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Calibration:
        calibration: Calibration = fields_from_json(cls, data)
        return calibration

    @property
    def standard_error(self) -> float:
        """Relative standard deviation of errors whose mean magnitude is `mape`, taken as normal around zero."""
        return self.mape * math.sqrt(math.pi / 2.0)

    def describe(self) -> str:
        """One line for people."""
        note = ""
        if self.disagreement is not None and self.disagreement > _DISAGREES:
            note = f"; one and the same network differed by up to {self.disagreement:.0%} from process to process"
        return (
            f"error {self.mape:.1%} on average, {self.worst:.1%} at worst, Kendall tau {self.kendall_tau:.3f} "
            f"({self.num_networks} whole networks; {self.uncorrected_mape:.1%} before calibration"
            f"{note})"
        )


class LatencyTable:
    """Seconds of whole populations of networks: the sum of their blocks (equation 5), and what their weights cost
    beyond it where a calibration says so.

    blocks   corrected seconds of each block
    weights  bytes of weights of each block; None where they cost nothing beyond the rows
    """

    def __init__(
        self, blocks: BlockTable, weights: BlockTable | None = None, misses: CacheMisses | None = None
    ) -> None:
        self.space, self.blocks = blocks.space, blocks
        self._weights, self._misses = weights, misses

    def of(self, genomes: Genomes) -> FloatArray:
        """float64[N] seconds of each genome int16[N, L]; NaN where a block is unknown."""
        total = self.blocks.of(genomes)
        if self._weights is not None and self._misses is not None:
            total += self._misses.seconds(self._weights.of(genomes))
        return total

    def replace_nan(self, seconds: float) -> None:
        """Give blocks whose seconds are unknown (NaN) some."""
        self.blocks.replace_nan(seconds)

    def smallest(self) -> tuple[FloatArray, Genomes]:
        """The least seconds in each sub-space, float64[R, W], and an architecture that has them, int16[R, W, L].

        Exact without `weights`; with them the better of the smallest sum and the smallest weights, which are one
        architecture wherever larger blocks are slower. Of blocks in several dtypes a trade of the two may be a little
        less.
        """
        value, genomes = self.blocks.smallest()
        if self._weights is None:
            return value, genomes
        shape, length = value.shape, genomes.shape[-1]
        found = [genomes.reshape(-1, length), self._weights.smallest()[1].reshape(-1, length)]
        seconds = np.array([self.of(rows) for rows in found])
        # an architecture of a sub-space with unknown blocks only is NaN both ways
        best = np.where(np.isnan(seconds), np.inf, seconds).argmin(axis=0)
        rows = np.arange(len(best))
        chosen: Genomes = np.stack(found)[best, rows].reshape(*shape, length)
        return seconds[best, rows].reshape(shape), chosen


@dataclass
class LatencyLUT:
    """Rows by `BlockConfig.key`. `latency_s(genomes)` of a `table` is an array sum (equation 5).

    `others` are tables of the same device in further dtypes, by dtype, for networks whose blocks are in several; they
    are not part of the file.
    """

    header: LUTHeader
    rows: dict[str, LUTRow] = field(default_factory=dict)
    calibration: Calibration | None = None
    others: Mapping[str, LatencyLUT] = field(default_factory=dict)

    def of_block(self, block: BlockConfig) -> LatencyLUT:
        """The table of a block's dtype.

        Raises:
            LUTError: there is none.
        """
        if block.dtype in ("", self.header.dtype):
            return self
        if block.dtype not in self.others:
            raise LUTError(f"the LUT of target '{self.header.target.name}' has no blocks in {block.dtype}")
        return self.others[block.dtype]

    def row(self, block: BlockConfig) -> LUTRow:
        """The row of a block.

        Raises:
            LUTError: the table has none.
        """
        lut = self.of_block(block)
        if block.key not in lut.rows:
            raise LUTError(f"the LUT of target '{lut.header.target.name}' has no row for block {block.key}")
        return lut.rows[block.key]

    def block_s(self, block: BlockConfig) -> float:
        """Seconds of one block.

        Raises:
            LUTError: the table has no row for it.
        """
        return self.row(block).median_s

    def missing(self, blocks: Sequence[BlockConfig]) -> list[BlockConfig]:
        """List those of `blocks` that the table has no row for."""
        return [b for b in blocks if b.key not in self.of_block(b).rows]

    def predicted(self, blocks: Sequence[BlockConfig]) -> list[BlockConfig]:
        """List those of `blocks` whose seconds were predicted."""
        missing = set(self.missing(blocks))
        return [b for b in blocks if b not in missing and self.row(b).predicted_error is not None]

    @property
    def standard_error(self) -> float | None:
        """Relative standard deviation of the errors of predictions, of that dtype where it is largest; None where a
        table was never calibrated."""
        errors = []
        for lut in (self, *self.others.values()):
            if lut.calibration is None:
                return None
            errors.append(lut.calibration.standard_error)
        return max(errors)

    def covered(self, space: SearchSpace, num_classes: int) -> tuple[SubSpace, ...]:
        """The sub-spaces that the table has every block of."""
        return tuple(s for s in space.sub_spaces if not self.missing(space.all_blocks(num_classes, (s,))))

    def table(
        self,
        space: SearchSpace,
        num_classes: int,
        *,
        with_holes: bool = False,
        left_out: Collection[SubSpace] = (),
    ) -> LatencyTable:
        """Seconds as dense arrays over a whole space, corrected by the calibration where there is one.

        With holes allowed, an architecture that uses a missing block sums to NaN. Those of sub-spaces that are
        `left_out` take for ever, and their blocks may be missing.

        Raises:
            LUTError: blocks of the space are missing; the message says how many and which command fills them.
        """
        kept = tuple(s for s in space.sub_spaces if s not in left_out)
        for dtype in space.dtypes or (self.header.dtype,):
            lut = self if dtype == self.header.dtype else self.others.get(dtype)
            if lut is None:
                raise LUTError(f"the LUT of target '{self.header.target.name}' has no blocks in {dtype}")
            lut.check_space(space)
            wanted = space.all_blocks(num_classes, kept)
            wanted += space.all_conversions(dtype, kept) if dtype != self.header.dtype else ()
            if not with_holes:
                lut.check_holes(space, num_classes, wanted)
        fit = self.calibration
        if (
            space.dtypes
        ):  # each table has seconds of its own that a network begins with: each block has its part of them
            num_blocks = NUM_FIXED + space.num_stages * float(np.mean(space.depths))
            blocks = BlockTable(space, num_classes, lambda b: self.corrected_s(b) + self._start_s(b) / num_blocks)
        else:
            blocks = BlockTable(space, num_classes, self.corrected_s, 0.0 if fit is None else fit.start_s)
        blocks.leave_out(left_out)
        if fit is None or fit.misses is None:
            return LatencyTable(blocks)
        return LatencyTable(blocks, BlockTable(space, num_classes, self.weight_bytes), fit.misses)

    def check_holes(self, space: SearchSpace, num_classes: int, wanted: Sequence[BlockConfig]) -> None:
        """Raises LUTError: rows of blocks that are wanted are missing; says how many and which command fills them."""
        keys = [block.key for block in wanted if block.key not in self.rows]
        if keys:
            dtype = self.header.target.dtype_name
            which = "" if dtype == "f32" else f" --dtype {dtype}"
            raise LUTError(
                f"the LUT of target '{self.header.target.name}' lacks {len(keys)} blocks of space '{space.name}' "
                f"with {num_classes} classes (the first: {keys[0]}); run `chanas lut fill{which}` to measure them, or "
                "search only what is covered (`chanas search --covered-only`)"
            )

    def corrected_s(self, block: BlockConfig) -> float:
        """Seconds of a block as a part of a network, by the calibration where there is one; NaN where it has no row."""
        lut = self.of_block(block)
        row, fit = lut.rows.get(block.key), lut.calibration
        if row is None:
            return math.nan
        return row.median_s if fit is None else fit.scale * row.median_s + fit.boundary_s

    def _start_s(self, block: BlockConfig) -> float:
        """Seconds that networks of a block's table begin with, but for blocks that convert."""
        fit = self.of_block(block).calibration
        return 0.0 if fit is None or block.converts else fit.start_s

    def weight_bytes(self, block: BlockConfig) -> float:
        """Bytes of a block's weights in its dtype."""
        return block.num_params * _ITEM_BYTES[block.dtype or self.header.dtype]

    def latency_s(self, space: SearchSpace, num_classes: int, genomes: Genomes) -> FloatArray:
        """float64[N] seconds of each genome: equation 5, corrected by the calibration where there is one."""
        return self.table(space, num_classes).of(genomes)

    def check_space(self, space: SearchSpace) -> None:
        """Raises LUTError when the table was made for another space, unless that has another name and the table has
        every row of one of its sub-spaces, classifiers apart: seconds are of blocks, whatever space they are in."""
        if not self.is_of(space):
            raise LUTError(
                f"expected a LUT of space '{space.name}' ({space.digest}), got one of '{self.header.space}' "
                f"({self.header.space_digest}); run `chanas prescheduler --space {space.name}`"
            )

    def is_of(self, space: SearchSpace) -> bool:
        """True if the table goes with a space, as `check_space` says."""
        made_for = (self.header.space, self.header.space_digest)
        return made_for == (space.name, space.digest) or (made_for[0] != space.name and self._shares(space))

    def _shares(self, space: SearchSpace) -> bool:
        """True if all rows of a sub-space are there, but for its classifier, whose number of classes is not known."""
        return any(
            all(b.key in self.rows for b in space.all_blocks(1, (sub_space,)) if b.kind != "classifier")
            for sub_space in space.sub_spaces
        )

    def check(self, space: SearchSpace, target: HardwareTarget) -> None:
        """Raises LUTError when space, device, threads or compiler are not those that the table was measured with."""
        self.check_space(space)
        mine = self.header.target
        for what, got, expected in (
            ("target", mine.name, target.name),
            ("dtype", self.header.dtype, target.dtype),
            ("batch", str(self.header.batch), str(target.batch)),
            ("device fingerprint", mine.fingerprint, target.fingerprint),
            ("TVM version", self.header.compiler, tvm_version()),
        ):
            if got != expected and what == "device fingerprint":
                got += f" ({differences(mine, target)})"
            if got != expected:
                raise LUTError(
                    f"the LUT was made for another {what}: expected {expected}, got {got}; "
                    "run `chanas prescheduler` here to make one, or name the device that it is of (--rpc HOST:PORT "
                    "--key KEY)"
                )

    def save(self, path: Path) -> None:
        rows = {key: row.to_json() for key, row in self.rows.items()}
        calibration = None if self.calibration is None else self.calibration.to_json()
        is_measured = all(row.predicted_error is None for row in self.rows.values())
        schema = SCHEMA if is_measured else PREDICTED_SCHEMA
        write_json(path, {"schema": schema, "header": self.header.to_json(), "calibration": calibration, "rows": rows})

    @classmethod
    def load(cls, path: Path) -> LatencyLUT:
        """Inverse of `save`.

        Raises:
            CheckpointError: the file is missing or damaged.
            LUTError: it is JSON, but not a table of this schema.
        """
        return _TABLE.read_with(path, cls.from_json)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LatencyLUT:
        """Raises ValueError: seconds are none that a block can take, or a dtype is unknown."""
        rows = {key: LUTRow.from_json(row) for key, row in data["rows"].items()}
        for key, row in rows.items():
            if not is_seconds(row.median_s):
                raise ValueError(f"the seconds of block {key} are {row.median_s}")
        header, calibration = LUTHeader.from_json(data["header"]), data.get("calibration")
        for dtype in (header.dtype, header.target.dtype):
            if dtype not in _ITEM_BYTES:
                raise ValueError(unknown_name("dtype", dtype, _ITEM_BYTES))
        return cls(header, rows, None if calibration is None else Calibration.from_json(calibration))


@dataclass(frozen=True)
class _TableFile:
    """Content of a table's file."""

    schema: int
    header: LUTHeader
    rows: dict[str, LUTRow]
    calibration: Calibration | None = None


_TABLE = Document("latency table", _TableFile, version=PREDICTED_SCHEMA, error=LUTError, older=(SCHEMA,))
