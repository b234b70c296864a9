"""The runs of a sweep as jobs of the scheduler, each a process of its own; a run that fails is a row."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from chanas import interrupts
from chanas.core.progress import ProgressBar, announce, progress_bar
from chanas.errors import ConfigError, SchedulerError
from chanas.files.locks import one_writer
from chanas.files.writing import write_json
from chanas.scheduler.board import Entry
from chanas.scheduler.engine import Scheduler
from chanas.scheduler.jobs import DEVICE, Expected, Outcome, Outlook, Stage
from chanas.scheduler.policies import policy
from chanas.scheduler.pools import PoolExecutor
from chanas.scheduler.resources import Resource
from chanas.workflows.sweeps.facts import collect
from chanas.workflows.sweeps.grid import Grid
from chanas.workflows.sweeps.processes import INTERRUPTED, Processes, last_line
from chanas.workflows.sweeps.results import best, shown
from chanas.workflows.sweeps.rows import STDERR, Row, RowStatus, plan_rows, read_rows
from chanas.workflows.sweeps.uses import use_of

RUN = "run"
"""The one stage of a job of a sweep."""

SWEEP = "sweep.json"

Arguments = Callable[[Mapping[str, Any], Path, bool], Sequence[str]]
"""Arguments of Python for a row: of its parameters, its folder, and whether it goes on there.
Raises ConfigError: the command has no such option, or not for this value."""


class RowJob:
    """A row as a job: one stage."""

    def __init__(self, work: Callable[[], Row], resource: str) -> None:
        self._stages = [Stage(RUN, resource, work)]
        self._resource = resource

    def offer(self) -> Sequence[Stage]:
        """The stage, once."""
        stages, self._stages = self._stages, []
        return stages

    def take(self, stage: Stage, outcome: Outcome) -> None:
        """Take note of its end. A run that fails is a row; what fails here is that the row can't be stored."""
        if outcome.error is not None:
            raise SchedulerError(outcome.error)

    def outlook(self, expected: Expected, num_units: Mapping[str, int]) -> Outlook:
        """The seconds that other rows take."""
        seconds = expected(RUN)
        return Outlook({self._resource: seconds}, seconds)


def run_sweep(
    grid: Grid,
    folder: Path,
    arguments: Arguments,
    *,
    keep_failed: bool = False,
    progress: bool = True,
    tell: Callable[[str], None] = lambda _line: None,
) -> list[Row]:
    """Run the rows of a sweep that are not complete; returns all rows, in the order of the grid.

    Rows with the same parameters are known again, whatever the grid was when they ran. One that was cut off goes on in
    its folder, one that failed begins anew. An exception (Ctrl-C, SIGTERM) interrupts the runs, each of which keeps
    what it measured.

    Args:
        folder: for `sweep.json`, and `rows/NNN-…`, the run directories.
        keep_failed: leave rows alone that failed before.
        tell: gets a line about rows that have run before, and one for each run that fails.

    Raises:
        ConfigError: a command or an option is not as expected; nothing was run.
        RunBusyError: another sweep, or a run of one that was killed, is at work in the folder.
        ChanasError: a file cannot be written.
    """
    use = use_of(grid.command)
    if use.resource == DEVICE and grid.at_once > 1:
        raise ConfigError(f"at_once: `{grid.command}` times on the device, which its runs need alone; leave it out")
    if grid.start_from is not None and not grid.start_from.is_dir():
        raise ConfigError(f"start_from: run directory {grid.start_from} does not exist")
    for varied in grid.rows():
        arguments({**grid.common, **varied}, folder, False)
    with one_writer(folder, other="name another --out") as lock:
        rows = plan_rows(folder, grid, read_rows(folder))
        write_json(folder / SWEEP, {"schema": 1, **grid.model_dump(mode="json")})
        left = (RowStatus.COMPLETE, RowStatus.FAILED) if keep_failed else (RowStatus.COMPLETE,)
        waiting = [row for row in rows if row.status not in left]
        if progress:
            announce([f"plan       {len(waiting)} of {len(rows)} runs of `{grid.command}`; into {folder}"])
        if any(row.num_starts for row in rows):
            tell(_before(rows, keep_failed))
        work = partial(_run_row, arguments=arguments, processes=(runs := Processes(lock)))
        ended = {row.number: row for row in rows if row not in waiting}
        with _bar(grid, ended, len(rows), progress) as bar, _terminations(), interrupts.patience():

            def end(entry: Entry) -> None:
                if entry.error is None:
                    row = ended[int(entry.name)]
                    if row.status is RowStatus.FAILED:
                        tell(f"row {row.number:03d} failed: {row.error}")
                bar.set_postfix(_figures(ended.values(), use.metrics), refresh=False)
                bar.update(1)

            jobs = {str(row.number): partial(_noted, ended, partial(work, row)) for row in waiting}
            _schedule(jobs, use.resource, grid.at_once, runs, end)
        return [ended.get(row.number, row) for row in rows]


