"""The commands of `chanas device`: servers on devices, and what a tracker knows of them."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

app = typer.Typer(
    help="Serve this device over TVM's RPC, or list those that a tracker has.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Tracker = Annotated[str, typer.Option(help="HOST:PORT of TVM's tracker (`python -m tvm.exec.rpc_tracker`).")]


@app.command()
def serve(
    tracker: Tracker,
    key: Annotated[str, typer.Option(help="What devices of this kind are asked for by, such as pi4.")],
    host: Annotated[str, typer.Option(help="Address to listen at; clients elsewhere need one they can reach.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen at; any free one by default.")] = 0,
    target: Annotated[
        str, typer.Option(help="What is served: cpu, or cuda for the GPU that CUDA shows first.")
    ] = "cpu",
) -> NoReturn:
    """Let clients of the tracker time on this device, one at a time, until Ctrl-C. They can run any code here."""
    from chanas.measuring.remote.server import listen, served_target
    from chanas.measuring.remote.server import serve as serve_sessions
    from chanas.measuring.remote.tracker import check_key, device_groups, parse_address

    address = parse_address(tracker)
    check_key(key)
    device_groups(address)  # a tracker that is not there is told at once
    here = served_target(target)
    listener = listen(host, port)
    at, number = listener.getsockname()[:2]
    typer.echo(f"device     {here.device} ({here.fingerprint})\nserver     {at}:{number}, key {key} at {address}")
    typer.echo(
        "warning    whoever reaches this server can run any code here: nothing is checked or encrypted", err=True
    )
    serve_sessions(address, key, listener, here)


@app.command("list")
def list_devices(
    tracker: Tracker,
    describe: Annotated[
        bool, typer.Option("--describe", help="Ask a free device of each key what it is; takes it for a moment.")
    ] = False,
) -> None:
    """List the tracker's devices by key: how many, how many of them free and busy, clients that wait, addresses."""
    from chanas.measuring.remote.device import what_it_is
    from chanas.measuring.remote.tracker import device_groups, parse_address

    address = parse_address(tracker)
    groups = device_groups(address)
    if not groups:
        typer.echo("the tracker has no device")
        return
    typer.echo(f"{'key':16s} {'devices':>7s} {'free':>5s} {'busy':>5s} {'waiting':>7s}  servers")
    for group in groups:
        counts = f"{len(group.addresses):7d} {group.num_free:5d} {group.num_busy:5d} {group.num_waiting:7d}"
        typer.echo(f"{group.key:16s} {counts}  {' '.join(group.addresses)}")
        if describe and group.addresses:
            typer.echo(f"{'':16s} {what_it_is(address, group.key)}")
