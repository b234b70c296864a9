"""Choose the best of an operator's best points: the fastest few are measured again, in turns against each other.

The lowest of many short timings is partly the luckiest, and two points that were timed minutes apart met different
moments of the machine. Turns (A B C A B C …) in one process share every moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from chanas.prescheduler.records.store import TuningRecord

CONTENDER_MARGIN = 0.05
"""A point this much slower than the best, as a share, may in truth be faster."""
MAX_CONTENDERS = 4


def contenders(records: Sequence[TuningRecord]) -> list[TuningRecord]:
    """Points that noise may have put in the wrong order, fastest first by their first timing; none for a clear case.

    These depend on the first timings alone, so that a run that was cut off finds the same ones.
    """
    close = leaders(records)
    return close if len(close) > 1 else []


def leaders(records: Sequence[TuningRecord]) -> list[TuningRecord]:
    """The fastest point by its first timing, and the few that noise may have put behind it, fastest first."""
    distinct = [r for r in records if r.seconds is not None and r.same_as is None]
    valid = sorted(distinct, key=lambda r: r.seconds or 0.0)
    limit_s = (1.0 + CONTENDER_MARGIN) * (valid[0].seconds or 0.0) if valid else 0.0
    return [r for r in valid[:MAX_CONTENDERS] if (r.seconds or 0.0) <= limit_s]


def is_settled(records: Sequence[TuningRecord]) -> bool:
    """True if nothing has to be measured again: the case is clear, or the contenders' last turns were among them alone.

    Turns in which all of them failed decide nothing and are made again.
    """
    close = contenders(records)
    if not close:
        return True
    took_part = {r.point for r in records if r.was_remeasured}
    return took_part == {r.point for r in close} and any(r.again_s is not None for r in close)


def rank_records(records: Sequence[TuningRecord]) -> list[TuningRecord]:
    """Valid records, best first: contenders by their turns, then the others by their first timing.

    A contender that failed in its turns comes last. Turns that are out of date (`is_settled`) are left aside.
    """
    valid = [r for r in records if r.seconds is not None]
    close = {r.point for r in contenders(records)} if is_settled(records) else set()

    def place(record: TuningRecord) -> tuple[int, float]:
        if record.point not in close:
            return 1, record.seconds or 0.0
        return (2, record.seconds or 0.0) if record.again_s is None else (0, record.again_s)

    return sorted(valid, key=place)
