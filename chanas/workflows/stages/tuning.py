"""The prescheduler on a run directory: blocks tuned, the latency table written and calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.progress import announce
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.core.units import format_estimate
from chanas.core.usage import HERE, Usage
from chanas.devices.host import load_used
from chanas.errors import ConfigError, StageOrderError, unknown_name
from chanas.files.run import RunDirectory
from chanas.workflows.stages.stored import DEFAULT_NUM_CLASSES, check_task, stored_task

if TYPE_CHECKING:
    from chanas.measuring.devices import HoldDevice
    from chanas.prescheduler.tables.lut import PrescheduleSummary
    from chanas.prescheduler.tuning.tuner import TuneConfig


DEFAULT_CALIBRATION = 12
# As `TRIAL_S`, of tables of mbv3-32 (4 trials) and mbv3 (16) that took 168 s and 1,740 s.
_BLOCK_S, _NETWORK_S = 0.22, 6.0


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
    from chanas.measuring.devices import timing_device
    from chanas.prescheduler.tables.lut import TableSettings
    from chanas.prescheduler.tables.lut import preschedule as fill
    from chanas.prescheduler.tuning.warm_start import open_warm_start

    task = table_task(run, space, num_classes)
    config, chosen = tune_config(tuning), parse_sub_spaces(task.space, tuning.sub_spaces)
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
        if progress:
            announce(_plan_lines(run, task, hardware, tuning))
        return fill(run, task, hardware, settings, progress=progress, open_pool=open_pool)


def plan_table(
    run: RunDirectory,
    usage: Usage = HERE,
    *,
    space: str | Path | None = None,
    num_classes: int | None = None,
    tuning: Tuning = DEFAULT_TUNING,
) -> list[str]:
    """The lines that `preschedule` prints before it begins, with the same arguments; nothing is written or compiled.

    Raises:
        ChanasError: as `preschedule` says.
    """
    from chanas.measuring.devices import timing_device

    task = table_task(run, space, num_classes)
    tune_config(tuning)
    parse_sub_spaces(task.space, tuning.sub_spaces)
    if usage.place.rpc is None:
        return _plan_lines(run, task, load_used(usage), tuning)
    with timing_device(usage) as (hardware, _):
        return _plan_lines(run, task, hardware, tuning)


def table_task(run: RunDirectory, space: str | Path | None, num_classes: int | None) -> Task:
    """Search space and number of classes of a table that is made in a run: its supernet's, or those that are named
    where it has none.

    Raises:
        StageOrderError: there is no supernet, and no space is named.
        ConfigError: there is no such space, or it is another one than the supernet's, or so is the number of classes.
    """
    loaded = None if space is None else SearchSpace.load(space)
    check_task(run, loaded, num_classes)
    stored = stored_task(run)
    if stored is not None:
        return Task(*stored)
    if loaded is None:
        raise StageOrderError(
            f"there is no supernet in {run.root} that says what to tune for; train one first (`chanas train-supernet "
            f"--run {run.root}`), or name a space and the classes: --space mbv3 --num-classes 1000"
        )
    return Task(loaded, num_classes or DEFAULT_NUM_CLASSES)


def _plan_lines(run: RunDirectory, task: Task, target: HardwareTarget, tuning: Tuning) -> list[str]:
    """Lines about the operators that are tuned, their space and target, and about how long that takes."""
    from chanas.compiler.backends import schedule_space
    from chanas.operators.steps import tuned_workloads
    from chanas.prescheduler.records.store import RecordStore
    from chanas.prescheduler.tuning.budget import TRIAL_S

    sub_spaces, all_of_them = parse_sub_spaces(task.space, tuning.sub_spaces), task.space.sub_spaces
    blocks = task.blocks(sub_spaces)
    workloads = tuned_workloads(blocks, target)
    config = tune_config(tuning)
    most = sum(min(config.num_trials, schedule_space(w, target).num_points) for w in workloads)
    num_kept = 0
    if run.records.is_file():
        store = RecordStore(run.records, target)
        num_kept = sum(len(store.load(w.key)) for w in workloads)
        store.close()
    num_new = max(0, most - num_kept)
    share = "" if tuning.tune_share >= 1 else f", those that make up {tuning.tune_share:.0%} of the operations"
    kept = f", {num_kept} of them made before" if num_kept else ""
    seconds = TRIAL_S * num_new + _BLOCK_S * len(blocks) + _NETWORK_S * tuning.num_calibration
    duration = f"; {format_estimate(seconds)} on two idle cores" if target.gpu is None else ""
    return [
        f"plan       latency table of target {target.name} for space {task.space.name}, {task.num_classes} classes, "
        f"{len(sub_spaces or all_of_them)} of {len(all_of_them)} sub-spaces",
        f"           {len(workloads)} operators{share}, at most {most} trials{kept}; {len(blocks)} blocks timed, "
        f"{tuning.num_calibration} networks to calibrate with{duration}",
        f"           into {run.lut(target.name)}",
    ]


def tune_config(tuning: Tuning) -> TuneConfig:
    """Return the settings of the exploration.

    Raises:
        ConfigError: the cost model is unknown, or fewer than one trial or too few networks are asked for. It is told
            before anything is tuned.
    """
    from chanas.prescheduler.tuning.cost_model.models import check_name
    from chanas.prescheduler.tuning.share import check_share
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
