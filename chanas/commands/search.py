"""`chanas search` and `chanas ablate`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chanas.commands import search_text
from chanas.commands.options import (
    RPC,
    Batch,
    Dtype,
    Key,
    MovedImages,
    Run,
    Seed,
    Shared,
    ShowConfig,
    Target,
    Threads,
    is_given,
    refuse_settings,
    setting_lines,
    usage_of,
)
from chanas.commands.search_text import say, say_accuracies, say_bundle
from chanas.core.task import Limits
from chanas.core.units import parse_accuracy, parse_bytes, parse_count, parse_latency_s
from chanas.core.usage import HERE, THIS_MACHINE, Usage
from chanas.errors import ConfigError
from chanas.files.run import DEFAULT_RUN, RunDirectory

if TYPE_CHECKING:
    from pydantic import BaseModel

    from chanas.bundle.codesign import CoDesign
    from chanas.search.config import SearchConfig
    from chanas.workflows.searching.sources import AccuracyFile, AccuracySource
    from chanas.workflows.searching.targets import Latencies


_SETTINGS = {
    "rule": "rule",
    "compare_rules": "compare_rules",
    "covered_only": "covered_only",
    "evaluations": "num_evaluations",
    "predictor": "predictor",
    "confidence": "confidence",
    "dtypes": "dtypes",
}
"""Settings of a search by the options that they have."""
_OF_BUDGETS = (
    *("rule", "compare_rules", "num_samples", "num_finalists", "max_rounds", "min_distance", "confidence"),
    *("latency_error", "cross_validate", "num_cloud"),
)
_OF_EVALUATIONS = (
    *("num_evaluations", "initial_evaluations", "evaluation_batch", "patience", "min_improvement"),
    *("refine_evaluations", "refine_batch"),
)
"""Settings of searches inside a budget, and of those whose accuracies are evaluated."""


def search(
    context: typer.Context,
    latency: Annotated[
        list[str] | None,
        typer.Option(help="Latency budget, such as 2ms; or TARGET:BUDGET, such as cpu-2t:2ms, repeatable."),
    ] = None,
    accuracy: Annotated[
        str | None, typer.Option(help="Instead of a budget: the fastest network of this top-1, as 0.753 or 75.3%.")
    ] = None,
    per_target: Annotated[
        bool, typer.Option("--per-target", help="A search and a bundle for each TARGET:BUDGET, not one for all.")
    ] = False,
    unproven: Annotated[
        bool, typer.Option("--unproven", help="With --per-target: predict networks of targets that aren't here.")
    ] = False,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="No budget: the whole front of latency and accuracy.")
    ] = False,
    points: Annotated[int | None, typer.Option(help="With --pareto: points that are measured; 8 by default.")] = None,
    run: Run = DEFAULT_RUN,
    target: Target = "cpu",
    threads: Threads = 1,
    dtype: Dtype = "f32",
    dtypes: Annotated[
        str | None, typer.Option(help="Types that each block may be in, f32 first: f32,int8 (or f32,bf16,int8).")
    ] = None,
    batch: Batch = 1,
    rpc: RPC = None,
    key: Key = None,
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
    predictor: Annotated[
        str, typer.Option(help="Kind of accuracy predictor: pairs, mlp (the paper's), or ridge.")
    ] = "pairs",
    confidence: Annotated[
        float | None, typer.Option(help="Chance that a prediction holds, below 1; 0.5 by default.")
    ] = None,
    accuracy_table: Annotated[
        Path | None, typer.Option(help="CSV of accuracies measured elsewhere, instead of a supernet.")
    ] = None,
    space: Annotated[str | None, typer.Option(help="With --accuracy-table: space; the latency table's.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="With --accuracy-table: classes; the table's.")] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            dir_okay=False,
            metavar="<path>",
            help="YAML file with these settings and those of evaluations, evolution and proofs.",
        ),
    ] = None,
    show_config: ShowConfig = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the bundle, in RUN/bundles; by default the budget, such as 2ms.")
    ] = None,
    images: MovedImages = None,
    shared: Shared = False,
    seed: Seed = 0,
) -> None:
    """Find the most accurate network inside the budget, prove it, and emit the bundle; or measure the Pareto front."""
    config = _config_of(context, config_file)
    if show_config:
        typer.echo(settings_text(config), nl=False)
        return
    goals = [
        option
        for option, is_given in (("--latency", latency), ("--accuracy", accuracy is not None), ("--pareto", pareto))
        if is_given
    ]
    if len(goals) != 1:
        got = f"got {' and '.join(goals)}: give one of them" if goals else "got none of them"
        raise ConfigError(f"expected --latency, such as --latency 2ms, --accuracy, or --pareto; {got}")
    if points is not None and not pareto:
        raise ConfigError(f"--points goes with --pareto, not with {goals[0]}")
    if name is not None and pareto:
        raise ConfigError("--name is of a bundle, and --pareto makes none")
    if accuracy_table is None and (space is not None or num_classes is not None):
        raise ConfigError("--space and --num-classes go with --accuracy-table; without it they are the supernet's")
    given = {name: f"--{option.replace('_', '-')}" for option, name in _SETTINGS.items() if is_given(context, option)}
    if pareto:
        refuse_settings(config, _OF_BUDGETS, "goes with --latency and --accuracy, not with --pareto", given)
    if accuracy_table is not None:
        why = "goes with a supernet, which is evaluated, not with --accuracy-table"
        refuse_settings(config, _OF_EVALUATIONS, why, given)
    limits = _limits(macs, params, peak_memory)
    from chanas import workflows
    from chanas.workflows.searching.sources import AccuracyFile
    from chanas.workflows.searching.targets import parse_latencies

    latency_s = parse_latencies(latency) if latency else None
    top1 = None if accuracy is None else parse_accuracy(accuracy)
    usage = usage_of(target, threads, dtype, batch, rpc, key, shared=shared)
    if isinstance(latency_s, dict) and replace(usage, place=THIS_MACHINE) != HERE:
        raise ConfigError(
            "--target, --threads, --dtype and --batch don't go with TARGET:BUDGET; name it there, as cpu-2t:2ms"
        )
    accuracies = None if accuracy_table is None else AccuracyFile(accuracy_table, space, num_classes)
    if images is not None:
        workflows.take_images(RunDirectory(run), images)
    request = _Request(RunDirectory(run), usage, accuracies, config, limits, seed, name)
    if per_target or unproven:
        if not (per_target and isinstance(latency_s, dict)):
            raise ConfigError(
                "expected --per-target with --latency TARGET:BUDGET, such as cpu:5ms (and --unproven, if any)"
            )
        request.per_target(latency_s, unproven)
    elif top1 is not None:
        request.fastest(top1)
    elif latency_s is None:
        request.front(points)
    else:
        request.bundle(latency_s)


def _config_of(context: typer.Context, file: Path | None) -> SearchConfig:
    """The settings of a search: options that are given, then those of a file, then the defaults.

    Raises:
        ConfigError: the file cannot be read, or a setting is unknown or out of range.
    """
    from chanas.files.yaml_files import read_mapping
    from chanas.search.config import SearchConfig

    settings: dict[str, Any] = {}
    if file is not None:
        settings = read_mapping(file, file, "file of settings", "settings such as num_evaluations", ConfigError)
        SearchConfig.parse(settings)  # a fault of the file comes first
    for option, name in _SETTINGS.items():
        if is_given(context, option):
            value = context.params[option]
            settings[name] = value.replace(" ", "").split(",") if option == "dtypes" else value
    if "num_evaluations" in settings and "initial_evaluations" not in settings:
        settings["initial_evaluations"] = min(36, settings["num_evaluations"])
    return SearchConfig.parse(settings)


def settings_text(config: BaseModel) -> str:
    """All settings as a YAML file, each with its meaning."""
    from pydantic import BaseModel

    lines = []
    for name, value in config:
        if isinstance(value, BaseModel):
            lines += [f"{name}:", textwrap.indent(settings_text(value).rstrip("\n"), "  ")]
        else:
            lines += setting_lines(name, value, type(config).model_fields[name].description or "")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Request:
    """The options that all kinds of searches have."""

    run: RunDirectory
    usage: Usage
    accuracies: AccuracyFile | None
    config: SearchConfig
    limits: Limits
    seed: int
    name: str | None

    def source(self, target: str) -> AccuracySource:
        """The supernet, or the file of accuracies, of the space of a target's latency table."""
        from chanas.workflows import open_source

        return open_source(self.run, self.accuracies, target)

    def per_target(self, latency_s: dict[str, float], unproven: bool) -> None:
        """A search for each target."""
        from chanas.workflows.searching.per_target import search_per_target
        from chanas.workflows.searching.targets import check_remote

        check_remote(latency_s, self.usage.place)
        source = self.source(next(iter(latency_s)))
        found = search_per_target(
            self.run,
            latency_s=latency_s,
            place=replace(self.usage.place, unproven=unproven),
            source=source,
            config=self.config,
            limits=self.limits,
            seed=self.seed,
            name=self.name,
        )
        say_accuracies(source)
        say(found.lines())
        found.check()

    def front(self, points: int | None) -> None:
        """The front of all budgets."""
        from chanas.workflows.searching.front import DEFAULT_POINTS, search_front

        source = self.source(str(self.usage.name))
        front = search_front(
            self.run,
            source=source,
            usage=self.usage,
            num_points=DEFAULT_POINTS if points is None else points,
            config=self.config,
            limits=self.limits,
            seed=self.seed,
        )
        say_accuracies(source)
        say(search_text.front_lines(front, self.run))

    def fastest(self, top1: float) -> None:
        """The fastest network that is so accurate."""
        from chanas import workflows

        source = self.source(str(self.usage.name))
        bundle = workflows.search_fastest(
            self.run,
            top1=top1,
            source=source,
            usage=self.usage,
            config=self.config,
            limits=self.limits,
            seed=self.seed,
            name=self.name,
        )
        typer.echo(f"{'accuracy wanted':19s} {top1:.2%}, at the smallest latency budget that has it")
        self._say(bundle, source)

    def bundle(self, latency_s: Latencies) -> None:
        """One network inside all budgets."""
        from chanas import workflows

        source = self.source(next(iter(latency_s)) if isinstance(latency_s, Mapping) else str(self.usage.name))
        bundle = workflows.search(
            self.run,
            latency_s=latency_s,
            source=source,
            usage=self.usage,
            config=self.config,
            limits=self.limits,
            seed=self.seed,
            name=self.name,
        )
        self._say(bundle, source)

    def _say(self, bundle: CoDesign, source: AccuracySource) -> None:
        say_accuracies(source)
        say_bundle(bundle, self.run)
        if self.config.compares_rules:
            say(search_text.regret_lines(self.run))


