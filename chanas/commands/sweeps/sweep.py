"""The commands of `chanas sweep`: a command with many values of its parameters, and what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from chanas.commands.sweeps.arguments import SweptCommand


class _RunByDefault(TyperGroup):
    """A group in which `sweep FILE` is `sweep run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    help="Run a command with many values of its parameters, each in a folder of its own, and compare what came out.\n\n"
    "`chanas sweep FILE` is `chanas sweep run FILE`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def run(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="YAML: command, parameters, fixed and others (docs/sweeps.md).")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs and results; sweeps/NAME by default, NAME the file's.")
    ] = None,
    keep_failed: Annotated[bool, typer.Option("--keep-failed", help="Don't run again what failed before.")] = False,
) -> None:
    """Run the rows of a sweep that are not complete; 1 where one fails."""
    from chanas.workflows.sweeps.grid import read_grid
    from chanas.workflows.sweeps.run import run_sweep
    from chanas.workflows.sweeps.show import View
    from chanas.workflows.sweeps.uses import use_of

    grid = read_grid(file)
    use_of(grid.command)
    swept = SweptCommand(context.find_root().command, grid.command)
    folder = out or Path("sweeps") / grid.name
    rows = run_sweep(
        grid, folder, swept.arguments, keep_failed=keep_failed, tell=lambda line: typer.echo(line, err=True)
    )
    _show(folder, View())
    if any(row.status != "complete" for row in rows):
        raise typer.Exit(1)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
    by: Annotated[str | None, typer.Option(help="Column to sort by; the row's number by default.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Column to print and to plot, such as latency_s; repeatable.")
    ] = None,
    over: Annotated[str | None, typer.Option(help="Parameter of the plots' horizontal axis.")] = None,
    lines: Annotated[str | None, typer.Option(help="Parameter with a line in the plots for each value.")] = None,
    plots: Annotated[Literal["svg", "png"], typer.Option(help="As what plots are written.")] = "svg",
) -> None:
    """Show what came out: a table here, results.csv and plots in the folder."""
    from chanas.workflows.sweeps.show import View

    _show(folder, View(by, metric or (), over, lines, f".{plots}"))


def _show(folder: Path, view: Any) -> None:
    from chanas.workflows.sweeps.show import show_sweep

    shown = show_sweep(folder, view)
    for line in shown.lines:
        typer.echo(line)
    for reason in shown.left_out:
        typer.echo(f"left out: {reason}", err=True)
    typer.echo(f"\nrows    {', '.join(f'{num} {status}' for status, num in shown.counts.items())}")
    typer.echo(f"table   {shown.csv}")
    if shown.plots:
        typer.echo(f"plots   {', '.join(str(path) for path in shown.plots)}")
