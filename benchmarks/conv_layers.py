"""The paper's 18 convolution layers (table 3), tuned one by one, beside PyTorch, ONNX Runtime and OpenVINO (figure 13).

    python benchmarks/conv_layers.py [--quick] [--trials 64] [--seed 0]

Figures, float32, one thread, batch 1, each layer with bias and ReLU and its weights as warm as they fit:
  latency_reduction_percent  how much lower our mean latency over the layers is than PyTorch's, per layer the faster of
                             its two memory layouts (the paper: 40 % under TFLite on a Note 10)
  vs_best_peer               the fastest of PyTorch, ONNX Runtime and OpenVINO over ours, geometric mean of the layers
  vs_pytorch, vs_onnxruntime, vs_openvino   the same against one of them
  plain_...                  the same where we use the plain algorithm only
  plain_share_of_peak        its GFLOP/s over the core's multiply-add peak, geometric mean
  mean_latency_ms            ours, over the layers

Layers that read the image (3 channels) are convolutions of an image. The others are convolutions of channel blocks and
are tuned with both of our algorithms, the plain sum and Winograd's along rows (with fewer multiplications; results
within the same tolerance of PyTorch's), each with its own trials; the faster counts. The peers pick their algorithms
themselves. Operations are counted without the padding of channels to whole vectors: 24 and 40 channels fill 75 % and
83 % of theirs, so those layers stay below that share of the peak.

Every contender runs in a process of its own, in turns on the same core. We and PyTorch read and write activations in
the layout that the layer computes in, OpenVINO the faster of channels first and channels last, ONNX Runtime channels
first, which is all it takes: what they convert at a model's border is in their times. A full run also draws
`results/conv_layers-KIND.svg`.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common
from common import Figure, finish, geometric_mean
from contenders import Contender, ContenderError, Timing, time_in_turns
from operator_peak import FmaPeak
from peers import PEERS, open_peers, peer_calls, peer_s

from chanas.compiler.space import Point
from chanas.devices.host import load_target
from chanas.errors import ChanasError
from chanas.measuring.fleet import WorkerPool
from chanas.operators.workload import Workload

if TYPE_CHECKING:
    from tuning import Tuned

# Input size, channels in and out, stride; once for each kernel size.
SHAPES = ((224, 3, 16, 1), (224, 16, 24, 2), (112, 24, 40, 2), (56, 40, 80, 2), (28, 80, 112, 1), (14, 160, 160, 1))
KERNEL_SIZES = (3, 5, 7)
QUICK = ("L1", "L3", "L6")
CHANAS, PLAIN, WINOGRAD = "chanas", "chanas, plain", "chanas, Winograd"


def layers() -> dict[str, Workload]:
    """Table 3 by its names."""
    shapes = [(kernel, shape) for kernel in KERNEL_SIZES for shape in SHAPES]
    return {
        f"L{i}": Workload("conv" if inp == 3 else "blockconv", size, inp, out, kernel, stride, "relu")
        for i, (kernel, (size, inp, out, stride)) in enumerate(shapes, 1)
    }


def algorithms(layer: Workload) -> dict[str, Workload]:
    """What a layer can be computed by."""
    if layer.op == "conv":
        return {PLAIN: layer}
    return {PLAIN: layer, WINOGRAD: dataclasses.replace(layer, op="winograd")}


@dataclass(frozen=True)
class Row:
    """One layer: seconds of every contender that took part, and our schedule point of each algorithm."""

    name: str
    workload: Workload
    timings: Mapping[str, Timing]
    points: Mapping[str, Point]

    @property
    def ours_s(self) -> float:
        """Seconds of our faster algorithm."""
        return min(self.timings[k].median_s for k in (PLAIN, WINOGRAD) if k in self.timings)

    @property
    def plain_s(self) -> float:
        return self.timings[PLAIN].median_s

    @property
    def gflops(self) -> float:
        """GFLOP/s of the plain algorithm, of the layer's own arithmetic."""
        return self.workload.gflops(self.plain_s)

    def peer_s(self, name: str) -> float | None:
        """Seconds of a peer in the faster of its layouts, None when it is not there."""
        return peer_s(self.timings, name)

    @property
    def best_peer_s(self) -> float | None:
        """Seconds of the fastest peer; None when PyTorch is the only one."""
        found = [s for s in map(self.peer_s, PEERS.values()) if s is not None]
        return min(found) if len(found) > 1 else None

    def to_json(self) -> dict[str, Any]:
        return {
            "layer": self.name,
            "workload": self.workload.key,
            "points": {k: list(p) for k, p in self.points.items()},
            "mflop": self.workload.num_flops / 1e6,
            "plain_gflops": self.gflops,
            "gflops": self.workload.gflops(self.ours_s),
            "chanas_s": self.ours_s,
            "seconds": {k: t.median_s for k, t in self.timings.items()},
            "spread": {k: t.spread for k, t in self.timings.items()},
            "vs_pytorch": _ratio(self.peer_s(PEERS["pytorch"]), self.ours_s),
            "vs_best_peer": _ratio(self.best_peer_s, self.ours_s),
        }


