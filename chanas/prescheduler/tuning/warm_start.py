"""Warm start: the records of one device as what another device's tuning begins with (the same instruction set first).

A schedule point means the same on two devices whose schedule spaces are the same, which they are when vector width,
number of vector registers and `space_version` are. Threads may differ: the space for several has one coordinate more,
`fuse`, and a point without it stands for all of its values. So may the dtype, for operators whose spaces agree in both.
Between other processors, and where spaces of two dtypes differ, points are mapped to those most like them (`mapping`).
GPUs and other versions of the spaces are refused. What the records are used for: `cost_model`, `tune`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.backends import backend_of, schedule_space
from chanas.compiler.space import Named, Point, ScheduleSpace, read_point
from chanas.core.latency import LatencyLUT
from chanas.core.target import DTYPES, GPU_DTYPES, HardwareTarget, tvm_version
from chanas.core.usage import TargetName
from chanas.errors import ChanasError, CheckpointError, StageOrderError, TargetError
from chanas.files.documents import first_fault
from chanas.files.run import RunDirectory
from chanas.operators.workload import Workload
from chanas.prescheduler.records.remeasure import rank_records
from chanas.prescheduler.records.schema import SCHEMA, left_out, usable_rows
from chanas.prescheduler.records.store import UNVERSIONED_SPACES, TuningRecord, device_key
from chanas.prescheduler.tuning.cost_model.base import Prior
from chanas.prescheduler.tuning.mapping import mapped_points
from chanas.prescheduler.tuning.trust import SourceTrust

# Coordinates that only some uses of a device have: a point without one stands for all of its values.
_FREE = frozenset({"fuse"})
# The first schema with all columns that are read here.
_OLDEST_SCHEMA = 4
_DEVICE = re.compile(
    r"(?P<fingerprint>[0-9a-f]+)/(?P<threads>\d+)t/tvm-(?P<compiler>[^@/]+)(?:/space-(?P<spaces>\d+))?(?:@(?P<place>.+))?"
)
_USE = re.compile(rf"-(?P<dtype>{'|'.join((DTYPES | GPU_DTYPES).values())})(-b(?P<batch>\d+))?$")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """A device, used in one dtype, that a file of records has records of."""

    device: str
    target: HardwareTarget
    compiler: str
    spaces: int

    def describe(self) -> str:
        """Name the source for people: `cpu-2t (AMD EPYC, TVM 0.27.0)`."""
        return f"{self.target.name} ({self.target.device}, TVM {self.compiler})"

    def refusals(self, target: HardwareTarget) -> list[str]:
        """List the reasons that its points say nothing of `target`'s schedule spaces; empty if they do."""
        backend = backend_of(target)
        if self.target.kind != target.kind or not backend.seeds_others:
            return [f"kind {self.target.kind} instead of {target.kind} (only processors seed each other)"]
        if self.spaces != backend.space_version:
            return [f"version of the schedule spaces: {self.spaces} instead of {backend.space_version}"]
        return []

    def differences(self, target: HardwareTarget) -> list[str]:
        """List the reasons that its points are not points of `target`'s schedule spaces; empty if they are."""
        mine, its = self.target, target
        pairs = [
            ("float32 values in a vector", mine.vector_lanes, its.vector_lanes),
            ("vector registers", mine.num_vector_registers, its.num_vector_registers),
        ]
        others = [f"{what}: {got} instead of {expected}" for what, got, expected in pairs if got != expected]
        return self.refusals(target) or others

    def distance(self, target: HardwareTarget) -> tuple[object, ...]:
        """The nearest of several sources is the smallest: same vectors, device, dtype and compiler, then alike in
        threads."""
        return (
            bool(self.differences(target)),
            self.target.fingerprint != target.fingerprint,
            self.target.dtype != target.dtype,
            self.compiler != tvm_version(),
            abs(self.target.num_threads - target.num_threads),
            self.device,
            self.target.dtype,
        )


