"""The prescheduler on a run directory: blocks tuned, the latency table written and calibrated."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from chanas.core.arch import SearchSpace
from chanas.core.effort import TableEffort
from chanas.core.progress import announce
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.core.units import format_estimate
from chanas.core.usage import HERE, Usage
from chanas.devices.host import load_used
from chanas.errors import StageOrderError
from chanas.files.run import RunDirectory
from chanas.workflows.stages.stored import DEFAULT_NUM_CLASSES, check_task, stored_task

if TYPE_CHECKING:
    from chanas.measuring.devices import HoldDevice
    from chanas.prescheduler.tables.lut import PrescheduleSummary


# As `TRIAL_S`, of tables of mbv3-32 (4 trials) and mbv3 (16) that took 168 s and 1,740 s.
_BLOCK_S, _NETWORK_S = 0.22, 6.0


DEFAULT_EFFORT = TableEffort()


def preschedule(
    run: RunDirectory,
    usage: Usage = HERE,
    *,
    space: str | Path | None = None,
    num_classes: int | None = None,
    effort: TableEffort = DEFAULT_EFFORT,
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
        ConfigError: there is no such sub-space or cost model. It is told before anything is tuned.
        MeasureError: blocks remain that could not be measured.
    """
    from chanas.measuring.devices import timing_device
    from chanas.prescheduler.tables.lut import preschedule as fill
    from chanas.prescheduler.tuning.tuners import check_effort
    from chanas.prescheduler.tuning.warm_start import open_prior

    task = table_task(run, space, num_classes)
    check_effort(effort)
    task.space.named_sub_spaces(effort.sub_spaces)
    with (hold or timing_device)(usage) as (hardware, open_pool):
        warm_start = open_prior(effort.warm_start, run, hardware)
        if progress:
            announce(_plan_lines(run, task, hardware, effort))
        return fill(run, task, hardware, effort, warm_start=warm_start, progress=progress, open_pool=open_pool)


def plan_table(
    run: RunDirectory,
    usage: Usage = HERE,
    *,
    space: str | Path | None = None,
    num_classes: int | None = None,
    effort: TableEffort = DEFAULT_EFFORT,
) -> list[str]:
    """The lines that `preschedule` prints before it begins, with the same arguments; nothing is written or compiled.

    Raises:
        ChanasError: as `preschedule` says.
    """
    from chanas.measuring.devices import check_place, timing_device
    from chanas.prescheduler.tuning.tuners import check_effort
    from chanas.prescheduler.tuning.warm_start import open_prior

    task = table_task(run, space, num_classes)
    check_effort(effort)
    check_place(usage.device, usage.place)
    task.space.named_sub_spaces(effort.sub_spaces)
    is_here = usage.place.rpc is None
    with contextlib.nullcontext((load_used(usage), None)) if is_here else timing_device(usage) as (hardware, _):
        open_prior(effort.warm_start, run, hardware)
        return _plan_lines(run, task, hardware, effort)


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


def _plan_lines(run: RunDirectory, task: Task, target: HardwareTarget, effort: TableEffort) -> list[str]:
    """Lines about the operators that are tuned, their space and target, and about how long that takes."""
    from chanas.compiler.knobs import changed_spaces
    from chanas.operators.steps import tuned_workloads
    from chanas.prescheduler.records.store import RecordStore
    from chanas.prescheduler.tuning.budget import TRIAL_S

    sub_spaces = task.space.named_sub_spaces(effort.sub_spaces)
    blocks = task.table_blocks(target.dtype, sub_spaces)
    workloads = tuned_workloads(blocks, target)
    spaces = changed_spaces(workloads, target, None if effort.knobs is None else Path(effort.knobs))
    most = sum(min(effort.num_trials, space.num_points) for space in spaces)
    num_kept = 0
    if run.records.is_file():
        store = RecordStore(run.records, target)
        num_kept = sum(len(store.load(w.key)) for w in workloads)
        store.close()
    num_new = max(0, most - num_kept)
    share = "" if effort.tune_share >= 1 else f", those that make up {effort.tune_share:.0%} of the operations"
    kept = f", {num_kept} of them made before" if num_kept else ""
    seconds = TRIAL_S * num_new + _BLOCK_S * len(blocks) + _NETWORK_S * effort.calibrate
    duration = f"; {format_estimate(seconds)} on two idle cores" if target.gpu is None else ""
    return [
        f"plan       latency table of target {target.name} for space {task.space.name}, {task.num_classes} classes, "
        f"{len(sub_spaces)} of {len(task.space.sub_spaces)} sub-spaces",
        f"           {len(workloads)} operators{share}, at most {most} trials{kept}; {len(blocks)} blocks timed, "
        f"{effort.calibrate} networks to calibrate with{duration}",
        f"           into {run.lut(target.name)}",
    ]
