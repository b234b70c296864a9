"""What it costs when only the operators that matter are tuned and the others take over their schedules.

    python benchmarks/tune_share.py [--quick] [--network mobilenet_v2] [--share 0.5] [--trials 16] [--repeats 3]
        [--run FOLDER]

A network of torchvision with random weights is tuned twice from nothing, with `--tune-share 1` and with the share, as
many trials per tuned operator each time; then both are timed in turns, on one core. Repeats have seeds of their own.
--run keeps what was tuned, and what is there is timed as it is.

Figures: latency with the share over latency without (geometric mean over repeats), the share's trials and tuning
seconds over those of all, and how many operators took a schedule over.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Figure, finish, geometric_mean

from chanas.core.usage import Usage
from chanas.devices.cores import limited_to
from chanas.devices.timing import TimingSettings, time_in_turns
from chanas.errors import ChanasError
from chanas.files.run import RunDirectory

if TYPE_CHECKING:
    from chanas.bundle.tuned import TunedNetwork

ROUNDS, MIN_ROUND_S, NUM_WARM_UP = 41, 0.05, 3
QUICK_NETWORK, QUICK_PIXELS = "squeezenet1_1", 64
MAX_LOSS = 1.05


def tuned_network(name: str, shapes: Any, folder: Path, share: float, trials: int, seed: int) -> TunedNetwork:
    """The network that lies in the folder, tuned now unless it does, with records of its own."""
    from chanas.core.effort import NOTHING, NetworkEffort
    from chanas.workflows.models.chain import Model

    if not (folder / "network").is_dir():
        effort = NetworkEffort(trials=trials, tune_share=share, seed=seed, warm_start=NOTHING)
        loaded = Model.load(f"torchvision:{name}", shapes)
        built = loaded.tune(Usage("cpu", 1), effort=effort, run=RunDirectory(folder)).build()
        built.save(folder / "network")
    return Model.open(folder / "network")


def medians_in_turns(networks: Sequence[TunedNetwork], rounds: int) -> list[float]:
    """Seconds of one call of each compiled program."""
    with limited_to(1):
        calls = [[(network.program(), ())] for network in networks]
        settings = TimingSettings(rounds, MIN_ROUND_S)
        return [s.seconds for s in time_in_turns(calls, NUM_WARM_UP, settings)]


def row_of(whole: TunedNetwork, part: TunedNetwork, rounds: int) -> dict[str, Any]:
    """Both networks beside each other."""
    whole_s, part_s = medians_in_turns((whole, part), rounds)
    operators = part.document["operators"]
    return {
        "latency_s": {"all": whole_s, "share": part_s},
        "trials": {"all": whole.document["trials"]["new"], "share": part.document["trials"]["new"]},
        "tuning_s": {"all": whole.document["seconds"]["tune"], "share": part.document["seconds"]["tune"]},
        "operators": len(operators),
        "taken_over": sum("taken_from" in o for o in operators),
    }


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Means over repeats."""

    def ratio(name: str) -> float:
        return geometric_mean([row[name]["share"] / row[name]["all"] for row in rows])

    return {
        "latency_share_over_all": Figure(ratio("latency_s"), MAX_LOSS, lower_is_better=True),
        "trials_share_over_all": Figure(ratio("trials")),
        "tuning_s_share_over_all": Figure(ratio("tuning_s")),
        "taken_over": Figure(statistics.fmean(row["taken_over"] for row in rows)),
        "operators": Figure(statistics.fmean(row["operators"] for row in rows)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small network at 64 pixels, 2 trials; writes nothing")
    parser.add_argument("--network", default="mobilenet_v2", help="of torchvision")
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--trials", type=int, help="per tuned operator (16; 2 with --quick)")
    parser.add_argument("--repeats", type=int, help="seeds (3; 1 with --quick)")
    parser.add_argument("--run", type=Path, help="keep what was tuned here")
    options = parser.parse_args(arguments)
    quick = options.quick
    name, shapes = (QUICK_NETWORK, {"image": (1, 3, QUICK_PIXELS, QUICK_PIXELS)}) if quick else (options.network, None)
    trials, repeats = options.trials or (2 if quick else 16), options.repeats or (1 if quick else 3)
    rows = []
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
        place = options.run or Path(scratch)
        for seed in range(repeats):
            whole, part = (
                tuned_network(name, shapes, place / f"{name}-{share:g}-seed{seed}", share, trials, seed)
                for share in (1.0, options.share)
            )
            row = row_of(whole, part, 5 if quick else ROUNDS)
            rows.append(row)
            latency, made = row["latency_s"], row["trials"]
            print(
                f"seed {seed}: all {latency['all'] * 1e3:.3f} ms, {made['all']} trials; share {options.share:g} "
                f"{latency['share'] * 1e3:.3f} ms, {made['share']} trials, {row['taken_over']} of {row['operators']} "
                "operators took a schedule over",
                flush=True,
            )
    extra = {"network": name, "share": options.share, "trials": trials, "repeats": repeats, "rows": rows}
    finish("tune_share", figures_of(rows), quick, extra)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"tune_share: error: {error}") from error
