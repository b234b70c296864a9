"""Show, check, fill, compare and calibrate latency tables that exist.

As in `chanas/workflows/searching/search.py`, functions of the stages are called with what files hold; here a table says
itself of which space, device and number of threads it is."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.blocks import BlockConfig
from chanas.core.effort import TableEffort, check_num_networks
from chanas.core.latency import Calibration, LatencyLUT
from chanas.core.progress import announce
from chanas.core.target import LOCAL_TARGETS, HardwareTarget, differences, in_batches
from chanas.core.task import Task
from chanas.core.usage import DTYPES, GPU_DTYPES, HERE, THIS_MACHINE, Place, Usage
from chanas.devices.gpu_use import GPU_TARGET, check_free
from chanas.devices.host import load_target, load_used
from chanas.errors import ConfigError, LUTError, TargetError, unknown_name
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.workflows.stages.shipped import check_own, is_shipped
from chanas.workflows.stages.stored import DEFAULT_NUM_CLASSES, check_num_classes, stored_table, stored_task
from chanas.workflows.stages.table_report import (
    Comparison,
    TableSummary,
    describe_calibration,
    numbers_of_classes,
    summarise,
)
from chanas.workflows.stages.table_report import compare as compare_tables
from chanas.workflows.stages.tuning import DEFAULT_EFFORT

if TYPE_CHECKING:
    from chanas.measuring.fleet import OpenPool
    from chanas.prescheduler.tables.lut_check import TableCheck, Tolerances

# Predicted rows are replaced so many at a time: whoever ends `fill` in between keeps those before.
_FILLED_AT_ONCE = 64


@dataclass(frozen=True)
class OpenTable:
    """A table, where it lies, and what it is of; `space` is None where the search space is not at hand."""

    path: Path
    lut: LatencyLUT
    space: SearchSpace | None
    num_classes: int

    def required_space(self) -> SearchSpace:
        """Raises LUTError: the search space is not at hand."""
        if self.space is None:
            header = self.lut.header
            raise LUTError(
                f"{self.path} is of space '{header.space}' ({header.space_digest}), which is neither a preset nor the "
                "supernet's; name its YAML file with --space"
            )
        return self.space


def open_table(
    file: Path | None = None,
    run: RunDirectory | None = None,
    *,
    usage: Usage = HERE,
    space: str | Path | None = None,
    num_classes: int | None = None,
) -> OpenTable:
    """A table by its file, or a run's table of a target; with a key as place, that of the devices of the key.

    Its search space is the one that is named, that of the run's supernet, or a preset, wherever the table
    has their blocks. The number of classes is the supernet's, or that of the classifiers that have rows.

    Raises:
        CheckpointError: the file is missing or damaged.
        ConfigError: the number of classes is not clear or below 1, or there is no such space.
        LUTError: the file is no table, or one of another space than the named one.
        StageOrderError: the run has no table of this target.
    """
    check_num_classes(num_classes)
    if file is None:
        if run is None:
            raise ConfigError("expected a file or a run directory with a latency table, got neither")
        file = stored_table(run, _named(usage))
    elif file.absolute().parent.name == "luts" and not is_shipped(file):
        run = RunDirectory(file.absolute().parent.parent)
    else:
        run = None
    lut = LatencyLUT.load(file)
    stored = None if run is None else stored_task(run)
    if stored is not None and not lut.is_of(stored[0]):
        stored = None
    found: SearchSpace | None
    if space is not None:
        found = SearchSpace.load(space)
        lut.check_space(found)
    else:
        found = stored[0] if stored else _preset(lut)
    classes = num_classes or (stored[1] if stored else _only_number_of_classes(file, lut))
    return OpenTable(file, lut, found, classes)


def _named(usage: Usage) -> HardwareTarget:
    """The target whose table is meant. Its name suffices: a table can be read on machines that lack its device, its
    number of cores or its instructions."""
    if usage.place.key is None and usage.device not in LOCAL_TARGETS:
        return load_used(usage)  # raises: it is unknown, or only described
    dtypes = GPU_DTYPES if usage.device == GPU_TARGET else DTYPES
    if usage.dtype not in dtypes:
        raise TargetError(unknown_name("dtype", usage.dtype, dtypes))
    if usage.threads < 1:
        raise TargetError(f"expected at least 1 thread, got {usage.threads}")
    here = load_target("cpu")
    if usage.device != GPU_TARGET:
        in_batches(here, usage.batch)
    name, dtype = str(usage.name), dtypes[usage.dtype]
    return dataclasses.replace(here, name=name, num_threads=usage.threads, dtype=dtype, batch=usage.batch)


def _preset(lut: LatencyLUT) -> SearchSpace | None:
    try:
        space = SearchSpace.load(lut.header.space)
    except ConfigError:
        return None
    return space if lut.is_of(space) else None


def _only_number_of_classes(file: Path, lut: LatencyLUT) -> int:
    there = numbers_of_classes(lut)
    if len(there) > 1:
        raise ConfigError(
            f"{file} has classifiers of {', '.join(map(str, there))} classes; choose one with --num-classes"
        )
    return there[0] if there else DEFAULT_NUM_CLASSES


def check_device(lut: LatencyLUT, there: HardwareTarget | None = None) -> None:
    """Raises LUTError when the table was measured on another device than `there` (this machine); the message says in
    what they differ."""
    made_on = lut.header.target
    here = there or load_target(made_on.local_name)
    if made_on.fingerprint != here.fingerprint:
        where = "here" if there is None else "on the device"
        key = made_on.name.partition("@")[2] or "KEY"
        advice = "name the key of a device like that"
        if there is None:
            advice = f"run `chanas prescheduler` here to make one, or name its device with --rpc HOST:PORT --key {key}"
        raise LUTError(
            f"the table is of another device: expected fingerprint {here.fingerprint}, got {made_on.fingerprint} "
            f"({differences(made_on, here, where)}); {advice}"
        )


def this_device(lut: LatencyLUT) -> HardwareTarget:
    """This machine as a target with the table's number of threads, dtype and batch.

    Raises:
        LUTError: the table was measured on another device.
        TargetError: there are fewer cores than the table's threads.
    """
    check_device(lut)
    made_on = lut.header.target
    here = load_target(made_on.local_name, made_on.num_threads, made_on.dtype_name, made_on.batch)
    return dataclasses.replace(here, name=made_on.name)  # one that was made over RPC is the device's own too


@contextlib.contextmanager
def table_device(lut: LatencyLUT, place: Place = THIS_MACHINE) -> Iterator[tuple[HardwareTarget, OpenPool | None]]:
    """Hold what a table is measured on again: this machine, or devices of a key (`timing_device`), used as it says.

    Raises:
        ChanasError: as `timing_device` says.
        LUTError: the table was measured on another device.
    """
    from chanas.measuring.devices import check_place, timing_device

    check_place("cpu", place)
    if place.rpc is None:
        here = this_device(lut)
        check_free([here], place.shared)
        yield here, None
        return
    made_on = lut.header.target
    usage = Usage(made_on.local_name, made_on.num_threads, made_on.dtype_name, made_on.batch, place)
    with timing_device(usage) as (hardware, open_pool):
        check_device(lut, hardware)
        yield dataclasses.replace(hardware, name=made_on.name), open_pool


def show(table: OpenTable) -> TableSummary:
    """Sum up a table in numbers."""
    return summarise(table.lut, table.space, table.num_classes)


def compare(
    a: Path, b: Path, *, space: str | Path | None = None, num_classes: int | None = None, seed: int = 0
) -> Comparison:
    """Two tables of one search space side by side; `seed` draws the architectures.

    Raises:
        ChanasError: as `open_table` says.
        LUTError: they are of different spaces, or share no block.
    """
    mine = open_table(a, space=space, num_classes=num_classes)
    theirs = LatencyLUT.load(b)
    return compare_tables(mine.lut, theirs, mine.space, mine.num_classes, seed=seed)


def check(
    table: OpenTable,
    *,
    num_rows: int = 20,
    num_networks: int = 3,
    tolerances: Tolerances | None = None,
    place: Place = THIS_MACHINE,
    seed: int = 0,
    progress: bool = True,
) -> TableCheck:
    """Measure some rows and networks of a table again, on this machine or on devices of a key; nothing is stored.

    Raises:
        LUTError: the table is of another device or compiler, or has no rows of its space.
        ChanasError: as `table_device` says.
    """
    from chanas.prescheduler.tables.lut_check import Sample, check_table

    sample = Sample(num_rows, num_networks)
    with table_device(table.lut, place) as (hardware, open_pool):
        return check_table(
            table.lut,
            Task(table.required_space(), table.num_classes),
            hardware,
            sample=sample,
            tolerances=tolerances,
            seed=seed,
            progress=progress,
            open_pool=open_pool,
        )


@dataclass(frozen=True)
class FillSummary:
    """The blocks that were missing, those of them that exist now, and the table as it is stored."""

    path: Path
    num_holes: int
    num_blocks: int
    num_new_trials: int
    num_failed_trials: int
    lut: LatencyLUT
    warm_start: str = ""
    """The use of another device's records for it (`WarmStart.describe`)."""
    num_predicted: int = 0
    """Blocks that were predicted before."""


