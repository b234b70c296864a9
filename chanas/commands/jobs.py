"""The commands of `chanas jobs`: several tunings on shared machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chanas.core.units import format_latency

if TYPE_CHECKING:
    from chanas.workflows.jobs.control import JobState, Order, Request
    from chanas.workflows.jobs.run import JobResult

app = typer.Typer(
    help="Tune several tables and networks on shared machines, each stage where and when it disturbs no other.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(help="YAML: target, threads, policy, devices and jobs (docs/formats.md).")]
Name = Annotated[str, typer.Argument(help="Name of a job.")]
Folder = Annotated[Path, typer.Option("--out", help="Folder in which `chanas jobs run` is at work.")]
_FOLDER = Path("jobs")


@app.command()
def run(
    file: File,
    out: Annotated[Path, typer.Option(help="Folder for logs, the trace and a page about it.")] = _FOLDER,
    cluster: Annotated[
        str | None,
        typer.Option(help="Build and learn on a dask cluster: tcp://HOST:PORT, or local[:NUMBER] of processes here."),
    ] = None,
) -> None:
    """Run the tunings of a file side by side; what was measured before is reused. 1 where one fails or is ended."""
    from chanas.workflows.jobs.plan import read_jobs
    from chanas.workflows.jobs.run import run_jobs

    result = run_jobs(read_jobs(file), out, cluster=cluster, tell=lambda line: typer.echo(line, err=True))
    for job in result.results:
        typer.echo(f"{job.name:10s} {_described(job)}")
    trace = result.trace
    busy = ", ".join(f"{name} {share:.0%}" for name, share in trace.utilisation().items())
    typer.echo(f"seconds    {trace.makespan_s:.0f}, at least {trace.least_s:.0f} whatever the policy; busy: {busy}")
    typer.echo(f"page       {result.page}")
    if any(job.status != "complete" for job in result.results):
        raise typer.Exit(1)


@app.command()
def add(file: File, out: Folder = _FOLDER) -> None:
    """Add the jobs of a file to those that run, on the same devices."""
    from chanas.workflows.jobs.control import Request
    from chanas.workflows.jobs.plan import read_file

    _send(Request(do="add", file=read_file(file), folder=Path.cwd()), out)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="Name of a job; all by default.")] = None, out: Folder = _FOLDER
) -> None:
    """Tell the state of jobs that run, which stages of them run where, and how many wait."""
    _order("status", name, out)


@app.command()
def pause(name: Name, out: Folder = _FOLDER) -> None:
    """Start nothing of a job until it is resumed; what runs of it ends."""
    _order("pause", name, out)


@app.command()
def resume(name: Name, out: Folder = _FOLDER) -> None:
    """Go on with a paused job."""
    _order("resume", name, out)


@app.command()
def cancel(name: Name, out: Folder = _FOLDER) -> None:
    """End a job once what runs of it has ended; what it has measured is kept."""
    _order("cancel", name, out)


@app.command()
def kill(name: Name, out: Folder = _FOLDER) -> None:
    """End a job now; what it has measured is kept."""
    _order("kill", name, out)


def _order(order: Order, name: str | None, folder: Path) -> None:
    from chanas.workflows.jobs.control import Request

    _send(Request(do=order, name=name), folder)


def _send(request: Request, folder: Path) -> None:
    from chanas.workflows.jobs.control import ask

    for job in ask(folder, request):
        typer.echo(f"{job.name:10s} {_state(job)}")


def _state(job: JobState) -> str:
    waits = [f"{job.num_waiting} waiting"] if job.num_waiting else []
    facts = "; ".join([*job.runs, *waits, *([job.error] if job.error else [])])
    return f"{job.status} after {job.seconds:.0f} s{f': {facts}' if facts else ''}"


def _described(job: JobResult) -> str:
    if job.status != "complete":
        reason = f": {job.error}" if job.error else ""
        return f"{job.status} after {job.seconds:.0f} s{reason} ({job.log})"
    made = f"{job.facts['num_new_trials']} new trials ({job.facts['num_failed_trials']} failed)"
    if "latency_s" in job.facts:
        made += f", {format_latency(job.facts['latency_s'])}"
    return f"{job.facts['path']}: {made}, {job.seconds:.0f} s"
