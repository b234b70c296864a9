"""`chanas ablate`: a run's search with default schedules and with tuned ones, all of it measured with tuned ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.core.latency import LatencyLUT
from chanas.core.progress import announce
from chanas.core.task import NO_LIMITS, Limits
from chanas.core.units import format_latency
from chanas.core.usage import HERE, TargetName, Usage
from chanas.devices.host import load_used
from chanas.errors import ConfigError, unknown_name
from chanas.files.documents import Document
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.files.scratch import scratch_folder
from chanas.files.writing import file_digest, write_json
from chanas.search.target import SearchTarget
from chanas.workflows.searching.sources import AccuracySource, Prover, SupernetSource
from chanas.workflows.searching.targets import check_tables
from chanas.workflows.stages.stored import stored_table
from chanas.workflows.stages.tables import median_latency_s

if TYPE_CHECKING:
    from chanas.search.ablation import Ablation, TableSearch
    from chanas.search.config import SearchConfig
    from chanas.search.evolution.constraints import Constraint

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
            for point in side.measured_points():
                mark = "   (dominated)" if point.dominated else ""
                mark += "   (top-1 predicted)" if point.is_predicted else ""
                at = f"{format_latency(point.measured_latency_s):>10s}{point.top1:>9.2%}"
                yield f"{self.names[side.name]:<16s}{at}   {point.architecture.key}{mark}"
        yield ""
        for side in found.others:
            lost = found.points_lost(side)
            where = "below" if (lost or 0.0) >= 0.0 else "above"
            text = "none measured" if lost is None else f"{abs(lost):.2f} points {where} the tuned table's on average"
            yield f"front by {self.names[side.name]}: {text}"
        yield f"result     {self.path}"

    def _ranking_line(self, side: TableSearch) -> str:
        ranking = side.ranking
        assert ranking is not None
        inside = ranking.known_taus()
        text = f"{sum(inside) / len(inside):.3f} ({min(inside):.3f})" if inside else "-"
        tau = "-" if ranking.kendall_tau is None else f"{ranking.kendall_tau:.3f}"
        return f"{self.names[side.name]:<16s}{ranking.slowdown:>7.1f}x{tau:>13s}  {text}"

    def _winner_line(self, side: TableSearch) -> str:
        name, winner = f"{self.names[side.name]:<16s}", side.winner
        if winner is None:
            return f"{name}{'-':>10s}{'-':>9s}   {side.note}"
        same = side.name != self.ablation.tuned.name and not self.ablation.changed(side)
        at = f"{format_latency(winner.measured_s[0]):>10s}{winner.top1:>9.2%}"
        return f"{name}{at}   {winner.architecture.key}{'   (the same)' if same else ''}"


def ablate(
    run: RunDirectory,
    *,
    latency_s: float | None = None,
    comparison: Comparison = DEFAULT_COMPARISON,
    source: AccuracySource | None = None,
    usage: Usage = HERE,
    config: SearchConfig | None = None,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    progress: bool = True,
) -> AblationResult:
    """Repeat the run's search with tables of default schedules; `ablation/result.json` keeps what came of it.
    `repeated` has the arguments of the search that the run holds.

    Default tables are measured once, as `ablation/TARGET-KIND.json`. The default budget is the median latency of the
    space, the default source of accuracies the run's supernet.

    Raises:
        ConfigError: a kind of schedules is unknown, none or one twice is named, or too few points are asked for.
        InfeasibleError: no architecture meets the budget with tuned schedules.
        MeasureError: a block could not be measured, or no network could be compiled.
        StageOrderError: the supernet or the latency table is missing.
        LUTError: the table is of another space, device or compiler.
    """
    from chanas.search.config import SearchConfig
    from chanas.search.evolution.constraints import further_constraints, latency_constraint
    from chanas.search.evolution.feasibility import check_together

    _check_schedules(comparison.schedules)
    if comparison.num_points < 2:
        raise ConfigError(f"expected at least 2 points of each front, got {comparison.num_points}")
    source = source or SupernetSource(run)
    config = config or SearchConfig()
    hardware, task = load_used(usage), source.task
    lut = LatencyLUT.load(stored_table(run, hardware))
    budget_s = latency_s or median_latency_s(lut, task.space, task.num_classes, left_out=task.left_out)
    target = SearchTarget(hardware, budget_s, lut)
    check_tables([target], task.space)
    latency = latency_constraint(
        lut, task.space, task.num_classes, budget_s, covered_only=config.covered_only, left_out=task.left_out
    )
    constraints = [latency, *further_constraints(task.space, task.num_classes, limits, [hardware])]
    check_together(task.space, constraints, seed)  # told before a supernet is loaded
    if progress:
        kinds = ", ".join(comparison.schedules)
        announce(
            [
                f"plan       search space {task.space.name}, {task.num_classes} classes, within "
                f"{format_latency(budget_s)} on {hardware.name} once more with schedules {kinds}: "
                f"{len(lut.rows)} blocks timed for each, then whole networks; into {run.root / 'ablation'}"
            ]
        )
    with one_writer(run.root / "ablation"), scratch_folder() as scratch:
        prover = source.prover([target], scratch, progress)
        return _compare(run, prover, target, constraints, comparison, config, seed)


@dataclass(frozen=True)
class _Constraint:
    """A limit of a search."""

    name: str
    limit: float


@dataclass(frozen=True)
class _Settings:
    """Settings of a search that hold for its repetition."""

    rule: str = "accuracy"
    covered_only: bool = False


@dataclass(frozen=True)
class _Search:
    """Part of `search/result.json` that is repeated."""

    target: str
    constraints: list[_Constraint]
    config: _Settings


_SEARCH = Document("result of the search", _Search, "search again")
_LIMITS = {"macs": "multiply-accumulates", "params": "parameters", "peak_memory": "peak memory"}


def repeated(run: RunDirectory, asked: Mapping[str, Any]) -> tuple[Usage, Limits, dict[str, Any]]:
    """The use of the device, the limits, and the settings `rule` and `covered_only` of the run's search; what is asked
    for where the run holds none.

    Args:
        asked: `target`, `threads`, `dtype`, `batch`, `macs`, `params`, `peak_memory`, `rule` and `covered_only`; None
            is what the search had.

    Raises:
        ConfigError: the search was of something else than is asked for, or on a device elsewhere.
        CheckpointError: the result is damaged.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    path = run.search / "result.json"
    had: dict[str, Any] = {}
    if path.is_file():
        stored = _SEARCH.read(path)
        name = TargetName.parse(stored["target"])
        if name.key:
            raise ConfigError(f"the search of {run.root} was on {name}, a device elsewhere; ablate measures here")
        if dtypes := stored["config"].get("dtypes"):
            raise ConfigError(
                f"the search of {run.root} chose among dtypes ({', '.join(dtypes)}), and ablate compares schedules in "
                "one; search again without --dtypes"
            )
        limits = {c["name"]: c["limit"] for c in stored["constraints"]}
        had = {"target": name.device, "threads": name.threads, "dtype": name.dtype, "batch": name.batch}
        had |= {option: limits.get(constraint) for option, constraint in _LIMITS.items()}
        had |= {"rule": stored["config"]["rule"], "covered_only": stored["config"]["covered_only"]}
    for option, value in given.items():
        if option in had and value != had[option]:
            wanted, was = (f"{v:g}" if isinstance(v, float) else v for v in (value, had[option]))
            raise ConfigError(
                f"the search of {run.root} that is repeated was with {option.replace('_', ' ')} "
                f"{'unlimited' if was is None else was}, got {wanted}; leave it out, or search again with it"
            )
    had |= given
    usage = Usage(had.get("target", "cpu"), had.get("threads", 1), had.get("dtype", "f32"), had.get("batch", 1))
    settings: dict[str, Any] = {name: had[name] for name in ("rule", "covered_only") if name in had}
    return usage, Limits(**{name: had.get(name) for name in _LIMITS}), settings


