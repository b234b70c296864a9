"""The commands: parse, call one function of `chanas.workflows`, print. Nothing heavy is imported before it is
needed."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from chanas import __version__
from chanas.commands import bundle as bundle_commands
from chanas.commands import device as device_commands
from chanas.commands import doctor as doctor_commands
from chanas.commands import jobs as jobs_commands
from chanas.commands import lut as lut_commands
from chanas.commands import prescheduler as prescheduler_commands
from chanas.commands import search as search_commands
from chanas.commands import search_text
from chanas.commands import space as space_commands
from chanas.commands import supernet as supernet_commands
from chanas.commands import target as target_commands
from chanas.commands.options import GivenRun, NamedRun, Run, Seed, Shared, Target, holds_tuned, one_run
from chanas.commands.program import program
from chanas.commands.records import records as records_commands
from chanas.commands.search_text import say
from chanas.commands.service import client as client_commands
from chanas.commands.service import serve as serve_commands
from chanas.commands.sweeps import sweep as sweep_commands
from chanas.core.units import parse_latency_s
from chanas.files.run import RunDirectory

app = typer.Typer(
    name="chanas",
    help="Search for the network architecture and the compiled program of an image task together, on your device, "
    "inside your latency budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(bundle_commands.app, name="bundle", short_help="Show a bundle: each block with its schedule.")
app.add_typer(device_commands.app, name="device", short_help="Serve this device over RPC, list others.")
app.add_typer(jobs_commands.app, name="jobs", short_help="Tune several tables and networks on one machine.")
app.add_typer(lut_commands.app, name="lut", short_help="Show, check, fill, compare latency tables.")
app.add_typer(records_commands.app, name="records", short_help="Collect tuning records, train cost models.")
app.add_typer(serve_commands.app, name="serve", short_help="Tune for a team: jobs over HTTP.")
app.add_typer(client_commands.app, name="service", short_help="Hand jobs to a service, watch and fetch them.")
app.add_typer(space_commands.app, name="space", short_help="Show schedule spaces: knobs, candidates, best points.")
app.add_typer(sweep_commands.app, name="sweep", short_help="Run a command with many values of its parameters.")
app.add_typer(target_commands.app, name="target", short_help="List, show, check hardware targets.")
app.command(short_help="Write a network as a C library, for devices without Python.")(bundle_commands.export)
app.command(short_help="Tell what this machine is and how well it times.")(doctor_commands.doctor)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    if version:
        typer.echo(f"chanas {__version__}")
        raise typer.Exit


app.command("train-supernet", short_help="Train the elastic supernet, once per task.")(supernet_commands.train_supernet)
app.command("import-supernet", short_help="Take a published supernet instead of training one.")(
    supernet_commands.import_supernet
)
app.command(short_help="Train one sub-network further.")(supernet_commands.finetune)
app.command("eval", short_help="Print the accuracy of sub-networks with inherited weights.")(supernet_commands.evaluate)
app.command(short_help="Tune every block and fill the latency table.")(prescheduler_commands.prescheduler)
app.command(short_help="Tune a finished network: ONNX, torch.export, torchvision.")(prescheduler_commands.tune)
app.command(short_help="Make a searched network int8, and judge it.")(prescheduler_commands.quantize)
app.command(short_help="Find and prove the best network inside the budget.")(search_commands.search)
app.command(short_help="Measure what tuned schedules are worth to a search.")(search_commands.ablate)
app.command()(bundle_commands.predict)
app.command(short_help="Time a bundle's module beside other runtimes.")(bundle_commands.bench)


@app.command(short_help="Write the report page of a run or a tuned network.")
def report(run: GivenRun = None, named_run: NamedRun = None) -> None:
    """Write the report of a run, or of a network that tune made: one self-contained HTML page in its folder."""
    from chanas import workflows

    given = one_run(run, named_run)
    typer.echo(workflows.report_tuned(given.root) if holds_tuned(given.root) else workflows.report(given))


@app.command(short_help="Explain the types and layouts of a tuned network's operators.")
def explain(
    folder: Annotated[Path, typer.Argument(help="A network that tune made with --dtype bf16, int8 or --layouts.")],
) -> None:
    """Print what each operator of a tuned network takes in each form (channels of a block, and type), which was chosen,
    and why; and the copies between forms."""
    from chanas.workflows.models.explaining import explained

    typer.echo("\n".join(explained(folder)))


@app.command(short_help="Run all three stages on handwritten digits.")
def demo(
    run: Run = Path("runs/demo"),
    target: Target = "cpu",
    latency: Annotated[str | None, typer.Option(help="Latency budget; the space's median by default.")] = None,
    trials: Annotated[int, typer.Option(help="Schedule points per operator on average.")] = 4,
    shared: Shared = False,
    seed: Seed = 0,
) -> None:
    """Run all three stages on handwritten digits and this machine, in minutes."""
    budget_s = None if latency is None else parse_latency_s(latency)
    from chanas import workflows
    from chanas.workflows.stages import tables

    options: dict[str, Any] = {"target": target, "latency_s": budget_s, "num_trials": trials, "shared": shared}
    result = workflows.demo(RunDirectory(run), **options, seed=seed)
    say(search_text.bundle_lines(result.bundle))
    typer.echo(f"report              {result.report}")
    table_error = tables.table_error(RunDirectory(run), result.bundle.target.name)
    say(search_text.demo_lines(result.stages_s, result.total_s, table_error))
    line = shlex.join([*program(), "predict", *map(str, (run, *result.images))])
    typer.echo(f"\nClassify images with the compiled network:\n  {line}")


@functools.cache
def command() -> TyperGroup:
    """All commands as click's objects, which take a tenth of a second to make."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return group
