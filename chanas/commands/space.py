"""The commands of `chanas space`: schedule spaces, and what is known of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from chanas.commands.options import Knobs
from chanas.commands.prescheduler import parse_shapes
from chanas.files.run import RunDirectory

app = typer.Typer(
    help="Show schedule spaces: the knobs of an operator, their candidates, the best known point.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _space() -> None:
    """A group of one command for now."""


@app.command()
def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="operator",
            help="Key of an operator, such as pointwise-14px-96x192-k1s1-relu-float32, or a network as `chanas tune` "
            "takes it.",
        ),
    ],
    target: Annotated[str, typer.Option(help="cpu, cuda, or a device that `chanas target list` shows.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Threads that share an operator.")] = 1,
    run: Annotated[
        Path,
        typer.Option("--run", "--run-dir", file_okay=False, metavar="<path>", help="Run directory with the records."),
    ] = Path("tuned"),
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Shape of an input that the file leaves open: NAME=1,3,224,224; repeatable."),
    ] = None,
    knobs: Knobs = None,
    html: Annotated[
        Path | None,
        typer.Option(dir_okay=False, metavar="<path>", help="Write figures of what was tried as an HTML page, too."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for each operator.")] = False,
) -> None:
    """Show the schedule space of an operator: its knobs, their candidates, and the best point that records have; of a
    network, a line for each operator."""
    from chanas.workflows.models.spaces import spaces_of, write_page

    found = spaces_of(what, target, threads, run=RunDirectory(run), shapes=parse_shapes(shape or ()), knobs=knobs)
    if html is not None:
        write_page(found, what, html)
    if as_json:
        for space in found:
            typer.echo(json.dumps(space.to_json(), sort_keys=True, allow_nan=False))
        return
    if len(found) == 1:
        typer.echo("\n".join(found[0].lines()))
        return
    typer.echo("knobs        points  tried   GFLOP/s  operator")
    for space in found:
        typer.echo(space.line())
