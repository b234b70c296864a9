"""The layout of each operator chosen over the whole network, beside one layout for all.

    python benchmarks/layouts.py [--quick] [--networks mobilenet_v2 …] [--layouts 8,16,32] [--trials 32]
                                 [--proofs resnet152 …] [--run runs/layouts]

Networks of torchvision, random weights, one thread. The operators of each are tuned in every layout (channel blocks of
as many lanes), copies between layouts are timed, and the joint choice is proven optimal (`chanas tune --layouts`). Then
the network is built in each single layout, by the joint choice, and once more in the device's own layout with as many
trials as all layouts had together. All of these are timed in one run, each in a process of its own, one round of each
after the other.

Figures: for each network the latency of the best single layout over that of the joint choice (`NAME_joint_gain`, above
1 where the choice pays), their geometric mean and the least, the same from the sums of operators and copies that the
choice goes by, the gain over the own layout with as many trials (`NAME_gain_at_equal_trials`: what is left when a
layout more is not also more trials), and the longest time that a proof took: of these networks, and of large ones whose
operators have seconds at random (`LARGE`). For information, by family of operators and layout: seconds over those in
the device's own layout, geometric mean, and the share of operators that are fastest there; what the fastest layout of
each operator would save if copies were free, and what the choice saves. Where the joint choice gains nothing, these say
why.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from common import Figure, finish, geometric_mean
from contenders import Contender, Timing, time_in_turns

from chanas.core.effort import NetworkEffort
from chanas.devices.host import load_target
from chanas.errors import ChanasError
from chanas.files.run import RunDirectory

if TYPE_CHECKING:
    from chanas.compiler.program import Form
    from chanas.workflows.models.chain import LoadedModel, TunedModel
    from chanas.workflows.models.layouts import LaidOut, LayoutSearch

NETWORKS = ("mobilenet_v2", "mobilenet_v3_small", "resnet18", "squeezenet1_1", "shufflenet_v2_x1_0")
LARGE = ("resnet152", "densenet201", "inception_v3", "efficientnet_b4", "mobilenet_v3_large", "googlenet")
QUICK_NETWORK, QUICK_PIXELS = "squeezenet1_1", 64
LAYOUTS, JOINT, EQUAL = "8,16,32", "joint", "equal trials"
ROUNDS, MIN_ROUND_S = 41, 0.03
# What is no slower than this, as a share of the best single layout's latency, is within the noise of whole networks.
LEAST_GAIN, MOST_SOLVE_S = 0.97, 1.0


def load(name: str, quick: bool) -> LoadedModel:
    """A network of torchvision with random weights."""
    from chanas.workflows.models.chain import Model

    shapes = {"image": (1, 3, QUICK_PIXELS, QUICK_PIXELS)} if quick else None
    return Model.load(f"torchvision:{name}", shapes)


def measure(name: str, options: argparse.Namespace, run: Path) -> dict[str, Any]:
    """Tune a network in all layouts and time it in each; a row of the table."""
    effort = NetworkEffort(trials=options.trials, layouts=options.layouts)
    tuned = load(name, options.quick).tune(effort=effort, run=RunDirectory(run))
    search = tuned.layouts
    assert search is not None
    more = dataclasses.replace(effort, layouts=None, trials=options.trials * len(search.singles))
    made = {**{str(form): single for form, single in sorted(search.singles.items())}, JOINT: search.joint}
    once_more = load(name, options.quick).tune(effort=more, run=RunDirectory(run))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chanas-bench-")))
        inputs = folder / "inputs.npz"
        np.savez(inputs, *tuned.loaded.opened.random_inputs())
        for way, laid_out in made.items():
            save(tuned, laid_out, folder / way)
        once_more.build().save(folder / EQUAL)
        calls = {}
        for way in (*made, EQUAL):
            contender = Contender("tuned network", 1, inputs=str(inputs), folder=str(folder / way))
            calls[way] = (stack.enter_context(contender), 0)
        timings = time_in_turns(calls, 5 if options.quick else ROUNDS, 0.01 if options.quick else MIN_ROUND_S)
    row = {"network": name, **row_of(search, timings), "families": families_of(search), "copies": copies_of(search)}
    print_row(row)
    return row


def save(tuned: TunedModel, laid_out: LaidOut, folder: Path) -> None:
    """Build a network with given layouts and schedules; it is compared with PyTorch."""
    operators = dataclasses.replace(tuned.tuned, choices=laid_out.choices)
    dataclasses.replace(tuned, program=laid_out.program, tuned=operators, best=None).build().save(folder)


def row_of(search: LayoutSearch, timings: Mapping[str, Timing]) -> dict[str, Any]:
    best_s = min(timing.median_s for way, timing in timings.items() if way not in (JOINT, EQUAL))
    return {
        "own": str(search.own),
        "latency_s": {way: timing.median_s for way, timing in timings.items()},
        "spread": {way: timing.spread for way, timing in timings.items()},
        "gain": best_s / timings[JOINT].median_s,
        "gain_at_equal_trials": timings[EQUAL].median_s / timings[JOINT].median_s,
        "gain_of_sums": min(single.seconds for single in search.singles.values()) / search.joint.seconds,
        **search.to_json(search.joint.program),
    }


def families_of(search: LayoutSearch) -> dict[str, dict[str, dict[str, float]]]:
    """By family and layout: seconds over those in the own layout, and the share of operators that are fastest there."""
    tuned = search.singles[search.own].program.tuned_numbers()
    groups: dict[str, list[Mapping[Form, float]]] = {}
    for number, seconds in search.operators.items():
        groups.setdefault(tuned[number].step.workload.op, []).append(seconds)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for family, group in groups.items():
        for form in sorted({known for seconds in group for known in seconds}):
            there = [seconds for seconds in group if form in seconds]
            found.setdefault(family, {})[str(form)] = {
                "operators": len(there),
                "ratio": geometric_mean([seconds[form] / seconds[search.own] for seconds in there]),
                "fastest": sum(seconds[form] == min(seconds.values()) for seconds in there) / len(there),
            }
    return found


def copies_of(search: LayoutSearch) -> dict[str, float]:
    """What the best other layout of each operator would save, and what changing layout costs in the single ones, as
    shares of the operators' seconds."""
    own_s = sum(seconds[search.own] for seconds in search.operators.values())
    best_s = sum(min(seconds.values()) for seconds in search.operators.values())
    chosen = {o.step.workload.key for o in search.joint.program.tuned if o.form != search.own}
    return {
        "saved_without_copies": 1.0 - best_s / own_s,
        "saved_by_choice": 1.0 - search.joint.seconds / search.singles[search.own].seconds,
        "operators_in_another_layout": len(chosen),
    }


