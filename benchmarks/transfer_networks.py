"""Trials and wall time until a whole network is nearly as fast as it gets, with another use's records and without.

    python benchmarks/transfer_networks.py [--quick] [--networks resnet50 …] [--minutes 10] [--source RECORDS]
        [--source-threads 2] [--run runs/transfer_networks] [--seed 0]

ResNet-50, MobileNet-V2 and Inception-V3 of torchvision, with random weights. Each is tuned on one thread twice, for so
many minutes each, with records of its own: from nothing (`cold`), and with --warm-start from RECORDS (`warm`), a file
of records or a run directory of another dtype, number of threads or instruction set. Without --source the network is
first tuned for as long on --source-threads threads, and these records are taken.

After each trial the network's seconds are the sum over its operators of the best that was measured of each, alone. Both
tunings are judged by the smaller of their last sums, and both finished networks are timed in turns. Wall time counts
from the first trial; a pause of more than a minute, such as between two runs, counts as a minute.

Figures, for each network: trials and seconds to within 5 % with and without, and the ratio of the finished networks'
latencies. Results are written after each network. What lies in the run directory is not tuned again: a run that was
ended goes on where it was, its finished tunings as they are.
"""

from __future__ import annotations

import argparse
import math
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Figure, finish, write_result
from tune_share import medians_in_turns

from chanas.core.usage import Usage
from chanas.devices.host import load_target
from chanas.errors import ChanasError
from chanas.files.run import RunDirectory

if TYPE_CHECKING:
    from chanas.bundle.tuned import TunedNetwork
    from chanas.workflows.models.chain import LoadedModel

NETWORKS = ("resnet50", "mobilenet_v2", "inception_v3")
COLD, WARM, SOURCE = "cold", "warm", "source"
QUICK_NETWORK, QUICK_PIXELS, QUICK_MINUTES = "squeezenet1_1", 64, 0.2
CLOSE, DEFAULT_MINUTES, LONGEST_PAUSE_S, ROUNDS = 1.05, 10.0, 60.0, 41

Trial = tuple[str, float | None, float]
"""Key of the operator, seconds (None: it failed), and when it was measured, in seconds since 1970."""


def tuned_network(
    loaded: LoadedModel, folder: Path, threads: int, minutes: float, warm_start: str | None, seed: int
) -> TunedNetwork:
    """The network in `folder`/network, tuned now unless it is there; its records lie in the folder."""
    from chanas.workflows.models.chain import Effort, Model

    if not (folder / "network").is_dir():
        effort = Effort(minutes=minutes, warm_start=warm_start)
        tuned = loaded.tune(Usage("cpu", threads), effort=effort, run=RunDirectory(folder), seed=seed)
        tuned.build().save(folder / "network")
    return Model.open(folder / "network")


def read_trials(records: Path) -> list[Trial]:
    """Every trial of a run directory with one device, in order."""
    database = sqlite3.connect(f"{records.resolve().as_uri()}?mode=ro", uri=True)
    try:
        return database.execute("SELECT workload, seconds, created FROM records ORDER BY created, rowid").fetchall()
    finally:
        database.close()


def operator_groups(loaded: LoadedModel) -> list[tuple[str, ...]]:
    """For each operator of the network the keys of those that compute the same."""
    from chanas.prescheduler.models.lowering import lower

    program = lower(loaded.graph, load_target("cpu", 1))
    return [tuple(w.key for w in operation.choices) for operation in program.tuned]


def curve_of(trials: Iterable[Trial], groups: Sequence[tuple[str, ...]]) -> list[tuple[float, float]]:
    """After each trial: seconds since the first, and the network's; infinite while an operator has no schedule."""
    best: dict[str, float] = {}
    curve, wall_s, before = [], 0.0, None
    for key, seconds, created in trials:
        wall_s += 0.0 if before is None else min(created - before, LONGEST_PAUSE_S)
        before = created
        if seconds is not None and seconds < best.get(key, math.inf):
            best[key] = seconds
        network_s = math.fsum(min(best.get(k, math.inf) for k in group) for group in groups)
        curve.append((wall_s, network_s))
    return curve


