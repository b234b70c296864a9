"""How near the hardware's limit single operators get after a short tuning, and what a candidate costs.

    python benchmarks/operator_peak.py [--quick] [--trials 24] [--seed 0]

Figures, float32, one thread, batch 1:
  pointwise_share_of_peak       1×1 convolutions: GFLOP/s over the core's multiply-add peak, geometric mean, every
                                operator in a loop of its own (its weights as warm as they fit)
  pointwise_share_of_peak_cold  the same, with weights and code as cold as inside a network, which is how chanas tunes
  depthwise_vs_best_peer        depthwise convolutions with bias and activation: the time of the fastest of PyTorch,
                                ONNX Runtime and OpenVINO over ours, geometric mean, in turns on the same core, each
                                peer in the faster of its memory layouts
  depthwise_vs_pytorch, depthwise_vs_onnxruntime, depthwise_vs_openvino   the same against one of them
  candidate_ms                  milliseconds per schedule point built, checked and timed, all in, as chanas tunes

The workloads are all distinct ones of space `mbv3` at resolution 224 and width 1.0: the 1×1 convolutions of at least
2 MFLOP (dense layers, which are bound by memory, among them), and all depthwise ones. Operations are counted without
the padding of channels to whole vectors. The peak is what `fma_peak.c` reaches on the same core before, between and
after, the highest of all its samples (should an operator be faster, the program was disturbed and the operator's rate
counts as the peak). Each best schedule is timed again, for longer, after tuning.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Figure, finish, geometric_mean
from contenders import Contender, Timing, time_in_turns, timing_core
from peers import PEERS, open_peers, peer_calls, peer_s

from chanas.core.arch import SearchSpace, SubSpace
from chanas.devices.host import load_target
from chanas.errors import ChanasError
from chanas.measuring.fleet import WorkerPool
from chanas.operators.steps import block_workloads
from chanas.operators.workload import Workload

if TYPE_CHECKING:
    from tuning import Tuned

    from chanas.measuring.messages import Outcome

SPACE, NUM_CLASSES, SUB_SPACE = "mbv3", 1000, SubSpace(224, 1.0)
MIN_FLOPS = 2_000_000
CHANAS = "chanas"
WARM_POINTWISE, COLD_POINTWISE, DEPTHWISE = "1x1, warm weights", "1x1, cold weights", "depthwise, cold weights"
QUICK_SHARE = 20  # one workload in this many
PEAK_S = 0.4
# On a quiet core the peak program's samples lie within a few percent of each other.
QUIET_SHARE = 0.9


def workloads_of(op: str, min_flops: int = 0) -> list[Workload]:
    """The distinct workloads of one operator in the sub-space, in order of execution."""
    blocks = SearchSpace.load(SPACE).all_blocks(NUM_CLASSES, (SUB_SPACE,))
    distinct = dict.fromkeys(w for block in blocks for w in block_workloads(block))
    return [w for w in distinct if w.op == op and w.num_flops >= min_flops]


class FmaPeak:
    """GFLOP/s of multiply-adds from registers on the timing core: samples, of which the best is the peak."""

    def __init__(self, folder: Path) -> None:
        self._program = folder / "fma_peak"
        self.instruction_set = ""
        self.samples: list[float] = []
        compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
        if compiler is None:
            raise SystemExit("operator_peak: error: no C compiler found: expected cc, gcc or clang; install gcc")
        source = Path(__file__).resolve().parent / "fma_peak.c"
        subprocess.run([compiler, "-O3", "-march=native", "-o", str(self._program), str(source)], check=True)

    def sample(self) -> None:
        """Run it once more."""
        command = [str(self._program), str(timing_core()), str(PEAK_S)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.instruction_set, *values = output.split()
        self.samples += [float(v) for v in values]


def gflops(workload: Workload, outcome: Outcome | None) -> float | None:
    """The operator's own arithmetic per second, or None when it has no valid timing."""
    return workload.gflops(outcome.seconds) if outcome is not None and outcome.seconds else None


def compare_depthwise(
    workloads: Sequence[Workload], folder: Path, rounds: int, min_round_s: float
) -> dict[Workload, dict[str, Timing]]:
    """Compiled operators beside those of the frameworks that are there, in turns."""
    from tuning import operator_files

    files = [operator_files(folder, w) for w in workloads]
    operators = [{"library": str(library), "case": str(case)} for library, case in files]
    rows = {}
    with ExitStack() as stack:
        ours = stack.enter_context(Contender("chanas operators", operators=operators))
        peers = open_peers(stack, workloads, folder)
        for i, workload in enumerate(workloads):
            calls = {CHANAS: (ours, i), **peer_calls(peers, len(workloads), i)}
            rows[workload] = time_in_turns(calls, rounds, min_round_s)
    return rows


