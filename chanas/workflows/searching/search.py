"""The three stages wired together: the Python API, and what the commands call.

Stages never import each other; here one stage's functions are handed to the next, and files in the run directory carry
the data between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget
from chanas.core.task import NO_LIMITS, Limits, Task
from chanas.core.usage import HERE, Usage
from chanas.files.run import RunDirectory
from chanas.files.scratch import scratch_folder
from chanas.files.writing import file_digest
from chanas.workflows.searching.hand_over import agreed, further_documents, tested, winner_document
from chanas.workflows.searching.targets import (
    Latencies,
    TargetBudget,
    TargetTable,
    held_budgets,
    largest_batch,
    library_path,
    measured_on,
)
from chanas.workflows.stages.stored import SUPERNET, load_supernet, stored_table, supernet_task

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign
    from chanas.prescheduler.measuring.local.pool import OpenPool
    from chanas.prescheduler.tables.networks import NetworkJob
    from chanas.search.config import SearchConfig
    from chanas.search.cosearch import SearchOutcome
    from chanas.supernet.training.evaluate import SupernetEvaluator


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
        """Path of the compiled module of a proven architecture, for the first target by default."""
        return library_path(self.scratch, architecture, target or self.target)

    def tensors(self, architecture: Architecture) -> dict[str, Any]:
        """float32 PyTorch parameters by name, BN statistics recalibrated."""
        from chanas.network.static import parameters_by_name

        return parameters_by_name(self.supernet.extract(architecture))

    def jobs(self, architectures: Sequence[Architecture]) -> list[NetworkJob]:
        """List the networks to compile, with the first images of holdout and PyTorch's answer on them; if there are
        fewer images than a batch has, they are repeated."""
        import torch

        from chanas.network.folding import split_tensors
        from chanas.prescheduler.tables.networks import NetworkJob

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
    usage: Usage = HERE,
    config: SearchConfig | None = None,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    progress: bool = True,
) -> CoDesign:
    """Search under latency budgets, prove the finalists, and leave the winner's bundle in `run.bundle`.

    The test split is touched once, here, for the winner alone.

    Args:
        latency_s: seconds on the target that `usage` says, or seconds by the names of several targets, such as
            `{"cpu": 5e-3, "cpu-2t": 4e-3}`; of one call, so of all images of a batch.
        usage: of the device; with a tracker and a key as place its table is searched, and it measures the finalists.

    Raises:
        StageOrderError: supernet or a latency table are missing.
        InfeasibleError: no architecture meets the constraints; the message names the smallest reachable value.
        MeasureError: the compiled winner does not classify the test images as PyTorch does.
    """
    from chanas.search.cosearch import LatencyBudget, new_job
    from chanas.search.cosearch import search as cosearch
    from chanas.search.evolution.constraints import further_constraints
    from chanas.search.learning import Source

    with held_budgets(latency_s, usage) as ((first, *others), open_pools), scratch_folder() as scratch:
        space, classes, lut = searched_stages(run, first.hardware)
        tables = further_tables(run, space, others)
        devices = [first.hardware, *(t.hardware for t in tables)]
        further = further_constraints(space, classes, limits, devices)
        budgets = [LatencyBudget(lut, first.budget_s), *(t.budget() for t in tables)]
        job = new_job(Task(space, classes), budgets, further, config, seed)
        supernet = load_supernet(run)
        prover = Prover(supernet, lut, first.hardware, scratch, progress, tables, open_pools)
        outcome = cosearch(job, Source(run, supernet.digest, supernet.top1), prover, progress=progress)
        return hand_over(run, run.bundle, outcome, prover, first.budget_s, limits, seed)


def hand_over(
    run: RunDirectory,
    path: Path,
    outcome: SearchOutcome,
    prover: Prover,
    budget_s: float,
    limits: Limits,
    seed: int,
) -> CoDesign:
    """Write the bundle: first as it will be, to test the very module that is handed over; then with what came out.

    Raises:
        MeasureError: the compiled winner does not classify the test images as PyTorch does; no bundle is written.
    """
    from chanas.bundle.codesign import CoDesign, write_bundle

    supernet, lut, winner = prover.supernet, prover.lut, outcome.architecture
    tensors, library = prover.tensors(winner), prover.library(winner)
    supernet_seed = SUPERNET.read_with(run.supernet / "checkpoint.json", lambda data: data["seed"])
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
