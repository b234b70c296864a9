"""What timing over TVM's RPC costs and changes: the same kernels here and over loopback, in turns.

    python benchmarks/rpc_overhead.py [--quick] [--num 24] [--rounds 5] [--seed 0] [--devices]

A tracker and a server of `chanas device serve` are started on loopback. Random schedule points of operators of space
`mbv3-32` are compiled once, and timed as tuning times them: in a worker here and over RPC, one after the other, the
order changing from round to round. Then, while more of them are timed over RPC, the server's worker is killed, and
later its whole session. Needs `pip install 'chanas[rpc]'`.

With `--devices` nothing of that is done. Two servers are started instead, which stand for two devices: each has a core
of this machine to itself, and a lock of its own. The same kernels are then timed on one of them and on both, in turns,
once compiled and once built anew each time, as tuning does. Builds take every core but the first: on two cores the
second device shares its core with them, which two real devices would not.

Figures: rpc_ratio_percent, how far the median over kernels of the ratio of medians, RPC over local, is from 1 (goal: at
most 5); rpc_overhead_ms, the median time that a kernel's first timing over RPC takes beyond the timing itself, with the
upload of its library (goal: at most 30); lost_timings, how many timings failed for the killed worker (goal: at most 1)
and lost_with_session, for the killed session (goal: 0, what it timed is timed again). For information the worst ratio
and the same overhead of a local timing. With `--devices`, for information: timings_per_s_1 and timings_per_s_2, kernels
timed in a second on one device and on two, and candidates_per_s_1 and candidates_per_s_2, built and timed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Figure, finish

from chanas.core.arch import SearchSpace
from chanas.core.target import HardwareTarget
from chanas.core.usage import Place, Usage
from chanas.devices.host import load_target
from chanas.devices.timing import TimingSettings
from chanas.errors import ChanasError, MeasureError
from chanas.measuring.messages import Build, Measure, OperatorAt, Ping

if TYPE_CHECKING:
    from chanas.measuring.fleet import Fleet, WorkerPool
    from chanas.measuring.messages import Answer
    from chanas.measuring.remote.tracker import Address

SPACE, NUM_CLASSES, KEY = "mbv3-32", 10, "loopback"
RATIO_GOAL_PERCENT, OVERHEAD_GOAL_MS = 5.0, 30.0
# As tuning times its candidates (`chanas.prescheduler.tuning.jobs`), and a network's weights that pass in between.
TIMING = TimingSettings(repeats=5, min_repeat_s=0.001, max_spread=0.04, cold_bytes=1 << 20, code_copies=16)
_TIMEOUT_S, _KILL_AFTER_S, _NUM_WITH_LOSS = 60.0, 0.5, 40
_TRACKER = (
    "import sys; from chanas.devices.lean_tvm import hide_torch; hide_torch(); "
    "from tvm.rpc.tracker import PopenTrackerServerState; port = int(sys.argv[1]); "
    "PopenTrackerServerState('127.0.0.1', port, port + 1, silent=True).thread.join()"
)


# A server of `chanas device serve` on a core and with a lock of its own: FOLDER CORE, and its arguments.
_SERVER = (
    "import os, sys; os.environ['CHANAS_LOCK_FOLDER'], core, *sys.argv[1:] = sys.argv[1:]; "
    "os.sched_setaffinity(0, [int(core)]); from chanas.commands.process import main; main()"
)


@dataclass
class Kernel:
    """One compiled kernel: its files, and seconds and overheads of its timings here and over RPC.

    `build` is the request of its building.
    """

    name: str
    library: Path
    case: Path
    local_s: list[float] = field(default_factory=list)
    remote_s: list[float] = field(default_factory=list)
    local_overhead_s: list[float] = field(default_factory=list)
    remote_overhead_s: list[float] = field(default_factory=list)
    build: Build | None = None

    @property
    def ratio(self) -> float:
        """Median over RPC as a share of the local median."""
        return statistics.median(self.remote_s) / statistics.median(self.local_s)

    @property
    def timing(self) -> Measure:
        return Measure(library=self.library, case=self.case, settings=TIMING)


def figures_of(kernels: Sequence[Kernel], lost_timings: int | None, lost_with_session: int | None) -> dict[str, Figure]:
    """The figures; without kernels that were timed there is no value."""
    timed = [k for k in kernels if k.local_s and k.remote_s]
    ratios = [k.ratio for k in timed]
    return {
        "rpc_ratio_percent": Figure(
            100 * abs(statistics.median(ratios) - 1) if ratios else None, RATIO_GOAL_PERCENT, lower_is_better=True
        ),
        "rpc_overhead_ms": Figure(
            1e3 * statistics.median(k.remote_overhead_s[0] for k in timed) if timed else None,
            OVERHEAD_GOAL_MS,
            lower_is_better=True,
        ),
        "lost_timings": Figure(lost_timings, 1, lower_is_better=True),
        "lost_with_session": Figure(lost_with_session, 0, lower_is_better=True),
        "rpc_worst_ratio_percent": Figure(100 * max(abs(r - 1) for r in ratios) if ratios else None),
        "local_overhead_ms": Figure(1e3 * statistics.median(k.local_overhead_s[0] for k in timed) if timed else None),
    }


# ---- tracker and server ---------------------------------------------------------------------------------------------
@contextlib.contextmanager
def loopback_tracker(within_s: float = 120.0) -> Iterator[Address]:
    """A tracker without devices."""
    from chanas.measuring.remote.tracker import Address

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", probe.getsockname()[1])
    with _running([sys.executable, "-c", _TRACKER, str(address.port)]):
        _wait(lambda: _num_free(address) is not None, "the tracker", within_s)
        yield address


@contextlib.contextmanager
def loopback_server(within_s: float = 120.0) -> Iterator[tuple[Address, int]]:
    """A tracker and a server with KEY: the tracker's address and the server's process number."""
    with loopback_tracker(within_s) as address, _running([sys.executable, "-m", "chanas", *_serve(address)]) as server:
        _wait(lambda: _num_free(address) == 1, "the server", within_s)
        yield address, server


@contextlib.contextmanager
def loopback_devices(folder: Path, num: int = 2, within_s: float = 120.0) -> Iterator[Address]:
    """A tracker and servers with KEY, each on a core and with a lock of its own: the tracker's address."""
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(loopback_tracker(within_s))
        for i in range(num):
            own = folder / f"device{i}"
            own.mkdir()
            place = [str(own), str(cores[i % len(cores)])]
            stack.enter_context(_running([sys.executable, "-c", _SERVER, *place, *_serve(address)]))
        _wait(lambda: _num_free(address) == num, "a server", within_s)
        yield address


