"""The trials of an operator in short: their number, and the GFLOP/s of those that work."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from chanas.operators.workload import Workload
from chanas.prescheduler.records.remeasure import rank_records
from chanas.prescheduler.records.store import TuningRecord


@dataclass(frozen=True)
class TrialSummary:
    """Trials of an operator.

    num_tried    failed ones included
    mean_gflops  mean over the trials that work, as each was timed first; None if none works
    best_gflops  of the fastest, by its last measurement in turns where there was one
    """

    num_tried: int
    num_failed: int
    mean_gflops: float | None
    best_gflops: float | None

    @classmethod
    def of(cls, workload: Workload, records: Sequence[TuningRecord]) -> Self:
        """Sum up the records of an operator."""
        first = [workload.gflops(record.seconds) for record in records if record.seconds is not None]
        ranked = rank_records(records)
        return cls(
            len(records),
            len(records) - len(first),
            statistics.fmean(first) if first else None,
            workload.gflops(ranked[0].last_s) if ranked else None,
        )
