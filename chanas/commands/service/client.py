"""`chanas service`: jobs handed to a service, watched and fetched. Nothing is kept here between calls."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chanas.core.units import parse_latency_s
from chanas.errors import ConfigError

if TYPE_CHECKING:
    from chanas.service.client import ServiceClient

TOKEN = "CHANAS_TOKEN"
_MAX_CHARACTERS = 160

Url = Annotated[str, typer.Option(help="The service's address.", envvar="CHANAS_SERVICE")]
Job = Annotated[str, typer.Argument(help="Id of a job.")]
DEFAULT_URL = "http://127.0.0.1:8765"

app = typer.Typer(
    help=f"Hand jobs to a service, watch them, fetch what they made. {TOKEN} in the environment is the token.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _client(url: str) -> ServiceClient:
    from chanas.service.client import ServiceClient

    return ServiceClient(url, os.environ.get(TOKEN) or None)


@app.command()
def submit(
    kind: Annotated[str, typer.Argument(help="model, table or search.")],
    model: Annotated[str | None, typer.Option(help="Of a model: FILE.onnx, torchvision:NAME or timm:NAME.")] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Of a model: NAME=1,3,224,224, of an input that the file leaves open.")
    ] = None,
    space: Annotated[str | None, typer.Option(help="Of a table or search: a preset, or FILE.yaml.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="Of a table or search.")] = None,
    sub_space: Annotated[list[str] | None, typer.Option(help="Of a table or search: only this; repeatable.")] = None,
    calibrate: Annotated[int | None, typer.Option(help="Of a table or search: networks to calibrate with.")] = None,
    accuracy_table: Annotated[Path | None, typer.Option(help="Of a search: CSV of accuracies.")] = None,
    target: Annotated[str, typer.Option(help="The service's target.")] = "cpu",
    latency: Annotated[str | None, typer.Option(help="Most latency, such as 5ms, of a model or search.")] = None,
    accuracy: Annotated[float | None, typer.Option(help="Of a search: least top-1, from 0 to 1.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Hurried to end by then; a model: tuned no longer.")] = None,
    priority: Annotated[int, typer.Option(help="From -10 to 10; the higher goes first.")] = 0,
    trials: Annotated[int | None, typer.Option(help="Schedule points per operator on average.")] = None,
    tune_share: Annotated[
        float, typer.Option(help="Tune operators that make up this share; others take schedules over.")
    ] = 1.0,
    transfer: Annotated[bool, typer.Option(help="Begin with what other jobs have learned.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same one is the same job.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Submit a job and print its id."""
    if kind == "model" and model is None:
        raise ConfigError("a model needs --model, FILE.onnx, torchvision:NAME or timm:NAME")
    if kind == "search" and (accuracy_table is None or latency is None):
        raise ConfigError("a search needs --accuracy-table FILE.csv and --latency, such as 5ms")
    from chanas.models.sources.opening import library_of

    client = _client(url)
    demand = {
        "latency_s": None if latency is None else parse_latency_s(latency),
        "accuracy": accuracy,
        "minutes": minutes,
        "priority": priority or None,
    }
    request: dict[str, Any] = {
        "kind": kind,
        "target": target,
        "model": None if model is None else _named_or_sent(client, model, ".onnx", library_of(model) is not None),
        "shapes": dict(map(_parse_shape, shape)) if shape else None,
        "space": None if space is None else _named_or_sent(client, space, ".yaml", "." not in space),
        "num_classes": num_classes,
        "sub_spaces": sub_space or None,
        "calibrate": calibrate,
        "accuracies": None if accuracy_table is None else client.upload(accuracy_table),
        "trials": trials,
        "seed": seed or None,
        "tune_share": None if tune_share == 1.0 else tune_share,
        "transfer": None if transfer else False,
        "demand": {name: value for name, value in demand.items() if value is not None} or None,
    }
    given = {name: value for name, value in request.items() if value is not None}
    typer.echo(client.submit(given, key or uuid.uuid4().hex)["id"])


def _named_or_sent(client: ServiceClient, text: str, suffix: str, is_name: bool) -> str:
    """A name as it is; the hash of a file that is sent."""
    if is_name:
        return text
    if not text.endswith(suffix):
        raise ConfigError(f"expected a file *{suffix}, got '{text}'")
    return client.upload(Path(text))


def _parse_shape(text: str) -> tuple[str, list[int]]:
    name, _, extents = text.partition("=")
    try:
        shape = [int(extent) for extent in extents.split(",")]
    except ValueError:
        shape = []
    if not name or min(shape, default=0) < 1:
        raise ConfigError(f"expected a shape such as image=1,3,224,224, got '{text}'")
    return name, shape


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option(help="queued, paused, running, complete, failed or cancelled.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """List your jobs, the newest first."""
    for job in _client(url).jobs(state):
        typer.echo(_line(job))


def _line(job: dict[str, Any]) -> str:
    from chanas.service.texts import about, outcome

    told = f"to {job['wanted']}" if job["state"] == "running" and job["wanted"] else outcome(job)
    told = told if len(told) <= _MAX_CHARACTERS else f"{told[:_MAX_CHARACTERS]}…"
    return f"{job['id']}  {job['state']:9s} {job['kind']:6s} {about(job['request']):24s} {told}".rstrip()


@app.command()
def show(job: Job, url: Url = DEFAULT_URL) -> None:
    """Print all that is known of a job, as JSON."""
    typer.echo(json.dumps(_client(url).show(job), indent=1, sort_keys=True))


@app.command()
def watch(job: Job, url: Url = DEFAULT_URL) -> None:
    """Print what happens to a job to its end. 1 where it fails, is cancelled, or does not meet its demand."""
    client = _client(url)
    for kind, data in client.watch(job):
        if kind == "state":
            typer.echo(data["state"], err=True)
        else:
            typer.echo(", ".join(f"{name} {number}" for name, number in sorted(data.items())), err=True)
    found = client.show(job)
    typer.echo(_line(found))
    if found["state"] != "complete" or found["result"]["met"] is False:
        raise typer.Exit(1)


@app.command()
def log(job: Job, url: Url = DEFAULT_URL) -> None:
    """Print the end of what a job has printed."""
    typer.echo(_client(url).log(job), nl=False)


def _ask_for(job: str, what: str, url: str) -> None:
    typer.echo(_line(_client(url).ask_for(job, what)))


@app.command()
def cancel(job: Job, url: Url = DEFAULT_URL) -> None:
    """End a job; what it has learned is kept."""
    _ask_for(job, "cancel", url)


@app.command()
def pause(job: Job, url: Url = DEFAULT_URL) -> None:
    """Break a job off; what it has learned is kept."""
    _ask_for(job, "pause", url)


@app.command()
def resume(job: Job, url: Url = DEFAULT_URL) -> None:
    """Queue a paused job again."""
    _ask_for(job, "resume", url)


@app.command()
def fetch(job: Job, out: Annotated[Path, typer.Argument(help="Folder to make.")], url: Url = DEFAULT_URL) -> None:
    """Fetch what a job made: a tuned network, a bundle, or a latency table. 1 where its demand is not met."""
    found = _client(url).fetch(job, out)
    typer.echo(out)
    if found["result"]["met"] is False:
        typer.echo(f"the demand of job {job} is not met", err=True)
        raise typer.Exit(1)
