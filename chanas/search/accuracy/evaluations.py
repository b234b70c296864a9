"""The accuracies that a search learns from: those of a table, or evaluations of sub-networks on *holdout*, kept as they
come: one JSON line each in `search/evaluations.jsonl`.

A line whose supernet has another digest stays in the file and is not used. A last line that was cut short by a killed
process is dropped before the next one is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import Genomes, encode
from chanas.errors import ChanasError
from chanas.files.documents import parse_row
from chanas.files.writing import replacing
from chanas.search.accuracy.table import AccuracyTable

SPLIT = "holdout"
TABLE_SPLIT = "table"
EXPLORE = "explore"


class Evaluate(Protocol):
    """Top-1 in [0, 1] of a sub-network on the holdout images."""

    def __call__(self, architecture: Architecture, /) -> float: ...


@dataclass(frozen=True)
class Evaluation:
    """One sub-network's accuracy.

    architecture  its key        top1      in [0, 1]
    split         which images   supernet  digest of the weights (of the file, where a table was given)
    purpose       `explore`: chosen to teach the predictor; otherwise which search asked for it
    """

    architecture: str
    top1: float
    split: str
    supernet: str
    purpose: str = EXPLORE


def _parse(line: str) -> Evaluation | None:
    data = parse_row(line.encode(), Evaluation)
    if data is None or not data.keys() <= Evaluation.__dataclass_fields__.keys() or not 0.0 <= data["top1"] <= 1.0:
        return None
    return Evaluation(**data)


def training_set(space: SearchSpace, evaluations: Sequence[Evaluation]) -> tuple[Genomes, FloatArray]:
    """Genomes int16[N, L] and top-1 float64[N] of evaluations."""
    genomes = encode(space, [Architecture.from_key(e.architecture) for e in evaluations])
    return genomes, np.array([e.top1 for e in evaluations])


class Evaluations:
    """The known accuracies of architectures of a space, by key; `can_grow` says whether others can be evaluated."""

    can_grow = False

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.found: dict[str, Evaluation] = {}

    def training_set(self) -> tuple[Genomes, FloatArray]:
        """Genomes int16[N, L] and top-1 float64[N] of all that is known."""
        return training_set(self.space, list(self.found.values()))

    def with_purpose(self, purpose: str) -> list[Evaluation]:
        """List the evaluations that were asked for with `purpose`, in the order in which they came."""
        return [e for e in self.found.values() if e.purpose == purpose]

    def evaluate(self, architecture: Architecture, purpose: str = EXPLORE) -> Evaluation:
        """The known evaluation of an architecture, or a new one.

        Raises:
            ChanasError: it is not known, and nothing can be evaluated here.
        """
        if architecture.key not in self.found:
            raise ChanasError(f"the accuracy of {architecture.key} is not known, and nothing can be evaluated here")
        return self.found[architecture.key]


class TableEvaluations(Evaluations):
    """The accuracies of a table; nothing is added to them."""

    def __init__(self, space: SearchSpace, table: AccuracyTable, digest: str) -> None:
        super().__init__(space)
        rows = zip(table.architectures, table.top1.tolist(), strict=True)
        self.found = {a.key: Evaluation(a.key, top1, TABLE_SPLIT, digest) for a, top1 in rows}


class EvaluationStore(Evaluations):
    """The file, and the evaluations in it that hold for one supernet and space; `measure` evaluates others.

    Raises:
        ChanasError: a line before the last is not an evaluation.
    """

    def __init__(self, path: Path, space: SearchSpace, supernet: str, measure: Evaluate | None = None) -> None:
        super().__init__(space)
        self.path, self.supernet, self.can_grow, self._measure = path, supernet, measure is not None, measure
        self._whole = True
        lines = path.read_text(errors="replace").split("\n") if path.is_file() else [""]
        for number, line in enumerate(lines, start=1):
            evaluation = _parse(line) if line.strip() else None
            if evaluation is None:
                if line.strip() and number < len(lines):
                    raise ChanasError(
                        f"{path}, line {number}: expected an evaluation as JSON, got '{line[:40]}'; remove the line"
                    )
                self._whole = self._whole and not line.strip()
            elif number == len(lines):  # whole JSON, but its line end was lost
                self._whole = False
            if evaluation is not None and evaluation.supernet == supernet and evaluation.split == SPLIT:
                try:
                    if space.contains(Architecture.from_key(evaluation.architecture)):
                        self.found.setdefault(evaluation.architecture, evaluation)
                except ValueError:  # an ArchitectureError, or a number of thousands of digits
                    continue
        self._lines = [line for line in lines if line.strip() and _parse(line) is not None]

    def add(self, architecture: Architecture, top1: float, purpose: str = EXPLORE) -> Evaluation:
        """Appends one line; it is on the disk when this returns.

        Raises:
            ChanasError: the value is not an accuracy, or the file cannot be written.
        """
        if not 0.0 <= top1 <= 1.0:
            raise ChanasError(f"expected a top-1 between 0 and 1 for {architecture.key}, got {top1}")
        if not self._whole:
            with replacing(self.path) as temporary:
                temporary.write_text("".join(line + "\n" for line in self._lines))
            self._whole = True
        evaluation = Evaluation(architecture.key, float(top1), SPLIT, self.supernet, purpose)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(evaluation), sort_keys=True) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ChanasError(f"cannot write {self.path}: {error.strerror or error}") from error
        self.found[evaluation.architecture] = evaluation
        return evaluation

    def evaluate(self, architecture: Architecture, purpose: str = EXPLORE) -> Evaluation:
        """The known evaluation of an architecture, or a new one, which is kept.

        Raises:
            ChanasError: the accuracy is not between 0 and 1, or the file cannot be written.
        """
        if self._measure is None or architecture.key in self.found:
            return super().evaluate(architecture, purpose)
        return self.add(architecture, float(self._measure(architecture)), purpose)
