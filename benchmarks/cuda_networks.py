"""torchvision's MobileNetV3-Large at 224 pixels on this machine's GPU, beside PyTorch; the table beside whole networks.

    python benchmarks/cuda_networks.py [--quick] [--run RUN] [--trials 16] [--dtypes f32,f16] [--batches 1,32]

Contenders, all on one GPU with the same weights and images, in turns, timed by the device's events: the compiled
network (one CUDA graph), PyTorch eager in channels last, and at batch 1 `torch.compile` with CUDA graphs in its modes
`reduce-overhead` and `max-autotune`. Images and logits stay on the device. A call is all images of a batch, and its
time has the host's part in it wherever the device waits for that, as a user has it. Each is timed warm (calls in a row)
and cold (the L2 cache flushed before each call); ratios are of warm medians. With --run, networks of the space of that
run's table for target `cuda` are compiled whole and timed, which tells how far the calibrated table is from them.

Every type and batch is compared with eager first, then comes the table, then torch.compile without autotuning and at
last with it, which takes minutes for each type: it tries some 20 programs for each matrix product. The result is
written after each of these, so that a run that is stopped keeps what it has. What fails costs its own figures alone;
the script then ends with its error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Figure, finish, gpu_kind, write_result

from chanas.core.arch import SearchSpace
from chanas.core.target import HardwareTarget
from chanas.core.usage import GPU_DTYPES
from chanas.devices.host import load_target
from chanas.errors import ChanasError, LUTError, MeasureError
from chanas.files.run import RunDirectory

if TYPE_CHECKING:
    from chanas.measuring.messages import Outcome
    from chanas.prescheduler.tables.networks import NetworkJob

GOALS = {"eager": 1.6, "torch_compile_graphs": 1.2, "torch_compile": 1.2}
COMPILE_MODES = {"torch_compile_graphs": "reduce-overhead", "torch_compile": "max-autotune"}
"""The contenders of `torch.compile`, each with its mode, the quicker first."""
GOAL_MAPE_PERCENT = 5.0
BATCHES, TYPES = (1, 32), ("f32", "f16")
NUM_NETWORKS, SEED_OF_NETWORKS = 12, 7919
TOLERANCES = {"f32": 1e-3, "f16": 5e-2}
"""Of logits, relative to the largest; PyTorch multiplies in TF32 where it is told to, which it isn't here."""


@dataclass(frozen=True)
class Row:
    """One contender: median seconds warm and cold, or why there are none."""

    name: str
    warm_s: float | None = None
    cold_s: float | None = None
    note: str = ""

    def line(self, ours: Row | None) -> str:
        if self.warm_s is None or self.cold_s is None:
            return f"  {self.name:24s} {'-':>10s}    {self.note}"
        ratio = self.warm_s / ours.warm_s if ours is not None and ours.warm_s else float("nan")
        return f"  {self.name:24s} {1e6 * self.warm_s:8.1f} us warm {1e6 * self.cold_s:8.1f} us cold {ratio:7.2f}x"


def in_turns(
    seconds: Callable[[Sequence[Any], bool], float], calls: dict[str, Any], rounds: int, min_round_s: float
) -> list[Row]:
    """Warm and cold medians of each contender's calls, one round of each after the other; `seconds` times calls."""
    samples: dict[tuple[str, bool], list[float]] = {(name, cold): [] for name in calls for cold in (False, True)}
    nums = {}
    for name, call in calls.items():
        seconds([call] * 10, False)
        nums[name] = max(1, round(min_round_s / max(seconds([call], False), 1e-7)))
    for _ in range(rounds):
        for (name, cold), own in samples.items():
            own.append(seconds([calls[name]] * nums[name], cold) / nums[name])
    medians = {key: statistics.median(own) for key, own in samples.items()}
    return [Row(name, medians[name, False], medians[name, True]) for name in calls]


