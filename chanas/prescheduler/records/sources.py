"""Records of other devices, for reading alone: of which devices a file has some, and what each of them tried."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chanas.compiler.backends import backend_of
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget, tvm_version
from chanas.core.usage import DTYPES, GPU_DTYPES, SHORT_DTYPES, TargetName
from chanas.errors import ChanasError, CheckpointError
from chanas.files.documents import first_fault
from chanas.files.run import RunDirectory
from chanas.operators.precision import FLOAT32
from chanas.prescheduler.records.remeasure import rank_records
from chanas.prescheduler.records.schema import SCHEMA, version_of
from chanas.prescheduler.records.store import UNVERSIONED_SPACES, TuningRecord, device_key, own_key
from chanas.prescheduler.records.tables import fetch, left_out, read_row, trials, usable_rows

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

    def has_points_of(self, target: HardwareTarget) -> bool:
        """True if its points are points of `target`'s schedule spaces: same vectors, and as many registers."""
        mine, its = ((t.vector_lanes, t.num_vector_registers) for t in (self.target, target))
        return mine == its and not self.refusals(target)

    def distance(self, target: HardwareTarget) -> tuple[object, ...]:
        """The nearest of several sources is the smallest: same vectors, device, matrix registers or none, dtype and
        compiler, then alike in threads."""
        return (
            not self.has_points_of(target),
            self.target.fingerprint != target.fingerprint,
            _in_matrices(self.target) != _in_matrices(target),
            self.target.dtype != target.dtype,
            self.compiler != tvm_version(),
            abs(self.target.num_threads - target.num_threads),
            self.device,
            self.target.dtype,
        )


def _in_matrices(target: HardwareTarget) -> bool:
    """True if a processor's products are computed in matrix registers, whose points mean nothing elsewhere."""
    return target.has_matrices and target.dtype != FLOAT32.dtype


@dataclass(frozen=True)
class RecordFile:
    """A file of records that is open for reading."""

    path: Path
    db: sqlite3.Connection

    def num_valid(self) -> int:
        """Records with seconds, of all devices."""
        return int(self.db.execute("SELECT COUNT(seconds) FROM records").fetchone()[0])

    def sources(self, target: HardwareTarget | None = None) -> list[Source]:
        """Every device, dtype and batch of the file, as far as it is known what device that is: from the file, from
        tables beside it, or because it is `target`."""
        described = self._described()
        rows = self.db.execute("SELECT DISTINCT device, workload FROM records WHERE seconds IS NOT NULL").fetchall()
        used_as = {(device, *use) for device, workload in rows if (use := _use_of(workload)) is not None}
        found = []
        for device, dtype, batch in sorted(used_as):
            match = _DEVICE.fullmatch(device)
            if match is None:
                continue
            uses = described.get(device, {})
            hardware, spaces = uses.get(dtype, next(iter(uses.values()), (None, UNVERSIONED_SPACES["llvm"])))
            spaces = int(match["spaces"] or spaces)
            if hardware is None and target is not None and match["fingerprint"] == target.fingerprint:  # used otherwise
                hardware = target
            if hardware is None:
                continue
            kind, threads = "cuda" if hardware.kind == "cuda" else "cpu", int(match["threads"])
            images = batch if kind == "cuda" else 1  # a processor's operators have batches of their own
            name = str(TargetName(kind, threads, SHORT_DTYPES[dtype], images, key=match["place"] or ""))
            used = dataclasses.replace(hardware, name=name, num_threads=threads, dtype=dtype, batch=images)
            found.append(Source(device, used, match["compiler"], spaces))
        return list(dict.fromkeys(found))

    def _described(self) -> dict[str, dict[str, tuple[HardwareTarget | None, int]]]:
        """Devices by what records call them and by dtype: from the file, or from tables that lie beside it."""
        found: dict[str, dict[str, tuple[HardwareTarget | None, int]]] = {}

        def note(device: str, target: HardwareTarget, spaces: int) -> None:
            found.setdefault(device, {})[target.dtype] = target, spaces

        for table in sorted(RunDirectory(self.path.parent).luts.glob("*.json")):
            with contextlib.suppress(ChanasError):
                header = LatencyLUT.load(table).header
                for spaces in (None, backend_of(header.target).space_version):
                    unversioned = UNVERSIONED_SPACES[header.target.kind]
                    note(device_key(header.target, header.compiler, spaces), header.target, spaces or unversioned)
        if self.db.execute("SELECT 1 FROM sqlite_master WHERE name = 'devices'").fetchone():
            for device, data, spaces in self.db.execute("SELECT device, target, spaces FROM devices"):
                if (fault := first_fault(data, HardwareTarget)) is not None:
                    raise CheckpointError(f"records {self.path} are damaged ({fault}) at device {device}")
                note(device, HardwareTarget.from_json(json.loads(data)), int(spaces))
        return found

    def load(self, source: Source) -> dict[str, tuple[TuningRecord, ...]]:
        """Valid records of a source by workload, best first."""
        query = trials("records.device = :device AND records.seconds IS NOT NULL", "records.workload, ")
        kept = self._usable(query, device=source.device)
        found: dict[str, list[TuningRecord]] = {}
        for row in kept:
            workload = row.pop("workload")
            use = _use_of(workload)
            if use is None or use[0] != source.target.dtype or (source.target.gpu and use[1] != source.target.batch):
                continue
            found.setdefault(workload, []).append(self._record(row, workload))
        return {workload: tuple(rank_records(records)) for workload, records in found.items()}

    def tried(self, target: HardwareTarget, workload: str) -> list[TuningRecord]:
        """All records of a workload on a device as it is used today, failures too, oldest first."""
        return self.trials(own_key(target), workload)

    def trials(self, device: str, workload: str) -> list[TuningRecord]:
        """All records of a workload on a device, by what records call it, failures too, oldest first."""
        query = trials("records.device = :device AND records.workload = :workload")
        return [self._record(row, workload) for row in self._usable(query, device=device, workload=workload)]

    def _usable(self, query: str, **arguments: str) -> list[dict[str, Any]]:
        """Rows whose seconds something can have taken; the others are counted aloud."""
        rows, num_left_out = usable_rows(fetch(self.db, query, arguments))
        if num_left_out:
            logger.warning("%s", left_out(self.path, num_left_out))
        return rows

    def _record(self, row: dict[str, Any], workload: str) -> TuningRecord:
        try:
            return read_row(TuningRecord, row)
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"records {self.path} are damaged ({error}) at workload {workload}") from error


def _use_of(workload: str) -> tuple[str, int] | None:
    """The dtype and batch that a workload's key ends in."""
    match = _USE.search(workload)
    return None if match is None else (match["dtype"], int(match["batch"] or 1))


@contextlib.contextmanager
def open_records(path: Path) -> Iterator[RecordFile]:
    """Open a file of records for reading; it stays as it is.

    Raises:
        CheckpointError: it cannot be read, or is of another schema.
    """
    try:
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=60)
    except sqlite3.Error as error:
        raise CheckpointError(f"records {path} cannot be opened: {error}") from error
    try:
        schema = version_of(database)
        if not _OLDEST_SCHEMA <= schema <= SCHEMA:
            raise CheckpointError(
                f"expected records of schema {_OLDEST_SCHEMA} to {SCHEMA}, got {schema} in {path}; newer ones need the "
                "chanas that wrote them, older ones are brought up to date when `chanas prescheduler` uses them"
            )
        yield RecordFile(path, database)
    except sqlite3.Error as error:
        raise CheckpointError(f"records {path} cannot be read: {error}") from error
    finally:
        database.close()