def fill(
    run: RunDirectory,
    usage: Usage = HERE,
    *,
    space: str | Path | None = None,
    num_classes: int | None = None,
    effort: TableEffort = DEFAULT_EFFORT,
    progress: bool = True,
) -> FillSummary:
    """Tune and time the blocks that the run's table lacks or has predicted, and no others; then calibrate it again if
    it changed. Of those predicted the first are those that leave the most doubt about networks.

    Networks for the calibration come from all sub-spaces that the table then covers. Arguments are those of
    `chanas.workflows.stages.tuning.preschedule`.

    Raises:
        StageOrderError: the run has no table of this target, or there are no records to begin with.
        LUTError: the table is of another device or compiler, or has schedules of another version of the spaces.
        MeasureError: blocks remain that could not be measured; the table has the others.
        ChanasError: as `table_device` says.
    """
    from chanas.measuring.devices import check_place
    from chanas.prescheduler.tables.lut import preschedule
    from chanas.prescheduler.tables.networks import check_schedules
    from chanas.prescheduler.tuning.tuners import check_effort
    from chanas.prescheduler.tuning.warm_start import open_prior

    check_place(usage.device, usage.place)
    check_effort(effort)
    table = open_table(None, run, usage=usage, space=space, num_classes=num_classes)
    loaded = table.required_space()
    task = Task(loaded, table.num_classes)
    blocks = task.table_blocks(table.lut.header.dtype, loaded.named_sub_spaces(effort.sub_spaces))
    with table_device(table.lut, usage.place) as (device, open_pool):
        hardware = dataclasses.replace(device, name=table.path.stem)
        table.lut.check(loaded, hardware)
        check_schedules(table.lut)
        warm_start = open_prior(effort.warm_start, run, hardware)
        holes = table.lut.missing(blocks)
        predicted = _by_doubt(table.lut, task, blocks)
        if progress:
            announce(
                [
                    f"plan       {table.path}: {len(holes)} of {len(blocks)} blocks missing, {len(predicted)} "
                    f"predicted; {effort.num_trials} trials an operator, {effort.calibrate} networks for the sum"
                ]
            )
        lut, num_new, num_failed, started = table.lut, 0, 0, ""
        of_groups = dataclasses.replace(effort, sub_spaces=(), calibrate=0)
        for only in _groups(holes, predicted):
            filled = preschedule(
                run,
                task,
                hardware,
                of_groups,
                only=only,
                warm_start=warm_start,
                progress=progress,
                open_pool=open_pool,
            )
            lut, started = filled.lut, filled.warm_start
            num_new, num_failed = num_new + filled.num_new_trials, num_failed + filled.num_failed_trials
        if effort.calibrate and (holes or predicted or lut.calibration is None):
            changed = OpenTable(table.path, lut, loaded, table.num_classes)
            calibrate_on(changed, hardware, open_pool, effort.calibrate, effort.seed, progress)
    return FillSummary(table.path, len(holes), len(blocks), num_new, num_failed, lut, started, len(predicted))


