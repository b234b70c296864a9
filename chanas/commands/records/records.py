"""`chanas records`: parse, call one function of `chanas.workflows.stages.offline`, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chanas.commands.options import Seed

app = typer.Typer(
    help="Collect tuning records of many runs in one file, look at it, and train cost models on it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Runs = Annotated[
    list[Path],
    typer.Option("--run", "--run-dir", help="Run directory, file of records, or folder of runs; repeatable."),
]


@app.command()
def export(
    run: Runs,
    out: Annotated[Path, typer.Option(help="The file, such as records.npz.")],
) -> None:
    """Write the valid records of runs as one data set."""
    from chanas.workflows.stages import offline

    exported = offline.export_records(run, out)
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


@app.command()
def train(
    data: Annotated[Path, typer.Option(help="A file of `chanas records export`.")],
    out: Annotated[Path, typer.Option(help="File of the model, such as model.safetensors.")],
    model: Annotated[
        str | None, typer.Option(help="attention (default), mlp; xgb or lgbm with the extra `boost`.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="rmse (of labels; default) or lambdarank (of pairs; not for trees).")
    ] = None,
    split: Annotated[
        str, typer.Option(help="Records that it is judged by: within_task, by_task or by_target (other devices).")
    ] = "by_task",
    sample: Annotated[
        bool, typer.Option("--sample", help="Learn from half of the records: of tasks whose FLOPs occur often.")
    ] = False,
    init: Annotated[Path | None, typer.Option(help="A model that goes on learning, from --records of DATA.")] = None,
    records: Annotated[int | None, typer.Option(help="With --init: so many records of a new device.")] = None,
    seed: Seed = 0,
) -> None:
    """Train a cost model, and tell how well it orders records that it did not see."""
    from chanas.workflows.stages import offline

    lesson = offline.Lesson(
        model=model,
        loss=loss,
        split=split,
        sample=sample,
        init=init,
        num_records=records,
        seed=seed,
    )
    for line in offline.teach(data, out, lesson).lines:
        typer.echo(line)
    typer.echo(f"file       {out}")
