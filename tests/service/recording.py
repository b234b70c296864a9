"""Mock work that leaves records as tunings do, and a process that serves it until it is killed:

python recording.py DATA [PORT]    with a port over HTTP, without one only what is in the store is run
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chanas.core.usage import Usage
from chanas.prescheduler.records.merging import merge_records
from chanas.prescheduler.records.schema import SCHEMA, migrate, version_of
from chanas.scheduler.jobs import LEARN, MEASURE, SELECT, Stage
from chanas.scheduler.mock import MockJob, MockStage
from chanas.service.folder import DataFolder
from chanas.service.mock import MockWork
from chanas.service.runner import Runner
from chanas.service.store.database import Database
from chanas.service.store.jobs import Claimed, JobStore, Made
from chanas.service.work import Opened

NUM_RECORDS = 4
STAGE_S = 0.01
TOLD = "told.txt"
"""A line for each record after it was committed."""


def records_of(path: Path) -> list[str]:
    """JOB and number of each record in a file."""
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as db:
        if not version_of(db):
            return []
        return [f"{job} {point}" for job, point in db.execute("SELECT workload, point FROM records")]


class RecordingJob(MockJob):
    """A job whose measurements are noted; it goes on after those that are there."""

    def __init__(self, note: Callable[[int], None], first: int) -> None:
        kinds = [kind for _ in range(first, NUM_RECORDS) for kind in (SELECT, MEASURE, LEARN)]
        super().__init__([((MockStage(kind, STAGE_S, STAGE_S),),) for kind in kinds])
        self._note, self._number = note, first

    def offer(self) -> list[Stage]:
        return [self._noting(stage) if stage.kind == MEASURE else stage for stage in super().offer()]

    def _noting(self, stage: Stage) -> Stage:
        number, self._number = self._number, self._number + 1

        def work() -> Any:
            found = stage.work()
            self._note(number)
            return found

        return dataclasses.replace(stage, work=work)


class RecordingWork(MockWork):
    """Jobs that leave `NUM_RECORDS` records each."""

    def records(self, job: str) -> Path:
        return self.folder.jobs / job / "run" / "records.sqlite"

    def open(self, claimed: Claimed) -> Opened:
        path = self.records(claimed.id)
        path.parent.mkdir(parents=True, exist_ok=True)

        def note(number: int) -> None:
            with contextlib.closing(sqlite3.connect(path, timeout=60)) as db:
                db.execute("PRAGMA journal_mode=WAL")
                if version_of(db) < SCHEMA:
                    migrate(db)
                with db:
                    db.execute(
                        "INSERT INTO records (device, workload, point, created) VALUES ('d', ?, ?, ?)",
                        (claimed.id, str(number), time.time()),
                    )
            with open(self.folder.root / TOLD, "a") as told:
                told.write(f"{claimed.id} {number}\n")

        return Opened(RecordingJob(note, len(records_of(path))))

    def finish(self, claimed: Claimed, facts: Mapping[str, Any]) -> Made:
        self.keep(claimed.id)
        return super().finish(claimed, facts)

    def keep(self, job: str) -> None:
        merge_records(self.records(job), self.folder.records)

    def clear(self, job: str) -> None:
        self.keep(job)
        shutil.rmtree(self.folder.jobs / job, ignore_errors=True)


@contextlib.contextmanager
def open_recording(_usage: Usage, folder: DataFolder) -> Iterator[RecordingWork]:
    yield RecordingWork(folder)


def run_store(data: Path) -> None:
    """Run what is in the store, without HTTP."""
    database = Database(DataFolder(data).database)
    Runner(database, JobStore(database), RecordingWork(DataFolder(data))).start()
    print("running", file=sys.stderr, flush=True)
    while True:
        time.sleep(1.0)


def main(arguments: Sequence[str]) -> None:
    data = Path(arguments[0])
    if len(arguments) == 1:
        run_store(data)
    from chanas.service.serve import Settings, serve

    serve(Settings(data, port=int(arguments[1])), open_recording, lambda line: print(line, file=sys.stderr, flush=True))


if __name__ == "__main__":
    main(sys.argv[1:])
