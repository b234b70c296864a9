"""Results of searches for several targets: as data, as lines for people, and in the run's `search/targets.json`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.core.task import Task
from chanas.core.units import format_latency
from chanas.errors import InfeasibleError
from chanas.files.documents import Document
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest
from chanas.network.accuracy import describe_saturation
from chanas.search.target import SearchTarget
from chanas.workflows.searching.cross_latency import CrossLatency, cross_lines

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign
    from chanas.search.cosearch import SearchOutcome


@dataclass(frozen=True)
class _Regret:
    """Entry of a result for a rule."""

    rule: str
    sub_space: str | None
    top1: float
    regret_points: float


@dataclass(frozen=True)
class _Range:
    """Accuracies of the most accurate and of the fastest known network inside the budgets, and what they are of."""

    best: float
    fastest: float
    num_images: int | None


@dataclass(frozen=True)
class _Result:
    """Part of a search's result that is read again."""

    rule_regrets: list[_Regret]
    accuracy_range: _Range | None = None


_RESULT = Document("result of the search", _Result, "search again")


def rule_regrets(path: Path) -> list[dict[str, Any]]:
    """Return the cost of each rule of choosing a sub-space, from the result of a search: `rule`, `sub_space`, `top1`,
    `regret_points`.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    return list(_RESULT.read(path)["rule_regrets"])


def saturation(path: Path) -> str:
    """Return a sentence where accuracies cannot tell the networks inside a search's budgets apart; else nothing.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    found = _RESULT.read(path).get("accuracy_range")
    return "" if found is None else describe_saturation(**found)


@dataclass(frozen=True)
class TargetResult:
    """The result of the search for one target.

    winner, predicted_s, predicted_top1  None where it failed
    measured_s, spread_s                 of the compiled winner; None where nothing can be measured on the target
    top1, judged_by                      best known accuracy in [0, 1], and where from: `test`, `table`, `holdout`, or
                                         `predicted`
    bundle                               its folder; None where it failed or nothing was measured
    error                                why it failed
    elsewhere                            why nothing can be measured on the target from here; empty where it can
    covered                              the sub-spaces that its table has every block of
    leftover                             where no bundle was made, the folder in the run directory with that of an
                                         earlier search; empty where there is none
    """

    target: str
    device: str
    budget_s: float
    lut: str
    elsewhere: str = ""
    covered: tuple[str, ...] = ()
    winner: str | None = None
    predicted_s: float | None = None
    predicted_top1: float | None = None
    measured_s: float | None = None
    spread_s: float | None = None
    top1: float | None = None
    judged_by: str | None = None
    bundle: Path | None = None
    error: str | None = None
    leftover: str = ""

    @classmethod
    def of_target(cls, run: RunDirectory, target: SearchTarget, task: Task, place: Path) -> TargetResult:
        """The result of a target before its search, whose bundle is to be at `place`."""
        covered = tuple(s.key for s in target.lut.covered(task.space, task.num_classes))
        leftover = place.relative_to(run.root).as_posix() if place.exists() else ""
        device, lut = target.hardware.device, file_digest(run.lut(target.name))
        return cls(target.name, device, target.budget_s, lut, target.elsewhere, covered, leftover=leftover)

    def with_bundle(self, outcome: SearchOutcome, bundle: CoDesign) -> TargetResult:
        """The result of a search that ended with a bundle."""
        (timing,), accuracies = outcome.winner.proof.timings, bundle.measured
        judged_by = next((k for k in ("test", "table") if accuracies.get(f"top1_{k}") is not None), "predicted")
        top1 = outcome.winner.proposal.predicted_top1 if judged_by == "predicted" else accuracies[f"top1_{judged_by}"]
        return dataclasses.replace(
            self._with_winner(outcome, top1, judged_by),
            measured_s=timing.latency_s,
            spread_s=timing.spread_s,
            bundle=bundle.path,
            leftover="",
        )

    def with_prediction(self, outcome: SearchOutcome, judged_by: str) -> TargetResult:
        """The result of a search that ended without any latency measured; `judged_by` says where known accuracies come
        from."""
        is_known = math.isfinite(outcome.winner.proof.top1_holdout)  # not where the table of accuracies lacks it
        return self._with_winner(outcome, outcome.winner.top1, judged_by if is_known else "predicted")

    def _with_winner(self, outcome: SearchOutcome, top1: float, judged_by: str) -> TargetResult:
        (predicted_s,) = outcome.winner.predicted_s
        return dataclasses.replace(
            self,
            winner=outcome.architecture.key,
            predicted_s=predicted_s,
            predicted_top1=outcome.winner.proposal.predicted_top1,
            top1=top1,
            judged_by=judged_by,
        )

    @property
    def failure(self) -> str:
        """The reason of a failure, and a note if a bundle of an earlier search stands where its own would."""
        return f"{self.error}{self._left()}"

    def _left(self) -> str:
        return f" ({self.leftover} is of an earlier search)" if self.leftover else ""

    def to_json(self, run: RunDirectory) -> dict[str, Any]:
        """The bundle's place is relative to the run directory."""
        place = None if self.bundle is None else self.bundle.relative_to(run.root).as_posix()
        return {**dataclasses.asdict(self), "bundle": place}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], run: RunDirectory) -> TargetResult:
        """Raises ValueError: the bundle lies outside of the run directory."""
        place = data["bundle"]
        if place is not None and not (run.root / place).is_relative_to(run.root):
            raise ValueError(f"{place} is not in {run.root}")
        covered = tuple(data["covered"])
        return cls(**{**data, "bundle": None if place is None else run.root / place, "covered": covered})

    def line(self) -> str:
        """One line for people."""
        asked = f"{self.target:12s} budget {format_latency(self.budget_s)}: "
        if self.error is not None:
            return f"{asked}failed: {self.failure}"
        latency = f"{format_latency(self.predicted_s or 0.0)} by the table"
        if self.measured_s is not None:
            latency = f"{format_latency(self.measured_s)} measured, {latency}"
        else:
            latency += f", not measured ({self.elsewhere})"
        judged = {"test": "on test", "holdout": "on holdout", "table": "in the table"}.get(
            self.judged_by or "", "predicted"
        )
        place = f"no bundle{self._left()}" if self.bundle is None else f"bundle {self.bundle}"
        return f"{asked}{latency}, top-1 {self.top1 or 0.0:.2%} {judged}; {place}\n{'':12s} {self.winner}"


