"""Latency of whole compiled networks beside what people run instead: same network, weights, image, cores.

    python benchmarks/network_latency.py [--quick] [--network all|demo|mobilenetv3] [--bundle DIR] [--trials 24]
                                         [--threads 1] [--dtype f32|bf16]

Peers: PyTorch eager, torch.compile (frozen weights), ONNX Runtime, OpenVINO (float32, latency hint). Every contender is
a process of its own, pinned to the cores that the others are pinned to, and they run in turns. Ours runs the compiled
module as a user's process does: image in, logits out. A contender whose logits differ from
PyTorch's is out.

  demo          the largest, a median and the smallest network of space `mbv3-32` (median of 1,000 random ones by
                multiply-accumulates), random weights; or, with --bundle, the network of a bundle that was searched
  mobilenetv3   torchvision's MobileNetV3-Large at 224 pixels, random weights; with one thread also what it must take
                at the core's limits (`roofline.py`)

Figures, the peer's median over ours: demo_vs_eager (the smallest of the networks' ratios; of PyTorch's two memory
layouts the faster counts) and those of mobilenetv3 have goals; the other pairs are for information. A peer that is not
installed is skipped with a note. Results of more than one thread go to a file of their own, and so do those of
`--dtype bf16`, where OpenVINO may compute in bfloat16 too, and whose logits may differ by more.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Figure, finish
from contenders import Contender, ContenderError, Timing, time_in_turns

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.errors import ChanasError

if TYPE_CHECKING:
    from subjects import Subject

    from chanas.core.latency import LatencyLUT
    from chanas.prescheduler.tables.networks import NetworkJob

TASKS = ("demo", "mobilenetv3")
DEMO_SPACE, DEMO_CLASSES = "mbv3-32", 10
# By number of threads and dtype.
GOALS = {
    (1, "f32"): {
        ("demo", "eager"): 2.0,
        ("mobilenetv3", "openvino"): 1.3,
        ("mobilenetv3", "onnxruntime"): 1.35,
        ("mobilenetv3", "torch_compile"): 2.0,
        ("mobilenetv3", "eager"): 3.3,
    },
    (2, "f32"): {("mobilenetv3", "openvino"): 1.2},
    (1, "bf16"): {("mobilenetv3", "openvino_bf16"): 1.35},
}
PEERS = {
    "eager": "PyTorch eager",
    "torch_compile": "torch.compile",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
CHANNELS_LAST = "PyTorch eager, channels last"
BFLOAT16_PEERS = {"openvino_bf16": "OpenVINO bf16"}
# Logits of another library: other orders of sums through some sixty layers; rounding to eight bits in every one.
TOLERANCE, BFLOAT16_TOLERANCE = 1e-3, 5e-2
NUM_FOR_MEDIAN = 1000


@dataclass
class Compared:
    """One network's contenders: timings of those that ran; notes about the others, and remarks on timings."""

    name: str
    architecture: str
    timings: dict[str, Timing] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    relative_error: float | None = None
    """Of our logits, against PyTorch's."""

    def ratio(self, peer: str) -> float | None:
        """The peer's median over ours; PyTorch eager in the faster of its memory layouts."""
        names = (peer, CHANNELS_LAST) if peer == PEERS["eager"] else (peer,)
        theirs = [self.timings[n].median_s for n in names if n in self.timings]
        return min(theirs) / self.timings["chanas"].median_s if theirs and "chanas" in self.timings else None

    def to_json(self) -> dict[str, Any]:
        rows = {
            name: {"median_s": t.median_s, "low_s": t.low_s, "high_s": t.high_s, "rounds": t.num_rounds}
            for name, t in self.timings.items()
        }
        what = {"network": self.name, "architecture": self.architecture, "relative_error": self.relative_error}
        return {**what, "contenders": rows, "notes": self.notes}


