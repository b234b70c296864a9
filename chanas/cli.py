"""The commands: parse, call one function of `chanas.pipeline`, print. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chanas import (
    __version__,
    device_commands,
    doctor_commands,
    export_commands,
    lut_commands,
    search_text,
    target_commands,
    training_commands,
)
from chanas.errors import ChanasError, ConfigError
from chanas.run import DEFAULT_RUN, RunDirectory
from chanas.training_commands import Run, Seed
from chanas.units import format_latency, parse_bytes, parse_count, parse_latency_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chanas.codesign import CoDesign

_INTERRUPTED = 130  # 128 + SIGINT, as shells count

app = typer.Typer(
    name="chanas",
    help="Searches for the network architecture and the compiled program of an image task together, on your device, "
    "inside your latency budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(device_commands.app, name="device", short_help="Devices over RPC: serve this one, list others.")
app.add_typer(lut_commands.app, name="lut", short_help="Latency tables: show, check, fill, compare them.")
app.add_typer(target_commands.app, name="target", short_help="Hardware targets: list, show, check them.")
app.command(short_help="Write a bundle as a C library, for devices without Python.")(export_commands.export)
app.command(short_help="What this machine is, what works on it, how well it times.")(doctor_commands.doctor)

Target = Annotated[str, typer.Option(help="Hardware target: cpu (this machine); others: `chanas target list`.")]
Threads = Annotated[int, typer.Option(help="Threads of one inference; each number has a table of its own.")]
Dtype = Annotated[str, typer.Option(help="Weights and activations: f32; bf16 with AVX512_BF16; f16 or tf32 on GPUs.")]
Batch = Annotated[int, typer.Option(help="Images at once, on GPUs; latencies are of all of them together.")]
OfBundle = Annotated[str | None, typer.Option("--target", help="One of the bundle's targets; its first by default.")]


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    if version:
        typer.echo(f"chanas {__version__}")
        raise typer.Exit


app.command("train-supernet", short_help="Train the elastic supernet, once per task.")(training_commands.train_supernet)
app.command(short_help="Train one sub-network further.")(training_commands.finetune)
app.command("eval", short_help="Accuracy of sub-networks with inherited weights.")(training_commands.evaluate)


@app.command(short_help="Tune every block and fill the latency table.")
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
    rpc: lut_commands.RPC = None,
    key: lut_commands.Key = None,
    devices: lut_commands.Devices = None,
    warm_start: lut_commands.WarmStart = None,
    seed: Seed = 0,
    compile_only: Annotated[
        bool, typer.Option("--compile-only", help="For GPUs: compile schedules, run nothing; needs no GPU.")
    ] = False,
    arch: Annotated[str | None, typer.Option(help="With --compile-only: architecture, such as sm_90.")] = None,
    limit: Annotated[int | None, typer.Option(help="With --compile-only: the first so many operators.")] = None,
    shared: lut_commands.Shared = False,
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
    from chanas import pipeline

    summary = pipeline.preschedule(
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


@app.command(short_help="Find and prove the best network inside the budget.")
def search(
    latency: Annotated[
        list[str] | None,
        typer.Option(help="Latency budget, such as 2ms; or TARGET:BUDGET, such as cpu-2t:2ms, repeatable."),
    ] = None,
    per_target: Annotated[
        bool, typer.Option("--per-target", help="A search and a bundle for each TARGET:BUDGET, not one for all.")
    ] = False,
    unproven: Annotated[
        bool, typer.Option("--unproven", help="With --per-target: foretell networks of targets that aren't here.")
    ] = False,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="No budget: the whole front of latency and accuracy.")
    ] = False,
    points: Annotated[int | None, typer.Option(help="With --pareto: points that are measured; 8 by default.")] = None,
    run: Run = DEFAULT_RUN,
    target: Target = "cpu",
    threads: Threads = 1,
    dtype: Dtype = "f32",
    batch: Batch = 1,
    rpc: lut_commands.RPC = None,
    key: lut_commands.Key = None,
    macs: Annotated[str | None, typer.Option(help="Most multiply-accumulates, such as 300M.")] = None,
    params: Annotated[str | None, typer.Option(help="Most parameters, such as 5M.")] = None,
    peak_memory: Annotated[
        str | None,
        typer.Option(help="Most memory for activations at once, such as 8MB; weights, code and image don't count."),
    ] = None,
    rule: Annotated[str, typer.Option(help="How the sub-space is chosen: accuracy, paper, or all.")] = "accuracy",
    compare_rules: Annotated[
        bool, typer.Option("--compare-rules", help="Say what each rule costs against all sub-spaces.")
    ] = False,
    covered_only: Annotated[
        bool, typer.Option("--covered-only", help="Search what the latency table has rows for.")
    ] = False,
    evaluations: Annotated[int | None, typer.Option(help="Sub-networks to teach the predictor; 96 by default.")] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Chance that a prediction holds, below 1; 0.5 by default.")
    ] = None,
    accuracy_table: Annotated[
        Path | None, typer.Option(help="CSV of accuracies measured elsewhere, instead of a supernet.")
    ] = None,
    space: Annotated[str | None, typer.Option(help="With --accuracy-table: space; the latency table's.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="With --accuracy-table: classes; the table's.")] = None,
    shared: lut_commands.Shared = False,
    seed: Seed = 0,
) -> None:
    """Find the most accurate network inside the budget, prove it, and emit the bundle; or measure the Pareto front."""
    if (not latency) != pareto or (points is not None and not pareto):
        raise ConfigError("expected --latency, such as --latency 2ms, or --pareto (with --points, if any)")
    if accuracy_table is None and (space is not None or num_classes is not None):
        raise ConfigError("--space and --num-classes go with --accuracy-table; without it they are the supernet's")
    limits: dict[str, Any] = {
        "macs": None if macs is None else parse_count(macs, "number of multiply-accumulates"),
        "params": None if params is None else parse_count(params, "number of parameters"),
        "peak_memory": None if peak_memory is None else parse_bytes(peak_memory, "peak memory"),
    }
    from chanas import pipeline
    from chanas.search.config import SearchConfig
    from chanas.search_targets import check_remote, parse_latencies

    latency_s = parse_latencies(latency) if latency else None
    if isinstance(latency_s, dict) and (target, threads, dtype, batch) != ("cpu", 1, "f32", 1):
        raise ConfigError(
            "--target, --threads, --dtype and --batch don't go with TARGET:BUDGET; name it there, as cpu-2t:2ms"
        )
    settings = {"rule": rule, "num_evaluations": evaluations, "confidence": confidence}
    settings |= {"compare_rules": compare_rules, "covered_only": covered_only}
    if evaluations is not None:
        settings["initial_evaluations"] = min(36, evaluations)
    config = SearchConfig.parse({k: v for k, v in settings.items() if v is not None})
    if per_target or unproven:
        if not (per_target and isinstance(latency_s, dict)):
            raise ConfigError(
                "expected --per-target with --latency TARGET:BUDGET, such as cpu:5ms (and --unproven, if any)"
            )
        check_remote(latency_s, rpc, key)
        from chanas.per_target import search_per_target

        sources: dict[str, Any] = {"accuracy_table": accuracy_table, "space": space, "num_classes": num_classes}
        how: dict[str, Any] = {"config": config, **limits, "unproven": unproven, "shared": shared, "seed": seed}
        found = search_per_target(RunDirectory(run), latency_s=latency_s, rpc=rpc, **sources, **how)
        _say(found.lines())
        found.check()
        return
    where: dict[str, Any] = {"target": target, "num_threads": threads, "dtype": dtype, "batch": batch}
    where |= {"rpc": rpc, "key": key, "shared": shared}
    if latency_s is None:
        from chanas.front_search import DEFAULT_POINTS, search_front

        front = search_front(
            RunDirectory(run),
            accuracy_table=accuracy_table,
            **where,
            space=space,
            num_classes=num_classes,
            num_points=DEFAULT_POINTS if points is None else points,
            config=config,
            **limits,
            seed=seed,
        )
        _say(search_text.front_lines(front, RunDirectory(run)))
        return
    if accuracy_table is not None:
        from chanas.table_search import search_with_table

        bundle, accuracies = search_with_table(
            RunDirectory(run),
            accuracy_table,
            latency_s=latency_s,
            **where,
            space=space,
            num_classes=num_classes,
            config=config,
            **limits,
            seed=seed,
        )
        typer.echo(f"{'accuracies':19s} {accuracies.describe()}")
    else:
        bundle = pipeline.search(
            RunDirectory(run),
            latency_s=latency_s,
            **where,
            config=config,
            **limits,
            seed=seed,
        )
    _say_bundle(bundle, RunDirectory(run))
    if config.compares_rules:
        _say(search_text.regret_lines(RunDirectory(run)))


@app.command(short_help="Measure what tuned schedules are worth to a search.")
def ablate(
    run: Run = DEFAULT_RUN,
    latency: Annotated[str | None, typer.Option(help="Latency budget; the space's median by default.")] = None,
    schedules: Annotated[
        list[str] | None, typer.Option(help="Compare with untuned or pytorch; repeatable; both by default.")
    ] = None,
    points: Annotated[int | None, typer.Option(help="Points of each front that are measured; 8 by default.")] = None,
    target: Target = "cpu",
    threads: Threads = 1,
    rule: Annotated[str, typer.Option(help="How the sub-space is chosen: accuracy, paper, or all.")] = "accuracy",
    accuracy_table: Annotated[Path | None, typer.Option(help="CSV of accuracies, instead of a supernet.")] = None,
    space: Annotated[str | None, typer.Option(help="With --accuracy-table: space; the latency table's.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="With --accuracy-table: classes; the table's.")] = None,
    seed: Seed = 0,
) -> None:
    """Repeat the search with default schedules, and measure what tuning them is worth to it."""
    if accuracy_table is None and (space is not None or num_classes is not None):
        raise ConfigError("--space and --num-classes go with --accuracy-table; without it they are the supernet's")
    budget_s = None if latency is None else parse_latency_s(latency)
    from chanas import ablation
    from chanas.search.config import SearchConfig

    result = ablation.ablate(
        RunDirectory(run),
        latency_s=budget_s,
        schedules=schedules or ablation.DEFAULT_SCHEDULES,
        accuracy_table=accuracy_table,
        target=target,
        num_threads=threads,
        space=space,
        num_classes=num_classes,
        num_points=ablation.DEFAULT_POINTS if points is None else points,
        config=SearchConfig.parse({"rule": rule}),
        seed=seed,
    )
    for line in result.lines():
        typer.echo(line)


@app.command()
def predict(
    bundle: Annotated[Path, typer.Argument(help="A bundle that search made.")],
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    convert_rgb: Annotated[bool, typer.Option(help="Convert images that are not RGB.")] = False,
    target: OfBundle = None,
) -> None:
    """Classify images with the compiled module."""
    from chanas.codesign import CoDesign

    predictions = CoDesign.load(bundle, target).classify(images, convert_rgb)
    for path, prediction in zip(images, predictions, strict=True):
        typer.echo(f"{path}\t{prediction.class_name}\t{prediction.probability:.4f}")


@app.command(short_help="Time a bundle's module beside PyTorch.")
def bench(
    bundle: Annotated[Path, typer.Argument(help="A bundle that search made.")],
    compile_: Annotated[bool, typer.Option("--compile/--no-compile", help="Time torch.compile too.")] = True,
    target: OfBundle = None,
    shared: lut_commands.Shared = False,
) -> None:
    """Time the compiled module beside PyTorch: same weights, image, threads and cores, in turns."""
    from chanas.codesign import CoDesign, benchmark
    from chanas.gpu_use import gpu_of
    from chanas.prescheduler.locks import device_lock

    loaded = CoDesign.load(bundle, target)
    used = f"{loaded.target.num_threads} thread(s)" if loaded.target.gpu is None else f"batch {loaded.target.batch}"
    typer.echo(f"{loaded.architecture.key}, {used}, {loaded.target.device}")
    typer.echo(f"{'':16s} {'median':>10s} {'ratio':>8s}")
    with device_lock(gpu=gpu_of(loaded.target)):
        rows = list(benchmark(loaded, with_compile=compile_, shared=shared))
    for row in rows:
        median = "-" if row.median_s is None else format_latency(row.median_s)
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
        typer.echo(f"{row.name:16s} {median:>10s} {ratio:>8s} {row.note}".rstrip())
    _say(search_text.then_and_now(loaded, rows))


@app.command(short_help="Write the run's report: one HTML page.")
def report(run: Run = DEFAULT_RUN) -> None:
    """Write the run's report: one self-contained HTML page."""
    from chanas import pipeline

    typer.echo(pipeline.report(RunDirectory(run)))