@dataclass(frozen=True)
class WarmStart:
    """Records of a source by workload key, the best first, for tuning on `target`."""

    source: Source
    path: Path
    target: HardwareTarget
    records: Mapping[str, tuple[TuningRecord, ...]] = field(repr=False)
    trust: SourceTrust = field(default_factory=SourceTrust, compare=False)

    @functools.cached_property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of what there is to take: points and seconds of every workload."""
        content = {k: sorted((r.point, r.seconds) for r in rs) for k, rs in self.records.items()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def describe(self, notes: Iterable[Mapping[str, Any]]) -> str:
        """One line for people, from what `RecordStore.warm_starts` says of its operators."""
        mine = [n for n in notes if (n["source"], n["digest"]) == (self.source.device, self.digest)]
        num, dropped = (sum(n[k] for n in mine) for k in ("num_operators", "num_dropped"))
        mapped = ", schedules mapped" if self.source.differences(self.target) else ""
        return (
            f"{self.source.describe()}, records {self.digest}{mapped}: {num} operators, dropped for {dropped} whose "
            "first points, or those of operators before them, came out in another order"
        )

    def prior(self, space: ScheduleSpace[Any]) -> Prior | None:
        """Return the source's records of an operator, mapped where the spaces don't agree; None if it has none."""
        workload = self.its(space.workload)
        records = self.records.get(workload.key, ())
        if not records:
            return None
        whence = schedule_space(workload, self.source.target)
        if agree(whence, space):
            prior = translate(records, whence, space, self.source.target)
        else:
            prior = map_records(records, whence, space, (self.source.target, self.target))
        return None if prior is None else dataclasses.replace(prior, trust=self.trust)

    def its(self, workload: Workload) -> Workload:
        """The operator as it is on the source, in its dtype."""
        dtype = self.source.target.dtype
        return workload if workload.dtype == dtype else dataclasses.replace(workload, dtype=dtype, wide=False)


def agree(a: ScheduleSpace[Any], b: ScheduleSpace[Any]) -> bool:
    """True if two spaces have the same coordinates with the same options, but for those that may be left out."""

    def fixed_options(space: ScheduleSpace[Any]) -> dict[str, tuple[tuple[int, ...], ...]]:
        return {c.name: c.options for c in space.coordinates if c.name not in _FREE}

    return fixed_options(a) == fixed_options(b)


def translate(
    records: Sequence[TuningRecord], whence: ScheduleSpace[Any], space: ScheduleSpace[Any], target: HardwareTarget
) -> Prior | None:
    """Records of one space, best first, in points of another that agrees with it; the best of those that fall together.

    {split_m: (7, 7), …} → {split_m: (7, 7), …, fuse: 1} and {split_m: (7, 7), …, fuse: 2}
    """
    known = _known(records, whence)
    return _prior(((tuple(matching_points(whence.groups(p), space)), seconds) for p, seconds in known), target)


def map_records(
    records: Sequence[TuningRecord],
    whence: ScheduleSpace[Any],
    space: ScheduleSpace[Any],
    targets: tuple[HardwareTarget, HardwareTarget],
) -> Prior | None:
    """Records of one space, best first, as the points of another that are most like theirs; the best of those that fall
    together.

    targets  whose records they are, and whose points they become
    """
    source, target = targets
    known = _known(records, whence)
    mapped = mapped_points([p for p, _ in known], whence, space, source.vector_lanes / target.vector_lanes)
    return _prior(zip(mapped, (seconds for _, seconds in known), strict=True), target)


def _known(records: Iterable[TuningRecord], space: ScheduleSpace[Any]) -> list[tuple[Point, float]]:
    """Points of the space that worked, with their seconds."""
    return [(r.point, r.seconds) for r in records if r.seconds is not None and space.contains(r.point)]


def _prior(pairs: Iterable[tuple[tuple[Point, ...], float]], target: HardwareTarget) -> Prior | None:
    """The best seconds of each set of points; None where no set has any."""
    found: dict[tuple[Point, ...], float] = {}
    for points, seconds in pairs:
        if points:
            found[points] = min(seconds, found.get(points, seconds))
    return Prior(tuple(found), np.array(list(found.values()), dtype=np.float64), target) if found else None


def matching_points(named: Named, space: ScheduleSpace[Any]) -> Iterator[Point]:
    """Legal points that agree with `named` wherever both have a coordinate."""
    options = [(named[c.name],) if c.name in named else c.options for c in space.coordinates]
    for groups in itertools.product(*options):
        point = tuple(itertools.chain.from_iterable(groups))
        if space.contains(point):
            yield point


# ---- opening ---------------------------------------------------------------------------------------------------------
def open_warm_start(source: str, run: RunDirectory, target: HardwareTarget) -> WarmStart:
    """Records to begin with on `target`.

    Args:
        source: another run directory, a file of records, or the name of another target of this run, such as `cpu`.
        run: where the tuning is at work.

    Raises:
        StageOrderError: there are no records.
        TargetError: none of them is of a device whose points are points of `target`'s spaces; says what differs.
        CheckpointError: the file cannot be read.
    """
    path, name = _locate(source, run)
    with open_records(path) as database:
        known = known_sources(database, path, target)
        mine = device_key(target, tvm_version(), backend_of(target).space_version)
        usable = known
        if path.resolve() == run.records.resolve():  # its own are used in any case
            own = mine, target.dtype, target.batch
            usable = [s for s in known if (s.device, s.target.dtype, s.target.batch) != own]
        others = [s for s in usable if name == s.target.name or name is None]
        if not others:
            there = ", ".join(sorted({s.target.name for s in usable})) or "no other known device"
            raise StageOrderError(
                f"there is nothing in {path} to warm-start target '{target.name}' from"
                + (f": no records of another target '{name}'" if name else "")
                + f"; there are records of: {there}"
            )
        fitting = [s for s in others if not s.refusals(target)]
        if not fitting:
            nearest = min(others, key=lambda s: s.distance(target))
            raise TargetError(
                f"records of {nearest.describe()} in {path} say nothing about target '{target.name}': "
                f"{'; '.join(nearest.refusals(target))}; tune it without --warm-start"
            )
        chosen = min(fitting, key=lambda s: s.distance(target))
        return WarmStart(chosen, path, target, load_source(database, path, chosen))


def _locate(source: str, run: RunDirectory) -> tuple[Path, str | None]:
    """The file of records, and the name of the target in it where one is asked for."""
    path = Path(source)
    if path.is_dir():
        path, name = RunDirectory(path).records, None
    elif path.is_file():
        name = None
    else:
        path, name = run.records, source
    if not path.is_file():
        raise StageOrderError(
            f"there are no records to start from: expected a run directory, a file of records or a target of run "
            f"{run.root}, got '{source}'"
        )
    return path, name


@contextlib.contextmanager
def open_records(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file of records for reading; it stays as it is.

    Raises:
        CheckpointError: it cannot be read, or is of another schema.
    """
    try:
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=60)
    except sqlite3.Error as error:
        raise CheckpointError(f"records {path} cannot be opened: {error}") from error
    try:
        schema = int(database.execute("PRAGMA user_version").fetchone()[0])
        if not _OLDEST_SCHEMA <= schema <= SCHEMA:
            raise CheckpointError(
                f"expected records of schema {_OLDEST_SCHEMA} to {SCHEMA}, got {schema} in {path}; newer ones need the "
                "chanas that wrote them, older ones are brought up to date when `chanas prescheduler` uses them"
            )
        yield database
    except sqlite3.Error as error:
        raise CheckpointError(f"records {path} cannot be read: {error}") from error
    finally:
        database.close()


