"""`chanas prescheduler`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from chanas.commands import target as target_commands
from chanas.commands.options import (
    RPC,
    Batch,
    Devices,
    Dtype,
    Key,
    Run,
    Seed,
    Shared,
    Target,
    Threads,
    WarmStart,
    usage_of,
)
from chanas.core.usage import Usage
from chanas.errors import ConfigError
from chanas.files.run import DEFAULT_RUN, RunDirectory

if TYPE_CHECKING:
    from chanas.prescheduler.tables.lut import PrescheduleSummary


def prescheduler(
    run: Run = DEFAULT_RUN,
    target: Target = "cpu",
    threads: Threads = 1,
    dtype: Dtype = "f32",
    batch: Batch = 1,
    space: Annotated[str | None, typer.Option(help="Search space; the supernet's by default.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="Classes; the supernet's by default.")] = None,
    trials: Annotated[
        int | None, typer.Option(help="Schedule points per operator on average, kept ones included; 16 by default.")
    ] = None,
    sub_space: Annotated[list[str] | None, typer.Option(help="Only this one, such as r224-w1; repeatable.")] = None,
    cost_model: Annotated[str, typer.Option(help="gp (Gaussian process) or random.")] = "gp",
    calibrate: Annotated[int, typer.Option(help="Whole networks that the table is calibrated with; 0 for none.")] = 12,
    rpc: RPC = None,
    key: Key = None,
    devices: Devices = None,
    warm_start: WarmStart = None,
    seed: Seed = 0,
    compile_only: Annotated[
        bool, typer.Option("--compile-only", help="For GPUs: compile schedules, run nothing; needs no GPU.")
    ] = False,
    arch: Annotated[str | None, typer.Option(help="With --compile-only: architecture, such as sm_90.")] = None,
    limit: Annotated[int | None, typer.Option(help="With --compile-only: the first so many operators.")] = None,
    shared: Shared = False,
) -> None:
    """Tune every block on the device and fill the latency table; what was measured before is reused."""
    if compile_only:
        from chanas.workflows.stages.compile_only import Points

        if any(given is not None for given in (rpc, key, devices, warm_start)):
            raise ConfigError(
                "--rpc, --key, --devices and --warm-start time on devices; leave them out with --compile-only"
            )
        points = Points(trials, limit, sub_space or ())
        target_commands.compile_kernels(
            RunDirectory(run), Usage(target, 1, dtype, batch), arch, space, num_classes, points, seed
        )
        return
    if arch is not None or limit is not None:
        raise ConfigError("--arch and --limit go with --compile-only")
    from chanas import workflows
    from chanas.workflows.stages.tuning import Tuning

    summary = workflows.preschedule(
        RunDirectory(run),
        usage_of(target, threads, dtype, batch, rpc, key, devices, shared),
        space=space,
        num_classes=num_classes,
        tuning=Tuning(trials, sub_space or (), cost_model, calibrate, warm_start),
        seed=seed,
    )
    _say(summary)


def _say(summary: PrescheduleSummary) -> None:
    typer.echo(
        f"table      {summary.path}: {len(summary.lut.rows)} blocks, {summary.num_new_blocks} timed now\n"
        f"trials     {summary.num_new_trials} new ({summary.num_failed_trials} failed), "
        f"{summary.num_operators} operators\n"
        f"drift      {summary.drift}"
    )
    if summary.warm_start:
        typer.echo(f"warm start {summary.warm_start}")
    if summary.lut.calibration is not None:
        typer.echo(f"sum        {summary.lut.calibration.describe()}")