def pointwise_row(workload: Workload, warm: Outcome | None, cold: Outcome | None) -> dict[str, Any]:
    """A row of the table of 1×1 convolutions."""
    shown = {"workload": workload.key, "mflop": workload.num_flops / 1e6, "dense": workload.input_size == 1}
    return {**shown, "warm_gflops": gflops(workload, warm), "cold_gflops": gflops(workload, cold)}


def print_pointwise(rows: Sequence[Mapping[str, Any]], peak_gflops: float) -> None:
    print(f"\n{'1x1 convolution':52s} {'MFLOP':>7s} {'warm':>13s} {'cold':>13s}   GFLOP/s, share of {peak_gflops:.0f}")
    for row in rows:
        cells = [
            f"{row[s]:6.1f} {row[s] / peak_gflops:6.1%}" if row[s] else f"{'failed':>13s}"
            for s in ("warm_gflops", "cold_gflops")
        ]
        print(f"{row['workload']:52s} {row['mflop']:7.1f} {cells[0]:>13s} {cells[1]:>13s}")


def print_depthwise(rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"\n{'depthwise convolution':48s} {CHANAS:>8s}", end="")
    print("".join(f" {name:>15s}" for name in PEERS.values()), "  us, over ours")
    for row in rows:
        times = [row["peers_s"][key] for key in PEERS]
        cells = (f" {1e6 * s:8.1f} {s / row['chanas_s']:5.2f}x" if s else f" {'–':>15s}" for s in times)
        print(f"{row['workload']:48s} {1e6 * row['chanas_s']:8.1f}" + "".join(cells))


def depthwise_row(workload: Workload, timings: Mapping[str, Timing]) -> dict[str, Any]:
    """A row of the depthwise table: seconds of ours and of every peer (None where it took no part)."""
    peers = {key: peer_s(timings, name) for key, name in PEERS.items()}
    ours = timings[CHANAS]
    return {"workload": workload.key, "chanas_s": ours.median_s, "chanas_spread": ours.spread, "peers_s": peers}