def _ratio(peer_s: float | None, ours_s: float) -> float | None:
    return None if peer_s is None else peer_s / ours_s


def compare(
    rows: Sequence[Mapping[str, Workload]], folder: Path, rounds: int, min_round_s: float
) -> list[dict[str, Timing]]:
    """Compiled layers (each by one or more algorithms) beside the same in the frameworks that are there, in turns."""
    from tuning import operator_files

    timings = []
    workloads = [row[PLAIN] for row in rows]
    own = [(i, name, workload) for i, row in enumerate(rows) for name, workload in row.items()]
    with ExitStack() as stack:
        files = [operator_files(folder, w) for _, _, w in own]
        operators = [{"library": str(library), "case": str(case)} for library, case in files]
        ours = stack.enter_context(Contender("chanas operators", operators=operators))
        others = open_peers(stack, workloads, folder)
        for i in range(len(workloads)):
            calls = {name: (ours, call) for call, (row, name, _) in enumerate(own) if row == i}
            calls.update(peer_calls(others, len(workloads), i))
            timings.append(time_in_turns(calls, rounds, min_round_s))
    return timings


def measure(
    chosen: Mapping[str, Workload], num_trials: int, rounds: int, min_round_s: float, seed: int
) -> tuple[list[Row], Tuned, FmaPeak]:
    """Tune and compare the layers; one without a valid schedule has no row."""
    from tuning import WARM, time_operators, tune_operators  # not at the top: --help answers at once

    target = load_target("cpu")
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as name:
        folder = Path(name)
        peak = FmaPeak(folder)
        with WorkerPool(target) as pool:
            peak.sample()
            workloads = [w for layer in chosen.values() for w in algorithms(layer).values()]
            tuned = tune_operators(pool, target, workloads, num_trials, WARM, folder, seed)
            outcomes = time_operators(pool, target, tuned.points, WARM, folder)
            peak.sample()
        done = {w for w, outcome in outcomes.items() if outcome.seconds}
        valid = {n: {k: a for k, a in algorithms(w).items() if a in done} for n, w in chosen.items() if w in done}
        timings = compare(list(valid.values()), folder, rounds, min_round_s) if valid else []
        peak.sample()
    rows = [
        Row(n, chosen[n], t, {k: tuned.points[a] for k, a in ways.items()})
        for (n, ways), t in zip(valid.items(), timings, strict=True)
    ]
    return rows, tuned, peak


def peak_gflops(rows: Sequence[Row], samples: Sequence[float]) -> float:
    """The core's peak: should a layer be faster than the program, the program was disturbed."""
    return max(*samples, *(row.gflops for row in rows))


def figures_of(rows: Sequence[Row], num_layers: int, peak: float) -> dict[str, Figure]:
    """The figures; without a value where a layer or a peer is missing."""
    complete = len(rows) == num_layers > 0

    def mean_ratio(peers_s: Sequence[float | None], own_s: Sequence[float]) -> float | None:
        ratios = [peer_s / s for peer_s, s in zip(peers_s, own_s, strict=True) if peer_s is not None]
        return geometric_mean(ratios) if complete and len(ratios) == num_layers else None

    def reduction(own_s: Sequence[float]) -> float | None:
        torch_s = sum(row.peer_s(PEERS["pytorch"]) or math.nan for row in rows)
        return 100 * (1 - sum(own_s) / torch_s) if complete else None

    ours, plain = [row.ours_s for row in rows], [row.plain_s for row in rows]
    best = [row.best_peer_s for row in rows]
    figures = {
        "latency_reduction_percent": Figure(reduction(ours), 40.0),
        "vs_best_peer": Figure(mean_ratio(best, ours), 1.3),
        "plain_latency_reduction_percent": Figure(reduction(plain)),
        "plain_vs_best_peer": Figure(mean_ratio(best, plain)),
        "plain_share_of_peak": Figure(geometric_mean([row.gflops / peak for row in rows]) if complete else None, 0.70),
        "mean_latency_ms": Figure(1e3 * sum(ours) / num_layers if complete else None),
    }
    for key, name in PEERS.items():
        figures[f"vs_{key}"] = Figure(mean_ratio([row.peer_s(name) for row in rows], ours))
    return figures


