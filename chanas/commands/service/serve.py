"""`chanas serve`: the service, and the tokens that it demands."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chanas import interrupts
from chanas.commands.options import refuse_others
from chanas.core.usage import Usage

if TYPE_CHECKING:
    from chanas.service.store.database import Database

DEFAULT_DATA = Path("service")

Data = Annotated[Path, typer.Option(help="Folder of the service: database, uploads, records, bundles.")]

app = typer.Typer(
    help="Tune for a team: jobs over HTTP on this machine's device (docs/service.md).",
    rich_markup_mode=None,
    invoke_without_command=True,
)
tokens = typer.Typer(help="Make, list and remove tokens.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(tokens, name="token")


@app.callback()
def serve(
    context: typer.Context,
    data: Data = DEFAULT_DATA,
    host: Annotated[str, typer.Option(help="Address; beyond this machine tokens are needed.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port.", min=0, max=65535)] = 8765,
    target: Annotated[str, typer.Option(help="The kind of the devices that jobs share.")] = "cpu",
    device: Annotated[
        list[str] | None,
        typer.Option(help="Cores of a device here (0 or 2,3), or KEY@HOST:PORT of a tracker; again for more devices."),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of one inference.")] = 1,
    jobs: Annotated[int, typer.Option(help="Jobs that run at once; each is a process.", min=1, max=64)] = 4,
    max_upload: Annotated[int, typer.Option(help="Largest upload in MiB.", min=1)] = 512,
) -> None:
    """Tune for a team: jobs over HTTP on this machine's device (docs/service.md)."""
    if context.invoked_subcommand is not None:
        refuse_others(context, (), "is of the service itself; give options of `serve token` behind its command")
        return
    from chanas.service.serve import Settings
    from chanas.service.serve import serve as serve_until_stopped
    from chanas.workflows.jobs.plan import parse_device

    devices = tuple(map(parse_device, device or ()))
    settings = Settings(data, host, port, Usage(target, threads), devices, max_upload, jobs)
    with interrupts.patience():  # jobs end, and what they measured is stored
        serve_until_stopped(settings, tell=lambda line: typer.echo(line, err=True))


@contextlib.contextmanager
def _database(data: Path, must_exist: bool = True) -> Iterator[Database]:
    from chanas.service.serve import open_database

    with contextlib.closing(open_database(data, must_exist=must_exist)) as database:
        yield database


@tokens.command("add")
def add(
    tenant: Annotated[str, typer.Argument(help="Whose jobs it shows: a-z, 0-9, _ and -.")], data: Data = DEFAULT_DATA
) -> None:
    """Make a token and print it, this once."""
    from chanas.service.store.tokens import add_token, check_tenant

    check_tenant(tenant)
    with _database(data, must_exist=False) as database:
        typer.echo(add_token(database, tenant))


@tokens.command("list")
def list_(data: Data = DEFAULT_DATA) -> None:
    """List number, tenant and date of each token."""
    from chanas.service.store.tokens import list_tokens

    with _database(data) as database:
        for number, tenant, created in list_tokens(database):
            typer.echo(f"{number}  {tenant:20s} {datetime.datetime.fromtimestamp(created):%Y-%m-%d %H:%M}")


@tokens.command("remove")
def remove(
    number: Annotated[str, typer.Argument(help="Its number, as `list` shows it.")], data: Data = DEFAULT_DATA
) -> None:
    """Refuse a token from now on."""
    from chanas.service.store.tokens import remove_token

    with _database(data) as database:
        remove_token(database, number)
