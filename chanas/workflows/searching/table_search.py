"""The search with accuracies that were measured elsewhere: no supernet, and a bundle without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget
from chanas.core.task import NO_LIMITS, Limits, Task
from chanas.core.usage import HERE, Usage
from chanas.files.run import RunDirectory
from chanas.files.scratch import scratch_folder
from chanas.files.writing import file_digest
from chanas.workflows.searching.hand_over import further_documents, winner_document
from chanas.workflows.searching.search import further_tables
from chanas.workflows.searching.targets import (
    Latencies,
    TargetTable,
    held_budgets,
    largest_batch,
    library_path,
    measured_on,
)
from chanas.workflows.stages.stored import stored_table
from chanas.workflows.stages.tables import OpenTable, open_table

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign
    from chanas.prescheduler.measuring.local.pool import OpenPool
    from chanas.prescheduler.tables.networks import NetworkJob
    from chanas.search.accuracy.table import AccuracyTable
    from chanas.search.config import SearchConfig
    from chanas.search.cosearch import SearchOutcome

_SEED = 0


@dataclass
class RandomWeightsProver:
    """Compiles finalists whole with random weights, compares them with PyTorch, measures them; their accuracy is the
    table's where it has them."""

    space: SearchSpace
    num_classes: int
    table: AccuracyTable
    lut: LatencyLUT
    target: HardwareTarget
    scratch: Path
    progress: bool = True
    further: tuple[TargetTable, ...] = ()
    open_pools: Mapping[str, OpenPool] = field(default_factory=dict)

    def library(self, architecture: Architecture, target: HardwareTarget | None = None) -> Path:
        """Path of the compiled module of a proven architecture, for the first target by default."""
        return library_path(self.scratch, architecture, target or self.target)

    def jobs(self, architectures: Sequence[Architecture]) -> list[NetworkJob]:
        """List the networks to compile, with random weights and images and PyTorch's answer on them."""
        from chanas.prescheduler.tables.networks import NetworkJob
        from chanas.prescheduler.workloads.cases import random_network

        jobs, batch = [], largest_batch(self.target, self.further)
        for architecture in architectures:
            blocks = architecture.blocks(self.space, self.num_classes)
            jobs.append(NetworkJob(blocks, *random_network(blocks, _SEED, batch), self.library(architecture)))
        return jobs

    def __call__(self, architectures: Sequence[Architecture]) -> list[Any]:
        jobs = self.jobs(architectures)
        known = dict(zip(self.table.architectures, self.table.top1.tolist(), strict=True))
        top1 = [known.get(a, float("nan")) for a in architectures]
        tables = [(self.lut, self.target), *((t.lut, t.hardware) for t in self.further)]
        return measured_on(tables, architectures, jobs, top1, self.scratch, self.progress, self.open_pools)


@dataclass(frozen=True)
class AccuracyFile:
    """A CSV file of accuracies (docs/formats.md), and the space and number of classes that it is of: those of the
    latency table where nothing is said."""

    path: Path | str
    space: str | Path | None = None
    num_classes: int | None = None

    @classmethod
    def of(cls, file: Accuracies) -> AccuracyFile:
        """A file by its path is one of which no more is said."""
        return file if isinstance(file, AccuracyFile) else cls(file)


Accuracies = AccuracyFile | Path | str


def open_accuracies(run: RunDirectory, file: Accuracies, hardware: HardwareTarget) -> tuple[OpenTable, AccuracyTable]:
    """The run's latency table of a target, and the accuracies of a file, both of one space.

    Raises:
        DataError: the file cannot be used.
        LUTError: the latency table is of another device, or its space is not at hand.
        StageOrderError: there is no latency table.
    """
    from chanas.search.accuracy.table import load_accuracy_table

    file = AccuracyFile.of(file)
    opened = open_table(stored_table(run, hardware), space=file.space, num_classes=file.num_classes)
    loaded = opened.required_space()
    opened.lut.check(loaded, hardware)
    return opened, load_accuracy_table(file.path, loaded)


def search_with_table(
    run: RunDirectory,
    accuracies: Accuracies,
    *,
    latency_s: Latencies,
    usage: Usage = HERE,
    config: SearchConfig | None = None,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    progress: bool = True,
) -> tuple[CoDesign, AccuracyTable]:
    """Search under latency budgets with the accuracies of a CSV file (docs/formats.md); the bundle has no weights.

    Latencies and limits are written as for `chanas.workflows.searching.search.search`.

    Raises:
        DataError: the file cannot be used.
        StageOrderError: there is no latency table.
        InfeasibleError: no architecture meets the constraints; the message names the smallest reachable value.
    """
    from chanas.search.cosearch import LatencyBudget, new_job, search
    from chanas.search.evolution.constraints import further_constraints
    from chanas.search.learning import Source

    with held_budgets(latency_s, usage) as ((first, *others), open_pools), scratch_folder() as scratch:
        opened, table = open_accuracies(run, accuracies, first.hardware)
        lut, loaded, classes = opened.lut, opened.required_space(), opened.num_classes
        tables = further_tables(run, loaded, others)
        devices = [first.hardware, *(t.hardware for t in tables)]
        further = further_constraints(loaded, classes, limits, devices)
        prover = RandomWeightsProver(loaded, classes, table, lut, first.hardware, scratch, progress, tables, open_pools)
        budgets = [LatencyBudget(lut, first.budget_s), *(t.budget() for t in tables)]
        job = new_job(Task(loaded, classes), budgets, further, config, seed)
        outcome = search(job, Source(run, table.digest, table=table), prover, progress=progress)
        budget = TargetTable(first.hardware, first.budget_s, lut, opened.path)
        return hand_over_without_weights(run.bundle, outcome, prover, budget, limits, seed), table


def hand_over_without_weights(
    path: Path,
    outcome: SearchOutcome,
    prover: RandomWeightsProver,
    first: TargetTable,
    limits: Limits,
    seed: int,
) -> CoDesign:
    """Write the bundle of a search with accuracies from a table; `first` is the first target's budget and table."""
    from chanas.bundle.codesign import CoDesign, write_bundle

    space, classes, accuracies, tables = prover.space, prover.num_classes, prover.table, prover.further
    document: dict[str, Any] = {
        **winner_document(outcome, space, classes, first.lut, first.budget_s, limits),
        "further_targets": further_documents(outcome, space, classes, [(t.lut, t.path) for t in tables]),
        "class_names": [str(i) for i in range(classes)],
        "preprocess": None,
        "seeds": {"search": seed, "prescheduler": first.lut.header.seed},
        "hashes": {
            "accuracy_table": accuracies.digest,
            "lut": file_digest(first.path),
            "search_space": space.digest,
        },
    }
    known = dict(zip(accuracies.architectures, accuracies.top1.tolist(), strict=True))
    document["measured"]["top1_table"] = known.get(outcome.architecture)
    modules = [prover.library(outcome.architecture, t.hardware) for t in tables]
    write_bundle(path, document, None, prover.library(outcome.architecture), modules)
    return CoDesign.load(path)