def known_sources(database: sqlite3.Connection, path: Path, target: HardwareTarget | None = None) -> list[Source]:
    """Every device, dtype and batch of the file, as far as it is known what device that is: from the file, from tables
    beside it, or because it is `target`."""
    described = _described(database, path)
    rows = database.execute("SELECT DISTINCT device, workload FROM records WHERE seconds IS NOT NULL").fetchall()
    uses = {(device, *use) for device, workload in rows if (use := _use_of(workload)) is not None}
    found = []
    for device, dtype, batch in sorted(uses):
        match = _DEVICE.fullmatch(device)
        if match is None:
            continue
        hardware, spaces = described.get(device, (None, UNVERSIONED_SPACES["llvm"]))
        spaces = int(match["spaces"] or spaces)
        if hardware is None and target is not None and match["fingerprint"] == target.fingerprint:  # used otherwise
            hardware = target
        if hardware is None:
            continue
        kind, threads = "cuda" if hardware.kind == "cuda" else "cpu", int(match["threads"])
        short = next(name for name, long in (DTYPES | GPU_DTYPES).items() if long == dtype)
        images = batch if kind == "cuda" else 1  # a processor's operators have batches of their own
        name = str(TargetName(kind, threads, short, images, key=match["place"] or ""))
        used = dataclasses.replace(hardware, name=name, num_threads=threads, dtype=dtype, batch=images)
        found.append(Source(device, used, match["compiler"], spaces))
    return list(dict.fromkeys(found))


