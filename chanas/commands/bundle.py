"""`chanas predict`, `chanas bench` and `chanas export`: a compiled network used, timed, and made a C library."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chanas.commands import search_text
from chanas.commands.options import ConvertRgb, PictureOptions, Shared, holds_tuned, refuse, with_pictures
from chanas.commands.search_text import say
from chanas.core.progress import named_wait
from chanas.core.units import format_bytes, format_latency
from chanas.errors import CheckpointError, ConfigError, DataError, ModelError, unknown_name

if TYPE_CHECKING:
    from chanas.bundle.benchmark import BenchmarkRow
    from chanas.bundle.classes import Classifier
    from chanas.bundle.tuned import TunedNetwork
    from chanas.export.folders import Exported

app = typer.Typer(
    help="Show what a search has left.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

OfBundle = Annotated[str | None, typer.Option("--target", help="One of the bundle's targets; its first by default.")]


@app.callback()
def _group() -> None:
    """Keep `show` a command of its own while it is the only one."""


@app.command()
def show(
    bundle: Annotated[Path, typer.Argument(help="A bundle, or a run that has one.")],
    target: OfBundle = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print each block of a bundle with its schedule, how fast it is, and what tuning was worth to it."""
    from chanas.bundle.codesign import CoDesign
    from chanas.workflows.searching.schedules import bundle_rows, schedule_lines

    loaded = CoDesign.load(bundle, target)
    rows = bundle_rows(loaded)
    if as_json:
        facts = {"architecture": loaded.architecture.key, "target": loaded.target.name, "blocks": rows}
        typer.echo(json.dumps(facts, indent=1))
        return
    say(schedule_lines(rows))
    say(search_text.bundle_lines(loaded))