def _by_doubt(lut: LatencyLUT, task: Task, blocks: Sequence[BlockConfig]) -> list[BlockConfig]:
    """Those of `blocks` that are predicted, those that leave the most doubt about networks first."""
    if not lut.predicted(blocks):
        return []
    from chanas.prescheduler.tables.transfer.adapt import order_by_doubt

    return [b for b in order_by_doubt(lut, task) if b in set(blocks)]


def _groups(holes: Sequence[BlockConfig], predicted: Sequence[BlockConfig]) -> Iterator[Sequence[BlockConfig]]:
    """Yield what is tuned and timed together: all holes, then predicted blocks, a few at a time."""
    if holes:
        yield holes
    for start in range(0, len(predicted), _FILLED_AT_ONCE):
        yield predicted[start : start + _FILLED_AT_ONCE]


def calibrate(
    table: OpenTable,
    *,
    num_networks: int = DEFAULT_EFFORT.calibrate,
    place: Place = THIS_MACHINE,
    seed: int = 0,
    progress: bool = True,
) -> Calibration:
    """Calibrate a table against whole networks of the sub-spaces that it covers, and store that in its file.

    The file is read again first, with its run directory locked until it is written; `table.lut` is then what it holds.

    Raises:
        ConfigError: too few networks are asked for.
        LUTError: the table is of another device or compiler, or covers no sub-space.
        RunBusyError: a prescheduler, or another calibration, is at work in the run directory.
        MeasureError: too few networks could be measured; the table stays as it is.
        ChanasError: as `table_device` says.
    """
    check_num_networks(num_networks)
    check_own(table.path)
    with table_device(table.lut, place) as (hardware, open_pool):
        return calibrate_on(table, hardware, open_pool, num_networks, seed, progress)