def depthwise_ratio(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> float | None:
    """Time of the fastest of the peers `keys` over ours, geometric mean; None unless all of them have all rows."""
    if not rows or not all(row["peers_s"][key] for row in rows for key in keys):
        return None
    return geometric_mean([min(row["peers_s"][key] for key in keys) / row["chanas_s"] for row in rows])


def share_of_peak(rows: Sequence[Mapping[str, Any]], key: str, peak_gflops: float) -> float | None:
    """Geometric mean of the shares; None unless every row has one."""
    values = [row[key] for row in rows]
    return geometric_mean([v / peak_gflops for v in values]) if values and all(values) else None


def tuning_line(name: str, tuned: Tuned) -> str:
    failed = sum(tuned.errors.values())
    reasons = "".join(f"; {n}x {error}" for error, n in tuned.errors.items())
    line = f"{name:26s} {tuned.num_trials:5d} {failed:7d} {tuned.wall_s:8.1f} {tuned.candidate_ms:8.0f}"
    return (line + reasons).rstrip()


@dataclass(frozen=True)
class Results:
    """What a run measured: rows of both tables, what tuning took, and samples of the peak program (GFLOP/s)."""

    pointwise: list[dict[str, Any]]
    depthwise: list[dict[str, Any]]
    num_depthwise: int
    tuned: dict[str, Tuned]
    instruction_set: str
    peak_samples: list[float]

    @property
    def fastest_gflops(self) -> float:
        """The best rate of any 1×1 convolution."""
        return max((row["warm_gflops"] or 0.0 for row in self.pointwise), default=0.0)

    @property
    def peak_gflops(self) -> float:
        return max(*self.peak_samples, self.fastest_gflops)

    @property
    def was_quiet(self) -> bool:
        """Whether nothing else seems to have kept the core busy."""
        sampled = max(self.peak_samples)
        return sampled >= self.fastest_gflops and statistics.median(self.peak_samples) >= QUIET_SHARE * sampled


def measure(num_trials: int, step: int, rounds: int, min_round_s: float, seed: int) -> Results:
    """Tune and time one in `step` of the workloads."""
    from tuning import WARM, time_operators, tune_operators  # not at the top: --help answers at once

    from chanas.prescheduler.blocks import surroundings

    target, cold = load_target("cpu"), surroundings(SearchSpace.load(SPACE), NUM_CLASSES)
    pointwise, depthwise = workloads_of("pointwise", MIN_FLOPS)[::step], workloads_of("depthwise")[::step]
    tuned: dict[str, Tuned] = {}
    timed: dict[str, dict[Workload, Outcome]] = {}
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as name, WorkerPool(target) as pool:
        folder = Path(name)
        peak = FmaPeak(folder)
        for what, workloads, around in (
            (WARM_POINTWISE, pointwise, WARM),
            (COLD_POINTWISE, pointwise, cold),
            (DEPTHWISE, depthwise, cold),
        ):
            peak.sample()
            scratch = folder / what
            tuned[what] = tune_operators(pool, target, workloads, num_trials, around, scratch, seed)
            timed[what] = time_operators(pool, target, tuned[what].points, around, scratch)
        peak.sample()
        valid = [w for w, outcome in timed[DEPTHWISE].items() if outcome.seconds]
        compared = compare_depthwise(valid, folder / DEPTHWISE, rounds, min_round_s)
    return Results(
        [pointwise_row(w, timed[WARM_POINTWISE].get(w), timed[COLD_POINTWISE].get(w)) for w in pointwise],
        [depthwise_row(w, timings) for w, timings in compared.items()],
        len(depthwise),
        tuned,
        peak.instruction_set,
        peak.samples,
    )


def figures_of(results: Results) -> dict[str, Figure]:
    """The figures; an operator without a valid schedule leaves its geometric mean without a value."""
    rows, peak, goals = results.pointwise, results.peak_gflops, {"pytorch": 1.5}
    convolutions = [row for row in rows if not row["dense"]]
    depthwise = results.depthwise if len(results.depthwise) == results.num_depthwise else []
    as_chanas_tunes = [t for what, t in results.tuned.items() if what != WARM_POINTWISE]
    wall_s, num_trials = sum(t.wall_s for t in as_chanas_tunes), sum(t.num_trials for t in as_chanas_tunes)
    return {
        "pointwise_share_of_peak": Figure(share_of_peak(rows, "warm_gflops", peak), 0.90),
        "pointwise_share_of_peak_cold": Figure(share_of_peak(rows, "cold_gflops", peak)),
        "pointwise_share_of_peak_without_dense": Figure(share_of_peak(convolutions, "warm_gflops", peak)),
        "depthwise_vs_best_peer": Figure(depthwise_ratio(depthwise, list(PEERS)), 2.0),
        **{f"depthwise_vs_{key}": Figure(depthwise_ratio(depthwise, [key]), goals.get(key)) for key in PEERS},
        "candidate_ms": Figure(1e3 * wall_s / max(1, num_trials), 150.0, lower_is_better=True),
        "failed_candidates": Figure(sum(sum(t.errors.values()) for t in results.tuned.values())),
    }


def print_tables(results: Results) -> None:
    print_pointwise(results.pointwise, results.peak_gflops)
    print_depthwise(results.depthwise)
    print(f"\n{'tuning':26s} {'tried':>5s} {'failed':>7s} {'seconds':>8s} {'ms each':>8s}")
    for what, tuned in results.tuned.items():
        print(tuning_line(what, tuned))
    median = statistics.median(results.peak_samples)
    print(f"\npeak {results.peak_gflops:.1f} GFLOP/s ({results.instruction_set}, median of its samples {median:.1f})")
    if not results.was_quiet:
        print("the core was busy with something else: don't rely on these figures")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few workloads and trials, under a minute, no result file")
    parser.add_argument("--trials", type=int, help="schedule points tried per workload (24; 3 with --quick)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    num_trials = options.trials or (3 if options.quick else 24)
    step, rounds, min_round_s = (QUICK_SHARE, 5, 0.002) if options.quick else (1, 15, 0.005)

    results = measure(num_trials, step, rounds, min_round_s, options.seed)
    print_tables(results)
    extra = {
        "seed": options.seed,
        "num_trials": num_trials,
        "threads": 1,
        "instruction_set": results.instruction_set,
        "peak_gflops": results.peak_gflops,
        "peak_samples_gflops": results.peak_samples,
        "was_quiet": results.was_quiet,
        "tuning": {what: tuned.to_json() for what, tuned in results.tuned.items()},
        "pointwise": results.pointwise,
        "depthwise": results.depthwise,
    }
    finish("operator_peak", figures_of(results), options.quick, extra)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"operator_peak: error: {error}") from error
