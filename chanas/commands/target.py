"""The commands of `chanas target`: what is known of devices, and whether one works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chanas.core.target import HardwareTarget, has_matrices, processor_dtypes, scheduling_flags
from chanas.devices.host import HOST, known_targets
from chanas.devices.target_files import describe_target, read_target_file
from chanas.errors import TargetError
from chanas.files.run import RunDirectory

if TYPE_CHECKING:
    from chanas.core.usage import Usage
    from chanas.measuring.checks.target_check import Step
    from chanas.workflows.stages.compile_only import Points

app = typer.Typer(
    help="List hardware targets, show what is known of one, check whether it works.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(help="cpu, cuda, a name that `chanas target list` shows, or a YAML file.")]
Shared = Annotated[bool, typer.Option("--shared", help="Run on a GPU although another process uses it.")]
AsJson = Annotated[bool, typer.Option("--json", help="One line of JSON.")]


@app.command("list")
def list_() -> None:
    """List the known targets: this machine's, then the described ones."""
    for name in known_targets():
        try:
            target = describe_target(name, HOST)
        except TargetError as error:
            typer.echo(f"{name:16s} -        {str(error).partition(';')[0]}")
            continue
        kind, _, device = target.description.partition(" ")
        typer.echo(f"{name:16s} {kind:8s} {device}")


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show what schedules depend on: vectors, registers, caches; threads, shared memory, architecture of a GPU."""
    target = describe_target(name, HOST)
    if as_json:
        typer.echo(json.dumps(target.to_json() | _found(name), sort_keys=True))
        return
    for label, value in _facts(name, target):
        typer.echo(f"{label:19s} {value}")


@app.command()
def check(name: Name, shared: Shared = False, as_json: AsJson = False) -> None:
    """Compile a small block, run it where that is possible from here, compare it with PyTorch; 1 where that fails."""
    target = describe_target(name, HOST)
    steps = []
    if not as_json:
        typer.echo(f"{'target':10s} {target.name}: {target.device}")
    for step in _checked(name, target, shared):
        steps.append(step)
        if not as_json:
            typer.echo(step.line())
    if as_json:
        document = {"target": target.to_json(), "steps": [step.to_json() for step in steps]}
        typer.echo(json.dumps(document, sort_keys=True))
    if any(step.works is False for step in steps):
        raise typer.Exit(1)


def compile_kernels(
    run: RunDirectory,
    usage: Usage,
    arch: str | None,
    space: str | None,
    num_classes: int | None,
    points: Points,
    seed: int,
) -> None:
    """`chanas prescheduler --compile-only`: call, and print what compiles."""
    from chanas.workflows.stages.compile_only import compile_only

    summary = compile_only(run, usage, arch=arch, space=space, num_classes=num_classes, points=points, seed=seed)
    typer.echo(f"target     {summary.target.name}: {summary.target.device}, {summary.compiler}")
    for kind in summary.kinds:
        typer.echo(kind.line())
    typer.echo(f"compiled   {summary.num_workloads} operators, {summary.num_points} points")
    if summary.most_frequent_error is not None:
        typer.echo(f"error      {summary.most_frequent_error}")
    typer.echo("No schedule was run: there are no seconds.")


def _checked(name: str, target: HardwareTarget, shared: bool) -> Iterator[Step]:
    from chanas.measuring.checks.target_check import check_processor

    if target.gpu is not None:
        from chanas.measuring.checks.gpu_check import check_gpu

        return check_gpu(target, shared)
    return check_processor(target, _why_not_here(name))


def _why_not_here(name: str) -> str | None:
    """Return the reason that a processor's code does not run on this machine; None if it does."""
    if name == "cpu":
        return None
    file = read_target_file(name)
    assert file.kind == "cpu"
    missing = file.missing_flags()
    if missing is None:
        return f"this machine is none of {file.mtriple}"
    return f"this machine's processor lacks {', '.join(missing)}" if missing else None


def _found(name: str) -> dict[str, Any]:
    """Facts of this machine's processor, for `cpu`: what was found, and what of it is used."""
    if name != "cpu":
        return {}
    processor = HOST.processor()
    found = {"vendor": processor.vendor, "microarchitecture": processor.microarchitecture}
    used = {"mcpu": processor.mcpu, "mattr": processor.mattr, "dtypes": processor_dtypes(processor)}
    return {"processor": found | {"flags": scheduling_flags(processor)} | used}


def _facts(name: str, target: HardwareTarget) -> Iterator[tuple[str, object]]:
    yield "target", target.name
    yield "device", target.device
    yield "fingerprint", target.fingerprint
    gpu = target.gpu
    if gpu is None:
        if name == "cpu":
            processor = HOST.processor()
            yield "microarchitecture", f"{processor.microarchitecture} ({processor.vendor})"
            yield "instruction sets", ", ".join(scheduling_flags(processor)) or "none that schedules depend on"
            yield "compiled for", processor.compiled_for
            yield "dtypes", ", ".join(processor_dtypes(processor))
            in_matrices = [dtype for dtype in processor_dtypes(processor) if has_matrices(processor, dtype)]
            if in_matrices and HOST.matrices():
                yield "matrix registers", f"of AMX, for {', '.join(in_matrices)}"
        elif target.mcpu:
            yield "compiled for", f"{target.compiled_for}, {target.mtriple}"
        yield "vector", f"{target.vector_lanes} float32, {target.num_vector_registers} registers"
        caches = [_size(size) for size in (target.l1_bytes, target.l2_bytes, target.l3_bytes) if size]
        yield "caches", ", ".join(f"L{level} {size}" for level, size in enumerate(caches, 1))
        return
    yield "architecture", gpu.arch
    yield "multiprocessors", gpu.num_sms
    yield "warp", f"{gpu.warp_size} threads"
    yield "threads per block", gpu.max_threads_per_block
    yield "registers", f"{gpu.max_registers_per_thread} per thread, {gpu.registers_per_block} per block"
    shared = f"{_size(gpu.max_shared_bytes_per_block)} per block, {_size(gpu.shared_bytes_per_sm)} per multiprocessor"
    yield "shared memory", shared
    yield "L2", _size(target.l2_bytes)


def _size(num_bytes: int) -> str:
    """1048576 -> `1 MiB`, 34603008 -> `33 MiB`, 49152 -> `48 KiB`."""
    whole = num_bytes % (1 << 20) == 0
    return f"{num_bytes >> 20} MiB" if whole else f"{num_bytes / 1024:g} KiB"
