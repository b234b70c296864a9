"""The same networks with tuned schedules and without (CHaNAS, section 4.2): latency, and how it ranks architectures.

    python benchmarks/with_without.py [--quick] [--run DIR | --space mbv3 --trials 24] [--num 20] [--seed 0]

Random architectures of a space, random weights, one thread. Three ways to run each:

  tuned     compiled with the best schedule of every block: those of a run's table with --run, else tuned here
  untuned   TVM's stock route for a CPU: the network's ONNX file (batch norms folded by the exporter) imported into
            Relax, its operators fused as TVM's passes fuse them, built by the default pipeline for the same processor
            at the same optimisation level. TVM has no default schedules for a CPU: its loops are as the operators
            state them, and what is fast is what LLVM makes of that
  eager     PyTorch, in the faster of its two memory layouts

Each is a process of its own, pinned to the core that the others are pinned to, and they run in turns. One whose logits
differ from PyTorch's is out. Figures: the geometric means of the latencies over those of the tuned networks, and
Kendall's tau between latencies of the architectures tuned and untuned: the further from 1, the more a search that
looks at untuned latencies is misled (the paper's figure 4).
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Figure, finish, geometric_mean
from contenders import Contender, ContenderError, time_in_turns
from lut_error import stored_table
from network_latency import CHANNELS_LAST, TOLERANCE, Compared, export_onnx, print_table, relative_error

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.core.statistics import kendall_tau
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.errors import ChanasError
from chanas.files.run import RunDirectory

TUNED, UNTUNED, EAGER = "chanas", "TVM untuned", "PyTorch eager"
SPACE, NUM_CLASSES, NUM_NETWORKS, NUM_TRIALS = "mbv3", 1000, 20, 24
QUICK_SPACE, QUICK_CLASSES, QUICK_NETWORKS, QUICK_TRIALS = "mbv3-32", 10, 2, 2


def drawn_architectures(
    space: SearchSpace, num_classes: int, lut: LatencyLUT, num: int, seed: int
) -> list[Architecture]:
    """Random architectures whose blocks are all in the table, spread evenly over the sub-spaces that it covers.

    Raises:
        SystemExit: the table covers no sub-space.
    """
    from random_networks import random_architectures

    covered = lut.covered(space, num_classes)
    if not covered:
        raise SystemExit("with_without: error: the table covers no sub-space; run `chanas prescheduler` to fill it")
    if len(covered) == len(space.sub_spaces):
        return random_architectures(space, num, seed)
    groups = [random_architectures(space, -(-num // len(covered)), seed, s) for s in covered]
    return [architecture for group in zip(*groups, strict=True) for architecture in group][:num]


def write_bundles(
    space: SearchSpace,
    num_classes: int,
    lut: LatencyLUT,
    architectures: Sequence[Architecture],
    folder: Path,
    target: HardwareTarget,
    seed: int,
) -> list[Path]:
    """Compile the architectures with the table's schedules, check what they compute, write a bundle of each.

    Raises:
        SystemExit: a network could not be compiled, or computes something else than PyTorch.
    """
    from random_networks import random_job, write_random_bundle

    from chanas.prescheduler.tables.networks import compile_networks

    jobs = [random_job(space, a, num_classes, folder / f"{i}.so", seed) for i, a in enumerate(architectures)]
    bundles = []
    outcomes = compile_networks(lut, target, jobs)
    for i, (architecture, job, outcome) in enumerate(zip(architectures, jobs, outcomes, strict=True)):
        if outcome.error is not None:
            raise SystemExit(f"with_without: error: {architecture.key} did not compile: {outcome.error}")
        bundles.append(folder / f"bundle{i}")
        write_random_bundle(bundles[-1], space, architecture, job, target)
    return bundles


def compare(bundle: Path, folder: Path, target: HardwareTarget, rounds: int, min_round_s: float) -> Compared:
    """Start the three on one bundle, check what they compute, time all in turns."""
    from subjects import load_subject

    subject = load_subject(bundle)
    result = Compared(bundle.name, subject.name)
    onnx = folder / f"{bundle.name}.onnx"
    no_onnx = export_onnx(subject, onnx)
    with contextlib.ExitStack() as stack:
        calls: dict[str, tuple[Contender, int]] = {}
        kinds: dict[str, dict[str, Any]] = {
            EAGER: {"subject": str(bundle)},
            TUNED: {"subject": str(bundle)},
            UNTUNED: {"onnx": str(onnx), "target": target.to_json()},
        }
        for kind, arguments in kinds.items():
            if kind == UNTUNED and no_onnx:
                result.notes[kind] = no_onnx
                continue
            try:
                calls[kind] = (stack.enter_context(Contender(kind, target.num_threads, **arguments)), 0)
            except ContenderError as error:
                result.notes[kind] = str(error)
        if EAGER in calls:
            calls[CHANNELS_LAST] = (calls[EAGER][0], 1)
            expected = calls[EAGER][0].output(0)
            for kind, (contender, call) in list(calls.items()):
                difference = relative_error(contender.output(call), expected)
                if difference > TOLERANCE:
                    result.notes[kind] = f"logits differ from PyTorch's by {difference:.2g}"
                    del calls[kind]
        result.timings.update(time_in_turns(calls, rounds, min_round_s))
    return result


def figures_of(rows: Sequence[Compared]) -> dict[str, Figure]:
    """Figures of the networks that ran in all three ways; without any there is no value."""
    names = (TUNED, UNTUNED, EAGER)
    whole = [row for row in rows if all(name in row.timings for name in names)]
    tuned, untuned = ([row.timings[name].median_s for row in whole] for name in (TUNED, UNTUNED))
    ratios = {name: [ratio for row in whole if (ratio := row.ratio(name)) is not None] for name in (UNTUNED, EAGER)}
    eager = [ratio * own for ratio, own in zip(ratios[EAGER], tuned, strict=True)]
    return {
        "untuned_over_tuned": Figure(geometric_mean(ratios[UNTUNED])),
        "eager_over_tuned": Figure(geometric_mean(ratios[EAGER])),
        "smallest_untuned_over_tuned": Figure(min(ratios[UNTUNED], default=None)),
        "kendall_tau_tuned_untuned": Figure(kendall_tau(tuned, untuned)),
        "kendall_tau_tuned_eager": Figure(kendall_tau(tuned, eager)),
        "num_networks": Figure(float(len(whole))),
    }


def tuned_here(
    space: SearchSpace, num_classes: int, num: int, num_trials: int, folder: Path, target: HardwareTarget, seed: int
) -> tuple[list[Architecture], LatencyLUT, dict[str, Any]]:
    """Random architectures, a table of their blocks alone, and what tuning cost."""
    from random_networks import random_architectures
    from tuning import tune_blocks

    from chanas.prescheduler.blocks import surroundings

    architectures = random_architectures(space, num, seed)
    blocks = [b for a in architectures for b in a.blocks(space, num_classes)]
    around = surroundings(space, num_classes)
    lut, tuned = tune_blocks(space, target, blocks, num_trials, around, folder / "tuning", seed)
    return architectures, lut, {"num_trials": num_trials, "tuning": tuned.to_json()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two networks of the demo's space, few trials")
    parser.add_argument("--run", type=Path, help="take space and schedules from the latency table of this run")
    parser.add_argument("--space", help=f"a preset or a YAML file ({SPACE}; {QUICK_SPACE} with --quick)")
    parser.add_argument("--num-classes", type=int, help=f"classes ({NUM_CLASSES}; {QUICK_CLASSES} with --quick)")
    parser.add_argument("--num", type=int, help=f"networks ({NUM_NETWORKS}; {QUICK_NETWORKS} with --quick)")
    parser.add_argument("--trials", type=int, help=f"per operator ({NUM_TRIALS}; {QUICK_TRIALS} with --quick)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    quick, seed = options.quick, options.seed
    num = options.num or (QUICK_NETWORKS if quick else NUM_NETWORKS)
    rounds, min_round_s = (5, 0.01) if quick else (41, 0.03)
    target = load_target("cpu")

    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as name:
        folder = Path(name)
        cost: dict[str, Any]
        if options.run is not None:
            space, num_classes, lut = stored_table(RunDirectory(options.run), target)
            architectures, cost = drawn_architectures(space, num_classes, lut, num, seed), {"run": options.run.name}
        else:
            space = SearchSpace.load(options.space or (QUICK_SPACE if quick else SPACE))
            num_classes = options.num_classes or (QUICK_CLASSES if quick else NUM_CLASSES)
            num_trials = options.trials or (QUICK_TRIALS if quick else NUM_TRIALS)
            architectures, lut, cost = tuned_here(space, num_classes, num, num_trials, folder, target, seed)
        bundles = write_bundles(space, num_classes, lut, architectures, folder, target, seed)
        rows = []
        for bundle in bundles:
            rows.append(compare(bundle, folder, target, rounds, min_round_s))
            print_table(rows[-1])
    print()
    extra = {"seed": seed, "space": space.name, "threads": target.num_threads, "networks": [r.to_json() for r in rows]}
    finish("with_without", figures_of(rows), quick, {**extra, **cost})


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"with_without: error: {error}") from error
