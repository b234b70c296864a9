"""`chanas ablate`: a run's search with default schedules and with tuned ones, all of it measured with tuned ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.core.arch import SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.core.units import format_latency
from chanas.core.usage import HERE, Usage
from chanas.devices.host import load_used
from chanas.errors import ConfigError, unknown_name
from chanas.files.run import RunDirectory
from chanas.files.scratch import scratch_folder
from chanas.files.writing import file_digest, write_json
from chanas.workflows.searching.search import Prover, searched_stages
from chanas.workflows.searching.table_search import Accuracies, RandomWeightsProver, open_accuracies
from chanas.workflows.stages.stored import load_supernet
from chanas.workflows.stages.tables import median_latency_s

if TYPE_CHECKING:
    from chanas.search.ablation import Ablation, Searched
    from chanas.search.accuracy.evaluations import Evaluations
    from chanas.search.config import SearchConfig
    from chanas.search.evolution.constraints import Constraint
    from chanas.search.proof import Prove

SCHEMA = 1
DEFAULT_SCHEDULES = ("untuned", "pytorch")
DEFAULT_POINTS = 8


@dataclass(frozen=True)
class Comparison:
    """The kinds of default schedules that tuned ones are compared with, and the points of each front to measure."""

    schedules: Sequence[str] = DEFAULT_SCHEDULES
    num_points: int = DEFAULT_POINTS


DEFAULT_COMPARISON = Comparison()


@dataclass(frozen=True)
class AblationResult:
    """The comparison, the names of its tables, and the file with everything."""

    ablation: Ablation
    names: dict[str, str]
    path: Path

    def lines(self) -> Iterator[str]:
        """Yield lines for people: rankings, winners, fronts."""
        found = self.ablation
        yield f"budget     {format_latency(found.budget_s)} ({found.share_inside:.0%} of the space, by the tuned table)"
        yield f"\n{'ranking by':<16s}{'slower':>8s}{'Kendall tau':>13s}  inside one sub-space: mean (least)"
        for side in found.others:
            yield self._ranking_line(side)
        yield f"\n{'searched by':<16s}{'measured':>10s}{'top-1':>9s}   winner"
        for side in (found.tuned, *found.others):
            yield self._winner_line(side)
        yield f"\n{'front by':<16s}{'measured':>10s}{'top-1':>9s}   architecture"
        for side in (found.tuned, *found.others):
            for point in side.measured():
                mark = "   (dominated)" if point.dominated else ""
                mark += "   (top-1 predicted)" if point.is_predicted else ""
                at = f"{format_latency(point.proof.measured_latency_s):>10s}{point.top1:>9.2%}"
                yield f"{self.names[side.name]:<16s}{at}   {point.architecture.key}{mark}"
        yield ""
        for side in found.others:
            lost = found.points_lost(side)
            where = "below" if (lost or 0.0) >= 0.0 else "above"
            text = "none measured" if lost is None else f"{abs(lost):.2f} points {where} the tuned table's on average"
            yield f"front by {self.names[side.name]}: {text}"
        yield f"result     {self.path}"

    def _ranking_line(self, side: Searched) -> str:
        ranking = side.ranking
        assert ranking is not None
        inside = ranking.known()
        text = f"{sum(inside) / len(inside):.3f} ({min(inside):.3f})" if inside else "-"
        tau = "-" if ranking.kendall_tau is None else f"{ranking.kendall_tau:.3f}"
        return f"{self.names[side.name]:<16s}{ranking.slowdown:>7.1f}x{tau:>13s}  {text}"

    def _winner_line(self, side: Searched) -> str:
        name, winner = f"{self.names[side.name]:<16s}", side.winner
        if winner is None:
            return f"{name}{'-':>10s}{'-':>9s}   {side.note}"
        same = side.name != self.ablation.tuned.name and not self.ablation.changed(side)
        at = f"{format_latency(winner.proof.measured_latency_s):>10s}{winner.top1:>9.2%}"
        return f"{name}{at}   {winner.architecture.key}{'   (the same)' if same else ''}"


def ablate(
    run: RunDirectory,
    *,
    latency_s: float | None = None,
    comparison: Comparison = DEFAULT_COMPARISON,
    accuracies: Accuracies | None = None,
    usage: Usage = HERE,
    config: SearchConfig | None = None,
    seed: int = 0,
    progress: bool = True,
) -> AblationResult:
    """Repeat the run's search with tables of default schedules; `ablation/result.json` keeps what came of it.

    Default tables are measured once, as `ablation/TARGET-KIND.json`. The default budget is the median latency of the
    space. Without `accuracies` the run's supernet is evaluated.

    Raises:
        ConfigError: a kind of schedules is unknown, none or one twice is named, or too few points are asked for.
        InfeasibleError: no architecture meets the budget with tuned schedules.
        MeasureError: a block could not be measured, or no network could be compiled.
        ChanasError: as `searched_stages` and `open_accuracies` say.
    """
    from chanas.search.accuracy.evaluations import EvaluationStore, TableEvaluations

    _check_schedules(comparison.schedules)
    if comparison.num_points < 2:
        raise ConfigError(f"expected at least 2 points of each front, got {comparison.num_points}")
    hardware = load_used(usage)
    with scratch_folder() as scratch:
        evaluations: Evaluations
        prove: Prove
        if accuracies is None:
            loaded, classes, lut = searched_stages(run, hardware)
            job = _Job(run, loaded, classes, hardware, lut, seed, progress)
            latency = job.latency(latency_s)  # out of reach is told before the supernet is loaded
            supernet = load_supernet(run)
            source = supernet.digest
            evaluations = EvaluationStore(run.search / "evaluations.jsonl", loaded, source, supernet.top1)
            prove = Prover(supernet, lut, hardware, scratch, progress)
        else:
            opened, table = open_accuracies(run, accuracies, hardware)
            loaded, classes, lut, source = opened.required_space(), opened.num_classes, opened.lut, table.digest
            job = _Job(run, loaded, classes, hardware, lut, seed, progress)
            latency = job.latency(latency_s)
            evaluations = TableEvaluations(loaded, table, source)
            prove = RandomWeightsProver(loaded, classes, table, lut, hardware, scratch, progress)
        return job.run_with(latency, comparison, evaluations, source, prove, config)


def _check_schedules(schedules: Sequence[str]) -> None:
    from chanas.prescheduler.tables.defaults import KINDS

    for name in schedules:
        if name not in KINDS:
            raise ConfigError(unknown_name("kind of default schedules", name, KINDS))
    if not schedules or len(set(schedules)) < len(schedules):
        raise ConfigError(
            f"expected each kind of default schedules once, of {', '.join(KINDS)}, got {', '.join(schedules) or 'none'}"
        )


@dataclass(frozen=True)
class _Job:
    """A run's tuned table, and what it is of."""

    run: RunDirectory
    space: SearchSpace
    num_classes: int
    target: HardwareTarget
    lut: LatencyLUT
    seed: int
    progress: bool

    @property
    def folder(self) -> Path:
        return self.run.root / "ablation"

    def latency(self, budget_s: float | None) -> Constraint:
        """The budget by the tuned table, which is the median of the space by default.

        Raises:
            InfeasibleError: no architecture meets it.
        """
        from chanas.search.evolution.constraints import check_reachable, latency_constraint

        if budget_s is None:
            budget_s = median_latency_s(self.lut, self.space, self.num_classes)
        latency = latency_constraint(self.lut, self.space, self.num_classes, budget_s)
        check_reachable([latency])
        return latency

    def run_with(
        self,
        latency: Constraint,
        comparison: Comparison,
        evaluations: Evaluations,
        source: str,
        prove: Prove,
        config: SearchConfig | None,
    ) -> AblationResult:
        """Everything after the stages are open: default tables, the predictor, the searches, the result; `latency`
        has the budget."""
        from chanas.prescheduler.tables.defaults import KINDS, default_table
        from chanas.search.ablation import TUNED, ablate
        from chanas.search.config import SearchConfig
        from chanas.search.cosearch import provenance
        from chanas.search.learning import teach_predictor

        space, classes, seed = self.space, self.num_classes, self.seed
        config = config or SearchConfig()
        luts, paths = {TUNED: self.lut}, {TUNED: self.run.lut(self.target.name)}
        for kind in comparison.schedules:
            paths[kind] = self.folder / f"{self.target.name}-{kind}.json"
            luts[kind] = default_table(
                paths[kind], kind, space, self.target, classes, seed=seed, progress=self.progress
            )
        predictor, _ = teach_predictor(evaluations, [()], (), config, seed, self.progress)
        found = ablate(
            {name: lut.table(space, classes) for name, lut in luts.items()},
            predictor,
            evaluations,
            prove,
            budget_s=latency.limit,
            num_points=comparison.num_points,
            config=config,
            seed=seed,
        )
        names = {TUNED: "tuned", **{kind: KINDS[kind].text for kind in comparison.schedules}}
        made: dict[str, Any] = {
            name: {"text": names[name], "compiler": lut.header.compiler, "lut": file_digest(paths[name])}
            for name, lut in luts.items()
        }
        path = self.folder / "result.json"
        facts = provenance(Task(space, classes), self.lut, source, seed, config, [latency])
        write_json(path, {"schema": SCHEMA, **facts, "tables": made, **found.to_json()})
        return AblationResult(found, names, path)
