"""The three stages wired together: the Python API, and what the commands call.

Stages never import each other; here one stage's functions are handed to the next, and files in the run directory carry
the data between them.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chanas.arch import Architecture, SearchSpace, SubSpace
from chanas.emit import agreed, further_documents, tested, winner_document
from chanas.errors import ChanasError, CheckpointError, ConfigError, StageOrderError, unknown_name
from chanas.latency import LatencyLUT
from chanas.run import RunDirectory, file_digest, read_json
from chanas.scratch import scratch_folder
from chanas.search_targets import (
    Latencies,
    TargetBudget,
    TargetTable,
    held_budgets,
    largest_batch,
    library_path,
    measured_on,
    no_table,
)
from chanas.target import HardwareTarget, load_target
from chanas.training_pipeline import evaluate as evaluate
from chanas.training_pipeline import finetune as finetune
from chanas.training_pipeline import stored_task as stored_task
from chanas.training_pipeline import train_supernet as train_supernet

if TYPE_CHECKING:
    from chanas.codesign import CoDesign
    from chanas.prescheduler.lut import PrescheduleSummary
    from chanas.prescheduler.networks import NetworkJob
    from chanas.prescheduler.pool import OpenPool
    from chanas.prescheduler.tune import TuneConfig
    from chanas.search.config import SearchConfig
    from chanas.search.cosearch import SearchOutcome
    from chanas.supernet.evaluate import SupernetEvaluator

DEFAULT_SPACE = "mbv3-32"
DEFAULT_NUM_CLASSES = 10
DEFAULT_CALIBRATION = 12
_DEMO_EVALUATIONS = (60, 16)  # before and after the evolution; each takes a third of a second, and tells little more


def preschedule(
    run: RunDirectory,
    *,
    target: str = "cpu",
    num_threads: int = 1,
    dtype: str = "f32",
    batch: int = 1,
    space: str | Path | None = None,
    num_classes: int | None = None,
    num_trials: int | None = None,
    sub_spaces: Sequence[str] = (),
    cost_model: str = "gp",
    num_calibration: int = DEFAULT_CALIBRATION,
    rpc: str | None = None,
    key: str | None = None,
    warm_start: str | None = None,
    num_devices: int | None = None,
    shared: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> PrescheduleSummary:
    """Tune every block on the target, write the latency table, and calibrate it against whole networks.

    Space and number of classes are those of the run's supernet where there is one and nothing else is asked for. With
    `rpc` (a tracker's HOST:PORT) and `key` the target is what devices of that key say they are, and `num_devices` of
    them time (all that are free by default). `warm_start`: another run, a file of records, or another target of this
    run, whose records the tuning begins with. `shared`: on a GPU that another process uses, too.

    Raises:
        TargetError: the target is unknown or not there, has no instructions for the dtype, another process uses it, or
            the batch is above 1 on a processor.
        MeasureError: blocks remain that could not be measured.
    """
    from chanas.prescheduler.devices import timing_device
    from chanas.prescheduler.lut import preschedule as fill
    from chanas.prescheduler.warm_start import open_warm_start

    stored = stored_task(run)
    loaded = SearchSpace.load(space) if space is not None else stored[0] if stored else SearchSpace.load(DEFAULT_SPACE)
    classes = num_classes or (stored[1] if stored else DEFAULT_NUM_CLASSES)
    config, chosen = tune_config(num_trials), parse_sub_spaces(loaded, sub_spaces)
    held = timing_device(target, num_threads, dtype, rpc, key, num_devices, batch=batch, shared=shared)
    with held as (hardware, open_pool):
        return fill(
            run,
            loaded,
            hardware,
            classes,
            config,
            sub_spaces=chosen,
            model=cost_model,
            seed=seed,
            num_calibration=num_calibration,
            progress=progress,
            open_pool=open_pool,
            warm_start=None if warm_start is None else open_warm_start(warm_start, run, hardware),
        )


def tune_config(num_trials: int | None) -> TuneConfig:
    """How operators are explored; the default without a number. Raises ConfigError: fewer than one trial."""
    from chanas.prescheduler.tune import TuneConfig

    if num_trials is not None and num_trials < 1:
        raise ConfigError(f"expected at least 1 trial per operator, got {num_trials}")
    return TuneConfig(shared=True) if num_trials is None else TuneConfig(num_trials=num_trials, shared=True)


def parse_sub_spaces(space: SearchSpace, keys: Sequence[str]) -> tuple[SubSpace, ...] | None:
    """Sub-spaces from keys such as r224-w1; None without any. Raises ConfigError: there is no such one."""
    known = {s.key: s for s in space.sub_spaces}
    for key in keys:
        if key not in known:
            raise ConfigError(unknown_name("sub-space", key, known))
    return tuple(known[key] for key in keys) or None


def stored_table(run: RunDirectory, target: HardwareTarget) -> Path:
    """Where the run's latency table of a target lies.

    Raises:
        StageOrderError: there is none; the message names those that are there and the command that makes it.
    """
    if not run.lut(target.name).is_file():
        raise no_table(run, target)
    return run.lut(target.name)


def supernet_task(run: RunDirectory) -> tuple[SearchSpace, int]:
    """Search space and number of classes of the run's supernet, from its JSON alone: what a search can't meet is told
    before the supernet is loaded.

    Raises:
        StageOrderError: there is no supernet; the message names the command that makes it.
    """
    stored = stored_task(run)
    if stored is None or not (run.supernet / "checkpoint.safetensors").is_file():
        raise StageOrderError(f"there is no supernet in {run.root}; run `chanas train-supernet --run {run.root}` first")
    return stored


def searched_stages(run: RunDirectory, target: HardwareTarget) -> tuple[SearchSpace, int, LatencyLUT]:
    """Search space and number of classes of the run's supernet, and its latency table, checked against each other and
    against the device. The supernet isn't loaded.

    Raises:
        StageOrderError: one of them is missing; the message names the command that makes it.
        LUTError: the table is of another space, device or compiler.
    """
    space, num_classes = supernet_task(run)
    lut = LatencyLUT.load(stored_table(run, target))
    lut.check(space, target)
    return space, num_classes, lut


def load_supernet(run: RunDirectory) -> SupernetEvaluator:
    """The run's supernet, which `supernet_task` is about.

    Raises:
        CheckpointError: it is damaged, or not that of the JSON beside it.
        DataError: its images are not there, or changed since training.
    """
    from chanas.supernet.evaluate import SupernetEvaluator

    supernet = SupernetEvaluator.load(run)
    if (supernet.space, supernet.num_classes) != supernet_task(run):
        raise CheckpointError(
            f"{run.supernet / 'checkpoint.json'} is not that of the checkpoint beside it; restore it, or train again "
            "with --overwrite"
        )
    return supernet


def further_tables(run: RunDirectory, space: SearchSpace, budgets: Sequence[TargetBudget]) -> tuple[TargetTable, ...]:
    """The run's latency tables of targets besides the first one, checked against the space and this machine.

    Raises:
        StageOrderError: one is missing; the message names the command that makes it.
        LUTError: one is of another space, device or compiler.
    """
    tables = []
    for budget in budgets:
        path = stored_table(run, budget.hardware)
        lut = LatencyLUT.load(path)
        lut.check(space, budget.hardware)
        tables.append(TargetTable(budget.hardware, budget.budget_s, lut, path))
    return tuple(tables)


@dataclass
class Prover:
    """Compiles finalists whole, compares them with PyTorch, measures them on every target, and evaluates them on
    holdout."""

    supernet: SupernetEvaluator
    lut: LatencyLUT
    target: HardwareTarget
    scratch: Path
    progress: bool = True
    further: tuple[TargetTable, ...] = ()
    open_pools: Mapping[str, OpenPool] = field(default_factory=dict)

    def library(self, architecture: Architecture, target: HardwareTarget | None = None) -> Path:
        """Where the compiled module of a proven architecture lies; that for the first target by default."""
        return library_path(self.scratch, architecture, target or self.target)

    def tensors(self, architecture: Architecture) -> dict[str, Any]:
        """float32 PyTorch parameters by name, BN statistics recalibrated."""
        from chanas.network import parameters_by_name

        return parameters_by_name(self.supernet.extract(architecture))

    def jobs(self, architectures: Sequence[Architecture]) -> list[NetworkJob]:
        """What is compiled, with the first images of holdout and PyTorch's answer on them; where there are fewer than a
        batch has, they come again."""
        import torch

        from chanas.folding import split_tensors
        from chanas.prescheduler.networks import NetworkJob

        jobs, batch = [], largest_batch(self.target, self.further)
        for architecture in architectures:
            blocks = architecture.blocks(self.supernet.space, self.supernet.num_classes)
            network = self.supernet.extract(architecture)
            images, _ = self.supernet.images("holdout", architecture.resolution)
            images = np.resize(images[:batch], (batch, *images.shape[1:]))
            with torch.inference_mode():
                logits = network(torch.from_numpy(images)).numpy()
            parameters = tuple(split_tensors(self.tensors(architecture), len(blocks)))
            jobs.append(NetworkJob(blocks, parameters, images, logits, self.library(architecture)))
        return jobs

    def __call__(self, architectures: Sequence[Architecture]) -> list[Any]:
        jobs, top1 = self.jobs(architectures), [self.supernet.top1(a, "holdout") for a in architectures]
        tables = [(self.lut, self.target), *((t.lut, t.hardware) for t in self.further)]
        return measured_on(tables, architectures, jobs, top1, self.scratch, self.progress, self.open_pools)


def search(
    run: RunDirectory,
    *,
    latency_s: Latencies,
    target: str = "cpu",
    num_threads: int = 1,
    dtype: str = "f32",
    batch: int = 1,
    rpc: str | None = None,
    key: str | None = None,
    config: SearchConfig | None = None,
    macs: float | None = None,
    params: float | None = None,
    peak_memory: float | None = None,
    shared: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> CoDesign:
    """Search under latency budgets, prove the finalists, and leave the winner's bundle in `run.bundle`.

    The test split is touched once, here, for the winner alone.

    Args:
        latency_s: seconds on the target that `target`, `num_threads`, `dtype` and `batch` say, or seconds by the names
            of several targets, such as `{"cpu": 5e-3, "cpu-2t": 4e-3}`; of one call, so of all images of a batch.
        rpc, key: a tracker's HOST:PORT and a device's key: its table is searched, and it measures the finalists.
        macs, params, peak_memory: limits on multiply-accumulates, parameters, and bytes of activations.
        shared: finalists are measured on a GPU that another process uses, too.

    Raises:
        StageOrderError: supernet or a latency table are missing.
        InfeasibleError: no architecture meets the constraints; the message names the smallest reachable value.
        MeasureError: the compiled winner does not classify the test images as PyTorch does.
    """
    from chanas.search import constraints as limits
    from chanas.search.cosearch import LatencyBudget, check_limits
    from chanas.search.cosearch import search as cosearch

    held = held_budgets(latency_s, target, num_threads, dtype, rpc, key, batch=batch, shared=shared)
    with held as ((first, *others), open_pools), scratch_folder() as scratch:
        space, classes, lut = searched_stages(run, first.hardware)
        tables = further_tables(run, space, others)
        devices = [first.hardware, *(t.hardware for t in tables)]
        further = limits.further_constraints(space, classes, macs, params, peak_memory, devices)
        budgets = [LatencyBudget(lut, first.budget_s), *(t.budget() for t in tables)]
        check_limits(space, classes, budgets, further, config, seed)
        supernet = load_supernet(run)
        prover = Prover(supernet, lut, first.hardware, scratch, progress, tables, open_pools)
        outcome = cosearch(
            space,
            lut,
            supernet.top1,
            prover,
            budget_s=first.budget_s,
            num_classes=classes,
            store=run,
            supernet=supernet.digest,
            config=config,
            constraints=further,
            further=budgets[1:],
            seed=seed,
            progress=progress,
        )
        given = {"macs": macs, "params": params, "peak_memory_bytes": peak_memory}
        return hand_over(run, run.bundle, outcome, prover, first.budget_s, given, seed)


def hand_over(
    run: RunDirectory,
    path: Path,
    outcome: SearchOutcome,
    prover: Prover,
    budget_s: float,
    limits: Mapping[str, float | None],
    seed: int,
) -> CoDesign:
    """Write the bundle: first as it will be, to test the very module that is handed over; then with what came out.

    Raises:
        MeasureError: the compiled winner does not classify the test images as PyTorch does; no bundle is written.
    """
    from chanas.codesign import CoDesign, write_bundle

    supernet, lut, winner = prover.supernet, prover.lut, outcome.architecture
    tensors, library = prover.tensors(winner), prover.library(winner)
    supernet_seed = read_json(run.supernet / "checkpoint.json", "supernet checkpoint")["seed"]
    document: dict[str, Any] = {
        **winner_document(outcome, supernet.space, supernet.num_classes, lut, budget_s, limits),
        "class_names": list(supernet.class_names),
        "preprocess": supernet.preprocess(winner.resolution).to_json(),
        "seeds": {"search": seed, "prescheduler": lut.header.seed, "supernet": supernet_seed},
        "hashes": {
            "supernet": supernet.digest,
            "lut": file_digest(run.lut(prover.target.name)),
            "search_space": supernet.space.digest,
            "splits": supernet.data.splits.digest,
        },
    }
    document["measured"]["top1_holdout"] = outcome.proof.top1_holdout
    tables = [(t.lut, t.path) for t in prover.further]
    document["further_targets"] = further_documents(outcome, supernet.space, supernet.num_classes, tables)
    modules = [prover.library(winner, t.hardware) for t in prover.further]
    draft = prover.scratch / "bundle"
    write_bundle(draft, document, tensors, library, modules)
    document["measured"] |= tested(CoDesign.load(draft), supernet)
    for part in document["further_targets"]:
        part["measured"] |= agreed(CoDesign.load(draft, part["target"]["name"]), supernet)
    write_bundle(path, document, tensors, library, modules)
    return CoDesign.load(path)


def median_latency_s(lut: LatencyLUT, space: SearchSpace, num_classes: int, seed: int = 0) -> float:
    """Half of the space's architectures are faster than this, by the table; rounded to two digits."""
    from chanas import genome

    drawn = genome.sample(space, 2000, np.random.default_rng(seed))
    return float(f"{np.median(lut.latency_s(space, num_classes, drawn)):.2g}")


@dataclass(frozen=True)
class DemoResult:
    """What the demo leaves behind."""

    bundle: CoDesign
    report: Path
    images: tuple[Path, ...]
    stages_s: dict[str, float]
    """Seconds of each stage in this call, by its name."""
    total_s: float


def demo(
    run: RunDirectory,
    *,
    target: str = "cpu",
    latency_s: float | None = None,
    num_trials: int = 6,
    shared: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> DemoResult:
    """All three stages on the embedded default, through the functions above; stages that are done are not done again.

    The default budget is the median latency of the space, so that it binds on any machine.
    """
    from chanas.report.page import build_report
    from chanas.search.config import SearchConfig
    from chanas.supernet.data import export_images

    times_s = [time.perf_counter()]
    stored = run.supernet / "checkpoint.json"
    done = stored.is_file() and read_json(stored, "supernet checkpoint").get("done", False)
    if not done:
        train_supernet(run, seed=seed, resume=stored.is_file(), progress=progress)
    times_s.append(time.perf_counter())
    preschedule(run, target=target, num_trials=num_trials, shared=shared, seed=seed, progress=progress)
    times_s.append(time.perf_counter())
    space, classes, lut = searched_stages(run, load_target(target))
    budget_s = latency_s or median_latency_s(lut, space, classes)
    config = SearchConfig(num_evaluations=_DEMO_EVALUATIONS[0], refine_evaluations=_DEMO_EVALUATIONS[1])
    how: dict[str, Any] = {"config": config, "shared": shared, "seed": seed, "progress": progress}
    bundle = search(run, target=target, latency_s=budget_s, **how)
    times_s.append(time.perf_counter())
    folder = run.root / "images"
    shutil.rmtree(folder, ignore_errors=True)
    images = export_images(load_supernet(run).data, "test", folder, limit=20)
    page = build_report(run)
    stages_s = dict(zip(("training", "tuning", "search"), np.diff(times_s).tolist(), strict=True))
    total_s = time.perf_counter() - times_s[0]
    return DemoResult(bundle, page, tuple(itertools.islice(images, 3)), stages_s, total_s)


def report(run: RunDirectory) -> Path:
    """Write the run's report page.

    Raises:
        ChanasError: the run directory does not exist.
    """
    from chanas.report.page import build_report

    if not run.root.is_dir():
        raise ChanasError(f"run directory {run.root} does not exist; the stages make one")
    return build_report(run)
