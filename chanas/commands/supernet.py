"""The commands of the supernet: parse, call one function of `chanas.workflows.stages.training`, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chanas.commands.options import ConvertRgb, GivenRun, MovedImages, NamedRun, Run, Seed, SkipBad, one_run
from chanas.core.units import format_count
from chanas.errors import ConfigError
from chanas.files.run import DEFAULT_RUN, RunDirectory

if TYPE_CHECKING:
    from chanas.supernet.judge import Judged, Spread
    from chanas.supernet.training.train import TrainSummary


def train_supernet(
    run: Run = DEFAULT_RUN,
    config: Annotated[str | None, typer.Option(help="Preset or YAML; by default chosen by the images.")] = None,
    space: Annotated[str | None, typer.Option(help="Search space: a preset (mbv3, mbv3-32) or YAML.")] = None,
    images: Annotated[
        str | None, typer.Option(help="Images by their path: FOLDER/CLASS/IMAGE, tar shards, a saved data set.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Or digits, imagefolder, hf, webdataset, a torchvision set on disk.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Where the data set lies.")] = None,
    skip_bad: SkipBad = False,
    seed: Annotated[int | None, typer.Option(help="Seed; the config's by default.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the config's by default.")] = None,
    gap_weight: Annotated[float | None, typer.Option(help="λ of the gap term; the config's by default.")] = None,
    init: Annotated[Path | None, typer.Option(help="Run directory of a supernet to take weights from.")] = None,
    resume: Annotated[
        bool, typer.Option(help="Continue as the checkpoint was begun; with the same settings that is the default.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Start anew, and replace the checkpoint.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard event files too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop; nothing is written.")] = False,
    _convert_rgb: ConvertRgb = False,
) -> None:
    """Train the elastic supernet once; every architecture inherits its weights. Runs under torchrun too."""
    from chanas import workflows
    from chanas.workflows.stages.training import Changes

    _refuse_both(resume, overwrite)
    changes = Changes(dataset, root, seed, device, gap_weight, init, images, skip_bad)
    what: dict[str, Any] = {"config": config, "space": space, "changes": changes}
    what |= {"resume": resume, "overwrite": overwrite}
    if dry_run:
        typer.echo("\n".join(workflows.plan_supernet(RunDirectory(run), **what)))
        return
    summary = workflows.train_supernet(RunDirectory(run), **what, tensorboard=tensorboard)
    if not summary.is_main or _was_finished(summary):
        return
    typer.echo(
        f"supernet   {summary.checkpoint} after {summary.num_steps} steps ({summary.wall_s:.0f} s, "
        f"{summary.images_per_s:.0f} images/s)\n"
        f"holdout    {summary.top1_largest:.2%} largest sub-network, {summary.top1_smallest:.2%} smallest"
    )


def import_supernet(
    kind: Annotated[str, typer.Argument(help="ofa: once-for-all's MobileNetV3 of width 1.0 or 1.2.")],
    file: Annotated[Path, typer.Argument(help="The published checkpoint.")],
    run: Run = DEFAULT_RUN,
    images: Annotated[
        Path | None,
        typer.Option(help="Images of ImageNet's classes, for BN statistics and accuracies: FOLDER/CLASS/IMAGE, …"),
    ] = None,
    skip_bad: SkipBad = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the supernet that is there.")] = False,
) -> None:
    """Take a supernet that others trained instead of training one."""
    if skip_bad and images is None:
        raise ConfigError("--skip-bad goes with --images; without them there are none to leave out")
    from chanas import workflows

    summary = workflows.import_supernet(
        RunDirectory(run), kind, file, images=images, skip_bad=skip_bad, overwrite=overwrite
    )
    typer.echo(f"supernet   {summary.checkpoint} of space {summary.space.name}, {summary.num_classes} classes")
    if summary.top1_largest is None:
        typer.echo(
            "images     none (--images FOLDER): BN statistics stay as published, which fit no sub-network exactly; no "
            "accuracy can be measured, a search needs --accuracy-table FILE"
        )
    else:
        typer.echo(
            f"images     {summary.num_images}; of {summary.num_looked_at} the largest sub-network knows "
            f"{summary.top1_largest:.1%}"
        )


def finetune(
    *,
    run: GivenRun = None,
    named_run: NamedRun = None,
    architecture: Annotated[str, typer.Option(help="Key of an architecture, largest, or smallest.")],
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="Fresh weights, to compare.")] = False,
    epochs: Annotated[float | None, typer.Option(help="Passes over the train split; 25 by default.")] = None,
    base_lr: Annotated[float | None, typer.Option(help="Peak learning rate; from the supernet's by default.")] = None,
    images: Annotated[
        str | None, typer.Option(help="Images of any classes: FOLDER/CLASS/IMAGE, …; the supernet's by default.")
    ] = None,
    skip_bad: SkipBad = False,
    seed: Annotated[int | None, typer.Option(help="Seed; the supernet's by default.")] = None,
    resume: Annotated[
        bool, typer.Option(help="Continue as the checkpoint was begun; with the same settings that is the default.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Start anew, and replace the checkpoint.")] = False,
) -> None:
    """Train one sub-network further from the weights it inherited, or from scratch."""
    _refuse_both(resume, overwrite)
    from chanas import workflows
    from chanas.supernet.training.finetune import Finetuning

    summary = workflows.finetune(
        one_run(run, named_run),
        architecture,
        Finetuning(epochs, base_lr, from_scratch, seed, images, skip_bad),
        resume=resume,
        overwrite=overwrite,
    )
    if not summary.training.is_main or _was_finished(summary.training):
        return
    start = "fresh weights" if from_scratch else "inherited weights"
    inherited = "" if summary.top1_inherited is None else f"{summary.top1_inherited:.2%} inherited, "
    typer.echo(
        f"network    {summary.training.checkpoint} after {summary.training.num_steps} steps from {start}\n"
        f"holdout    {inherited}{summary.top1:.2%} now"
    )


def _refuse_both(resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise ConfigError("expected --resume, which continues, or --overwrite, which starts anew; got both")


def _was_finished(summary: TrainSummary) -> bool:
    """Say so where there was nothing left to train."""
    is_finished = summary.resumed_from == summary.num_steps
    if is_finished:
        typer.echo(
            f"finished   {summary.checkpoint} is of these settings and has its {summary.num_steps} steps; --overwrite "
            "trains anew"
        )
    return is_finished


def evaluate(
    run: GivenRun = None,
    named_run: NamedRun = None,
    architecture: Annotated[
        list[str] | None, typer.Option(help="A key, largest, smallest, or random:20; repeatable.")
    ] = None,
    split: Annotated[str, typer.Option(help="Images: train, gap, holdout, or test.")] = "holdout",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    images: MovedImages = None,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for each result.")] = False,
) -> None:
    """Print the accuracy of sub-networks with inherited weights; the largest and the smallest by default."""
    from tqdm import tqdm

    from chanas import workflows

    directory, named = one_run(run, named_run), architecture or ("largest", "smallest")
    results = workflows.evaluate(
        directory, named, split=split, seed=seed, device=device, images=images, progress=not as_json
    )
    for number, result in enumerate(results):
        with tqdm.external_write_mode():
            _print_result(result, as_json, is_first=number == 0)


def _print_result(result: Judged | Spread, as_json: bool, is_first: bool) -> None:
    from chanas.supernet.judge import Judged

    if as_json:
        typer.echo(json.dumps(result.to_json(), sort_keys=True))
    elif isinstance(result, Judged):
        if is_first:
            typer.echo(f"{result.num_images} images of {result.split}, supernet after {result.step} steps")
            typer.echo(f"{'accuracy':>8s}  {'95 % interval':>17s}  {'MACs':>6s} {'params':>6s}  architecture")
        low, high = result.interval
        name = result.architecture.key + (f" ({result.request})" if result.request in ("largest", "smallest") else "")
        counts = f"{format_count(result.num_macs):>6s} {format_count(result.num_params):>6s}"
        typer.echo(f"{result.top1:8.2%}  {low:7.2%} – {high:7.2%}  {counts}  {name}")
    else:
        deviation = "-" if result.deviation is None else f"{result.deviation:.2%}"
        ends = f"min {result.lowest:.2%}, max {result.highest:.2%}"
        typer.echo(f"{result.mean:8.2%}  mean of {result.request}, sd {deviation}, {ends}")
