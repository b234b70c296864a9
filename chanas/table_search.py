"""The search with accuracies that were measured elsewhere: no supernet, and a bundle without weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.arch import Architecture, SearchSpace
from chanas.emit import proof_record, winner_document
from chanas.latency import LatencyLUT
from chanas.lut_pipeline import OpenTable, open_table
from chanas.run import RunDirectory, file_digest
from chanas.scratch import scratch_folder
from chanas.target import HardwareTarget, load_target

if TYPE_CHECKING:
    from chanas.codesign import CoDesign
    from chanas.search.accuracy_table import AccuracyTable
    from chanas.search.config import SearchConfig

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

    def library(self, architecture: Architecture) -> Path:
        """Where the compiled module of a proven architecture lies."""
        return self.scratch / f"{architecture.key}.so"

    def __call__(self, architectures: Sequence[Architecture]) -> list[Any]:
        from chanas.prescheduler.networks import NetworkJob, compile_networks
        from chanas.prescheduler.reference import random_network

        jobs = []
        for architecture in architectures:
            blocks = architecture.blocks(self.space, self.num_classes)
            jobs.append(NetworkJob(blocks, *random_network(blocks, _SEED), self.library(architecture)))
        outcomes = compile_networks(self.lut, self.target, jobs, self.progress)
        known = dict(zip(self.table.architectures, self.table.top1.tolist(), strict=True))
        top1 = [known.get(a, float("nan")) for a in architectures]
        return [proof_record(*facts) for facts in zip(architectures, outcomes, top1, strict=True)]


def open_accuracies(
    run: RunDirectory,
    table: Path | str,
    target: str,
    num_threads: int,
    dtype: str,
    space: str | Path | None,
    num_classes: int | None,
) -> tuple[OpenTable, AccuracyTable]:
    """The run's latency table of this machine, and the accuracies of a file, both of one space.

    Raises:
        DataError: the file cannot be used.
        LUTError: the latency table is of another device, or its space is not at hand.
        StageOrderError: there is no latency table.
    """
    from chanas.search.accuracy_table import load_accuracy_table

    hardware = load_target(target, num_threads, dtype)
    opened = open_table(
        None, run, target=target, num_threads=num_threads, dtype=dtype, space=space, num_classes=num_classes
    )
    loaded = opened.required_space()
    opened.lut.check(loaded, hardware)
    return opened, load_accuracy_table(table, loaded)


def search_with_table(
    run: RunDirectory,
    table: Path | str,
    *,
    latency_s: float,
    target: str = "cpu",
    num_threads: int = 1,
    dtype: str = "f32",
    space: str | Path | None = None,
    num_classes: int | None = None,
    config: SearchConfig | None = None,
    macs: int | None = None,
    params: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> tuple[CoDesign, AccuracyTable]:
    """Search under a latency budget with the accuracies of a CSV file (docs/formats.md); the bundle has no weights.

    Space and number of classes are those of the run's latency table, where nothing else is asked for.

    Raises:
        DataError: the file cannot be used.
        StageOrderError: there is no latency table.
        InfeasibleError: no architecture meets the constraints; the message names the smallest reachable value.
    """
    from chanas.codesign import CoDesign, write_bundle
    from chanas.search import constraints as limits
    from chanas.search.cosearch import search

    opened, accuracies = open_accuracies(run, table, target, num_threads, dtype, space, num_classes)
    lut, loaded, classes = opened.lut, opened.required_space(), opened.num_classes
    further = limits.further_constraints(loaded, classes, macs, params)
    with scratch_folder() as scratch:
        prover = RandomWeightsProver(loaded, classes, accuracies, lut, lut.header.target, scratch, progress)
        outcome = search(
            loaded,
            lut,
            None,
            prover,
            budget_s=latency_s,
            num_classes=classes,
            store=run,
            supernet=accuracies.digest,
            config=config,
            constraints=further,
            table=accuracies,
            seed=seed,
            progress=progress,
        )
        document: dict[str, Any] = {
            **winner_document(outcome, loaded, classes, lut, latency_s),
            "class_names": [str(i) for i in range(classes)],
            "preprocess": None,
            "seeds": {"search": seed, "prescheduler": lut.header.seed},
            "hashes": {
                "accuracy_table": accuracies.digest,
                "lut": file_digest(opened.path),
                "search_space": loaded.digest,
            },
        }
        known = dict(zip(accuracies.architectures, accuracies.top1.tolist(), strict=True))
        document["measured"]["top1_table"] = known.get(outcome.architecture)
        write_bundle(run.bundle, document, None, prover.library(outcome.architecture))
    return CoDesign.load(run.bundle), accuracies
