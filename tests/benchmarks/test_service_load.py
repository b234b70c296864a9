"""Figures of the service's load, from a database and times that are made up."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from chanas.service.serve import open_database
from chanas.service.store.jobs import JobStore, Made, NewJob


def test_jobs_that_are_lost_doubled_or_nobodys_are_counted(load: Any, tmp_path: Path) -> None:
    script, told = load("service_load"), load("service_load").Told()
    with contextlib.closing(open_database(tmp_path)) as database:
        store = JobStore(database)
        for number in ("a", "b", "nobodys"):
            new = NewJob(
                tenant="tenant-1",
                key=number,
                digest="d",
                kind="model",
                request={},
                content=number,
                effort="e",
                target="cpu",
            )
            told.jobs[number] = store.submit(new, 10).result()[0]
        del told.jobs["nobodys"]
        claimed = store.claim().result()
        assert claimed is not None
        store.complete(claimed.id, claimed.attempt, Made({})).result()
        assert script.count_faults(tmp_path, told) == {"lost": 1, "doubled": 0, "not_known": 1}
        insert = "INSERT INTO events (job, at, what) VALUES (?, 0, 'complete')"
        database.write(lambda db: db.execute(insert, (claimed.id,))).result()
        assert script.count_faults(tmp_path, told)["doubled"] == 1


def test_the_worst_call_and_the_second_half_of_the_memory_count(load: Any) -> None:
    script = load("service_load")
    assert script.quantile([float(i) for i in range(1, 101)], 0.95) == 95.0
    row = {
        "calls": {"show": {"p95_s": 0.01}, "submit": {"p95_s": 0.06}},
        "faults": {"lost": 0, "doubled": 1},
        "speeds": {"calls_per_s": 5.0},
    }
    memory = [{"jobs": i, "resident_mib": mib} for i, mib in enumerate((80.0, 100.0, 100.0, 101.0))]
    figures = script.figures_of(row, 0, memory)
    assert (figures["worst_p95_s"].value, figures["worst_p95_s"].met) == (0.06, False)
    assert (figures["lost_jobs"].met, figures["doubled_jobs"].met) == (True, False)
    assert (figures["memory_growth"].value, figures["memory_growth"].met) == (1.01, True)
