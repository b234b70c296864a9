"""How much faster networks would become that `chanas tune` tuned for minutes, with thousands of trials.

    python benchmarks/tune_convergence.py [--quick] [--networks resnet18 …] [--threads 1] [--minutes 10]
                                          [--continue-trials 10000] [--run runs/tune_models] [--seed 0]

First each network is tuned for so many minutes, as `tune_models.py` does and in the same place: what that script tuned
is taken as it is. Then tuning goes on from the same records until the operators of a network have had so many trials in
all (fewer where their spaces are smaller; `--early-stopping no`), and what came of it is compiled into a folder of its
own. Both networks run in turns, in processes of their own.

Figures: for each network the median of the first over that of the second, and the worst of them (goal: at most 1.03).
Results are written after each network; folders of the run directory that are there are not made again.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Figure, finish, write_result
from contenders import Contender, ContenderError, Timing, time_in_turns
from tune_models import DEFAULT_MINUTES, NETWORKS, QUICK_NETWORK, Options, load_network, tune_network

from chanas.devices.host import load_target
from chanas.errors import ChanasError

if TYPE_CHECKING:
    from chanas.bundle.tuned import TunedNetwork
    from chanas.workflows.models.chain import LoadedModel

GOAL, DEFAULT_TRIALS, QUICK_TRIALS = 1.03, 10_000, 60
SHORT, LONG = "short", "long"


def trials_per_operator(loaded: LoadedModel, num_trials: int, num_threads: int) -> int:
    """Trials of each operator on average, of so many in all."""
    from chanas.models.lowering import lower

    return math.ceil(num_trials / len(lower(loaded.graph, load_target("cpu", num_threads)).workloads()))


def tune_for_minutes(name: str, run: Path, options: Options) -> TunedNetwork:
    """The network as `tune_models.py` tunes it.

    Raises:
        ChanasError: it cannot be opened or tuned.
    """
    return tune_network(load_network(name, run, options.quick), run / name, run, options)


def tune_both(name: str, run: Path, options: Options, num_trials: int) -> tuple[dict[str, TunedNetwork], list[Any]]:
    """The network tuned for minutes and with so many trials, and inputs of it.

    Raises:
        ChanasError: it cannot be opened or tuned.
    """
    from chanas.core.effort import NetworkEffort

    networks = {SHORT: tune_for_minutes(name, run, options)}
    loaded = load_network(name, run, options.quick)
    each = trials_per_operator(loaded, num_trials, options.threads)
    effort = NetworkEffort(trials=each, early_stopping="no", seed=options.seed)
    networks[LONG] = tune_network(loaded, run / f"{name}-{num_trials}trials", run, options, effort)
    return networks, loaded.opened.random_inputs()


def time_both(networks: Mapping[str, TunedNetwork], inputs: Sequence[Any], options: Options) -> dict[str, Timing]:
    """Time tuned networks in turns; each was compared with its framework when it was built."""
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch, contextlib.ExitStack() as stack:
        path = f"{scratch}/inputs.npz"
        np.savez(path, *inputs)
        calls = {}
        for name, network in networks.items():
            contender = Contender("tuned network", options.threads, folder=str(network.folder), inputs=path)
            calls[name] = (stack.enter_context(contender), 0)
        return time_in_turns(calls, *options.rounds)


def measure(name: str, run: Path, options: Options, num_trials: int) -> dict[str, Any]:
    """What result files keep of a network.

    Raises:
        ChanasError: it cannot be opened or tuned.
        ContenderError: it does not run.
    """
    networks, inputs = tune_both(name, run, options, num_trials)
    row: dict[str, Any] = {"network": name}
    for which, timing in time_both(networks, inputs, options).items():
        document = networks[which].document
        row[which] = {
            "median_s": timing.median_s,
            "low_s": timing.low_s,
            "high_s": timing.high_s,
            "rounds": timing.num_rounds,
            **{key: document[key] for key in ("measured", "seconds", "trials")},
        }
    print(f"{name}: {row[SHORT]['median_s'] * 1e3:.3f} ms, {row[LONG]['median_s'] * 1e3:.3f} ms, {ratio(row):.3f}x")
    return row


def ratio(row: Mapping[str, Any]) -> float | None:
    """Seconds after minutes over those after many trials; None where nothing was measured."""
    return None if "error" in row else row[SHORT]["median_s"] / row[LONG]["median_s"]


def figures_of(rows: Sequence[Mapping[str, Any]], networks: Sequence[str]) -> dict[str, Figure]:
    """The ratio of each network, and the worst; no value unless all have one."""
    ratios = {row["network"]: ratio(row) for row in rows}
    figures = {f"{name}_short_over_long": Figure(ratios.get(name), lower_is_better=True) for name in networks}
    there = [figure.value for figure in figures.values() if figure.value is not None]
    worst = max(there) if len(there) == len(networks) else None
    return {**figures, "worst_short_over_long": Figure(worst, GOAL, lower_is_better=True)}


def parse_options(arguments: Sequence[str] | None) -> tuple[Options, Path, int]:
    """Options, the run directory of tuning, and the number of trials in all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small network, one trial per operator, then a few")
    parser.add_argument("--networks", nargs="+", help="as in tune_models.py")
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1)
    parser.add_argument("--minutes", type=float, default=DEFAULT_MINUTES, help="of tuning each network at first")
    parser.add_argument("--continue-trials", type=int, help="trials of a network's operators in all (10000)")
    parser.add_argument("--run", type=Path, default=Path("runs/tune_models"), help="where tuning keeps its records")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    networks = given.networks or ((QUICK_NETWORK,) if given.quick else NETWORKS)
    minutes, trials = (None, 1) if given.quick else (given.minutes, None)
    options = Options(tuple(networks), given.threads, minutes, trials, given.seed, quick=given.quick)
    return options, given.run, given.continue_trials or (QUICK_TRIALS if given.quick else DEFAULT_TRIALS)


def main(
    arguments: Sequence[str] | None = None,
    tune: Callable[..., Any] = tune_for_minutes,
    measure: Callable[..., dict[str, Any]] = measure,
) -> None:
    options, run, num_trials = parse_options(arguments)
    result_name = "tune_convergence" if options.threads == 1 else f"tune_convergence-{options.threads}t"
    rows: list[dict[str, Any]] = []
    extra = {**options.to_json(), "continue_trials": num_trials, "networks": rows}
    with contextlib.ExitStack() as stack:
        if options.quick:
            run = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chanas-bench-")))
        run = run / options.run_name
        # all of them, before records of more trials are there that operators of another network would find
        for name in options.networks:
            with contextlib.suppress(ChanasError):  # told below
                tune(name, run, options)
        for name in options.networks:
            try:
                rows.append(measure(name, run, options, num_trials))
            except (ChanasError, ContenderError) as error:
                print(f"{name}: {error}")
                rows.append({"network": name, "error": str(error)})
            if not options.quick:
                write_result(result_name, figures_of(rows, options.networks), extra)
    print()
    finish(result_name, figures_of(rows, options.networks), options.quick, extra)


if __name__ == "__main__":
    main()
