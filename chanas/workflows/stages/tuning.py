"""The prescheduler on a run directory: blocks tuned, the latency table written and calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.task import Task
from chanas.core.usage import HERE, Usage
from chanas.errors import ConfigError, unknown_name
from chanas.files.run import RunDirectory
from chanas.workflows.stages.stored import DEFAULT_NUM_CLASSES, DEFAULT_SPACE, check_num_classes, stored_task

if TYPE_CHECKING:
    from chanas.prescheduler.measuring.devices import HoldDevice
    from chanas.prescheduler.tables.lut import PrescheduleSummary
    from chanas.prescheduler.tuning.tuner import TuneConfig


DEFAULT_CALIBRATION = 12


@dataclass(frozen=True)
class Tuning:
    """The effort that a latency table is made with.

    num_trials       schedule points per operator on average, kept ones included; None: the default
    sub_spaces       keys such as r224-w1; all where there are none
    cost_model       gp, random, or attention:FILE (`cost_model.models`)
    num_calibration  whole networks that the table is calibrated with; 0 for none
    warm_start       another run, a file of records, or another target of the run, whose records the tuning begins with
    tune_share       the fewest operators that make up so much of all operations are tuned; the others take schedules
                     over
    """

    num_trials: int | None = None
    sub_spaces: Sequence[str] = ()
    cost_model: str = "gp"
    num_calibration: int = DEFAULT_CALIBRATION
    warm_start: str | None = None
    tune_share: float = 1.0


DEFAULT_TUNING = Tuning()


def preschedule(
    run: RunDirectory,
    usage: Usage = HERE,
    *,
    space: str | Path | None = None,
    num_classes: int | None = None,
    tuning: Tuning = DEFAULT_TUNING,
    seed: int = 0,
    progress: bool = True,
    hold: HoldDevice | None = None,
) -> PrescheduleSummary:
    """Tune every block on the target, write the latency table, and calibrate it against whole networks.

    Space and number of classes are those of the run's supernet where there is one and nothing else is asked for. With
    a tracker and a key as place the target is what devices of that key say they are. `hold` gets hold of the device,
    by default `timing_device`.

    Raises:
        TargetError: the target is unknown or not there, has no instructions for the dtype, another process uses it, or
            the batch is above 1 on a processor.
        ConfigError: as `tune_config` says.
        MeasureError: blocks remain that could not be measured.
    """
    from chanas.prescheduler.measuring.devices import timing_device
    from chanas.prescheduler.tables.lut import TableSettings
    from chanas.prescheduler.tables.lut import preschedule as fill
    from chanas.prescheduler.tuning.warm_start import open_warm_start

    check_num_classes(num_classes)
    stored = stored_task(run)
    loaded = SearchSpace.load(space) if space is not None else stored[0] if stored else SearchSpace.load(DEFAULT_SPACE)
    classes = num_classes or (stored[1] if stored else DEFAULT_NUM_CLASSES)
    config, chosen = tune_config(tuning), parse_sub_spaces(loaded, tuning.sub_spaces)
    with (hold or timing_device)(usage) as (hardware, open_pool):
        warm_start = None if tuning.warm_start is None else open_warm_start(tuning.warm_start, run, hardware)
        settings = TableSettings(
            config,
            chosen,
            model=tuning.cost_model,
            seed=seed,
            num_calibration=tuning.num_calibration,
            warm_start=warm_start,
            tune_share=tuning.tune_share,
        )
        return fill(run, Task(loaded, classes), hardware, settings, progress=progress, open_pool=open_pool)


def tune_config(tuning: Tuning) -> TuneConfig:
    """Return the settings of the exploration.

    Raises:
        ConfigError: the cost model is unknown, or fewer than one trial or too few networks are asked for. It is told
            before anything is tuned.
    """
    from chanas.prescheduler.tuning.cost_model.models import check_name
    from chanas.prescheduler.tuning.take_over import check_share
    from chanas.prescheduler.tuning.tuner import TuneConfig

    check_name(tuning.cost_model)
    check_share(tuning.tune_share)
    if tuning.num_calibration:
        check_num_networks(tuning.num_calibration)
    if tuning.num_trials is None:
        return TuneConfig(shared=True)
    if tuning.num_trials < 1:
        raise ConfigError(f"expected at least 1 trial per operator, got {tuning.num_trials}")
    return TuneConfig(num_trials=tuning.num_trials, shared=True)


def check_num_networks(num_networks: int) -> None:
    """Raise ConfigError where a table can't be calibrated with so few networks."""
    from chanas.prescheduler.tables.calibrate import MIN_NETWORKS

    if num_networks < MIN_NETWORKS:
        raise ConfigError(f"expected at least {MIN_NETWORKS} networks to calibrate with, got {num_networks}")


def parse_sub_spaces(space: SearchSpace, keys: Sequence[str]) -> tuple[SubSpace, ...] | None:
    """Sub-spaces from keys such as r224-w1; None without any. Raises ConfigError: there is no such one."""
    known = {s.key: s for s in space.sub_spaces}
    for key in keys:
        if key not in known:
            raise ConfigError(unknown_name("sub-space", key, known))
    return tuple(known[key] for key in keys) or None
