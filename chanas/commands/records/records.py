"""`chanas records`: parse, call one function of `chanas.workflows.stages.offline`, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Collect tuning records of many runs in one file, and look at it.", no_args_is_help=True, rich_markup_mode=None
)

Runs = Annotated[
    list[Path],
    typer.Option("--run", "--run-dir", help="Run directory, file of records, or folder of runs; repeatable."),
]


@app.command()
def export(
    run: Runs,
    out: Annotated[Path, typer.Option(help="The file, such as records.npz.")],
    segments: Annotated[
        bool, typer.Option("--segments", help="Extract TVM's features of each store too: some 20 ms a record.")
    ] = False,
) -> None:
    """Write the valid records of runs as one data set."""
    from chanas.workflows.stages import offline

    exported = offline.export_records(run, out, segments)
    for line in exported.lines:
        typer.echo(line)
    for reason, num in exported.skipped.items():
        typer.echo(f"left out   {num} {reason}")
    typer.echo(f"file       {out}")


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A file of `chanas records export`, or a run directory.")],
) -> None:
    """Show what records there are: by device and family, and how often which FLOPs occur."""
    from chanas.workflows.stages import offline

    for line in offline.describe_records(file):
        typer.echo(line)