def reached(curve: Sequence[tuple[float, float]], limit_s: float) -> dict[str, float | None]:
    """Trials and wall seconds until the network takes at most `limit_s`; None where it never does."""
    for num, (wall_s, network_s) in enumerate(curve):
        if network_s <= limit_s:
            return {"trials": float(num + 1), "wall_s": wall_s}
    return {"trials": None, "wall_s": None}


def measure(name: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What result files keep of a network.

    Raises:
        ChanasError: it cannot be opened or tuned, or there is nothing to warm-start from.
    """
    from chanas.workflows.models.chain import Model

    shapes = {"image": (1, 3, QUICK_PIXELS, QUICK_PIXELS)} if options.quick else None
    loaded = Model.load(f"torchvision:{name}", shapes)
    source = options.source
    if source is None:
        tuned_network(loaded, place / SOURCE, options.source_threads, options.minutes, None, options.seed)
        source = str(place / SOURCE)
    networks = {
        which: tuned_network(loaded, place / which, 1, options.minutes, start, options.seed)
        for which, start in ((COLD, None), (WARM, source))
    }
    groups = operator_groups(loaded)
    curves = {which: curve_of(read_trials(RunDirectory(place / which).records), groups) for which in networks}
    limit_s = CLOSE * min(curve[-1][1] for curve in curves.values())
    medians = medians_in_turns(list(networks.values()), 5 if options.quick else ROUNDS)
    row: dict[str, Any] = {"network": name, "source": "tuned first" if options.source is None else options.source}
    for (which, curve), median_s in zip(curves.items(), medians, strict=True):
        row[which] = {**reached(curve, limit_s), "all_trials": len(curve), "sum_s": curve[-1][1], "median_s": median_s}
    print(
        f"{name}: to within 5 % {row[COLD]['trials']} trials in {row[COLD]['wall_s']} s without, "
        f"{row[WARM]['trials']} in {row[WARM]['wall_s']} s with; {row[COLD]['median_s'] * 1e3:.3f} ms and "
        f"{row[WARM]['median_s'] * 1e3:.3f} ms",
        flush=True,
    )
    return row


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Trials and seconds of both, and the ratio of the finished networks."""
    figures = {}
    for row in rows:
        name = row["network"]
        for which in (COLD, WARM):
            figures[f"{name}_{which}_trials"] = Figure(row[which]["trials"], lower_is_better=True)
            figures[f"{name}_{which}_wall_s"] = Figure(row[which]["wall_s"], lower_is_better=True)
        figures[f"{name}_warm_over_cold_latency"] = Figure(row[WARM]["median_s"] / row[COLD]["median_s"])
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small network at 64 pixels, seconds; writes nothing")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, help="of torchvision")
    parser.add_argument("--minutes", type=float, help=f"of each tuning ({DEFAULT_MINUTES:g})")
    parser.add_argument("--source", help="records of another use: a run directory or a file")
    parser.add_argument("--source-threads", type=int, default=2, help="of the tuning that records come from otherwise")
    parser.add_argument("--run", type=Path, default=Path("runs/transfer_networks"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.minutes = options.minutes or (QUICK_MINUTES if options.quick else DEFAULT_MINUTES)
    names = (QUICK_NETWORK,) if options.quick else options.networks
    rows: list[dict[str, Any]] = []
    extra: dict[str, Any] = {"minutes": options.minutes, "seed": options.seed, "rows": rows}
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
        root = Path(scratch) if options.quick else options.run
        for name in names:
            rows.append(measure(name, root / name, options))
            if not options.quick:
                write_result("transfer_networks", figures_of(rows), extra)
    finish("transfer_networks", figures_of(rows), options.quick, extra)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"transfer_networks: error: {error}") from error
