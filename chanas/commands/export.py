"""`chanas export`: a bundle for a device without Python."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chanas.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chanas.export.c_library import Exported


def export(
    bundle: Annotated[Path, typer.Argument(help="A bundle that search made.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; an earlier export in it is replaced.")],
    target: Annotated[
        str | None,
        typer.Option(help="A target of the bundle (by default its first), or any that `chanas target list` shows."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What the C function is called after; by default the folder.")
    ] = None,
) -> None:
    """Write a static library, a C header with one function, and an example: for a device without Python."""
    from chanas.export.c_library import export as export_bundle

    for line in _lines(export_bundle(bundle, out, target, name)):
        typer.echo(line)


def _lines(exported: Exported) -> Iterator[str]:
    target, check = exported.schedules.target, exported.check
    size = f"{format_bytes(exported.library_bytes)}, {format_bytes(exported.weight_bytes)} of it weights"
    yield f"library    {exported.library}: {size}; {format_bytes(exported.static_bytes)} of static memory"
    yield f"target     {target.name}: {target.device}; compiled with {exported.toolchain}"
    yield f"schedules  {exported.schedules.describe()}"
    yield f"latency    {exported.schedules.describe_latency()}"
    yield f"checked    {f'not run: {check}' if isinstance(check, str) else check.describe()}"
    yield f"build      cd {shlex.quote(str(exported.folder))} && {exported.build_line}"