@dataclass(frozen=True)
class _PerTarget:
    """Part of the results for several targets that is read again."""

    request: str
    complete: bool
    targets: list[TargetResult]


_TARGETS = Document("result of searches for several targets", _PerTarget, "search again")


def stored_results(run: RunDirectory) -> tuple[str, bool, list[TargetResult]]:
    """Read `search/targets.json`: the request, whether it was done to the end, and the result of each target.

    Raises:
        CheckpointError: the file is missing or damaged.
    """

    def make(data: dict[str, Any]) -> tuple[str, bool, list[TargetResult]]:
        return data["request"], data["complete"], [TargetResult.from_json(found, run) for found in data["targets"]]

    return _TARGETS.read_with(run.per_target, make)


@dataclass(frozen=True)
class PerTarget:
    """The searches of several targets, what each network costs on the others, and the file that holds it."""

    targets: tuple[TargetResult, ...]
    cross: tuple[CrossLatency, ...]
    document: Path

    def lines(self) -> Iterator[str]:
        """Yield the lines that a command prints of it."""
        for result in self.targets:
            yield result.line()
            yield from self._remarks(result)
        if len(self.targets) > 1 and self.cross:
            yield "what each network costs on each target (~ by the table alone, ! over the budget there)"
            yield from cross_lines(self.cross, {t.target: t.budget_s for t in self.targets}, format_latency)
            yield from (f"the network of {c.network} on {c.target}: {c.error}" for c in self.cross if c.error)
        yield f"document     {self.document}"

    def _remarks(self, result: TargetResult) -> Iterator[str]:
        """The cost of each rule of choosing a sub-space, if that was asked for, and accuracies that are saturated."""
        if not result.winner:
            return
        path = self.document.parent / "targets" / result.target / "result.json"
        for row in rule_regrets(path):
            below = f"{row['regret_points']:.2f} points below the best"
            yield f"{'':12s} rule {row['rule']}: {row['sub_space'] or 'all'}, {row['top1']:.2%} predicted, {below}"
        if said := saturation(path):
            yield f"{'':12s} {said}"

    def check(self) -> None:
        """Raises InfeasibleError: a target failed; the one line says which and why."""
        check_all(self.targets)


def check_all(targets: Sequence[TargetResult]) -> None:
    """Raises InfeasibleError: one or more of the searches failed."""
    failed = [t for t in targets if t.error is not None]
    if failed:
        kept = "; the others are handed over" if len(failed) < len(targets) else ""
        reasons = "; ".join(f"{t.target}: {t.failure}" for t in failed)
        raise InfeasibleError(f"{len(failed)} of {len(targets)} targets failed{kept}: {reasons}")
