"""The commands of `chanas lut`: parse, call one function of `chanas.workflows.stages.tables`, print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from chanas.commands.options import (
    RPC,
    Config,
    Devices,
    EarlyStopping,
    Key,
    Knobs,
    Pretrained,
    Shared,
    ShowConfig,
    SubSpaces,
    TablePreset,
    Tuner,
    TuneShare,
    WarmStart,
    effort_of,
    refuse,
    refuse_settings,
    usage_of,
)
from chanas.core.effort import AdaptEffort, TableEffort
from chanas.core.usage import Usage
from chanas.files.run import DEFAULT_RUN, RunDirectory

if TYPE_CHECKING:
    from chanas.workflows.stages.tables import OpenTable

app = typer.Typer(
    help="Look at latency tables, check them, fill their holes, compare, calibrate and adapt them; predict networks.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

File = Annotated[Path | None, typer.Argument(help="A latency table; that of the run and target by default.")]
Run = Annotated[
    Path,
    typer.Option("--run", "--run-dir", file_okay=False, metavar="<path>", help="Run directory whose table is meant."),
]
Target = Annotated[str, typer.Option(help="Hardware target of the run's table: cpu, or cuda for a GPU.")]
Threads = Annotated[int, typer.Option(help="Threads of the run's table.")]
Dtype = Annotated[str, typer.Option(help="Type of the run's table: f32; bf16; int8; f16 or tf32 on GPUs.")]
Batch = Annotated[int, typer.Option(help="Images at once of the run's table.")]
Space = Annotated[
    str | None, typer.Option(help="The table's search space, where it is neither a preset nor the run's.")
]
Classes = Annotated[int | None, typer.Option(help="Classes; the supernet's or the table's by default.")]
Seed = Annotated[int, typer.Option(help="Seed of every random choice.")]
# Relative standard deviation of a predicted row from which on the machine was most likely busy: from tables that were
# measured well, rows are predicted to 3 to 10 % (docs/transfer.md).
_UNSURE = 0.2
AsJson = Annotated[bool, typer.Option("--json", help="One line of JSON.")]


class _Result(Protocol):
    def to_json(self) -> dict[str, Any]: ...

    def lines(self) -> Iterator[str]: ...


def _print(result: _Result, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result.to_json(), sort_keys=True, allow_nan=False))
    else:
        for line in result.lines():
            typer.echo(line)


def _open(
    context: typer.Context, file: Path | None, run: Path, usage: Usage, space: str | None, num_classes: int | None
) -> OpenTable:
    from chanas.workflows.stages import tables

    if file is not None:
        names = ("run", "target", "threads", "dtype", "batch")
        refuse(context, names, f"names a run's table, and {file} is a table itself; leave out one of both")
    return tables.open_table(file, RunDirectory(run), usage=usage, space=space, num_classes=num_classes)


def _checked(usage: Usage) -> Usage:
    """The same. Raises ConfigError: what says where to measure doesn't go together."""
    from chanas.measuring.devices import check_place

    check_place(usage.device, usage.place)
    return usage


@app.command()
def show(
    context: typer.Context,
    file: File = None,
    run: Run = DEFAULT_RUN,
    target: Target = "cpu",
    threads: Threads = 1,
    dtype: Dtype = "f32",
    batch: Batch = 1,
    space: Space = None,
    num_classes: Classes = None,
    as_json: AsJson = False,
) -> None:
    """Show what a table has: device, blocks, covered sub-spaces, latencies, calibration."""
    from chanas.workflows.stages import tables

    table = _open(context, file, run, Usage(target, threads, dtype, batch), space, num_classes)
    summary = tables.show(table)
    if not as_json:
        typer.echo(f"table      {table.path}")
    _print(summary, as_json)


