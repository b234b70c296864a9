"""The command `chanas doctor`."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def doctor(as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False) -> None:
    """Tell what this machine is, what works on it, how well it times; some 15 seconds. 1 where float32 fails."""
    from chanas.workflows.doctor import Diagnosis, diagnose

    diagnosis = Diagnosis()
    for section in diagnose(diagnosis):
        if not as_json:
            for line in section.text():
                typer.echo(line)
    if as_json:
        typer.echo(json.dumps(diagnosis.to_json(), sort_keys=True))
    if not diagnosis.works:
        raise typer.Exit(1)
