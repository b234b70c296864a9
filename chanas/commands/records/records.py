"""`chanas records`: parse, call one function of `chanas.workflows.stages`, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chanas.commands.options import Seed, refuse
from chanas.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from chanas.prescheduler.tuning.proposals import Played, Proposal
    from chanas.workflows.stages.offline import Exported

_FORMATS = ("npz", "t4")

app = typer.Typer(
    help="Collect tuning records of many runs in one file, train cost models on it; propose what to measure.",
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
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="npz: a data set of all operators. t4: one operator's records as T4 (records.json) and its schedule "
            "space as T1 beside it (records.t1.json), for Kernel Tuner and the like.",
        ),
    ] = "npz",
    operator: Annotated[
        str | None, typer.Option(help="With --format t4: the operator's key, where there are several.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="With --format t4: the target's name, where there are several.")
    ] = None,
) -> None:
    """Write the valid records of runs as one data set, or those of one operator for other tools."""
    from chanas.workflows.stages import offline

    if form not in _FORMATS:
        raise ConfigError(unknown_name("format", form, _FORMATS))
    if form == "npz" and (operator or target):
        raise ConfigError("--operator and --target choose what --format t4 writes; a data set has all of them")
    exported = offline.export_records(run, out) if form == "npz" else offline.export_t4(run, out, operator, target)
    _print(exported, out)


@app.command("import")
def import_records(
    file: Annotated[
        list[Path],
        typer.Argument(
            help="Measure records of Ansor or TenSet, database_tuning_record.json of MetaSchedule, T4 results of "
            "Kernel Tuner with their T1 files, or folders of such files.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file, such as records.npz.")],
    per_task: Annotated[
        int | None, typer.Option(help="At most so many records of each task, the first ones; default: all.")
    ] = None,
) -> None:
    """Write records of other systems as one data set."""
    from chanas.workflows.stages import offline

    _print(offline.import_records(file, out, per_task), out)


def _print(exported: Exported, out: Path) -> None:
    for line in exported.lines:
        typer.echo(line)
    for reason, num in exported.skipped.items():
        typer.echo(f"left out   {num} {reason}")
    typer.echo(f"file       {out}")


@app.command()
def show(
    file: Annotated[
        Path,
        typer.Argument(
            help="A file of `chanas records export` or `import`, a run directory, or a file that `import` reads."
        ),
    ],
) -> None:
    """Show what records there are: by device and family, and how often which FLOPs occur."""
    from chanas.workflows.stages import offline

    for line in offline.describe_records(file):
        typer.echo(line)


@app.command()
def train(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="A file of `chanas records export` or `import`.")],
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
    if init is not None:
        refuse(context, ("split", "sample"), "does not go with --init: --records of DATA teach, all others judge")
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


@app.command()
def propose(
    file: Annotated[
        Path,
        typer.Argument(
            help="CSV file: a row for each configuration of an operator or kernel with its parameters, and a column "
            "DEVICE_ms for each device, empty where nothing was measured, a word where it does not work."
        ),
    ],
    device: Annotated[str, typer.Option(help="The new device.")],
    source: Annotated[
        list[str] | None, typer.Option("--from", help="Other device whose latencies count; repeatable; all by default.")
    ] = None,
    num: Annotated[int | None, typer.Option(help="Number of configurations; 8 by default.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File of the same rows with these first, to be filled in and given again."),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate", help="Play searches on the latencies of DEVICE: trials with other devices and without any."
        ),
    ] = False,
    trials: Annotated[
        int | None, typer.Option(help="With --simulate: trials after which a search ends; 100 by default.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="With --simulate: number of searches; 5 by default.")] = None,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """Propose which configurations of an operator to measure next on a new device, by what others took for them."""
    from chanas.workflows.stages import adaptation

    given = {"--num": num, "--out": out} if simulate else {"--trials": trials, "--seeds": seeds}
    if useless := [name for name, value in given.items() if value is not None]:
        others = "cannot be given with --simulate, which proposes nothing" if simulate else "need --simulate"
        raise ConfigError(f"{' and '.join(useless)} {others}")
    limits = {name: value for name, value in (("num_trials", trials), ("num_seeds", seeds)) if value is not None}
    result: Played | Proposal
    if simulate:
        result = adaptation.simulate_proposals(file, device, source or (), **limits, seed=seed)
    else:
        result = adaptation.propose_configurations(file, device, 8 if num is None else num, source or (), out, seed)
    if as_json:
        typer.echo(json.dumps(result.to_json(), sort_keys=True, allow_nan=False))
        return
    for line in result.lines():
        typer.echo(line)
    if out is not None:
        typer.echo(f"file       {out}")