def ablate(
    run: Run = DEFAULT_RUN,
    latency: Annotated[str | None, typer.Option(help="Latency budget; the space's median by default.")] = None,
    schedules: Annotated[
        list[str] | None, typer.Option(help="Compare with untuned or pytorch; repeatable; both by default.")
    ] = None,
    points: Annotated[int | None, typer.Option(help="Points of each front that are measured; 8 by default.")] = None,
    target: Annotated[str | None, typer.Option(help="Hardware target; that of the run's search.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of one inference; those of the search.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Weights and activations; those of the search.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images at once; those of the search.")] = None,
    macs: Annotated[str | None, typer.Option(help="Most multiply-accumulates; those of the search.")] = None,
    params: Annotated[str | None, typer.Option(help="Most parameters; those of the search.")] = None,
    peak_memory: Annotated[str | None, typer.Option(help="Most memory for activations; that of the search.")] = None,
    rule: Annotated[str | None, typer.Option(help="How the sub-space is chosen; as the search did.")] = None,
    covered_only: Annotated[
        bool | None, typer.Option("--covered-only/--all-blocks", help="What the table has rows for; as the search did.")
    ] = None,
    predictor: Annotated[str, typer.Option(help="Kind of accuracy predictor: pairs, mlp, or ridge.")] = "pairs",
    accuracy_table: Annotated[Path | None, typer.Option(help="CSV of accuracies, instead of a supernet.")] = None,
    space: Annotated[str | None, typer.Option(help="With --accuracy-table: space; the latency table's.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="With --accuracy-table: classes; the table's.")] = None,
    images: MovedImages = None,
    seed: Seed = 0,
) -> None:
    """Repeat the run's search with default schedules, and measure what tuning them is worth to it."""
    if accuracy_table is None and (space is not None or num_classes is not None):
        raise ConfigError("--space and --num-classes go with --accuracy-table; without it they are the supernet's")
    budget_s = None if latency is None else parse_latency_s(latency)
    asked = {"target": target, "threads": threads, "dtype": dtype, "batch": batch, "rule": rule}
    asked |= {"covered_only": covered_only, **asdict(_limits(macs, params, peak_memory))}
    from chanas import workflows
    from chanas.search.config import SearchConfig
    from chanas.workflows.searching import ablation
    from chanas.workflows.searching.sources import AccuracyFile, open_source

    accuracies = None if accuracy_table is None else AccuracyFile(accuracy_table, space, num_classes)
    directory = RunDirectory(run)
    usage, limits, settings = ablation.repeated(directory, asked)
    config = SearchConfig.parse({**settings, "predictor": predictor})
    num_points = ablation.DEFAULT_POINTS if points is None else points
    if images is not None:
        workflows.take_images(directory, images)
    source = open_source(directory, accuracies, str(usage.name))
    result = ablation.ablate(
        directory,
        latency_s=budget_s,
        comparison=ablation.Comparison(schedules or ablation.DEFAULT_SCHEDULES, num_points),
        source=source,
        usage=usage,
        config=config,
        limits=limits,
        seed=seed,
    )
    say_accuracies(source)
    say(result.lines())


def _limits(macs: str | None, params: str | None, peak_memory: str | None) -> Limits:
    return Limits(
        macs=None if macs is None else parse_count(macs, "number of multiply-accumulates"),
        params=None if params is None else parse_count(params, "number of parameters"),
        peak_memory=None if peak_memory is None else parse_bytes(peak_memory, "peak memory"),
    )