@app.command(short_help="All three stages on handwritten digits.")
def demo(
    run: Run = Path("runs/demo"),
    target: Target = "cpu",
    latency: Annotated[str | None, typer.Option(help="Latency budget; the space's median by default.")] = None,
    trials: Annotated[int, typer.Option(help="Schedule points per operator on average.")] = 6,
    shared: lut_commands.Shared = False,
    seed: Seed = 0,
) -> None:
    """All three stages on handwritten digits and this machine, in minutes."""
    budget_s = None if latency is None else parse_latency_s(latency)
    from chanas import lut_pipeline, pipeline

    options: dict[str, Any] = {"target": target, "latency_s": budget_s, "num_trials": trials, "shared": shared}
    result = pipeline.demo(RunDirectory(run), **options, seed=seed)
    _say(search_text.bundle_lines(result.bundle))
    typer.echo(f"report              {result.report}")
    table_error = lut_pipeline.table_error(RunDirectory(run), result.bundle.target.name)
    _say(search_text.demo_lines(result.stages_s, result.total_s, table_error))
    images = " ".join(str(p) for p in result.images)
    program = "chanas" if shutil.which("chanas") else sys.argv[0]
    typer.echo(f"\nClassify images with the compiled network:\n  {program} predict {result.bundle.path} {images}")


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)


def _say_bundle(bundle: CoDesign, run: RunDirectory) -> None:
    from chanas import lut_pipeline

    _say(search_text.bundle_lines(bundle, lut_pipeline.table_error(run, bundle.target.name)))


def main() -> None:
    """Run the command line: an expected error is one line and exit code 1, Ctrl-C is 130."""
    debug = "--debug" in sys.argv
    try:
        code = app(standalone_mode=False) or 0  # typer turns Ctrl-C into this code
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("\nchanas: interrupted; what was measured or saved is kept, the same command goes on", err=True)
        sys.exit(_INTERRUPTED)
    except ChanasError as error:
        if debug:
            raise
        typer.echo(f"chanas: error: {error}", err=True)
        sys.exit(1)
    except Exception as error:
        if debug or not hasattr(error, "format_message"):
            raise
        message = error.format_message()  # the help itself, for a command that needs another one after it
        is_help = message.startswith("Usage:")
        typer.echo(message if is_help else f"chanas: {message} Try 'chanas --help'.", err=True)
        sys.exit(2)
