"""`chanas prescheduler`."""

from __future__ import annotations

from typing import Annotated

import typer

from chanas.commands import target as target_commands
from chanas.commands.options import RPC, Batch, Devices, Dtype, Key, Run, Seed, Shared, Target, Threads, WarmStart
from chanas.errors import ConfigError
from chanas.files.run import DEFAULT_RUN, RunDirectory


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
        if any(given is not None for given in (rpc, key, devices, warm_start)):
            raise ConfigError(
                "--rpc, --key, --devices and --warm-start time on devices; leave them out with --compile-only"
            )
        target_commands.compile_kernels(
            RunDirectory(run), target, arch, dtype, batch, space, num_classes, trials, limit, sub_space or (), seed
        )
        return
    if arch is not None or limit is not None:
        raise ConfigError("--arch and --limit go with --compile-only")
    from chanas import workflows

    summary = workflows.preschedule(
        RunDirectory(run),
        target=target,
        num_threads=threads,
        dtype=dtype,
        batch=batch,
        space=space,
        num_classes=num_classes,
        num_trials=trials,
        sub_spaces=sub_space or (),
        cost_model=cost_model,
        num_calibration=calibrate,
        rpc=rpc,
        key=key,
        warm_start=warm_start,
        num_devices=devices,
        shared=shared,
        seed=seed,
    )
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