def _described(database: sqlite3.Connection, path: Path) -> dict[str, tuple[HardwareTarget | None, int]]:
    """Devices by what records call them: from the file, or from tables that lie beside it."""
    found: dict[str, tuple[HardwareTarget | None, int]] = {}
    for table in sorted(RunDirectory(path.parent).luts.glob("*.json")):
        with contextlib.suppress(ChanasError):
            header = LatencyLUT.load(table).header
            for spaces in (None, backend_of(header.target).space_version):
                unversioned = UNVERSIONED_SPACES[header.target.kind]
                found[device_key(header.target, header.compiler, spaces)] = header.target, spaces or unversioned
    if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'devices'").fetchone():
        for device, data, spaces in database.execute("SELECT device, target, spaces FROM devices"):
            if (fault := first_fault(data, HardwareTarget)) is not None:
                raise CheckpointError(f"records {path} are damaged ({fault}) at device {device}")
            found[device] = HardwareTarget.from_json(json.loads(data)), int(spaces)
    return found


def _use_of(workload: str) -> tuple[str, int] | None:
    """The dtype and batch that a workload's key ends in."""
    match = _USE.search(workload)
    return None if match is None else (match["dtype"], int(match["batch"] or 1))


def load_source(database: sqlite3.Connection, path: Path, source: Source) -> dict[str, tuple[TuningRecord, ...]]:
    """Valid records by workload, best first."""
    rows = database.execute(
        """SELECT r.workload, r.point, r.seconds, r.spread, r.same_as, a.seconds, a.spread, a.error
        FROM records AS r LEFT JOIN remeasured AS a
        ON a.device = r.device AND a.workload = r.workload AND a.point = r.point AND a.created =
            (SELECT MAX(created) FROM remeasured WHERE device = r.device AND workload = r.workload)
        WHERE r.device = ? AND r.seconds IS NOT NULL ORDER BY r.rowid""",
        (source.device,),
    )
    kept, num_left_out = usable_rows(rows, 2, spared=5)
    if num_left_out:
        logger.warning("%s", left_out(path, num_left_out))
    found: dict[str, list[TuningRecord]] = {}
    for workload, point, seconds, spread, same_as, again_s, again_spread, again_error in kept:
        use = _use_of(workload)
        if use is None or use[0] != source.target.dtype or (source.target.gpu and use[1] != source.target.batch):
            continue
        try:
            record = TuningRecord(
                read_point(point),
                seconds,
                spread,
                again_s=again_s,
                again_spread_s=again_spread,
                again_error=again_error,
                same_as=None if same_as is None else read_point(same_as),
            )
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"records {path} are damaged ({error}) at workload {workload}") from error
        found.setdefault(workload, []).append(record)
    return {workload: tuple(rank_records(records)) for workload, records in found.items()}
