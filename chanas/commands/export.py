"""`chanas export`: a bundle, or a tuned network, for a device without Python."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chanas.commands.options import holds_tuned, require_bundle
from chanas.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chanas.export.folders import Exported


def export(
    bundle: Annotated[Path, typer.Argument(help="A bundle that search made, or a network that tune made.")],
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
    if holds_tuned(bundle):
        from chanas.export.tuned_library import export_tuned

        exported = export_tuned(bundle, out, target, name)
    else:
        from chanas.export.c_library import export as export_bundle

        require_bundle(bundle)
        exported = export_bundle(bundle, out, target, name)
    for line in _lines(exported):
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