def _check_schedules(schedules: Sequence[str]) -> None:
    from chanas.prescheduler.tables.defaults import KINDS

    for name in schedules:
        if name not in KINDS:
            raise ConfigError(unknown_name("kind of default schedules", name, KINDS))
    if not schedules or len(set(schedules)) < len(schedules):
        raise ConfigError(
            f"expected each kind of default schedules once, of {', '.join(KINDS)}, got {', '.join(schedules) or 'none'}"
        )


def _compare(
    run: RunDirectory,
    prover: Prover,
    target: SearchTarget,
    constraints: Sequence[Constraint],
    comparison: Comparison,
    config: SearchConfig,
    seed: int,
) -> AblationResult:
    """Default tables, the predictor, the searches, and the result."""
    from chanas.prescheduler.tables.defaults import KINDS, default_table
    from chanas.search.ablation import TUNED, ablate
    from chanas.search.cosearch import provenance
    from chanas.search.evolution.constraints import latency_constraint
    from chanas.search.learning import teach_predictor

    task, progress, folder = prover.source.task, prover.progress, run.root / "ablation"
    accuracies = prover.source.accuracies()
    luts, paths = {TUNED: target.lut}, {TUNED: run.lut(target.name)}
    blocks = [b for b in task.blocks(task.sub_spaces) if b.key in target.lut.rows]
    for kind in comparison.schedules:
        paths[kind] = folder / f"{target.name}-{kind}.json"
        luts[kind] = default_table(
            paths[kind], kind, task, target.hardware, blocks=blocks, seed=seed, progress=progress
        )
    evaluations = accuracies.evaluations(task.space)
    predictor, _ = teach_predictor(evaluations, [()], (), config, seed, progress)
    tables = {
        name: latency_constraint(
            lut,
            task.space,
            task.num_classes,
            target.budget_s,
            covered_only=config.covered_only,
            left_out=task.left_out,
        ).table
        for name, lut in luts.items()
    }
    found = ablate(
        tables,
        predictor,
        evaluations,
        prover,
        budget_s=target.budget_s,
        num_points=comparison.num_points,
        config=config,
        others=constraints[1:],
        seed=seed,
    )
    names = {TUNED: "tuned", **{kind: KINDS[kind].text for kind in comparison.schedules}}
    made: dict[str, Any] = {
        name: {"text": names[name], "compiler": lut.header.compiler, "lut": file_digest(paths[name])}
        for name, lut in luts.items()
    }
    path = folder / "result.json"
    facts = provenance(task, target.lut, accuracies.digest, seed, config, constraints)
    write_json(path, {"schema": SCHEMA, **facts, "tables": made, **found.to_json()})
    return AblationResult(found, names, path)