def _serve(address: Address) -> list[str]:
    return ["device", "serve", "--tracker", str(address), "--key", KEY]


@contextlib.contextmanager
def _running(command: Sequence[str]) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _num_free(address: Address) -> int | None:
    from chanas.measuring.remote.tracker import device_groups

    with contextlib.suppress(MeasureError):
        return sum(g.num_free for g in device_groups(address) if g.key == KEY)
    return None


def _wait(is_there: Callable[[], bool], what: str, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not is_there():
        if time.monotonic() > deadline:
            raise SystemExit(f"rpc_overhead: error: {what} did not start; is tornado installed (chanas[rpc])?")
        time.sleep(0.2)


# ---- kernels --------------------------------------------------------------------------------------------------------
def compiled_kernels(pool: WorkerPool, target: HardwareTarget, num: int, folder: Path, seed: int) -> list[Kernel]:
    """Random points of operators spread over the space's, compiled."""
    import numpy as np

    from chanas.compiler.backends import schedule_space
    from chanas.compiler.cases import operator_case
    from chanas.operators.steps import block_workloads

    rng = np.random.default_rng(seed)
    blocks = SearchSpace.load(SPACE).all_blocks(NUM_CLASSES)
    workloads = list(dict.fromkeys(w for b in blocks for w in block_workloads(b, target.dtype)))
    chosen = [workloads[i] for i in rng.choice(len(workloads), num, replace=False)]
    asked = []
    for i, workload in enumerate(chosen):
        kernel = Kernel(workload.key, folder / f"{i}.so", folder / f"{i}.npz")
        operator_case(workload, target).save(kernel.case)
        (point,) = schedule_space(workload, target).sample(1, rng)
        kernel.build = Build(target=target, what=OperatorAt(workload, point), path=kernel.library)
        asked.append((kernel, pool.build(kernel.build, _TIMEOUT_S)))
    return [kernel for kernel, future in asked if future.result().error is None]


def compare(kernels: Sequence[Kernel], pool: WorkerPool, device: Fleet, num_rounds: int) -> list[str]:
    """Time every kernel here and there, in turns; errors of those that failed."""

    def here(kernel: Kernel) -> Answer:
        return pool.measure(kernel.timing, _TIMEOUT_S).result()

    def there(kernel: Kernel) -> Answer:
        return device.measure(kernel.timing, _TIMEOUT_S).result()

    for each in (pool, device):
        each.measure(Ping(), _TIMEOUT_S).result()
    errors = []
    for number in range(num_rounds):
        for kernel in kernels:
            ways = [
                (here, kernel.local_s, kernel.local_overhead_s),
                (there, kernel.remote_s, kernel.remote_overhead_s),
            ]
            for ask, seconds, overheads in ways if number % 2 == 0 else reversed(ways):
                start = time.monotonic()
                answer = ask(kernel)
                overheads.append(time.monotonic() - start - answer.wall_s)
                if answer.error is None:
                    seconds.append(answer.timing.seconds)
                else:
                    errors.append(f"{kernel.name}: {answer.error}")
    return errors


def lost_by(killed: Callable[[], int], kernels: Sequence[Kernel], device: Fleet, num: int) -> int:
    """How many of `num` timings fail when a process is killed in the middle of them."""
    hit: list[int] = []

    def kill() -> None:
        process = killed()
        os.kill(process, signal.SIGKILL)
        hit.append(process)

    timer = threading.Timer(_KILL_AFTER_S, kill)
    timer.start()
    failed = 0
    for i in range(num):
        timing = kernels[i % len(kernels)].timing
        longer = replace(timing, settings=replace(timing.settings, repeats=20, min_repeat_s=0.005))
        failed += device.measure(longer, _TIMEOUT_S).result().error is not None
    timer.join()
    if not hit:
        raise SystemExit("rpc_overhead: error: nothing was killed")
    return failed


def rates(kernels: Sequence[Kernel], target: HardwareTarget, address: Address, num_rounds: int) -> dict[str, Figure]:
    """Timings, and candidates built and timed, in a second on one device and on two, in turns."""
    from chanas.measuring.remote.held import HeldDevices, held_devices

    seconds: dict[str, float] = {}
    with held_devices(Usage(place=Place(str(address), KEY, 2))) as held:
        for number in range(num_rounds + 1):
            for num in (1, 2):
                with HeldDevices(held.devices[:num], held.target).pool(target) as pool:
                    for started in [pool.build(Ping(), _TIMEOUT_S) for _ in range(pool.num_builders)]:
                        started.result()
                    spent = {f"timings_per_s_{num}": seconds_of_timings(kernels, pool)}
                    spent[f"candidates_per_s_{num}"] = seconds_of_candidates(kernels, pool)
                if number:  # the first one starts workers and sends cases
                    seconds = {**seconds, **{k: seconds.get(k, 0.0) + s for k, s in spent.items()}}
    return {name: Figure(num_rounds * len(kernels) / s) for name, s in sorted(seconds.items())}


def seconds_of_timings(kernels: Sequence[Kernel], pool: Fleet) -> float:
    """Seconds that timing all kernels takes."""
    start = time.monotonic()
    for future in [pool.measure(k.timing, _TIMEOUT_S) for k in kernels]:
        future.result()
    return time.monotonic() - start


def seconds_of_candidates(kernels: Sequence[Kernel], pool: Fleet) -> float:
    """Seconds that building and timing them all takes."""
    from chanas.measuring.candidates import Candidate, CandidatePipeline

    start = time.monotonic()
    line: CandidatePipeline[int] = CandidatePipeline(pool)
    for i, k in enumerate(kernels):
        assert k.build is not None
        line.submit(
            Candidate(
                token=i,
                what=k.build.what,
                target=k.build.target,
                library=k.library,
                case=k.case,
                settings=TIMING,
                keep_library=True,
            )
        )
    while line.num_in_flight:
        list(line.finished())
    return time.monotonic() - start


def session_of(server: int) -> int:
    """The process that serves the session."""
    import psutil

    return int(psutil.Process(server).children()[0].pid)


def worker_of(server: int) -> int:
    """The worker that times on the server's side."""
    return session_of(session_of(server))


def compare_devices(target: HardwareTarget, num: int, num_rounds: int, seed: int, quick: bool) -> None:
    """The part of `--devices`."""
    from chanas.measuring.fleet import WorkerPool

    num_cores = len(os.sched_getaffinity(0))
    try:
        with tempfile.TemporaryDirectory(prefix="chanas-bench-") as name:
            folder = Path(name)
            with WorkerPool(target) as pool:
                kernels = compiled_kernels(pool, target, num, folder, seed)
            with loopback_devices(folder) as address:
                figures = rates(kernels, target, address, num_rounds)
    except ChanasError as error:
        raise SystemExit(f"rpc_overhead: error: {error}") from error
    shared = "the second device shares its core with builds" if num_cores > 1 else "devices and builds share one core"
    print(f"two servers on {num_cores} cores of this machine: {shared}, which two devices elsewhere would not")
    extra = {
        "seed": seed,
        "rounds": num_rounds,
        "num_kernels": len(kernels),
        "timing": asdict(TIMING),
        "cores": num_cores,
    }
    finish("rpc_devices", figures, quick, extra)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 kernels, 2 rounds, under a minute, no result file")
    parser.add_argument("--num", type=int, help="kernels that are timed (24; 4 with --quick)")
    parser.add_argument("--rounds", type=int, help="timings of each, here and over RPC (5; 2 with --quick)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", action="store_true", help="one device and two instead; under a minute")
    options = parser.parse_args(arguments)
    num, num_rounds = options.num or (4 if options.quick else 24), options.rounds or (2 if options.quick else 5)

    from chanas.measuring.fleet import Fleet, WorkerPool
    from chanas.measuring.remote.device import RemoteDevice

    target = load_target("cpu")
    if options.devices:
        compare_devices(target, num, num_rounds, options.seed, options.quick)
        return
    try:
        with (
            tempfile.TemporaryDirectory(prefix="chanas-bench-") as folder,
            WorkerPool(target) as pool,
            loopback_server() as (address, server),
            contextlib.closing(RemoteDevice(Usage(place=Place(str(address), KEY)))) as remote,
        ):
            remote.connect()
            kernels = compiled_kernels(pool, target, num, Path(folder), options.seed)
            num_with_loss = 10 if options.quick else _NUM_WITH_LOSS
            with Fleet([], [remote], overlap=True, key=KEY) as device:
                errors = compare(kernels, pool, device, num_rounds)
                lost_timings = lost_by(lambda: worker_of(server), kernels, device, num_with_loss)
                lost_with_session = lost_by(lambda: session_of(server), kernels, device, num_with_loss)
            num_lost = remote.num_lost
    except ChanasError as error:
        raise SystemExit(f"rpc_overhead: error: {error}") from error

    print(f"\n{'local':>9s} {'RPC':>9s} {'ratio':>7s} {'overhead':>9s}   operator (us; overhead in ms)")
    for k in kernels:
        if k.local_s and k.remote_s:
            local_us, remote_us = statistics.median(k.local_s) * 1e6, statistics.median(k.remote_s) * 1e6
            print(f"{local_us:9.2f} {remote_us:9.2f} {k.ratio:7.3f} {k.remote_overhead_s[0] * 1e3:9.1f}   {k.name}")
    for failure in errors:
        print(f"failed: {failure}")
    figures = figures_of(kernels, lost_timings, lost_with_session)
    extra: dict[str, Any] = {
        "seed": options.seed,
        "rounds": num_rounds,
        "threads": target.num_threads,
        "timing": asdict(TIMING),
        "sessions_lost": num_lost,
        "timings_with_loss": num_with_loss,
        "kernels": [{"operator": k.name, "local_s": k.local_s, "rpc_s": k.remote_s} for k in kernels],
        "errors": errors,
    }
    finish("rpc_overhead", figures, options.quick, extra)


if __name__ == "__main__":
    main()