def print_table(rows: Sequence[Row], peak: float) -> None:
    peers = list(PEERS.values())
    print(f"\n{'layer':42s} {'MFLOP':>6s} {'plain GFLOP/s':>15s} {'plain':>8s} {'Winograd':>9s}", end="")
    print("".join(f" {name:>15s}" for name in peers), "  us, over our faster one")
    for row in rows:
        winograd = f"{1e6 * row.timings[WINOGRAD].median_s:9.1f}" if WINOGRAD in row.timings else f"{'–':>9s}"
        print(f"{row.name:4s}{row.workload.key:38s} {row.workload.num_flops / 1e6:6.0f} {row.gflops:7.1f}", end="")
        print(f" {row.gflops / peak:7.1%} {1e6 * row.plain_s:8.1f} {winograd}", end="")
        times = [row.peer_s(name) for name in peers]
        print("".join(f" {1e6 * s:8.1f} {s / row.ours_s:5.2f}x" if s else f" {'–':>15s}" for s in times))


def draw(rows: Sequence[Row], path: Path) -> None:
    """Latencies of the layers side by side, as in the paper's figure 13; above: the fastest peer over ours."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    names = [n for n in (CHANAS, *PEERS.values()) if n == CHANAS or any(row.peer_s(n) for row in rows)]
    width = 0.8 / len(names)
    with pyplot.rc_context({"svg.hashsalt": "chanas", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(11, 4), layout="constrained")
        for i, (name, hatch) in enumerate(zip(names, ("", "//", "..", "xx"), strict=False)):
            heights = [1e3 * (row.ours_s if name == CHANAS else row.peer_s(name) or 0.0) for row in rows]
            places = [x + (i - (len(names) - 1) / 2) * width for x in range(len(rows))]
            axes.bar(places, heights, width, label=name, hatch=hatch, edgecolor="white", linewidth=0.3)
        for x, row in enumerate(rows):
            ratio, top = _ratio(row.best_peer_s, row.ours_s), max(row.peer_s(n) or 0.0 for n in PEERS.values())
            if ratio is not None:
                axes.annotate(f"{ratio:.2f}×", (x, 1e3 * max(top, row.ours_s)), ha="center", va="bottom", fontsize=7)
        axes.set_xticks(range(len(rows)), [row.name for row in rows])
        axes.set_ylabel("latency, ms")
        axes.set_title("Convolution layers of table 3, float32, one thread; above: the fastest peer over chanas")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three layers, few trials, about a minute, no result file")
    parser.add_argument(
        "--trials", type=int, help="schedule points tried per layer and algorithm (64; 12 with --quick)"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    num_trials = options.trials or (12 if options.quick else 64)
    rounds, min_round_s = (5, 0.01) if options.quick else (15, 0.02)
    chosen = {name: w for name, w in layers().items() if not options.quick or name in QUICK}

    rows, tuned, peak = measure(chosen, num_trials, rounds, min_round_s, options.seed)
    highest = peak_gflops(rows, peak.samples)
    print_table(rows, highest)
    print(f"\npeak {highest:.1f} GFLOP/s ({peak.instruction_set}); {tuned.num_trials} points in {tuned.wall_s:.0f} s")
    for error, count in tuned.errors.items():
        print(f"{count} failed: {error}")
    if not options.quick:
        common.RESULTS.mkdir(parents=True, exist_ok=True)
        draw(rows, common.result_path("conv_layers", common.machine_kind(), ".svg"))
    extra = {
        "seed": options.seed,
        "num_trials": num_trials,
        "threads": 1,
        "instruction_set": peak.instruction_set,
        "peak_gflops": highest,
        "peak_samples_gflops": peak.samples,
        "tuning": tuned.to_json(),
        "layers": [row.to_json() for row in rows],
    }
    finish("conv_layers", figures_of(rows, len(chosen), highest), options.quick, extra)


if __name__ == "__main__":
    try:
        main()
    except (ChanasError, ContenderError) as error:
        raise SystemExit(f"conv_layers: error: {error}") from error