@with_pictures
def predict(
    bundle: Annotated[Path, typer.Argument(help="A bundle or a run that has one, or a network that tune made.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    target: OfBundle = None,
    top: Annotated[int, typer.Option(min=1, help="Classes that are named, a line each, the likeliest first.")] = 1,
    *,
    pictures: PictureOptions,
    _convert_rgb: ConvertRgb = False,
) -> None:
    """Classify images with the compiled module. What cannot be used is named, and the others are
    classified all the same. Labels and the preparing of pictures are a tuned network's; a bundle has its own."""
    from chanas.core.progress import progress_bar
    from chanas.network.pictures import read_picture

    classifier = _classifier(bundle, target, pictures)
    files, batch = _image_files(images), classifier.batch
    num_bad, remarks = 0, Counter[str]()
    is_watched = sys.stderr.isatty() and not sys.stdout.isatty()
    with progress_bar(len(files), "predict", "image", enabled=is_watched) as bar:
        for part in (files[i : i + batch] for i in range(0, len(files), batch)):
            read = []
            for file in part:
                try:
                    read.append((file, read_picture(file, str(file))))
                except DataError as error:
                    num_bad += 1
                    bar.write(f"chanas: {error}", file=sys.stderr)
            predictions = classifier.rank([picture.image for _, picture in read], top)
            for (file, picture), ranked in zip(read, predictions, strict=True):
                remarks.update([picture.remark] if picture.remark else [])
                for found in ranked:
                    line = f"{file}\t{found.class_name}\t{found.probability:.4f}"
                    typer.echo(line)
            bar.update(len(part))
    for remark, number in remarks.items():
        typer.echo(f"{number} of {len(files)} images: {remark}", err=True)
    if num_bad:
        raise DataError(f"{num_bad} of {len(files)} images cannot be used; each is named above")


def _classifier(bundle: Path, target: str | None, pictures: PictureOptions) -> Classifier:
    changes = pictures.changes()
    if not holds_tuned(bundle):
        from chanas.bundle.codesign import CoDesign

        if pictures != PictureOptions():
            raise ConfigError("labels and the preparing of pictures go with networks that `chanas tune` made")
        return CoDesign.load(bundle, target).classifier
    from chanas.bundle.tuned import TunedNetwork

    _refuse_target(target)
    network = TunedNetwork.open(bundle)
    if network.remark:
        typer.echo(f"chanas: {network.name} has {network.remark}", err=True)
    return network.classifier(changes, pictures.labels)


def _refuse_target(target: str | None) -> None:
    if target is not None:
        raise ConfigError("--target goes with bundles; a tuned network has one target")


def _image_files(given: Iterable[Path]) -> list[Path]:
    """The files themselves, and those in folders and below that training would take; the others are counted aloud.

    Raises:
        DataError: a folder cannot be read, or has no images.
    """
    from chanas.supernet.data.folders.walk import walk
    from chanas.supernet.data.inspection.summary import format_counts

    files: list[Path] = []
    for path in given:
        if not path.is_dir():
            files.append(path)
            continue
        content = walk(path)
        left_out = f"left out: {format_counts(content.left_out)}" if content.left_out else ""
        if not content.images:
            raise DataError(f"folder {path} has no images{left_out and f' ({left_out})'}")
        if left_out:
            typer.echo(f"{path}: {left_out}", err=True)
        files += [path / name for name, _ in content.images]
    return files


def bench(
    context: typer.Context,
    bundle: Annotated[Path, typer.Argument(help="A bundle or a run that has one, or a network that tune made.")],
    compile_: Annotated[bool, typer.Option("--compile/--no-compile", help="Time torch.compile too.")] = True,
    target: OfBundle = None,
    shared: Shared = False,
    model: Annotated[
        str | None, typer.Option(help="Of a tuned network: what it was tuned from, where that has moved.")
    ] = None,
    untuned: Annotated[
        bool, typer.Option("--untuned/--no-untuned", help="Of a tuned network: time TVM without schedules too.")
    ] = True,
    profile: Annotated[
        bool, typer.Option("--profile", help="Of a tuned network: a line for each operator where it stands, in order.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON, with all operators.")] = False,
) -> None:
    """Time the compiled module beside PyTorch, ONNX Runtime, OpenVINO and LiteRT: same weights, inputs, threads and
    cores, in turns. A tuned network is also timed beside TVM without schedules, and its most expensive operators are
    shown."""
    if holds_tuned(bundle):
        from chanas.bundle.tuned import TunedNetwork

        _refuse_target(target)
        _bench_tuned(TunedNetwork.open(bundle), compile_, model, untuned, profile, as_json)
        return
    refuse(context, ("model", "untuned", "profile"), "goes with networks that `chanas tune` made")
    _bench_bundle(bundle, compile_, target, shared, as_json)


def _bench_bundle(bundle: Path, compile_: bool, target: str | None, shared: bool, as_json: bool) -> None:
    from chanas.bundle.codesign import CoDesign
    from chanas.devices.gpu_use import gpu_of
    from chanas.measuring.locks import device_lock
    from chanas.workflows.models.bench import benchmark_bundle

    loaded = CoDesign.load(bundle, target)
    used = f"{loaded.target.num_threads} thread(s)" if loaded.target.gpu is None else f"batch {loaded.target.batch}"
    if not as_json:
        typer.echo(f"{loaded.architecture.key}, {used}, {loaded.target.device}")
    with device_lock(gpu=gpu_of(loaded.target)), named_wait("preparing other runtimes, and timing all in turns"):
        rows = benchmark_bundle(loaded, with_compile=compile_, shared=shared)
    if as_json:
        facts = {"name": loaded.architecture.key, "target": loaded.target.name, "rows": [vars(row) for row in rows]}
        typer.echo(json.dumps(facts))
        return
    _say_rows(rows)
    say(search_text.then_and_now(loaded, rows))


def _bench_tuned(
    network: TunedNetwork, compile_: bool, model: str | None, untuned: bool, profile: bool, as_json: bool
) -> None:
    from chanas.measuring.locks import device_lock
    from chanas.workflows.models.bench import BenchSettings, benchmark_tuned, open_origin
    from chanas.workflows.models.contenders import CONTENDERS
    from chanas.workflows.models.operators import by_cost, expensive_lines, operator_places, profile_lines

    network.load()  # tells when it is not for here, before anything else is opened
    opened, why = None, ""
    try:
        with named_wait(f"opening what {network.name} was tuned from"):
            opened = open_origin(network, model)
    except (CheckpointError, ModelError) as error:
        if model is not None:
            raise
        why = f"Only chanas is timed: {error}"
    contenders = {name: make for name, make in CONTENDERS.items() if compile_ or name != "torch.compile"}
    with device_lock(), named_wait("preparing other runtimes, and timing all in turns"):
        rows = benchmark_tuned(network, opened, BenchSettings(contenders, untuned))
        places, why_none = [], ""
        try:
            places = operator_places(network)
        except CheckpointError as error:
            if profile:
                raise
            why_none = f"Operators are not timed: {error}"
    if as_json:
        facts = {
            "name": network.name,
            "target": network.target.name,
            "rows": [vars(row) for row in rows],
            "operators": [row.to_json() for row in by_cost(places)],
        }
        if profile:
            facts["profile"] = [place.to_json() for place in places]
        typer.echo(json.dumps(facts))
        return
    remark = f"; {network.remark}" if network.remark else ""
    typer.echo(f"{network.name}, {network.target.num_threads} thread(s), {network.target.device}{remark}")
    _say_rows(rows)
    if why:
        typer.echo(why)
    if profile:
        say(profile_lines(places))
    say([why_none] if why_none else expensive_lines(by_cost(places), network.folder))


def _say_rows(rows: Iterable[BenchmarkRow]) -> None:
    typer.echo(f"{'':18s} {'median':>10s} {'spread':>10s} {'ratio':>8s}")
    for row in rows:
        median, spread = ("-" if s is None else format_latency(s) for s in (row.median_s, row.spread_s))
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
        typer.echo(f"{row.name:18s} {median:>10s} {spread:>10s} {ratio:>8s} {row.note}".rstrip())


def export(
    bundle: Annotated[Path, typer.Argument(help="A bundle or a run that has one, or a network that tune made.")],
    out: Annotated[
        Path, typer.Argument(help="Folder to write, or a file: .onnx, .pt2, .pt. An earlier export is replaced.")
    ],
    target: Annotated[
        str | None,
        typer.Option(help="A target of the bundle (by default its first), or any that `chanas target list` shows."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What the C function is called after; by default the folder.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="c, or a file for another runtime: onnx, torchscript, pt2; by OUT's ending."),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Of such a file: images at once; any number by default.")] = None,
) -> None:
    """Write a static library, a C header, and examples: for a device without Python. Or a found
    network with its weights as a file that other runtimes read."""
    from chanas.workflows.models.network_file import format_of

    kind = format_of(out) if format_ is None else format_
    if kind != "c":
        if name is not None:
            raise ConfigError(f"--name is of a C library, and {out} is of format {kind}")
        _export_file(bundle, out, target, kind, batch)
        return
    if batch is not None:
        raise ConfigError("--batch goes with --format onnx and pt2; the C function takes one image")
    earlier = _exported_weights(out)
    with named_wait(f"compiling and trying {out}"):
        if holds_tuned(bundle):
            from chanas.export.tuned_library import export_tuned

            exported = export_tuned(bundle, out, target, name)
        else:
            from chanas.export.c_library import export as export_bundle

            exported = export_bundle(bundle, out, target, name)
    say(_export_lines(exported))
    if earlier not in (None, _exported_weights(out)):
        typer.echo(f"replaced   an earlier export of another network, whose weights have the hash {earlier}")


def _exported_weights(folder: Path) -> str | None:
    """The hash of the weights of an exported library, as its header says it; None where there is no export."""
    header = next(iter(sorted(folder.glob("*.h"))), None)
    found = None if header is None else re.search(r"have the hash (\w+)", header.read_text(errors="replace"))
    return None if found is None else found[1]


def _export_file(source: Path, out: Path, target: str | None, kind: str, batch: int | None) -> None:
    from chanas.measuring.locks import device_lock
    from chanas.workflows.models.network_file import FORMATS, export_file

    if kind not in FORMATS:
        raise ConfigError(unknown_name("format", kind, ("c", *FORMATS)))
    if holds_tuned(source):
        raise ConfigError(
            f"{source} was tuned from a file, which other runtimes read, or from a bundle, of which `chanas export` "
            "makes one; it is itself exported with --format c"
        )
    is_there = out.exists()
    with device_lock(), named_wait(f"writing {out}, and comparing it with PyTorch"):
        file = export_file(source, out, kind, target, batch)
    typer.echo(
        f"file       {file.path}: {format_bytes(file.path.stat().st_size)}, images at once: {batch or 'any number'}"
    )
    if is_there:
        typer.echo("replaced   an earlier export")
    typer.echo(f"network    {file.key}")
    typer.echo(f"checked    {file.describe_check()}")
    typer.echo(f"cost       {file.describe_cost()}")
    if file.own_s is not None:
        typer.echo(f"more       chanas bench {source}: beside PyTorch, ONNX Runtime, OpenVINO and LiteRT, in turns")


def _export_lines(exported: Exported) -> Iterator[str]:
    target, check = exported.schedules.target, exported.check
    size = f"{format_bytes(exported.library_bytes)}, {format_bytes(exported.weight_bytes)} of it weights"
    yield f"library    {exported.library}: {size}; {format_bytes(exported.static_bytes)} of static memory"
    yield f"target     {target.name}: {target.device}; compiled with {exported.toolchain}"
    yield f"schedules  {exported.schedules.describe()}"
    yield f"latency    {exported.schedules.describe_latency()}"
    yield f"checked    {f'not run: {check}' if isinstance(check, str) else check.describe()}"
    yield f"build      cd {shlex.quote(str(exported.folder))} && {exported.build_line}"
