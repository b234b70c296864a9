"""Trials and wall time until a whole network is nearly as fast as it gets, with what others have measured and without.

    python benchmarks/transfer_networks.py [--quick] [--networks resnet50 …] [--minutes 10] [--ways cold warm …]
        [--source RECORDS] [--source-threads 2] [--model FILE] [--share 0.5] [--run runs/transfer_networks]
        [--seed 0] [--name NAME]

ResNet-50, MobileNet-V2 and Inception-V3 of torchvision, with random weights. Each is tuned on one thread several times,
for so many minutes each, with records of its own:

    cold   from nothing
    warm   with --warm-start from RECORDS, a file of records or a run directory of another dtype, number of threads or
           instruction set; without --source the network is first tuned for as long on --source-threads threads, and
           these records are taken
    like   with --warm-start from records of the same use, as another machine of this kind has them: of a tuning from
           nothing with another seed, which is reported beside the others (`twin`)
    share  as `warm`, and only operators that make up --share of all operations are tuned (--tune-share), for that
           share of the minutes
    taught with a cost model of `chanas records train` (--model): attention, mlp, xgb or lgbm, and its file

After each trial the network's seconds are the sum over its operators of the best that was measured of each, alone. A
machine is some percent faster in one tuning than in another, which is as much as is judged here, so that every schedule
that was the best of its operator for a while is timed once more at the end, all of an operator in turns, whoever tried
them; those seconds count. All tunings are judged by the smallest of their last sums, and all finished networks are
timed in turns. Wall time counts from the first trial; a pause of more than a minute, such as between two runs, counts
as a minute. `share` does not time what is taken over, so that it has no such sum: its trials and seconds are all that
it made, and only its finished network is compared.

Figures, for each network and way: trials and seconds to within 5 %, and the finished network's latency over that of
`cold`; rows also have `first_over_best`, the seconds with the very first schedule of every operator over the best of
all tunings, which tells what one trial of each would have come to. Results are written after each network. What lies in
the run directory is not tuned again: a run that was ended goes on where it was, its finished tunings as they are.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Figure, finish, write_result
from tune_share import medians_in_turns

from chanas.compiler.space import Point
from chanas.core.usage import Usage
from chanas.devices.host import load_target
from chanas.devices.timing import TURNS
from chanas.errors import ChanasError
from chanas.files.run import RunDirectory

if TYPE_CHECKING:
    from chanas.bundle.tuned import TunedNetwork
    from chanas.compiler.program import Program
    from chanas.core.effort import NetworkEffort
    from chanas.workflows.models.chain import LoadedModel

NETWORKS = ("resnet50", "mobilenet_v2", "inception_v3")
COLD, WARM, LIKE, SHARE, TAUGHT, SOURCE, TWIN = "cold", "warm", "like", "share", "taught", "source", "twin"
WAYS = (COLD, WARM, LIKE, SHARE, TAUGHT)
REPORTED = (*WAYS, TWIN)
QUICK_NETWORK, QUICK_PIXELS, QUICK_MINUTES = "squeezenet1_1", 64, 0.2
CLOSE, DEFAULT_MINUTES, LONGEST_PAUSE_S, ROUNDS = 1.05, 10.0, 60.0, 41
DEFAULT_SHARE = 0.5
OTHER_SEED = 1000

Trial = tuple[str, Point, float | None, float]
"""Key of the operator, point, seconds (None: it failed), and when it was measured, in seconds since 1970."""
Judged = Mapping[tuple[str, Point], float]
"""Seconds of points, all of an operator timed in turns."""


def tuned_network(loaded: LoadedModel, folder: Path, threads: int, effort: NetworkEffort) -> TunedNetwork:
    """The network in `folder`/network, tuned now unless it is there; its records lie in the folder."""
    from chanas.workflows.models.chain import Model

    if not (folder / "network").is_dir():
        tuned = loaded.tune(Usage("cpu", threads), effort=effort, run=RunDirectory(folder))
        tuned.build().save(folder / "network")
    return Model.open(folder / "network")


def effort_of(way: str, source: str, options: argparse.Namespace) -> NetworkEffort:
    """How a way tunes, with the records `source`."""
    from chanas.core.effort import NOTHING, NetworkEffort

    plain = NetworkEffort(minutes=options.minutes, seed=options.seed, warm_start=NOTHING)
    if way == TAUGHT:
        return dataclasses.replace(plain, pretrained=options.model)
    if way == SHARE:
        shorter = options.minutes * options.share
        return NetworkEffort(minutes=shorter, seed=options.seed, warm_start=source, tune_share=options.share)
    return dataclasses.replace(plain, warm_start=source if way in (WARM, LIKE) else NOTHING)


def read_trials(records: Path) -> list[Trial]:
    """Every trial of a run directory with one device, in order."""
    database = sqlite3.connect(f"{records.resolve().as_uri()}?mode=ro", uri=True)
    try:
        rows = database.execute("SELECT workload, point, seconds, created FROM records ORDER BY created, rowid")
        return [(key, tuple(json.loads(point)), seconds, created) for key, point, seconds, created in rows]
    finally:
        database.close()


def with_marks(trials: Iterable[Trial]) -> Iterator[tuple[Trial, bool]]:
    """Each trial, and whether its point is the best of its operator so far."""
    best: dict[str, float] = {}
    for trial in trials:
        key, _, seconds, _ = trial
        is_best = seconds is not None and seconds < best.get(key, math.inf)
        if seconds is not None and is_best:
            best[key] = seconds
        yield trial, is_best


def incumbents(trials: Iterable[Trial]) -> set[tuple[str, Point]]:
    """Every point that was the best of its operator when it came."""
    return {(key, point) for (key, point, _, _), is_best in with_marks(trials) if is_best}


def judge(points: Iterable[tuple[str, Point]], program: Program) -> dict[tuple[str, Point], float]:
    """Time the points of each operator in turns on one thread, with its weights cold; none of those that fail now."""
    from chanas.compiler.backends import case_of
    from chanas.measuring.candidates import BUILD_TIMEOUT_S, Candidate, CandidatePipeline
    from chanas.measuring.fleet import WorkerPool
    from chanas.measuring.messages import OperatorsAt
    from chanas.prescheduler.program import weight_bytes

    workloads = {w.key: w for w in program.workloads()}
    of: dict[str, list[Point]] = {}
    for key, point in sorted(points):
        of.setdefault(key, []).append(point)
    target, found = load_target("cpu", 1), {}
    settings = TURNS.cold(weight_bytes(program), len(program.tuned))
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch, WorkerPool(target) as pool:
        line: CandidatePipeline[str] = CandidatePipeline(pool)
        for key, some in of.items():
            library, case = Path(scratch) / key, Path(scratch) / f"{key}.npz"
            case_of(workloads[key], target).save(case)
            line.submit(
                Candidate(
                    token=key,
                    what=OperatorsAt(workloads[key], some, [None] * len(some)),
                    target=target,
                    library=library,
                    case=case,
                    settings=settings,
                    timeout_s=len(some) * BUILD_TIMEOUT_S,
                )
            )
        while line.num_in_flight:
            for candidate, outcome in line.finished():
                for point, member in zip(of[candidate.token], outcome.members or [outcome], strict=False):
                    if member.seconds is not None:
                        found[candidate.token, point] = member.seconds
    return found


def curve_of(trials: Iterable[Trial], groups: Sequence[tuple[str, ...]], judged: Judged) -> list[tuple[float, float]]:
    """After each trial: seconds since the first, and the network's; infinite while an operator has no schedule.

    Which point of an operator is the best is told by the trials, how fast that one is by `judged`, which also tells
    which operator is taken of those that compute the same.
    """
    worth: dict[str, float] = {}
    curve, wall_s, before = [], 0.0, None
    for (key, point, _, created), is_best in with_marks(trials):
        wall_s += 0.0 if before is None else min(created - before, LONGEST_PAUSE_S)
        before = created
        if is_best:
            worth[key] = judged.get((key, point), math.inf)
        curve.append((wall_s, sum_s(worth, groups)))
    return curve


def sum_s(seconds: Mapping[str, float], groups: Sequence[tuple[str, ...]]) -> float:
    """Seconds of the network: of each operator the fastest that computes it; infinite where one has none."""
    return math.fsum(min(seconds.get(key, math.inf) for key in group) for group in groups)


def first_s(trials: Iterable[Trial], groups: Sequence[tuple[str, ...]], judged: Judged) -> float:
    """Seconds of the network with the first schedule of every operator that worked; infinite where one has none."""
    first: dict[str, float] = {}
    for key, point, seconds, _ in trials:
        if seconds is not None:
            first.setdefault(key, judged.get((key, point), math.inf))
    return sum_s(first, groups)


def reached(curve: Sequence[tuple[float, float]], limit_s: float) -> dict[str, float | None]:
    """Trials and wall seconds until the network takes at most `limit_s`; None where it never does."""
    for num, (wall_s, network_s) in enumerate(curve):
        if network_s <= limit_s:
            return {"trials": float(num + 1), "wall_s": wall_s}
    return {"trials": None, "wall_s": None}


def tune_all(loaded: LoadedModel, place: Path, options: argparse.Namespace) -> dict[str, TunedNetwork]:
    """The network tuned in each way, after the tunings that records are taken from."""
    from chanas.core.effort import NOTHING, NetworkEffort

    sources, networks = dict.fromkeys(WAYS, options.source or ""), {}
    plain = NetworkEffort(minutes=options.minutes, seed=options.seed, warm_start=NOTHING)
    if options.source is None and {WARM, SHARE} & set(options.ways):
        tuned_network(loaded, place / SOURCE, options.source_threads, plain)
        sources = dict.fromkeys(WAYS, str(place / SOURCE))
    if LIKE in options.ways:
        networks[TWIN] = tuned_network(
            loaded, place / TWIN, 1, dataclasses.replace(plain, seed=options.seed + OTHER_SEED)
        )
        sources[LIKE] = str(place / TWIN)
    for way in options.ways:
        networks[way] = tuned_network(loaded, place / way, 1, effort_of(way, sources[way], options))
    return networks


def measure(name: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What result files keep of a network.

    Raises:
        ChanasError: it cannot be opened or tuned, or there is nothing to warm-start from.
    """
    from chanas.models.lowering import lower
    from chanas.workflows.models.chain import Model

    shapes = {"image": (1, 3, QUICK_PIXELS, QUICK_PIXELS)} if options.quick else None
    loaded = Model.load(f"torchvision:{name}", shapes)
    networks = tune_all(loaded, place, options)
    program = lower(loaded.graph, load_target("cpu", 1))
    groups = [tuple(w.key for w in operation.choices) for operation in program.tuned]
    trials = {way: read_trials(RunDirectory(place / way).records) for way in networks}
    judged = judge(set().union(*map(incumbents, trials.values())), program)
    curves = {way: curve_of(made, groups, judged) for way, made in trials.items()}
    best_s = min(curve[-1][1] for curve in curves.values())
    medians = medians_in_turns(list(networks.values()), 5 if options.quick else ROUNDS)
    source = "tuned first" if options.source is None else "/".join(Path(options.source).parts[-2:])
    row: dict[str, Any] = {"network": name, "source": source}
    for (way, curve), median_s in zip(curves.items(), medians, strict=True):
        when = {"trials": float(len(curve)), "wall_s": curve[-1][0]} if way == SHARE else reached(curve, CLOSE * best_s)
        sums = {"sum_s": curve[-1][1], "first_over_best": first_s(trials[way], groups, judged) / best_s}
        finite = {name: value if math.isfinite(value) else None for name, value in sums.items()}
        row[way] = {**when, "all_trials": len(curve), "all_wall_s": curve[-1][0], **finite, "median_s": median_s}
        print(
            f"{name}, {way}: {row[way]['trials']} trials in {row[way]['wall_s']} s to within 5 %, of {len(curve)} in "
            f"{curve[-1][0]:.0f} s; {median_s * 1e3:.3f} ms",
            flush=True,
        )
    return row


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Trials and seconds of every way, and the ratio of its finished network to the cold one."""
    figures = {}
    for row in rows:
        name = row["network"]
        for way in (way for way in REPORTED if way in row):
            figures[f"{name}_{way}_trials"] = Figure(row[way]["trials"], lower_is_better=True)
            figures[f"{name}_{way}_wall_s"] = Figure(row[way]["wall_s"], lower_is_better=True)
            if way != COLD and COLD in row:
                ratio = row[way]["median_s"] / row[COLD]["median_s"]
                figures[f"{name}_{way}_over_cold_latency"] = Figure(ratio, lower_is_better=True)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small network at 64 pixels, seconds; writes nothing")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, help="of torchvision")
    parser.add_argument("--minutes", type=float, help=f"of each tuning ({DEFAULT_MINUTES:g})")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="all but taught, which needs --model")
    parser.add_argument("--model", help="of `taught`: a file of `chanas records train`")
    parser.add_argument("--share", type=float, default=DEFAULT_SHARE, help="of operations that `share` tunes")
    parser.add_argument("--source", help="records of another use: a run directory or a file")
    parser.add_argument("--source-threads", type=int, default=2, help="of the tuning that records come from otherwise")
    parser.add_argument("--run", type=Path, default=Path("runs/transfer_networks"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="transfer_networks", help="how the result file is called")
    options = parser.parse_args(arguments)
    options.ways = options.ways or [way for way in WAYS if way != TAUGHT or options.model]
    if TAUGHT in options.ways and not options.model:
        parser.error("--ways taught needs --model FILE")
    options.minutes = options.minutes or (QUICK_MINUTES if options.quick else DEFAULT_MINUTES)
    names = (QUICK_NETWORK,) if options.quick else options.networks
    rows: list[dict[str, Any]] = []
    extra: dict[str, Any] = {"minutes": options.minutes, "seed": options.seed, "share": options.share, "rows": rows}
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
        root = Path(scratch) if options.quick else options.run
        for name in names:
            rows.append(measure(name, root / name, options))
            if not options.quick:
                write_result(options.name, figures_of(rows), extra)
    finish(options.name, figures_of(rows), options.quick, extra)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"transfer_networks: error: {error}") from error
