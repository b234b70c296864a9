"""`chanas prescheduler`, `chanas tune` and `chanas quantize`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chanas.commands import target as target_commands
from chanas.commands.options import (
    RPC,
    Batch,
    Config,
    Devices,
    Dtype,
    EarlyStopping,
    Key,
    Knobs,
    Layouts,
    PictureOptions,
    Preset,
    Pretrained,
    Run,
    Seed,
    Shared,
    ShowConfig,
    SubSpaces,
    TablePreset,
    Target,
    Threads,
    Tuner,
    TuneShare,
    WarmStart,
    effort_of,
    refuse,
    refuse_others,
    refuse_settings,
    usage_of,
    with_pictures,
)
from chanas.core.effort import NOTHING, NetworkEffort, TableEffort
from chanas.core.progress import named_wait
from chanas.core.units import format_latency
from chanas.core.usage import Usage
from chanas.errors import ChanasError, CheckpointError, ConfigError, TargetError
from chanas.files.locks import one_writer
from chanas.files.run import DEFAULT_RUN, RunDirectory

if TYPE_CHECKING:
    from chanas.prescheduler.tables.lut import PrescheduleSummary
    from chanas.workflows.models.chain import BuiltModel
    from chanas.workflows.models.operators import OperatorRow
    from chanas.workflows.models.saving import SavedModel

# Options of `tune` that go with --simulate, and with any --operator; those about trials, and about where and how long
# they are made; those of `prescheduler` with --compile-only.
_OF_SIMULATIONS = frozenset(
    [
        *("operator", "simulate", "target", "threads", "trials", "tuner", "pretrained", "warm_start", "early_stopping"),
        *("knobs", "effort_name", "config", "show_config", "seed", "as_json"),
    ]
)
_OF_OPERATORS = _OF_SIMULATIONS | {"run", "minutes", "schedule", "no_tuning", "rpc", "key", "devices"}
_OF_TRIALS = frozenset({"trials", "tuner", "pretrained", "early_stopping", "effort_name", "tune_share"})
_OF_MEASURING = frozenset({"minutes", "warm_start", "rpc", "key", "devices"})
_NO_TRIALS = "is about tuning, and --no-tuning does none; leave one of both out"
_OF_COMPILING = frozenset(
    [
        *("run", "target", "dtype", "batch", "space", "num_classes", "trials", "sub_spaces", "seed"),
        *("compile_only", "arch", "limit"),
    ]
)


def prescheduler(
    context: typer.Context,
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
    seed: Seed = 0,
    compile_only: Annotated[
        bool, typer.Option("--compile-only", help="For GPUs: compile schedules, run nothing; needs no GPU.")
    ] = False,
    arch: Annotated[str | None, typer.Option(help="With --compile-only: architecture, such as sm_90.")] = None,
    limit: Annotated[int | None, typer.Option(help="With --compile-only: the first so many operators.")] = None,
    shared: Shared = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop; nothing is written.")] = False,
) -> None:
    """Tune every block on the device and fill the latency table; what was measured before is reused."""
    if compile_only:
        from chanas.workflows.stages.compile_only import Points

        refuse_others(context, _OF_COMPILING, "goes with what is tuned and timed, not with --compile-only")
        points = Points(trials, limit, sub_spaces or ())
        target_commands.compile_kernels(
            RunDirectory(run), Usage(target, 1, dtype, batch), arch, space, num_classes, points, seed
        )
        return
    if arch is not None or limit is not None:
        raise ConfigError("--arch and --limit go with --compile-only")
    from chanas import workflows

    usage = usage_of(target, threads, dtype, batch, rpc, key, devices, shared)
    effort = effort_of(context, TableEffort)
    task: dict[str, Any] = {"space": space, "num_classes": num_classes, "effort": effort}
    if dry_run:
        typer.echo("\n".join(workflows.plan_table(RunDirectory(run), usage, **task)))
        return
    _say(workflows.preschedule(RunDirectory(run), usage, **task))


@with_pictures
def tune(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            help="FILE.onnx, FILE.pt2 (torch.export), torchvision:NAME or timm:NAME (where installed), or a bundle or "
            "a run that has one."
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Schedule points per operator on average, kept ones included; 32 by default.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="End after so many minutes instead: opening, building and comparing are within them."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the result; by default RUN/NAME, with what --shape, --target, --threads, --dtype ask for."
        ),
    ] = None,
    run: Annotated[
        Path,
        typer.Option(
            "--run",
            "--run-dir",
            file_okay=False,
            metavar="<path>",
            help="Run directory: its records are used, and new ones kept there.",
        ),
    ] = Path("tuned"),
    target: Target = "cpu",
    threads: Threads = 1,
    dtype: Annotated[
        str,
        typer.Option(
            help="f32; bf16 with AVX512_BF16, or int8 with --calibration or of a network that is quantised already: "
            "operators may be in it, where that is faster."
        ),
    ] = "f32",
    calibration: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, metavar="<path>", help="With --dtype int8: a folder of pictures, of which 300 are used."
        ),
    ] = None,
    max_error: Annotated[
        float,
        typer.Option(help="With --dtype int8: squared error of the outputs, as a part of their squares, at most."),
    ] = 0.01,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Shape of an input that the file leaves open: NAME=1,3,224,224; repeatable."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="State dict of torchvision:NAME or timm:NAME, .safetensors or .pth; random ones without it."),
    ] = None,
    tuner: Tuner = "gp",
    pretrained: Pretrained = None,
    rpc: RPC = None,
    key: Key = None,
    devices: Devices = None,
    warm_start: WarmStart = None,
    early_stopping: EarlyStopping = "gain",
    knobs: Knobs = None,
    effort_name: Preset = None,
    config: Config = None,
    show_config: ShowConfig = False,
    tune_share: TuneShare = 1.0,
    layouts: Layouts = None,
    no_tuning: Annotated[
        bool, typer.Option("--no-tuning", help="Fail where an operator has no record yet, instead of tuning it.")
    ] = False,
    operator: Annotated[
        str | None, typer.Option(help="Key of an operator to tune alone, instead of a network.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="With --operator: the only schedule that is tried, as the result shows it.")
    ] = None,
    simulate: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, metavar="<path>", help="With --operator: a run whose records answer instead of the device."
        ),
    ] = None,
    *,
    pictures: PictureOptions,
    seed: Seed = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop; nothing is written.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON, with the time of each operator.")] = False,
) -> None:
    """Tune a finished network: the compiled program that makes it fast on the device, in a folder. How pictures are
    prepared and what classes are called is kept for `chanas predict`."""
    if operator is not None:
        if model is not None:
            raise ConfigError(f"expected a network or --operator, got {model} and --operator {operator}")
        effort = effort_of(context, NetworkEffort)
        if effort.layouts is not None:
            raise ConfigError("--layouts goes with a network; an operator alone has no neighbours")
        if dtype != "f32":
            raise ConfigError("--dtype goes with a network; the key of an operator names its own")
        others = "goes with a network, not with --operator KEY"
        refuse_others(context, _OF_OPERATORS, others)
        refuse_settings(effort, ("tune_share", "calibration", "max_error"), others)
        if schedule is not None and simulate is not None:
            raise ConfigError("expected --schedule or --simulate, got both")
        if simulate is not None:
            nothing = "does not go with --simulate RUN, which measures nothing"
            refuse_others(context, _OF_SIMULATIONS, nothing)
            refuse_settings(effort, ("minutes",), nothing)
        if schedule is not None:
            refuse(context, _OF_TRIALS, "says how schedules are found, and --schedule names the only one")
        if no_tuning:
            refuse(context, _OF_TRIALS | _OF_MEASURING, _NO_TRIALS)
        usage = usage_of(target, threads, "f32", 1, rpc, key, devices)
        _tune_operator(operator, usage, effort, run, schedule, simulate, no_tuning, as_json)
        return
    if model is None:
        if show_config:
            effort_of(context, NetworkEffort)
        raise ConfigError("expected a network, such as model.onnx, or --operator KEY")
    if schedule is not None or simulate is not None:
        raise ConfigError("--schedule and --simulate go with --operator KEY")
    if dry_run and as_json:
        raise ConfigError("--json goes with a tuned network, and --dry-run prints a plan; leave one out")
    shapes = parse_shapes(shape or ())
    changes = pictures.changes()
    from chanas.workflows.models.chain import Model
    from chanas.workflows.models.saving import check_place, default_folder

    with _failure_as_json(as_json):
        effort = effort_of(context, NetworkEffort)
        if no_tuning:
            harmless = {"trials", "effort_name"} if effort.trials == 0 else set()
            refuse(context, (_OF_TRIALS | {"minutes"}) - harmless, _NO_TRIALS)
        with named_wait(f"reading {model}"):
            loaded = Model.load(model, shapes, weights)
        known = loaded.opened.pictures
        if changes or known or pictures.labels is not None:
            loaded = loaded.for_pictures(changes, pictures.labels, to_calibrate=effort.calibration is not None)
        if known and pictures.preset is None and not as_json:
            typer.echo(
                f"pictures   prepared as {loaded.opened.origin['pictures']} says; --preprocess and others change it"
            )
        usage = usage_of(target, threads, dtype, 1, rpc, key, devices)
        folder = out or default_folder(run, loaded.name, usage, loaded.opened.shapes)
        check_place(folder, run)
        if dry_run:
            plan = loaded.plan(usage, effort=effort, run=RunDirectory(run), folder=folder, no_tuning=no_tuning)
            typer.echo("\n".join(plan))
            return
        with one_writer(folder, other="name another --out"):
            tuned = loaded.tune(usage, effort=effort, run=RunDirectory(run), folder=folder, no_tuning=no_tuning)
            with named_wait("compiling the whole network, comparing and timing it"):
                built = tuned.build()
            saved = built.save(folder)
    from chanas.workflows.models.operators import by_cost, expensive_lines, stored_rows

    places, why_none = _timed_operators(saved)
    rows = stored_rows(saved.open()) if why_none else by_cost(places)
    if as_json:
        facts = {
            "folder": str(folder),
            "latency_s": built.proof.seconds,
            "spread_s": built.proof.spread_s,
            "relative_error": built.proof.relative_error,
            "stages": built.watch.seconds,
            "operators": [row.to_json() for row in rows],
            "operators_timed": "alone" if why_none else "in place",
        }
        if built.tuned.layouts is not None:
            facts["layouts"] = built.tuned.layouts.to_json(built.tuned.program)
        typer.echo(json.dumps(facts))
        return
    _say_tuned(built, saved, places)
    alone = [f"timed alone, with cold weights, as they cannot be timed in place: {why_none}"] if why_none else []
    typer.echo("operators  " + "\n".join([*alone, *expensive_lines(rows, saved.folder)]))


def quantize(
    context: typer.Context,
    bundle: Annotated[Path, typer.Argument(help="A bundle, or a run that has one.")],
    images: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            metavar="<path>",
            help="A folder of pictures to calibrate with, of which 300 are used; by default train images of the run.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the result; by default RUN/NAME-int8, NAME being the bundle's.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Schedule points per operator on average, kept ones included; 32 by default.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="End the tuning after so many minutes instead, with opening and comparing.")
    ] = None,
    max_error: Annotated[
        float, typer.Option(help="Squared error of the outputs, as a part of their squares, at most.")
    ] = 0.01,
    threads: Threads = 1,
    effort_name: Preset = None,
    config: Config = None,
    show_config: ShowConfig = False,
    seed: Seed = 0,
) -> None:
    """Make a searched network int8 where that is faster, in a folder as tune leaves it, and print its accuracy in
    float32 and in int8."""
    from chanas import workflows

    effort = effort_of(context, NetworkEffort)
    found = workflows.quantize(bundle, images=images, out=out, threads=threads, effort=effort)
    _say_tuned(found.built, found.saved, _timed_operators(found.saved)[0])
    typer.echo("\n".join(found.judgement.lines()))


def _tune_operator(
    key: str,
    usage: Usage,
    effort: NetworkEffort,
    run: Path,
    schedule: str | None,
    simulate: Path | None,
    no_tuning: bool,
    as_json: bool,
) -> None:
    from chanas.workflows.models.one_operator import known_operator, parse_schedule, simulate_operator, tune_operator

    if effort.trials is not None and effort.trials < 1:
        raise ConfigError(f"expected at least 1 trial of an operator, got {effort.trials}")
    if schedule is not None and effort.warm_start not in (None, NOTHING):
        raise ConfigError("expected --schedule or --warm-start, got both")
    if no_tuning and schedule is not None:
        raise ConfigError("expected --schedule or --no-tuning, got both")
    if simulate is not None:
        found = simulate_operator(key, usage, effort=effort, run=RunDirectory(simulate))
    elif no_tuning:
        found = known_operator(key, usage, effort=effort, run=RunDirectory(run))
    else:
        point = None if schedule is None else parse_schedule(schedule)
        found = tune_operator(key, usage, effort=effort, run=RunDirectory(run), schedule=point)
    typer.echo(json.dumps(found.to_json(), sort_keys=True) if as_json else "\n".join(found.lines()))


@contextlib.contextmanager
def _failure_as_json(wanted: bool) -> Iterator[None]:
    """An error of the body as a line of JSON, too: the step that it ended, and its text."""
    try:
        yield
    except ChanasError as error:
        if wanted:
            typer.echo(json.dumps({"stage": error.stage or None, "error": str(error)}))
        raise


def _timed_operators(saved: SavedModel) -> tuple[list[OperatorRow], str]:
    """The saved network's operators timed where they stand; none where they cannot be, as elsewhere, and why."""
    from chanas.measuring.locks import device_lock
    from chanas.workflows.models.operators import operator_places

    network = saved.open()
    try:
        network.load()
        with device_lock(), named_wait("timing each operator where it stands"):
            return operator_places(network), ""
    except (CheckpointError, TargetError) as error:  # the network is saved, and right
        return [], str(error)


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes by names, from texts such as `image=1,3,224,224`.

    Raises:
        ConfigError: a text is written otherwise.
    """
    shapes = {}
    for text in texts:
        name, _, extents = text.partition("=")
        numbers = extents.split(",")
        if not name or not all(number.strip().isdecimal() and int(number) > 0 for number in numbers):
            raise ConfigError(f"expected --shape NAME=1,3,224,224, got {text!r}")
        shapes[name] = tuple(int(number) for number in numbers)
    return shapes


def _say_tuned(built: BuiltModel, saved: SavedModel, places: Sequence[OperatorRow]) -> None:
    from chanas.bundle.tuned import remark_of
    from chanas.prescheduler.program import DEFAULT, activation_bytes, weight_bytes
    from chanas.workflows.models.operators import share_unscheduled

    tuned, proof = built.tuned, built.proof
    others = sorted({o.name for o in tuned.program.others})
    stopped = tuned.tuned.num_stopped
    why = f", {stopped} stopped early: nothing better than noise expected" if stopped else ""
    origins = [(c.workload.key, c.taken_from) for c in tuned.tuned.choices.values() if c.taken_from]
    num_untried = sum(origin == DEFAULT for _, origin in origins)
    num_known = sum(origin.startswith(f"{key} on ") for key, origin in origins)
    num_taken = len(origins) - num_untried - num_known
    why += f", {num_known} with the best schedule of another device" if num_known else ""
    why += f", {num_taken} took over the schedule of a similar one" if num_taken else ""
    why += f", {num_untried} with a likely schedule that was not compared with others" if num_untried else ""
    folder, kind, draws = saved.folder, tuned.loaded.opened.origin["kind"], ", ".join(proof.draws)
    error = f"{proof.relative_error:.1e} of an output's largest number, against {kind}; inputs: {draws}"
    if tuned.calibration is not None:
        error = f"{error}, which ranges are not made for: `int8` says more, and each operator is its emulation"
    if saved.told:
        typer.echo(f"earlier    {saved.told}")
    typer.echo(
        f"folder     {folder}: run `chanas bench {folder}` to see it beside other runtimes\n"
        f"trials     {tuned.tuned.num_new_trials} new ({tuned.tuned.num_failed_trials} failed), "
        f"{len(tuned.program.workloads())} operators{why}\n"
        f"drift      {tuned.tuned.drift}\n"
        f"latency    {format_latency(proof.seconds)} ± {format_latency(proof.spread_s)}, {tuned.usage.threads} "
        "thread(s)\n"
        f"error      {error}\n"
        f"memory     {weight_bytes(tuned.program) / 1e6:.1f} MB of weights, "
        f"{activation_bytes(tuned.program) / 1e6:.1f} MB of activations"
    )
    if tuned.calibration is not None:
        lines = [*tuned.calibration.lines(), *([] if tuned.agreement is None else [tuned.agreement.line()])]
        typer.echo("int8       " + "\n           ".join(lines))
    if tuned.layouts is not None:
        typer.echo("layouts    " + "\n           ".join(tuned.layouts.lines(tuned.program)))
    if built.remark:
        typer.echo(f"warning    {built.remark}")
    if tuned.tuned.warm_start:
        typer.echo(f"warm start {tuned.tuned.warm_start}")
    if tuned.reference.unproven:
        names = ", ".join(tuned.reference.unproven)
        typer.echo(
            f"warning    the comparison says nothing about {names}: other inputs change it by no more than is allowed; "
            "check the network's weights"
        )
    if others:
        share = f": {share_unscheduled(places):.0%} of the time" if places else ""
        typer.echo(f"untuned    {', '.join(others)}{share}")
    typer.echo("seconds    " + ", ".join(f"{name} {value:.1f}" for name, value in built.watch.seconds.items()))
    if remark := remark_of(tuned.loaded.opened.origin):
        typer.echo(f"weights    {remark}")


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
