"""How the service answers 200 clients, and what it keeps in memory: mock jobs whose stages sleep, over real HTTP.

    python benchmarks/service_load.py [--quick]

Two phases, each with a service in a process of its own. In the first, 200 clients of 20 tenants, each with a token and
a connection, come within ten seconds and submit ten jobs one after the other, each twice with the same key, poll every
job each second until it has ended, and fetch its bundle; now and then one looks at the list of jobs and at the devices.
A call's time is what a client sees, from the first byte that it writes to the last that it reads. The clients are
coroutines of one process of their own; where a machine has more than two cores, service and clients are both held to
the same two. Afterwards the database has to hold every job that a client was told of, each complete once, and no other.

In the second phase 10,000 jobs go through, and the resident memory of the service is read at every thousandth: it grows
until SQLite's caches are full, and has to be the same after 10,000 as after 5,000.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Figure, finish

from chanas.core.usage import Usage
from chanas.service.folder import DataFolder
from chanas.service.mock import MockWork
from chanas.service.serve import Settings, open_database, serve
from chanas.service.store.jobs import ENDED, JobStore
from chanas.service.store.tokens import add_token

NUM_CORES, NUM_TENANTS = 2, 20
POLL_S, RAMP_S = 1.0, 10.0
LOAD_STAGE_S, MEMORY_STAGE_S = 0.02, 0.001
GOAL_S, GOAL_GROWTH = 0.050, 1.02
MIB = 1 << 20
SERVE = "--serve"


@dataclass
class Told:
    """Seconds of calls by what was called, ids of jobs by key, and answers that should not have come."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: collections.defaultdict(list))
    jobs: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class Connection:
    """A client's connection, kept open: HTTP by hand, since the clients share their cores with what they measure."""

    def __init__(self, port: int, token: str, told: Told) -> None:
        self._port, self._token, self._told = port, token, told

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        self._writer.close()

    async def call(self, name: str, method: str, path: str, body: Any = None, key: str | None = None) -> bytes:
        """The body of an answer; its time is noted under a name."""
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {self._token}"]
        lines += [f"Content-Length: {len(content)}", "Content-Type: application/json"]
        lines += [] if key is None else [f"Idempotency-Key: {key}"]
        start_s = time.perf_counter()
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"(?i)\r\ncontent-length: (\d+)", head)
        answer = await self._reader.readexactly(0 if length is None else int(length[1]))
        self._told.seconds[name].append(time.perf_counter() - start_s)
        if head[9:12] not in ("200", "201", "202"):
            self._told.faults.append(f"{name}: {head[9:12]} {answer.decode(errors='replace')[:100]}")
        return answer

    async def submit(self, number: str, rng: random.Random) -> str:
        """Submit a job; its id."""
        demand = {"priority": rng.randrange(-2, 3), "minutes": 60}
        body = {"kind": "model", "model": f"torchvision:a{number}", "seed": rng.randrange(1000), "demand": demand}
        job = ""
        for name in ("submit", "submit again"):
            job = json.loads(await self.call(name, "POST", "/v1/jobs", body, f"key-{number}"))["id"]
            if self._told.jobs.setdefault(number, job) != job:
                self._told.faults.append(f"{name}: another job for the same key")
        return job

    async def wait(self, job: str, poll_s: float) -> None:
        """Poll until a job has ended."""
        while json.loads(await self.call("show", "GET", f"/v1/jobs/{job}"))["state"] not in ENDED:
            await asyncio.sleep(poll_s)


async def use(connection: Connection, first: int, num_jobs: int) -> None:
    """Do what a client does: job after job."""
    rng = random.Random(first)
    await asyncio.sleep(RAMP_S * rng.random())
    for number in range(first, first + num_jobs):
        job = await connection.submit(str(number), rng)
        await connection.wait(job, POLL_S)
        await connection.call("bundle", "GET", f"/v1/jobs/{job}/bundle")
        if rng.random() < 0.3:
            await connection.call("list", "GET", "/v1/jobs?limit=20")
            await connection.call("devices", "GET", "/v1/devices")
    connection.close()


@contextlib.asynccontextmanager
async def opened(port: int, tokens: Sequence[str], num: int, told: Told) -> AsyncIterator[list[Connection]]:
    """Connections, of each tenant as many."""
    connections = [Connection(port, tokens[i % len(tokens)], told) for i in range(num)]
    for connection in connections:
        await connection.open()
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


async def load(port: int, tokens: Sequence[str], num_clients: int, num_jobs: int) -> Told:
    """All clients at once, until each has done its jobs."""
    told, each = Told(), num_jobs // num_clients
    async with opened(port, tokens, num_clients, told) as connections:
        await asyncio.gather(*(use(one, i * each, each) for i, one in enumerate(connections)))
    return told


