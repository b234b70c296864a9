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
        first = [gflops(workload, record.seconds) for record in records if record.seconds is not None]
        ranked = rank_records(records)
        return cls(
            len(records),
            len(records) - len(first),
            statistics.fmean(first) if first else None,
            gflops(workload, last_seconds(ranked[0])) if ranked else None,
        )


def last_seconds(record: TuningRecord) -> float:
    """Seconds of a record that works, by its last measurement in turns where there was one."""
    seconds = record.seconds if record.again_s is None else record.again_s
    assert seconds is not None
    return seconds


def gflops(workload: Workload, seconds: float) -> float:
    """GFLOP/s of an operator's definition, whatever its algorithm multiplies."""
    return workload.num_flops / seconds / 1e9
