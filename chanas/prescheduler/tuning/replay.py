"""Tuners played on records instead of a device: what a tuner would have found in a space of which points were measured
before.

A record that is served counts as one trial, as in Kernel Tuner's simulation; a point without a record is not in the
space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chanas.compiler.space import ScheduleSpace
from chanas.core.effort import Effort
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.tuner import Trials
from chanas.prescheduler.tuning.tuners import Tuners
from chanas.prescheduler.tuning.warm_start import WarmStart


def replay(
    space: ScheduleSpace[Any],
    records: Sequence[TuningRecord],
    target: HardwareTarget,
    effort: Effort,
    tuners: Tuners | None = None,
    warm_start: WarmStart | None = None,
) -> list[TuningRecord]:
    """The records that a tuning with this effort asks for, in order.

    Args:
        records: of points that may be asked for, failures too.
        tuners: makes the tuner, by default as the effort says; one that has tuned other operators knows them.
        warm_start: the opened records that the effort names.

    Raises:
        ConfigError: no record is of a point of the space, or there is no such tuner.
    """
    known = {r.point: r for r in records if space.contains(r.point)}
    if not known:
        raise ConfigError(f"there are no records of {space.workload.key} to simulate with; tune it first")
    measured = space.restricted(known)
    tuners = tuners or Tuners(effort.tuner, effort.pretrained, effort.seed, effort.search)
    prior = None if warm_start is None else warm_start.prior(measured)
    suggested = [] if prior is None or tuners.has_model else prior.best(effort.search.num_initial)
    trials = Trials(
        measured,
        tuners.make(measured, [], target, prior),
        effort.num_trials,
        suggested=[point for point in suggested if point in known],
        num_initial=effort.search.num_initial,
        patience=effort.patience,
    )
    served: list[TuningRecord] = []
    while asked := trials.ask(effort.search.batch_size):
        batch = [known[point] for point in asked]
        trials.tell(batch)
        served += batch
    return served
