"""How fast networks are after a few seconds of a tuning that begins with the schedules that come with chanas.

    python benchmarks/shipped_schedules.py [--quick] [--networks mobilenet_v2 …] [--seconds 0 15 30 60]
        [--ways shipped left_out cold] [--minutes 10 | --best FOLDER] [--run runs/shipped_schedules] [--seed 0]

A network of torchvision with random weights is tuned on one thread for each number of seconds, each time from nothing:

    shipped   as `chanas tune` does it
    left_out  without the schedules of operators that, of the networks below, it alone has: as a network that the
              schedules do not come from
    cold      with `--warm-start no`

Seconds are those of the step `tune` (`tuned.json`), after the first build; with 0 the first build is the result. The
best known latency is that of all of these and of a long tuning: with `--warm-start no` for so many minutes, or
FOLDER/NAME, as `tune_models.py` leaves it. All finished networks of a name are timed in turns, on one core.

Figures, for each network, way and number of seconds: latency over the best known one; and the share of its operators
that there are schedules of. Results are written after each network. What lies in the run directory is not tuned again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Figure, finish, write_result
from transfer_networks import ROUNDS, tuned_network
from tune_share import medians_in_turns

from chanas.devices.host import load_target
from chanas.errors import ChanasError, ConfigError

if TYPE_CHECKING:
    from chanas.bundle.tuned import TunedNetwork
    from chanas.core.effort import NetworkEffort
    from chanas.prescheduler.tuning.warm_start import WarmStart
    from chanas.workflows.models.chain import LoadedModel

NETWORKS = (
    "mobilenet_v2",
    "mobilenet_v3_small",
    "mobilenet_v3_large",
    "resnet18",
    "resnet50",
    "squeezenet1_1",
    "shufflenet_v2_x1_0",
    "efficientnet_b0",
)
"""The networks that the schedules are made from."""
SHIPPED, LEFT_OUT, COLD, LONG = "shipped", "left_out", "cold", "long"
WAYS = (SHIPPED, LEFT_OUT, COLD)
SECONDS, QUICK_SECONDS = (0.0, 15.0, 30.0, 60.0), (0.0, 3.0)
GOAL_NETWORK, GOAL_S, GOAL = "mobilenet_v2", 15.0, 1.05
QUICK_NETWORK, QUICK_PIXELS, QUICK_MINUTES, DEFAULT_MINUTES = "squeezenet1_1", 64, 0.2, 10.0
BEFORE = ("open", "read", "simplify", "lower", "answer", "first build")
"""Steps before the tuning."""


def load(name: str, quick: bool) -> LoadedModel:
    """
    Raises:
        ChanasError: the network cannot be opened.
    """
    from chanas.workflows.models.chain import Model

    return Model.load(f"torchvision:{name}", {"image": (1, 3, QUICK_PIXELS, QUICK_PIXELS)} if quick else None)


def operators_of(loaded: LoadedModel) -> set[str]:
    """Keys of the operators of a network on this machine."""
    from chanas.models.lowering import lower

    return {workload.key for workload in lower(loaded.graph, load_target("cpu", 1)).workloads()}


def schedules() -> WarmStart:
    """The schedules that come with chanas for this machine.

    Raises:
        ConfigError: there are none.
    """
    from chanas.prescheduler.tuning.warm_start import open_shipped

    found = open_shipped(load_target("cpu", 1))
    if found is None:
        raise ConfigError("expected schedules that come with chanas for this processor, got none")
    return found


def without(keys: Iterable[str], place: Path) -> Path:
    """A file of the schedules that come with chanas but those of some operators."""
    from chanas.prescheduler.records.schedules import write_schedules

    left_out, found = set(keys), schedules()
    path = place / found.path.name
    write_schedules(path, found.source, {k: r for k, r in found.records.items() if k not in left_out})
    return path


def its_own(name: str, loaded: LoadedModel) -> set[str]:
    """Keys of the operators that no other network of `NETWORKS` has."""
    others = (operators_of(load(other, False)) for other in NETWORKS if other != name)
    return operators_of(loaded).difference(*others)


def minutes_of(seconds: float, steps: Mapping[str, float]) -> float:
    """Minutes for a tuning of so many seconds, where a network took these seconds by step; the last build is expected
    to take as long as the first."""
    return (sum(steps[name] for name in BEFORE) + seconds + steps["first build"]) / 60.0


def tune_all(name: str, loaded: LoadedModel, place: Path, options: argparse.Namespace) -> dict[str, TunedNetwork]:
    """The network after each number of seconds in each way, `shipped-15s`, and after a long tuning."""
    from chanas.bundle.tuned import TunedNetwork
    from chanas.core.effort import NOTHING, NetworkEffort

    def tuned(what: str, effort: NetworkEffort) -> TunedNetwork:
        return tuned_network(loaded, place / what, 1, effort)

    priors: dict[str, str | None] = {SHIPPED: None, COLD: NOTHING}
    if LEFT_OUT in options.ways:
        priors[LEFT_OUT] = str(without(its_own(name, loaded), place))
    networks = {}
    for way in options.ways:
        plain = {"warm_start": priors[way], "seed": options.seed}
        first = tuned(f"{way}-0s", NetworkEffort(trials=0, **plain))
        steps = first.document["seconds"]
        for seconds in options.seconds:
            effort = NetworkEffort(minutes=minutes_of(seconds, steps), **plain)
            networks[f"{way}-{seconds:g}s"] = tuned(f"{way}-{seconds:g}s", effort) if seconds else first
    if options.best is not None:
        networks[LONG] = TunedNetwork.open(options.best / name)
    else:
        networks[LONG] = tuned(LONG, NetworkEffort(minutes=options.minutes, warm_start=NOTHING, seed=options.seed))
    return networks


def measure(name: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What result files keep of a network.

    Raises:
        ChanasError: it cannot be opened or tuned.
    """
    loaded = load(name, options.quick)
    operators, known = operators_of(loaded), schedules().records.keys()
    networks = tune_all(name, loaded, place, options)
    medians = medians_in_turns(list(networks.values()), 5 if options.quick else ROUNDS)
    best_s = min(medians)
    row: dict[str, Any] = {"network": name, "operators": len(operators), "known": len(operators & known)}
    for (what, network), median_s in zip(networks.items(), medians, strict=True):
        document = network.document
        row[what] = {
            "median_s": median_s,
            "over_best": median_s / best_s,
            "tune_s": document["seconds"]["tune"],
            "trials": document["trials"]["new"],
        }
        print(f"{name}, {what}: {median_s * 1e3:.3f} ms, {median_s / best_s:.3f}x of the best", flush=True)
    return row


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Latency of each network over its best, by way and seconds, and how many of its operators are known."""
    figures = {}
    for row in rows:
        name = row["network"]
        for what in (what for what in row if what.startswith(WAYS)):
            is_goal = (name, what) == (GOAL_NETWORK, f"{SHIPPED}-{GOAL_S:g}s")
            goal = GOAL if is_goal else None
            figures[f"{name}_{what}_over_best"] = Figure(row[what]["over_best"], goal, lower_is_better=True)
        figures[f"{name}_known_operators"] = Figure(row["known"] / row["operators"])
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small network at 64 pixels, seconds; writes nothing")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, help="of torchvision")
    parser.add_argument("--seconds", nargs="+", type=float, help="of tuning (0 15 30 60)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="all; with --quick all but left_out")
    parser.add_argument("--minutes", type=float, help=f"of the long tuning ({DEFAULT_MINUTES:g})")
    parser.add_argument("--best", type=Path, help="folder of networks that were tuned for long, by their names")
    parser.add_argument("--run", type=Path, default=Path("runs/shipped_schedules"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    options.ways = options.ways or ((SHIPPED, COLD) if options.quick else WAYS)
    options.minutes = options.minutes or (QUICK_MINUTES if options.quick else DEFAULT_MINUTES)
    names = (QUICK_NETWORK,) if options.quick else options.networks
    rows: list[dict[str, Any]] = []
    extra: dict[str, Any] = {"minutes": options.minutes, "seed": options.seed, "rows": rows}
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
        root = Path(scratch) if options.quick else options.run
        for name in names:
            rows.append(measure(name, root / name, options))
            if not options.quick:
                write_result("shipped_schedules", figures_of(rows), extra)
    finish("shipped_schedules", figures_of(rows), options.quick, extra)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"shipped_schedules: error: {error}") from error