def demo_architectures(quick: bool, seed: int) -> dict[str, Architecture]:
    """The demo's networks by name."""
    from random_networks import random_architectures

    space = SearchSpace.load(DEMO_SPACE)
    if quick:
        return {"smallest": space.smallest}
    drawn = random_architectures(space, NUM_FOR_MEDIAN, seed)
    median = sorted(drawn, key=lambda a: a.num_macs(space, DEMO_CLASSES))[len(drawn) // 2]
    return {"largest": space.largest, "median": median, "smallest": space.smallest}


def compiled_bundles(
    architectures: Mapping[str, Architecture], folder: Path, target: HardwareTarget, trials: int, seed: int
) -> tuple[dict[str, Path], dict[str, Any]]:
    """Tune the blocks of the architectures, compile each whole, check it, write bundles; also what tuning cost.

    Raises:
        SystemExit: a network could not be compiled, or computes something else than PyTorch.
    """
    from random_networks import random_job, write_random_bundle
    from tuning import tune_blocks

    from chanas.prescheduler.blocks import surroundings

    space = SearchSpace.load(DEMO_SPACE)
    around = surroundings(space, DEMO_CLASSES, dtype=target.dtype)
    blocks = [b for a in architectures.values() for b in a.blocks(space, DEMO_CLASSES)]
    lut, tuned = tune_blocks(space, target, blocks, trials, around, folder / "tuning", seed)
    jobs = {name: random_job(space, a, DEMO_CLASSES, folder / f"{name}.so", seed) for name, a in architectures.items()}
    sums_s = compile_jobs(lut, target, jobs)
    bundles = {}
    for name, job in jobs.items():
        bundles[name] = folder / f"{name}-bundle"
        write_random_bundle(bundles[name], space, architectures[name], job, target)
    return bundles, {"tuning": tuned.to_json(), "measured_by_prescheduler": sums_s}


def compile_jobs(
    lut: LatencyLUT, target: HardwareTarget, jobs: Mapping[str, NetworkJob]
) -> dict[str, dict[str, float | None]]:
    """Compile networks whole, check and time them: for each the sum of its blocks and the seconds of the whole.

    Raises:
        SystemExit: a network could not be compiled, or computes something else than PyTorch.
    """
    from chanas.prescheduler.tables.networks import compile_networks

    sums_s = {}
    for (name, job), outcome in zip(jobs.items(), compile_networks(lut, target, list(jobs.values())), strict=True):
        if outcome.error is not None:
            raise SystemExit(f"network_latency: error: the {name} network did not compile: {outcome.error}")
        sums_s[name] = {"sum_of_blocks_s": sum(lut.block_s(b) for b in job.blocks), "whole_s": outcome.seconds}
    return sums_s


def compiled_torchvision(
    folder: Path, target: HardwareTarget, trials: int, seed: int
) -> tuple[dict[str, Path], dict[str, Any]]:
    """Tune the blocks of torchvision's MobileNetV3-Large, compile it whole; also what tuning cost, and its limits."""
    import roofline
    from subjects import mobilenet_v3_large, torchvision_blocks, torchvision_job, write_torchvision
    from tuning import time_operators, tune_blocks

    from chanas.compiler.cases import mean_network_weight_bytes
    from chanas.measuring.fleet import WorkerPool
    from chanas.prescheduler.blocks import Surroundings

    name = "mobilenetv3"
    module = mobilenet_v3_large(seed)
    blocks = torchvision_blocks(module)
    around = Surroundings(mean_network_weight_bytes([blocks], target.dtype), len(blocks))
    lut, tuned = tune_blocks(SearchSpace.load("mbv3"), target, blocks, trials, around, folder / "tuning", seed)
    job = torchvision_job(module, blocks, folder / f"{name}.so", seed)
    sums_s = compile_jobs(lut, target, {name: job})
    write_torchvision(folder / name, module, job, target)
    cost: dict[str, Any] = {"tuning": tuned.to_json(), "measured_by_prescheduler": sums_s}
    if target.num_threads == 1 and target.dtype == "float32":
        limits = roofline.measured_limits(blocks, folder)
        with WorkerPool(target) as pool:
            timed = time_operators(pool, target, tuned.points, around, folder / "operators")
        rows = roofline.breakdown(blocks, timed, limits)
        whole_s = sums_s[name]["whole_s"] or float("nan")
        roofline.print_breakdown(rows, whole_s)
        cost["roofline"] = roofline.to_json(rows, limits, whole_s)
    return {name: folder / name}, cost


def export_onnx(subject: Subject, path: Path) -> str | None:
    """Write the network as ONNX; what went wrong, or None."""
    try:
        import torch

        image = torch.zeros(1, *subject.image_shape)
        exported = torch.onnx.export(subject.torch_module(), (image,), dynamo=True, external_data=False, verbose=False)
        assert exported is not None
        exported.save(path)
    except Exception as error:  # another project's exporter: whatever it raises is the note
        return f"no ONNX file: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return None


def compare(
    name: str,
    path: Path,
    folder: Path,
    target: HardwareTarget,
    skip: Sequence[str],
    rounds: int,
    min_round_s: float,
) -> Compared:
    """Start every contender on one network, check what it computes, time all in turns."""
    from subjects import load_subject

    subject = load_subject(path)
    result = Compared(name, subject.name)
    onnx = folder / f"{name}.onnx"
    no_onnx = export_onnx(subject, onnx)
    with contextlib.ExitStack() as stack:
        calls: dict[str, tuple[Contender, int]] = {}
        in_bfloat16 = BFLOAT16_PEERS.values() if target.dtype == "bfloat16" else ()
        for kind in ("chanas", *PEERS.values(), *in_bfloat16):
            needs_onnx = kind in (PEERS["onnxruntime"], PEERS["openvino"], *in_bfloat16)
            if kind in skip or (needs_onnx and no_onnx):
                result.notes[kind] = "skipped" if kind in skip else no_onnx or ""
                continue
            arguments = {"onnx": str(onnx)} if needs_onnx else {"subject": str(path)}
            try:
                contender = stack.enter_context(Contender(kind, target.num_threads, **arguments))
            except ContenderError as error:
                result.notes[kind] = str(error)
                continue
            calls[kind] = (contender, 0)
            if kind == PEERS["eager"]:
                calls[CHANNELS_LAST] = (contender, 1)
        expected = _logits(calls, PEERS["eager"])
        for kind in list(calls):
            difference = relative_error(_logits(calls, kind), expected)
            rounds_off = target.dtype == "bfloat16" and kind in ("chanas", *in_bfloat16)
            if difference > (BFLOAT16_TOLERANCE if rounds_off else TOLERANCE):
                result.notes[kind] = f"logits differ from PyTorch's by {difference:.2g}"
                del calls[kind]
            elif kind == "chanas":
                result.relative_error = difference
        result.timings.update(time_in_turns(calls, rounds, min_round_s))
    return result


def _logits(calls: Mapping[str, tuple[Contender, int]], kind: str) -> list[float]:
    contender, call = calls[kind]
    return contender.output(call)


def relative_error(got: Sequence[float], expected: Sequence[float]) -> float:
    """Largest difference as a share of the largest expected magnitude."""
    largest = max(abs(e) for e in expected)
    return max(abs(g - e) for g, e in zip(got, expected, strict=True)) / largest


def print_table(compared: Compared) -> None:
    print(f"\n{compared.name}: {compared.architecture}")
    ours = compared.timings.get("chanas")
    for name, timing in compared.timings.items():
        ratio = f"{timing.median_s / ours.median_s:6.2f}x" if ours else "      -"
        print(f"  {name:30s} {timing.median_s * 1e3:9.3f} ms {ratio}   half within {timing.spread:.1%}", end="")
        print(f"   {compared.notes[name]}" if name in compared.notes else "")
    for name, note in compared.notes.items():
        if name not in compared.timings:
            print(f"  {name:30s} {'-':>12s}    {note}")


def figures_of(task: str, compared: Sequence[Compared], num_threads: int = 1, dtype: str = "f32") -> dict[str, Figure]:
    """For each peer the smallest ratio over a task's networks; no value unless it ran on all of them."""
    goals = GOALS.get((num_threads, dtype), {})
    figures = {}
    for short, peer in {**PEERS, **(BFLOAT16_PEERS if dtype == "bf16" else {})}.items():
        ratios = [c.ratio(peer) for c in compared]
        value = None if not ratios or None in ratios else min(r for r in ratios if r is not None)
        figures[f"{task}_vs_{short}"] = Figure(value, goals.get((task, short)))
    return figures


def result_name(networks: str, num_threads: int, dtype: str, bundle: Path | None = None) -> str:
    """Name of the results of these options: `network_latency-mobilenetv3-2t-bf16`, `network_latency-demo-of-digits`
    for the bundle `digits` or `digits/bundle`."""
    threads = "" if num_threads == 1 else f"{num_threads}t"
    whole = None if bundle is None else bundle.resolve()
    of = "" if whole is None else f"of-{(whole.parent if whole.name == 'bundle' else whole).name}"
    parts = ("" if networks == "all" else networks, of, threads, "" if dtype == "f32" else dtype)
    return "-".join(["network_latency", *filter(None, parts)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="the demo's smallest network, few trials, no torch.compile"
    )
    parser.add_argument("--network", choices=("all", *TASKS), help="which networks (all; demo with --quick)")
    parser.add_argument("--bundle", type=Path, help="the demo's network: a bundle that `chanas demo` or `search` made")
    parser.add_argument("--trials", type=int, help="schedule points tried per operator (24; 2 with --quick)")
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32", help="what chanas computes in")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = options.network or ("demo" if options.quick else "all")
    tasks = TASKS if chosen == "all" else (chosen,)
    num_trials = options.trials or (2 if options.quick else 24)
    rounds, min_round_s = (9, 0.01) if options.quick else (41, 0.03)
    skip = [PEERS["torch_compile"]] if options.quick else []
    target = load_target("cpu", options.threads, options.dtype)

    figures: dict[str, Figure] = {}
    extra: dict[str, Any] = {
        "seed": options.seed,
        "num_trials": num_trials,
        "threads": target.num_threads,
        "dtype": target.dtype,
    }
    for task in tasks:
        with tempfile.TemporaryDirectory(prefix="chanas-bench-") as name:
            folder = Path(name)
            cost: dict[str, Any]
            if task == "demo" and options.bundle is not None:
                bundles, cost = {"bundle": options.bundle}, {"bundle": str(options.bundle)}
            elif task == "demo":
                architectures = demo_architectures(options.quick, options.seed)
                bundles, cost = compiled_bundles(architectures, folder, target, num_trials, options.seed)
            else:
                bundles, cost = compiled_torchvision(folder, target, num_trials, options.seed)
            compared = [compare(n, path, folder, target, skip, rounds, min_round_s) for n, path in bundles.items()]
        for row in compared:
            print_table(row)
        figures.update(figures_of(task, compared, options.threads, options.dtype))
        extra[task] = {"networks": [row.to_json() for row in compared], **cost}
    print()
    finish(result_name(chosen, options.threads, options.dtype, options.bundle), figures, options.quick, extra)


if __name__ == "__main__":
    try:
        main()
    except ChanasError as error:
        raise SystemExit(f"network_latency: error: {error}") from error
