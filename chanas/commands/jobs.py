"""The commands of `chanas jobs`: several tunings on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chanas.core.units import format_latency

if TYPE_CHECKING:
    from chanas.workflows.jobs.run import JobResult

app = typer.Typer(
    help="Tune several tables and networks on one machine, each stage where and when it disturbs no other.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    """Keep the commands in a group, of which there is one so far."""


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="YAML: target, threads, policy and jobs (docs/formats.md).")],
    out: Annotated[Path, typer.Option(help="Folder for logs, the trace and a page about it.")] = Path("jobs"),
) -> None:
    """Run the tunings of a file side by side; what was measured before is reused. 1 where one fails."""
    from chanas.workflows.jobs.plan import read_jobs
    from chanas.workflows.jobs.run import run_jobs

    result = run_jobs(read_jobs(file), out, tell=lambda line: typer.echo(line, err=True))
    for job in result.results:
        typer.echo(f"{job.name:10s} {_described(job)}")
    trace = result.trace
    busy = ", ".join(f"{name} {share:.0%}" for name, share in trace.utilisation().items())
    typer.echo(f"seconds    {trace.makespan_s:.0f}, at least {trace.least_s:.0f} whatever the policy; busy: {busy}")
    typer.echo(f"page       {result.page}")
    if any(job.status != "complete" for job in result.results):
        raise typer.Exit(1)


def _described(job: JobResult) -> str:
    if job.error is not None or job.status != "complete":
        return f"{job.status} after {job.seconds:.0f} s: {job.error} ({job.log})"
    made = f"{job.facts['num_new_trials']} new trials ({job.facts['num_failed_trials']} failed)"
    if "latency_s" in job.facts:
        made += f", {format_latency(job.facts['latency_s'])}"
    return f"{job.facts['path']}: {made}, {job.seconds:.0f} s"