def solve_seconds(name: str, layouts: Sequence[int]) -> dict[str, Any]:
    """The proof of a network whose operators and copies have seconds at random."""
    from chanas.compiler.program import Form
    from chanas.models.layouts import choices_in
    from chanas.models.lowering import lower
    from chanas.prescheduler.layouts import LayoutGraph, possible_changes

    rng, target = np.random.default_rng(0), load_target("cpu")
    program = lower(load(name, False).graph, target)
    seconds: dict[int, dict[Form, float]] = {}
    for number, operation in program.tuned_numbers().items():
        forms = [Form(lanes) for lanes in layouts]
        there = [f for f in forms if f == program.form or choices_in(program, number, f.on(target))]
        base_s = operation.step.workload.num_flops / 1e11
        seconds[number] = {form: base_s * rng.uniform(0.8, 1.25) for form in dict.fromkeys([program.form, *there])}
    changes = {c: c.channels * c.pixels * 8 / 2e10 * rng.uniform(0.8, 1.25) for c in possible_changes(program, seconds)}
    _, proof = LayoutGraph.of(program, seconds, changes).chosen()
    row = {"network": name, "nodes": proof.num_nodes, "edges": proof.num_edges, "gap": proof.gap}
    print(f"{name:22s} proven in {proof.solve_s:.3f} s: {proof.num_nodes} nodes, {proof.num_edges} edges", flush=True)
    return {**row, "solve_s": proof.solve_s}


def print_row(row: Mapping[str, Any]) -> None:
    latencies = "  ".join(f"{way} {1e3 * s:.3f}" for way, s in row["latency_s"].items())
    gains = ", ".join(f"{row[of]:.3f}" for of in ("gain", "gain_of_sums", "gain_at_equal_trials"))
    print(f"{row['network']:22s} {latencies} ms")
    print(f"    gain {gains} (measured, of sums, at equal trials), {row['changes']} changes, ", end="")
    print(f"proven in {row['solve_s']:.3f} s")
    for family, found in row["families"].items():
        cells = "  ".join(
            f"{lanes}: {f['ratio']:.2f}x of own, fastest of {f['fastest']:.0%} of {f['operators']:.0f}"
            for lanes, f in found.items()
        )
        print(f"    {family:12s} {cells}", flush=True)


def figures_of(rows: Sequence[Mapping[str, Any]], proofs: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    gains = [row["gain"] for row in rows]
    solve_s = [row["solve_s"] for row in (*rows, *proofs)]
    found = {f"{row['network']}_joint_gain": Figure(row["gain"]) for row in rows}
    found |= {f"{row['network']}_gain_at_equal_trials": Figure(row["gain_at_equal_trials"]) for row in rows}
    for family in sorted({family for row in rows for family in row["families"]}):
        ratios: dict[str, list[float]] = {}
        for row in rows:
            for lanes, facts in row["families"].get(family, {}).items():
                ratios.setdefault(lanes, []).append(facts["ratio"])
        found |= {f"{family}_{lanes}_over_own": Figure(geometric_mean(r)) for lanes, r in ratios.items()}
    return found | {
        "joint_gain": Figure(geometric_mean(gains)),
        "gain_at_equal_trials": Figure(geometric_mean([row["gain_at_equal_trials"] for row in rows])),
        "least_joint_gain": Figure(min(gains), LEAST_GAIN),
        "joint_gain_of_sums": Figure(geometric_mean([row["gain_of_sums"] for row in rows])),
        "saved_without_copies": Figure(statistics.fmean(row["copies"]["saved_without_copies"] for row in rows)),
        "most_solve_s": Figure(max(solve_s), MOST_SOLVE_S, lower_is_better=True),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small network, few trials, no result file")
    parser.add_argument("--networks", nargs="+", help="names in torchvision")
    parser.add_argument("--layouts", default=LAYOUTS, help="channels of a block, as `chanas tune` takes them")
    parser.add_argument("--trials", type=int, help="schedule points per operator and layout (32; 1 with --quick)")
    parser.add_argument("--proofs", nargs="*", default=LARGE, help="names of networks whose choice is proven alone")
    parser.add_argument("--run", type=Path, help="keep records here, and go on with them")
    options = parser.parse_args(arguments)
    options.trials = options.trials or (1 if options.quick else 32)
    networks = options.networks or ((QUICK_NETWORK,) if options.quick else NETWORKS)
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as folder:
        rows = [measure(name, options, options.run or Path(folder)) for name in networks]
    layouts = NetworkEffort(layouts=options.layouts).all_layouts
    proofs = [] if options.quick else [solve_seconds(name, layouts) for name in options.proofs]
    extra = {"trials": options.trials, "layouts": options.layouts, "networks": rows, "proofs": proofs}
    finish("layouts", figures_of(rows, proofs), options.quick, extra)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"layouts: error: {error}") from error