def compiled(folder: Path, target: HardwareTarget, module: Any, trials: int, seed: int) -> tuple[NetworkJob, Any]:
    """Tune the operators of torchvision's network, compile it whole and check it; the job, and what tuning cost.

    Raises:
        MeasureError: it could not be compiled, or computes something else than PyTorch.
    """
    from subjects import torchvision_blocks, torchvision_job
    from tuning import tune_blocks

    from chanas.compiler.cases import mean_network_weight_bytes
    from chanas.operators.steps import device_workloads
    from chanas.prescheduler.blocks import Surroundings
    from chanas.prescheduler.tables.networks import compile_networks

    blocks = torchvision_blocks(module)
    around = Surroundings(mean_network_weight_bytes([blocks], target.dtype), len(blocks))
    lut, tuned = tune_blocks(SearchSpace.load("mbv3"), target, blocks, trials, around, folder / target.name, seed)
    job = torchvision_job(module, blocks, folder / f"{target.name}.so", seed, target.batch)
    (outcome,) = compile_networks(lut, target, [job])
    if outcome.seconds is None:
        raise MeasureError(f"the network could not be compiled and timed: {outcome.error}")
    whole = {"sum_of_blocks_s": sum(lut.block_s(b) for b in blocks), "whole_s": outcome.seconds}
    return job, {
        "tuning": tuned.to_json(),
        **whole,
        "num_launches": sum(len(device_workloads(block, target)) for block in blocks),
    }


def compare(
    job: NetworkJob, target: HardwareTarget, module: Any, rounds: int, min_round_s: float, name: str = ""
) -> list[Row]:
    """Ours and PyTorch's, eager and, with a name of `COMPILE_MODES`, compiled in its mode."""
    import numpy as np

    torch = importlib.import_module("torch")
    from chanas.devices.cuda_runtime import CUDADevice
    from chanas.network.folding import packed_parameters
    from chanas.operators.layout import PLAIN

    device = CUDADevice(target.l2_bytes)
    machine = device.load(job.library)
    packed = packed_parameters(job.blocks, job.parameters, target)
    images, output = device.tensor(PLAIN.pack(job.images)), machine["new_output"]()
    arguments = (images, *(device.tensor(a) for a in packed), output)
    half = target.dtype == "float16"
    network = module.cuda().to(memory_format=torch.channels_last, dtype=torch.float16 if half else torch.float32)
    x = (
        torch.from_numpy(job.images)
        .cuda()
        .to(memory_format=torch.channels_last, dtype=next(network.parameters()).dtype)
    )
    calls: dict[str, Any] = {"chanas": (machine["main"], arguments), "eager": (network, (x,))}
    notes = []
    with torch.inference_mode():
        if name:
            try:
                fast = torch.compile(network, mode=COMPILE_MODES[name])
                for _ in range(3):
                    fast(x)
                calls[name] = (fast, (x,))
            except Exception as error:  # the compiler of another project: whatever it raises is its row's note
                notes.append(Row(name, note=f"did not compile: {type(error).__name__}"))
        for called in list(calls):
            function, given = calls[called]
            got = function(*given)
            logits = output.numpy() if called == "chanas" else got.float().cpu().numpy()
            difference = float(np.abs(logits[: len(job.logits)] - job.logits).max() / np.abs(job.logits).max())
            if not difference <= TOLERANCES["f16" if half else "f32"]:
                notes.append(Row(called, note=f"logits differ from PyTorch's on the processor by {difference:.2g}"))
                del calls[called]
        return (
            in_turns(lambda turns, cold: device.seconds(turns, cold, queued=False), calls, rounds, min_round_s) + notes
        )


def table_error(run: RunDirectory, target: HardwareTarget, num: int) -> tuple[float, list[dict[str, float]]]:
    """Mean error in percent of a run's calibrated table on whole networks not used to calibrate it; and these.

    Raises:
        ChanasError: there is no such table, or none of the networks could be measured.
    """
    import numpy as np

    from chanas.core.usage import TargetName, Usage
    from chanas.prescheduler.tables.calibrate import draw_architectures, measure_networks, terms
    from chanas.workflows.stages.tables import open_table

    table = open_table(None, run, usage=Usage.of(TargetName.parse(target.name)))
    space, classes, lut = table.required_space(), table.num_classes, table.lut
    fit = lut.calibration
    if fit is None:
        raise LUTError(f"the table of {run.root} is not calibrated")
    drawn = draw_architectures(space, num, SEED_OF_NETWORKS, lut.covered(space, classes))
    predicted_s = terms(lut, space, classes, drawn) @ np.array([fit.start_s, fit.scale, fit.boundary_s])
    return mean_error(predicted_s, measure_networks(lut, space, target, classes, drawn))


def mean_error(predicted_s: Sequence[float], outcomes: Sequence[Outcome]) -> tuple[float, list[dict[str, float]]]:
    """Mean error in percent over the networks that could be measured; and these.

    Raises:
        MeasureError: none of them could.
    """
    rows = [
        {"predicted_s": float(p), "measured_s": o.seconds}
        for p, o in zip(predicted_s, outcomes, strict=True)
        if o.seconds is not None
    ]
    if not rows:
        raise MeasureError("none of the networks could be measured")
    return 100.0 * statistics.fmean(abs(r["predicted_s"] / r["measured_s"] - 1.0) for r in rows), rows