@app.command()
def check(
    context: typer.Context,
    file: File = None,
    run: Run = DEFAULT_RUN,
    target: Target = "cpu",
    threads: Threads = 1,
    dtype: Dtype = "f32",
    batch: Batch = 1,
    space: Space = None,
    num_classes: Classes = None,
    sample: Annotated[int, typer.Option(help="Rows that are measured again.")] = 20,
    networks: Annotated[int, typer.Option(help="Whole networks measured, where the table is calibrated.")] = 3,
    median_tolerance: Annotated[float, typer.Option(help="How far the median ratio may be from 1.")] = 0.1,
    row_tolerance: Annotated[float, typer.Option(help="How far a row's ratio may be from 1.")] = 0.2,
    share: Annotated[float, typer.Option(help="Share of the rows that must be within --row-tolerance.")] = 0.9,
    rpc: RPC = None,
    key: Key = None,
    devices: Devices = None,
    shared: Shared = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure some rows again with their schedules: exit code 0 where the table still holds, 1 where it does not."""
    from chanas.prescheduler.tables.lut_check import Tolerances
    from chanas.workflows.stages import tables

    tolerances = Tolerances(median_tolerance, row_tolerance, share)
    usage = _checked(usage_of(target, threads, dtype, batch, rpc, key, devices, shared))
    result = tables.check(
        _open(context, file, run, usage, space, num_classes),
        num_rows=sample,
        num_networks=networks,
        tolerances=tolerances,
        place=usage.place,
        seed=seed,
        progress=not as_json,
    )
    _print(result, as_json)
    if not result.holds:
        raise typer.Exit(1)


@app.command()
def fill(
    context: typer.Context,
    run: Run = DEFAULT_RUN,
    target: Target = "cpu",
    threads: Threads = 1,
    dtype: Dtype = "f32",
    batch: Batch = 1,
    space: Space = None,
    num_classes: Classes = None,
    trials: Annotated[
        int | None, typer.Option(help="Schedule points per operator on average, kept ones included; 16 by default.")
    ] = None,
    sub_spaces: SubSpaces = None,
    tuner: Tuner = "gp",
    pretrained: Pretrained = None,
    early_stopping: EarlyStopping = "gain",
    knobs: Knobs = None,
    effort_name: TablePreset = None,
    config: Config = None,
    show_config: ShowConfig = False,
    calibrate: Annotated[int, typer.Option(help="Whole networks that the table is calibrated with; 0 for none.")] = 12,
    rpc: RPC = None,
    key: Key = None,
    devices: Devices = None,
    warm_start: WarmStart = None,
    tune_share: TuneShare = 1.0,
    shared: Shared = False,
    seed: Seed = 0,
) -> None:
    """Tune and time the blocks that the run's table lacks or has predicted, and nothing else."""
    from chanas.workflows.stages import tables

    summary = tables.fill(
        RunDirectory(run),
        _checked(usage_of(target, threads, dtype, batch, rpc, key, devices, shared)),
        space=space,
        num_classes=num_classes,
        effort=effort_of(context, TableEffort),
    )
    if summary.num_predicted:
        typer.echo(f"predicted  {summary.num_predicted} of {summary.num_blocks} blocks, measured now")
    typer.echo(
        f"holes      {summary.num_holes} of {summary.num_blocks} blocks{', filled now' if summary.num_holes else ''}\n"
        f"trials     {summary.num_new_trials} new ({summary.num_failed_trials} failed)\n"
        f"table      {summary.path}: {len(summary.lut.rows)} blocks"
    )
    if summary.warm_start:
        typer.echo(f"warm start {summary.warm_start}")
    if summary.lut.calibration is not None:
        typer.echo(f"sum        {summary.lut.calibration.describe()}")


@app.command()
def adapt(
    context: typer.Context,
    source: Annotated[
        list[str] | None,
        typer.Option("--from", help="Table of another processor, a file or one of chanas's; repeatable."),
    ] = None,
    run: Run = DEFAULT_RUN,
    threads: Annotated[int, typer.Option(help="Threads of one inference.")] = 1,
    dtype: Annotated[str, typer.Option(help="Weights and activations: f32; int8; bf16 with AVX512_BF16.")] = "f32",
    space: Space = None,
    num_classes: Classes = None,
    measure: Annotated[int, typer.Option(help="Blocks that are measured; all others are predicted.")] = 60,
    trials: Annotated[
        int,
        typer.Option(
            help="Schedules tried of each measured operator where the table's are for other instructions; twice as "
            "many in blocks that come out slower than the others say; 0 to take schedules as they are."
        ),
    ] = 6,
    sub_spaces: SubSpaces = None,
    config: Config = None,
    show_config: ShowConfig = False,
    calibrate: Annotated[int, typer.Option(help="Whole networks that the table is calibrated with; 0 for none.")] = 12,
    rpc: RPC = None,
    key: Key = None,
    devices: Devices = None,
    seed: Seed = 0,
) -> None:
    """Make a table of this processor from those of others: a few blocks measured here, all others predicted.

    Schedules for other instructions or another dtype are mapped to those of this processor, and a few are tried.
    """
    from chanas.workflows.stages import adaptation

    effort = effort_of(context, AdaptEffort)
    refuse_settings(effort, ("tune_share",), "goes with `chanas prescheduler`; here `measure` bounds what is tuned")
    made = adaptation.adapt(
        RunDirectory(run),
        source or (),
        _checked(usage_of("cpu", threads, dtype, 1, rpc, key, devices)),
        space=space,
        num_classes=num_classes,
        effort=effort,
    )
    errors = sorted(made.predicted_errors)
    doubt = f", ± {errors[len(errors) // 2]:.1%} (median)" if errors else ""
    typer.echo(
        f"measured   {len(made.lut.rows) - len(errors)} blocks, {made.num_new} of them now\n"
        f"tuned      {made.num_tuned} operators, {made.num_trials} schedules tried\n"
        f"predicted  {len(errors)} blocks{doubt}\n"
        f"table      {made.path}: {len(made.lut.rows)} blocks"
    )
    if errors and errors[len(errors) // 2] > _UNSURE:
        typer.echo(
            "unsure     the measured blocks contradict each other; end what else runs on the machine, move the table "
            "and records.sqlite away, and adapt again"
        )
    if made.holes:
        typer.echo(f"holes      {len(made.holes)} blocks without a known schedule; `chanas lut fill` tunes them")
    if made.lut.calibration is not None:
        typer.echo(f"sum        {made.lut.calibration.describe()}")


@app.command()
def predict(
    file: Annotated[
        Path,
        typer.Argument(
            help="CSV file: a row for each network with what it is, and a column DEVICE_ms for each device, empty "
            "where nothing was measured."
        ),
    ],
    device: Annotated[str, typer.Option(help="The new device, on which few of the networks were measured.")],
    out: Annotated[Path, typer.Option(help="The file with all latencies of this device, such as predicted.csv.")],
    as_json: AsJson = False,
) -> None:
    """Predict latencies of whole networks on a device from a few measured there and from those of other devices."""
    from chanas.workflows.stages import adaptation

    _print(adaptation.predict_networks(file, device, out), as_json)
    if not as_json:
        typer.echo(f"file       {out}")


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="A latency table.")],
    b: Annotated[Path, typer.Argument(help="Another one of the same search space.")],
    space: Space = None,
    num_classes: Classes = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare two tables: what differs, ratios of latencies, ranking, the blocks that changed most."""
    from chanas.workflows.stages import tables

    result = tables.compare(a, b, space=space, num_classes=num_classes, seed=seed)
    if not as_json:
        typer.echo(f"{'A':14s} {a}\n{'B':14s} {b}")
    _print(result, as_json)


@app.command()
def calibrate(
    context: typer.Context,
    file: File = None,
    run: Run = DEFAULT_RUN,
    target: Target = "cpu",
    threads: Threads = 1,
    dtype: Dtype = "f32",
    batch: Batch = 1,
    space: Space = None,
    num_classes: Classes = None,
    networks: Annotated[int, typer.Option(help="Whole networks that are compiled and measured.")] = 12,
    rpc: RPC = None,
    key: Key = None,
    devices: Devices = None,
    shared: Shared = False,
    seed: Seed = 0,
) -> None:
    """Calibrate a table against whole networks, and store that in it."""
    from chanas.workflows.stages import tables

    usage = _checked(usage_of(target, threads, dtype, batch, rpc, key, devices, shared))
    table = _open(context, file, run, usage, space, num_classes)
    before = table.lut.calibration
    calibration = tables.calibrate(table, num_networks=networks, place=usage.place, seed=seed)
    if before is not None:
        typer.echo(f"before     {before.describe()}")
    typer.echo(f"sum        {calibration.describe()}\ntable      {table.path}")