def _before(rows: Sequence[Row], keep_failed: bool) -> str:
    """Tell what there is of rows that have run before."""
    complete, failed = (sum(row.status is s for row in rows) for s in (RowStatus.COMPLETE, RowStatus.FAILED))
    cut_off = sum(row.was_cut_off for row in rows)
    told = [f"{complete} of {len(rows)} rows complete" if complete else ""]
    told += [f"{failed} failed before: {'left' if keep_failed else 'run again'}" if failed else ""]
    told += [f"{cut_off} cut off before: gone on with" if cut_off else ""]
    return ", ".join(filter(None, told))


def _noted(ended: dict[int, Row], work: Callable[[], Row]) -> Row:
    row = work()
    ended[row.number] = row
    return row


def _schedule(
    jobs: Mapping[str, Callable[[], Row]], resource: str, num_units: int, runs: Processes, end: Callable[[Entry], None]
) -> None:
    """Run all jobs to their ends; an exception interrupts those that run.

    Raises:
        SchedulerError: a row could not be stored.
    """
    with PoolExecutor({resource: partial(_slot, num_units=num_units)}) as executor:
        scheduler = Scheduler([Resource(resource, num_units)], policy("interleaved"), executor, ended=end)
        for name, work in jobs.items():
            scheduler.join(name, RowJob(work, resource))
        try:
            scheduler.run()
        except BaseException:
            runs.interrupt()
            raise
    errors = [f"row {entry.name}: {entry.error}" for entry in scheduler.jobs.values() if entry.error is not None]
    if errors:
        raise SchedulerError(errors[0])


def _slot(unit: int, num_units: int) -> Executor:
    """The thread of a slot; processes that it starts are kept on its share of the cores, which they then count."""
    cores = sorted(os.sched_getaffinity(0))
    own = {core for number, core in enumerate(cores) if number % num_units == unit} or set(cores)
    return ThreadPoolExecutor(1, initializer=os.sched_setaffinity, initargs=(0, own))


def _run_row(row: Row, *, arguments: Arguments, processes: Processes) -> Row:
    """Run a row to its end, and store how that was."""
    if processes.were_interrupted():
        return row
    goes_on = row.was_cut_off
    row = row.begin()
    start_s = time.monotonic()
    code = processes.run(arguments(row.parameters, row.folder, goes_on), row.folder)
    wall_s = row.wall_s + time.monotonic() - start_s
    status, error = RowStatus.COMPLETE, None
    if code == INTERRUPTED or (code != 0 and processes.were_interrupted()):
        status = RowStatus.INTERRUPTED
    elif code != 0:
        told = f"signal {-code} ended it" if code < 0 else f"exit code {code}"
        status, error = RowStatus.FAILED, last_line(row.folder / STDERR) or told
    row = dataclasses.replace(row, status=status, exit_code=code, wall_s=wall_s, error=error, facts=collect(row.folder))
    row.store(row.folder)
    return row


def _bar(grid: Grid, ended: Mapping[int, Row], total: int, enabled: bool) -> ProgressBar:
    return progress_bar(total, grid.name or "sweep", "run", enabled, initial=len(ended), keeps=True)


def _figures(rows: Iterable[Row], metrics: Sequence[str]) -> dict[str, str]:
    """Figures for the progress bar: the best of the first metric so far, and how many runs failed."""
    rows = list(rows)
    figures = {}
    found = best(rows, metrics[0]) if metrics else None
    if found is not None:
        figures[f"best {metrics[0]}"] = f"{shown(found[1])} (row {found[0].number})"
    failed = sum(row.status is RowStatus.FAILED for row in rows)
    return figures | ({"failed": str(failed)} if failed else {})


@contextlib.contextmanager
def _terminations() -> Iterator[None]:
    """SIGTERM ends the sweep as Ctrl-C does.

    Where Ctrl-C is ignored, as shells have it in the background of a script, runs would inherit that and could not be
    interrupted: a handler that does nothing ignores it, too, and is not inherited.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise interrupts.Interrupted(number)

    try:
        before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    except ValueError:  # not in the main thread, which alone gets signals
        yield
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
