"""Latencies of a new device from those of others and a few measured there: a table of blocks, whole networks, or
configurations of one operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chanas.core.arch import SearchSpace
from chanas.core.effort import AdaptEffort, TableEffort
from chanas.core.latency import LatencyLUT
from chanas.core.progress import announce
from chanas.core.task import Task
from chanas.core.usage import HERE, Usage
from chanas.errors import ConfigError
from chanas.files.run import RunDirectory
from chanas.workflows.stages.shipped import find_table
from chanas.workflows.stages.stored import check_task, stored_task
from chanas.workflows.stages.tables import OpenTable, calibrate_on, open_table

if TYPE_CHECKING:
    from chanas.prescheduler.tables.transfer.adapt import AdaptedTable
    from chanas.prescheduler.tuning.proposals import Played, Proposal
    from chanas.search.transfer.networks import PredictedNetworks


DEFAULT_EFFORT = AdaptEffort()
_OF_HOLES = ("early_stopping", "tuner", "pretrained", "seed", "knobs", "search")
"""Settings that hold for blocks that the first source lacks, too; `trials` are of those that it has."""


def adapt(
    run: RunDirectory,
    sources: Sequence[str | Path],
    usage: Usage = HERE,
    *,
    space: str | Path | None = None,
    num_classes: int | None = None,
    effort: AdaptEffort = DEFAULT_EFFORT,
    progress: bool = True,
) -> AdaptedTable:
    """Make a table of a device from those of others: some blocks measured there, all others predicted.

    `sources` are files or names of tables that come with chanas; of the first one the schedules are used, and where
    they are for other vectors, registers or another dtype, they are what a few trials begin with. A few blocks that it
    lacks, such as a classifier of another number of classes, are tuned and timed. Space and number of classes
    are those of the run's supernet where there is one, or else of the first source.

    Raises:
        ConfigError: no source is named, or there is none of that name, or no class is asked for, or as `check_effort`.
        LUTError: the first source's schedules are of another kind of device.
        MeasureError: too few blocks could be measured.
        ChanasError: as `timing_device` says.
    """
    from chanas.measuring.devices import timing_device
    from chanas.prescheduler.tables.lut import preschedule
    from chanas.prescheduler.tables.transfer.adapt import adapt as make
    from chanas.prescheduler.tuning.tuners import check_effort
    from chanas.prescheduler.tuning.warm_start import open_prior

    if not sources:
        raise ConfigError("expected a table to begin with, got none; name one with --from")
    check_effort(effort)
    check_task(run, None if space is None else SearchSpace.load(space), num_classes)
    tables = [LatencyLUT.load(find_table(source)) for source in sources]
    stored = stored_task(run)
    if stored is not None:
        loaded, classes = stored
    else:
        first = open_table(find_table(sources[0]), space=space, num_classes=num_classes)
        loaded, classes = first.required_space(), first.num_classes
    task = Task(loaded, classes)
    blocks = task.blocks(loaded.named_sub_spaces(effort.sub_spaces))
    with timing_device(usage) as (hardware, open_pool):
        warm_start = open_prior(effort.warm_start, run, hardware)
        if progress:
            announce(
                [
                    f"plan       latency table of target {hardware.name} for space {loaded.name}, {classes} classes: "
                    f"{effort.measure} of {len(blocks)} blocks measured, others predicted from "
                    f"{', '.join(str(source) for source in sources)}; {effort.calibrate} networks to calibrate "
                    f"with; into {run.lut(hardware.name)}"
                ]
            )
        made = make(run, task, hardware, tables, blocks, effort, progress=progress, open_pool=open_pool)
        if 0 < len(made.holes) <= effort.measure:
            asked = {name: getattr(effort, name) for name in _OF_HOLES}
            asked = {name: value for name, value in asked.items() if value != getattr(DEFAULT_EFFORT, name)}
            tuning = TableEffort(calibrate=0, **asked)
            filled = preschedule(
                run,
                task,
                hardware,
                tuning,
                only=made.holes,
                warm_start=warm_start,
                progress=progress,
                open_pool=open_pool,
            )
            made = dataclasses.replace(made, lut=filled.lut, holes=())
        if effort.calibrate and made.lut.calibration is None and made.lut.covered(loaded, classes):
            table = OpenTable(made.path, made.lut, loaded, classes)
            calibrate_on(table, hardware, open_pool, effort.calibrate, effort.seed, progress)
    return made


def predict_networks(file: Path, device: str, out: Path) -> PredictedNetworks:
    """Predict the latencies of networks on a new device, from those of a few of them and from other devices'.

    Args:
        file: a CSV file as `search/transfer/networks` reads it.
        device: one of its devices.
        out: where the file is written with all latencies of the device.

    Raises:
        ConfigError: the file has no such device.
        DataError: it cannot be read, or says too little.
        ChanasError: `out` cannot be written.
    """
    from chanas.search.transfer import networks

    found = networks.predict_networks(networks.read_networks(file), device)
    found.save(out)
    return found


def propose_configurations(
    file: Path, device: str, num: int = 8, sources: Sequence[str] = (), out: Path | None = None, seed: int = 0
) -> Proposal:
    """Choose which configurations of an operator to measure next on a device.

    Args:
        file: a CSV file as `prescheduler/tuning/configurations` reads it.
        device: one of its devices.
        num: how many.
        sources: other devices to go by; all where none is named.
        out: where the file is written with the chosen ones first.

    Raises:
        ConfigError: the file has no such device, or `num` is below 1.
        DataError: it cannot be read, or has too much of the device.
        ChanasError: `out` cannot be written.
    """
    from chanas.prescheduler.tuning import configurations, proposals

    found = proposals.propose(configurations.read_configurations(file), device, num, sources, seed)
    if out is not None:
        found.save(out)
    return found


def simulate_proposals(
    file: Path, device: str, sources: Sequence[str] = (), num_trials: int = 100, num_seeds: int = 5, seed: int = 0
) -> Played:
    """Play searches on the configurations that a file has of a device, with other devices and without any.

    Raises:
        ConfigError: the file has no such device, or a number is below 1.
        DataError: it cannot be read, or says too little.
    """
    from chanas.prescheduler.tuning import configurations, proposals

    return proposals.simulate(configurations.read_configurations(file), device, sources, num_trials, num_seeds, seed)