async def fill(port: int, tokens: Sequence[str], num_jobs: int, pid: int, num_rows: int) -> list[dict[str, float]]:
    """Jobs by a few clients that look at the end of each; resident MiB of the service at each of `num_rows` shares."""
    told, rows, rng = Told(), [], random.Random(0)
    numbers = iter(range(num_jobs))
    is_ended = 0

    async def work(connection: Connection) -> None:
        nonlocal is_ended
        for number in numbers:
            await connection.wait(await connection.submit(str(number), rng), 0.05)
            is_ended += 1
            if is_ended % (num_jobs // num_rows) == 0:
                rows.append({"jobs": is_ended, "resident_mib": resident_mib(pid)})
                print(f"{is_ended:>6} jobs  {rows[-1]['resident_mib']:>7.1f} MiB", flush=True)

    async with opened(port, tokens, NUM_TENANTS, told) as connections:
        await asyncio.gather(*map(work, connections))
    if told.faults:
        raise SystemExit(told.faults[0])
    return rows


def resident_mib(pid: int) -> float:
    """MiB of a process that are in memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / MIB


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def served(data: Path, stage_s: float) -> Iterator[tuple[int, list[str], int]]:
    """A service of mock work: its port, tokens of its tenants, and its process."""
    with contextlib.closing(open_database(data)) as database:
        tokens = [add_token(database, f"tenant-{i}") for i in range(NUM_TENANTS)]
    command = [sys.executable, __file__, SERVE, str(data), "--stage-s", str(stage_s)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = re.search(r"serving http://127\.0\.0\.1:(\d+)", line := process.stderr.readline())
        if port is None:
            raise SystemExit(f"the service did not start: {line}{process.stderr.read()}")
        yield int(port[1]), tokens, process.pid
    finally:
        process.terminate()
        process.communicate(timeout=60)


def run_service(data: Path, stage_s: float) -> None:
    """Serve mock work of stages of so many seconds until a signal."""

    @contextlib.contextmanager
    def open_mock(_usage: Usage, folder: DataFolder) -> Iterator[MockWork]:
        yield MockWork(folder, stage_s)

    serve(Settings(data, port=0), open_mock, lambda line: print(line, file=sys.stderr, flush=True))


def count_faults(data: Path, told: Told) -> dict[str, int]:
    """Jobs lost, doubled and not known to any client, by the database."""
    with contextlib.closing(open_database(data)) as database:
        store = JobStore(database)
        rows = [row for i in range(NUM_TENANTS) for row in store.page(f"tenant-{i}", None, 1_000_000)]
        complete = {
            row["id"]: [event["what"] for event in store.events(row["id"], 0)].count("complete")
            for row in rows
            if row["state"] == "complete"
        }
    return {
        "lost": sum(job not in complete for job in told.jobs.values()),
        "doubled": sum(num != 1 for num in complete.values()),
        "not_known": len({row["id"] for row in rows} - {*told.jobs.values()}),
    }


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def load_phase(data: Path, num_clients: int, num_jobs: int) -> tuple[dict[str, Any], list[str]]:
    """The first phase: times of calls by what was called, what was lost, speeds; and what was refused."""
    with served(data, LOAD_STAGE_S) as (port, tokens, pid):
        start_s, before_s = time.perf_counter(), cpu_s(pid)
        told = asyncio.run(load(port, tokens, num_clients, num_jobs))
        seconds, busy_s = time.perf_counter() - start_s, cpu_s(pid) - before_s
    calls = {
        name: {
            "number": len(times),
            "median_s": statistics.median(times),
            "p95_s": quantile(times, 0.95),
            "p99_s": quantile(times, 0.99),
            "worst_s": max(times),
        }
        for name, times in told.seconds.items()
    }
    num_calls = sum(map(len, told.seconds.values()))
    speeds = {"calls_per_s": num_calls / seconds, "jobs_per_s": num_jobs / seconds, "busy_cores": busy_s / seconds}
    return {"calls": calls, "faults": count_faults(data, told), "speeds": speeds}, told.faults


def show(row: dict[str, Any]) -> None:
    """The table of the first phase."""
    print(f"{'call':<14}{'number':>8}{'median':>10}{'p95':>10}{'p99':>10}{'worst':>10}")
    for name, call in row["calls"].items():
        cells = [f"{1e3 * value:>7.1f} ms" for key, value in call.items() if key != "number"]
        print(f"{name:<14}{call['number']:>8}{''.join(cells)}")
    print(", ".join(f"{value:.3g} {name}" for name, value in (row["speeds"] | row["faults"]).items()), flush=True)


def figures_of(row: dict[str, Any], num_refused: int, memory: Sequence[dict[str, float]]) -> dict[str, Figure]:
    """What the script stands for."""
    worst_s = max(call["p95_s"] for call in row["calls"].values())
    growth = memory[-1]["resident_mib"] / memory[len(memory) // 2 - 1]["resident_mib"]
    return {
        "worst_p95_s": Figure(worst_s, GOAL_S, lower_is_better=True),
        **{f"{name}_jobs": Figure(number, 0, lower_is_better=True) for name, number in row["faults"].items()},
        "refused_calls": Figure(num_refused, 0, lower_is_better=True),
        "memory_growth": Figure(growth, GOAL_GROWTH, lower_is_better=True),
        **{name: Figure(value) for name, value in row["speeds"].items()},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 clients, 100 jobs, then 300; nothing is written")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2000, help="of all clients together")
    parser.add_argument("--memory-jobs", type=int, default=10_000, help="of the second phase")
    parser.add_argument(SERVE, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stage-s", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve is not None:
        run_service(options.serve, options.stage_s)
        return
    if options.quick:
        options.clients, options.jobs, options.memory_jobs = 20, 100, 300
    cores = sorted(os.sched_getaffinity(0))[:NUM_CORES]
    os.sched_setaffinity(0, cores)
    with tempfile.TemporaryDirectory(prefix="chanas-load-") as root:
        row, refused = load_phase(Path(root) / "load", options.clients, options.jobs)
        show(row)
        for line in refused[:5]:
            print(line)
        with served(Path(root) / "memory", MEMORY_STAGE_S) as (port, tokens, pid):
            memory = asyncio.run(fill(port, tokens, options.memory_jobs, pid, 10))
    extra = {
        "clients": options.clients,
        "jobs": options.jobs,
        "placed": f"clients in a process of their own, on the same {len(cores)} cores as the service",
        "poll_s": POLL_S,
        "ramp_s": RAMP_S,
        "stage_s": LOAD_STAGE_S,
        "calls": row["calls"],
        "memory": memory,
    }
    finish("service_load", figures_of(row, len(refused), memory), options.quick, extra)


if __name__ == "__main__":
    main()
