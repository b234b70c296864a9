"""`chanas predict` and `chanas bench`: a bundle's compiled network used and timed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chanas.commands import search_text
from chanas.commands.options import Shared
from chanas.commands.search_text import say
from chanas.core.units import format_latency

OfBundle = Annotated[str | None, typer.Option("--target", help="One of the bundle's targets; its first by default.")]


def predict(
    bundle: Annotated[Path, typer.Argument(help="A bundle that search made.")],
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    convert_rgb: Annotated[bool, typer.Option(help="Convert images that are not RGB.")] = False,
    target: OfBundle = None,
) -> None:
    """Classify images with the compiled module."""
    from chanas.bundle.codesign import CoDesign

    predictions = CoDesign.load(bundle, target).classify(images, convert_rgb)
    for path, prediction in zip(images, predictions, strict=True):
        typer.echo(f"{path}\t{prediction.class_name}\t{prediction.probability:.4f}")


def bench(
    bundle: Annotated[Path, typer.Argument(help="A bundle that search made.")],
    compile_: Annotated[bool, typer.Option("--compile/--no-compile", help="Time torch.compile too.")] = True,
    target: OfBundle = None,
    shared: Shared = False,
) -> None:
    """Time the compiled module beside PyTorch: same weights, image, threads and cores, in turns."""
    from chanas.bundle.benchmark import benchmark
    from chanas.bundle.codesign import CoDesign
    from chanas.devices.gpu_use import gpu_of
    from chanas.prescheduler.measuring.local.locks import device_lock

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
    say(search_text.then_and_now(loaded, rows))
