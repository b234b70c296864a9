"""Sources of accuracies for searches for several targets, a supernet or a file, and with them the ways to prove and to
hand over finalists."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.task import Limits
from chanas.files.run import RunDirectory
from chanas.workflows.searching.search import Prover, hand_over
from chanas.workflows.searching.table_search import (
    Accuracies,
    AccuracyFile,
    RandomWeightsProver,
    hand_over_without_weights,
)
from chanas.workflows.searching.targets import TargetTable
from chanas.workflows.stages.stored import load_supernet, supernet_task
from chanas.workflows.stages.tables import open_table

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign
    from chanas.prescheduler.tables.networks import NetworkJob
    from chanas.search.accuracy.table import AccuracyTable
    from chanas.search.cosearch import SearchOutcome
    from chanas.supernet.training.evaluate import SupernetEvaluator


class FinalistProver(Protocol):
    """Proves finalists, and says what is compiled of an architecture."""

    def jobs(self, architectures: Sequence[Architecture], /) -> Sequence[NetworkJob]: ...
    def __call__(self, architectures: Sequence[Architecture], /) -> list[Any]: ...


class AccuracySource(Protocol):
    """A source of accuracies, and with it the ways to prove and to hand over finalists."""

    space: SearchSpace
    num_classes: int

    @property
    def digest(self) -> str: ...
    @property
    def table(self) -> AccuracyTable | None: ...
    def top1(self, architecture: Architecture, /) -> float:
        """Accuracy on holdout or in the table; NaN if that does not know it."""
        ...

    def prover(self, table: TargetTable, scratch: Path, progress: bool) -> FinalistProver: ...
    def hand_over(
        self,
        path: Path,
        outcome: SearchOutcome,
        prover: Any,
        table: TargetTable,
        limits: Limits,
        seed: int,
    ) -> CoDesign: ...


class OfSupernet:
    """Accuracies of a run's supernet, which is loaded with the first question about them."""

    table = None

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.space, self.num_classes = supernet_task(run)

    @functools.cached_property
    def supernet(self) -> SupernetEvaluator:
        """Loaded when it is first asked for: after the limits have been found to be in reach."""
        return load_supernet(self.run)

    @property
    def digest(self) -> str:
        return self.supernet.digest

    def top1(self, architecture: Architecture) -> float:
        return self.supernet.top1(architecture, "holdout")

    def prover(self, table: TargetTable, scratch: Path, progress: bool) -> Prover:
        return Prover(self.supernet, table.lut, table.hardware, scratch, progress, open_pools=table.open_pools)

    def hand_over(
        self,
        path: Path,
        outcome: SearchOutcome,
        prover: Prover,
        table: TargetTable,
        limits: Limits,
        seed: int,
    ) -> CoDesign:
        return hand_over(self.run, path, outcome, prover, table.budget_s, limits, seed)


class OfTable:
    """Accuracies of a file."""

    def __init__(self, space: SearchSpace, num_classes: int, table: AccuracyTable) -> None:
        self.space, self.num_classes, self.table, self.digest = space, num_classes, table, table.digest
        self._known = dict(zip(table.architectures, table.top1.tolist(), strict=True))

    def top1(self, architecture: Architecture) -> float:
        return float(self._known.get(architecture, math.nan))

    def prover(self, table: TargetTable, scratch: Path, progress: bool) -> RandomWeightsProver:
        return RandomWeightsProver(
            self.space,
            self.num_classes,
            self.table,
            table.lut,
            table.hardware,
            scratch,
            progress,
            open_pools=table.open_pools,
        )

    def hand_over(
        self,
        path: Path,
        outcome: SearchOutcome,
        prover: RandomWeightsProver,
        table: TargetTable,
        limits: Limits,
        seed: int,
    ) -> CoDesign:
        return hand_over_without_weights(path, outcome, prover, table, limits, seed)


def open_source(run: RunDirectory, first: Path, accuracies: Accuracies | None) -> AccuracySource:
    """The run's supernet, or a CSV of accuracies of the space that the latency table in `first` is of.

    Raises:
        StageOrderError: there is no supernet yet.
        DataError: the CSV cannot be used.
        LUTError: the space of the latency table is not at hand.
    """
    if accuracies is None:
        return OfSupernet(run)
    from chanas.search.accuracy.table import load_accuracy_table

    file = AccuracyFile.of(accuracies)
    opened = open_table(first, space=file.space, num_classes=file.num_classes)
    loaded = opened.required_space()
    return OfTable(loaded, opened.num_classes, load_accuracy_table(file.path, loaded))