def missing_figures() -> dict[str, Figure]:
    """Every figure with its goal, not measured."""
    figures = {
        f"{peer}_{dtype}_batch{batch}": Figure(None, GOALS[peer])
        for dtype in TYPES
        for batch in BATCHES
        for peer in GOALS
        if peer == "eager" or batch == 1
    }
    return {**figures, "lut_mape_percent": Figure(None, GOAL_MAPE_PERCENT, lower_is_better=True)}


@dataclass
class Results:
    """What was measured so far; written after each step of a full run."""

    figures: dict[str, Figure]
    extra: dict[str, Any]
    quick: bool
    kind: str
    """Of the GPU (`gpu_kind`)."""
    failures: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """What fails in the body is told and noted; the steps after it are made all the same."""
        try:
            yield
        except ChanasError as error:
            self.failures.append(f"{name}: {error}")
            print(f"\n{self.failures[-1]}", flush=True)

    def take(self, name: str, rows: Sequence[Row]) -> None:
        """Rows of contenders in one type and batch (`f16_batch32`): printed, their figures kept."""
        ours = next((row for row in rows if row.name == "chanas" and row.warm_s), None)
        for row in rows:
            print(row.line(ours), flush=True)
            if row.name in GOALS and row.warm_s and ours is not None and ours.warm_s:
                self.figures[f"{row.name}_{name}"] = Figure(row.warm_s / ours.warm_s, GOALS[row.name])
        self.extra[name]["rows"] += [vars(row) for row in rows]
        self.write()

    def write(self) -> None:
        if not self.quick:
            write_result("cuda_networks", self.figures, self.extra, self.kind)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one trial per operator, few rounds, no result file")
    parser.add_argument("--run", type=Path, help="run directory with a calibrated table of target cuda, to be judged")
    parser.add_argument("--trials", type=int, help="schedule points per operator (16; 1 with --quick)")
    parser.add_argument("--dtypes", default=",".join(TYPES), help="types that are compared, of those with kernels")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), help="images of a call")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    trials = options.trials or (1 if options.quick else 16)
    timing = (5, 0.005) if options.quick else (41, 0.01)
    dtypes = [d for d in options.dtypes.split(",") if d in GPU_DTYPES]
    try:
        used = [(d, int(b)) for b in options.batches.split(",") for d in dtypes]
        targets = {f"{d}_batch{b}": load_target("cuda", 1, d, b) for d, b in used}
        gpu = load_target("cuda")
    except ChanasError as error:
        raise SystemExit(f"cuda_networks: error: {error}") from error
    extra = {"seed": options.seed, "trials": trials}
    results = Results(missing_figures(), extra, options.quick, gpu_kind(gpu.device))
    print(gpu.device)
    from subjects import mobilenet_v3_large

    jobs: dict[str, NetworkJob] = {}
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as folder:
        for name, target in targets.items():
            with results.step(name):
                fresh = mobilenet_v3_large(options.seed)
                jobs[name], cost = compiled(Path(folder), target, fresh, trials, options.seed)
                print(f"\n{name}, {cost['num_launches']} kernels in one graph")
                results.extra[name] = {"rows": [], **cost}
                results.take(name, compare(jobs[name], target, fresh, *timing))
        if options.run is not None:
            with results.step("table"):
                mape, networks = table_error(RunDirectory(options.run), gpu, NUM_NETWORKS)
                results.figures["lut_mape_percent"] = Figure(mape, GOAL_MAPE_PERCENT, lower_is_better=True)
                results.extra["networks"] = networks
                results.write()
                print(f"\ntable against {len(networks)} whole networks: {mape:.1f} % on average")
        for contender in COMPILE_MODES:
            for name, job in jobs.items():
                if targets[name].batch == 1:
                    print(f"\n{name} beside torch.compile")
                    fresh = mobilenet_v3_large(options.seed)
                    results.take(name, compare(job, targets[name], fresh, *timing, contender))
    finish("cuda_networks", results.figures, options.quick, results.extra, results.kind)
    if results.failures:
        raise SystemExit(f"cuda_networks: error: {'; '.join(results.failures)}")


if __name__ == "__main__":
    main()