def calibrate_on(
    table: OpenTable,
    hardware: HardwareTarget,
    open_pool: OpenPool | None,
    num_networks: int,
    seed: int,
    progress: bool,
) -> Calibration:
    """Calibrate a table on a device that is held, as `calibrate` says."""
    check_own(table.path)
    from chanas.prescheduler.tables.calibrate import calibrate as fit

    check_num_networks(num_networks)
    space = table.required_space()
    with one_writer(_run_of(table.path).records):
        lut = LatencyLUT.load(table.path)
        lut.check(space, hardware)
        covered = lut.covered(space, table.num_classes)
        if not covered:
            raise LUTError(
                f"{table.path} has no sub-space of '{space.name}' with {table.num_classes} classes without holes, so "
                "that no whole network can be compiled; run `chanas lut fill` first"
            )
        if progress:
            announce([f"plan       {num_networks} whole networks compiled and timed; into {table.path}"])
        lut.calibration = fit(
            lut,
            Task(space, table.num_classes),
            hardware,
            num_networks=num_networks,
            sub_spaces=covered,
            seed=seed,
            progress=progress,
            open_pool=open_pool,
        )
        lut.save(table.path)
    table.lut.header, table.lut.rows, table.lut.calibration = lut.header, lut.rows, lut.calibration
    return lut.calibration


def _run_of(file: Path) -> RunDirectory:
    """The run directory of a table, or the folder of one that lies elsewhere."""
    folder = file.parent
    return RunDirectory(folder.parent if folder.name == "luts" else folder)


def table_error(run: RunDirectory, target_name: str) -> str:
    """One line about how far the sums of a run's table are from whole networks.

    Raises:
        ChanasError: the table is missing or damaged.
    """
    return describe_calibration(LatencyLUT.load(run.lut(target_name)).calibration)


def median_latency_s(
    lut: LatencyLUT, space: SearchSpace, num_classes: int, seed: int = 0, left_out: Collection[SubSpace] = ()
) -> float:
    """Half of the space's architectures are faster than this, by the table; rounded to two digits."""
    from chanas.core.genome import sample_known

    table = lut.table(space, num_classes, left_out=left_out)
    return float(f"{np.median(table.of(sample_known(table, 2000, np.random.default_rng(seed)))):.2g}")
