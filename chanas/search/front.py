"""The whole Pareto front of latency and accuracy in one run: predicted by NSGA-II, then measured at some of its points.

As in the search for one budget, what an architecture's accuracy is and how a finalist is proven are callables.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.core.arch import Architecture
from chanas.core.arrays import FloatArray
from chanas.core.genome import Genomes, decode, plain
from chanas.core.latency import LatencyLUT
from chanas.core.progress import announce, named_wait
from chanas.core.task import Task
from chanas.errors import CheckpointError, ConfigError, MeasureError
from chanas.files.writing import free_name, read_json, write_json
from chanas.search.accuracy.predictor import AccuracyPredictor, cut
from chanas.search.config import SearchConfig
from chanas.search.cosearch import in_dtypes, provenance
from chanas.search.evolution.constraints import NO_LIMIT_S, Constraint, latency_constraint
from chanas.search.evolution.dtypes import DtypeChoice
from chanas.search.evolution.feasibility import check_together
from chanas.search.evolution.pareto import ParetoResult, latency_and_error, nsga2, pareto_front
from chanas.search.evolution.population import unevaluated
from chanas.search.learning import Refinement, Source, dtype_evaluations, teach_predictor
from chanas.search.pictures import predicted_points
from chanas.search.proof import Proof, Prove, prove_all

SCHEMA = 1
_FRONT = 1_000_043
_PURPOSE = "refine the front"


@dataclass(frozen=True)
class FrontPoint:
    """An architecture of the predicted front that was compiled whole and measured.

    dominated  another measured point is no slower and no less accurate, and better in one of both
    """

    architecture: Architecture
    predicted_latency_s: float
    predicted_top1: float
    proof: Proof
    dominated: bool = False

    @property
    def measured_latency_s(self) -> float:
        """Seconds on the target of the front."""
        return self.proof.measured_s[0]

    @property
    def top1(self) -> float:
        """Accuracy on holdout; the predicted one if there are no weights to evaluate."""
        return self.proof.top1_holdout if np.isfinite(self.proof.top1_holdout) else self.predicted_top1

    @property
    def is_predicted(self) -> bool:
        """True if `top1` is predicted."""
        return not np.isfinite(self.proof.top1_holdout)

    def to_json(self) -> dict[str, Any]:
        failed = self.proof.error is not None
        return {
            "key": self.architecture.key,
            "predicted": {"latency_s": self.predicted_latency_s, "top1": self.predicted_top1},
            "measured": None
            if failed
            else {
                "latency_s": self.measured_latency_s,
                "spread_s": self.proof.timings[0].spread_s,
                "top1": self.top1,
                "top1_is_predicted": self.is_predicted,
            },
            "error": self.proof.error,
            "dominated": self.dominated,
        }


@dataclass(frozen=True)
class FrontJob:
    """A front to search for, from `new_front`; `latency` is without a limit."""

    task: Task
    lut: LatencyLUT
    latency: Constraint
    constraints: tuple[Constraint, ...]
    num_points: int
    config: SearchConfig
    seed: int


def search_front(job: FrontJob, source: Source, prove: Prove, progress: bool = True) -> tuple[FrontPoint, ...]:
    """Measured points of the front, by measured latency; those that could not be measured come last.

    Points of the front, spread evenly over the logarithm of latency, are proven. Writes `search/pareto.json`.

    Raises:
        MeasureError: no point could be compiled and measured.
    """
    space, latency, config, seed = job.task.space, job.latency, job.config, job.seed
    limits = [*latency.left_out, *job.constraints]
    evaluations = source.evaluations(space)
    settings = config.evolution.model_copy(update={"generations": max(1, config.pareto_generations)})

    def front_of(predictor: AccuracyPredictor) -> ParetoResult:
        known, _ = evaluations.training_set()
        rng = np.random.default_rng([seed, _FRONT])
        improve = None
        if space.dtypes:
            choice = DtypeChoice(space, predictor.losses_by_place, [latency, *limits])
            improve = functools.partial(choice.along, rng=rng)
        objectives = latency_and_error(latency, predictor.mean)
        return nsga2(space, objectives, limits, settings, rng, start=known, improve=improve)

    def choose(predictor: AccuracyPredictor, num: int) -> Genomes:
        found = front_of(predictor)
        fresh = unevaluated(space, found.genomes, evaluations.training_set()[0])
        return plain(space, found.genomes[fresh[spread_over(found.objectives[fresh, 0], num)]])

    refinements = [Refinement(_PURPOSE, "front", choose)]
    in_dtypes = dtype_evaluations(evaluations, source, config, seed)
    predictor, _ = teach_predictor(evaluations, [limits], refinements, config, seed, progress, in_dtypes)
    with named_wait("evolving the front", progress):
        front = front_of(predictor)
    at = spread_over(front.objectives[:, 0], job.num_points)
    architectures = decode(space, front.genomes[at])
    proofs = prove_all(prove, architectures)
    latency_s, top1 = front.objectives[at, 0].tolist(), cut(-front.objectives[at, 1]).tolist()
    facts = zip(architectures, latency_s, top1, proofs, strict=True)
    points = mark_dominated([FrontPoint(*fact) for fact in facts])
    if all(p.proof.error is not None for p in points):
        raise MeasureError(f"none of {len(points)} points could be compiled and measured; {points[0].proof.error}")
    path = source.store.search / "pareto.json"
    asked = provenance(job.task, job.lut, source.digest, seed, config, job.constraints)
    _keep_other(path, asked, len(points), progress)
    write_json(
        path,
        {
            "schema": SCHEMA,
            **asked,
            "num_evaluations": len(evaluations.found),
            "error_points": 100.0 * predictor.error,
            "points": [p.to_json() for p in points],
            "front": predicted_points(space, front),
        },
    )
    return points


def _keep_other(path: Path, asked: Mapping[str, Any], num_points: int, progress: bool) -> None:
    """Rename an earlier front that answers another question; the same one is replaced."""
    try:
        earlier = read_json(path, "front")
    except CheckpointError:  # there is none, or it is damaged
        return
    facts = {name: value for name, value in json.loads(json.dumps(asked)).items() if name != "created"}
    points = earlier.get("points") if isinstance(earlier, dict) and facts.items() <= earlier.items() else None
    if isinstance(points, list) and len(points) == num_points:
        return
    kept = free_name(path)
    path.rename(kept)
    announce([f"kept the earlier front, of other settings, as {kept}"] if progress else [])


def new_front(
    task: Task,
    lut: LatencyLUT,
    *,
    num_points: int = 8,
    config: SearchConfig | None = None,
    constraints: Sequence[Constraint] = (),
    seed: int = 0,
) -> FrontJob:
    """A front that can be searched for, before anything is loaded for it; `num_points` of it are measured.

    Raises:
        ConfigError: fewer than two points are asked for.
        InfeasibleError: nothing meets the constraints.
        LUTError: the table is of another space or has holes.
    """
    if num_points < 2:
        raise ConfigError(f"expected at least 2 points of the front, got {num_points}")
    config = config or SearchConfig()
    task = in_dtypes(task, config)
    latency = latency_constraint(
        lut, task.space, task.num_classes, NO_LIMIT_S, covered_only=config.covered_only, left_out=task.left_out
    )
    check_together(task.space, [latency, *constraints], seed)
    return FrontJob(task, lut, latency, tuple(constraints), num_points, config, seed)


def spread_over(latency_s: FloatArray, num: int) -> npt.NDArray[np.intp]:
    """Positions of up to `num` of float64[N], ascending: both ends, and what is nearest to even log steps."""
    order = np.argsort(latency_s, kind="stable")
    if len(order) <= num:
        return order
    logs = np.log(latency_s[order])
    chosen: set[int] = set()
    for goal in np.linspace(logs[0], logs[-1], num):
        free = np.array([i for i in range(len(order)) if i not in chosen])
        chosen.add(int(free[np.abs(logs[free] - goal).argmin()]))
    return order[sorted(chosen)]


def mark_dominated(points: Sequence[FrontPoint]) -> tuple[FrontPoint, ...]:
    """Sort by measured latency, the failed ones last, and mark those that others dominate."""
    measured = sorted((p for p in points if p.proof.error is None), key=lambda p: p.measured_latency_s)
    objectives = np.array([[p.measured_latency_s, -p.top1] for p in measured]).reshape(-1, 2)
    best = set(pareto_front(objectives).tolist())
    marked = [replace(p, dominated=i not in best) for i, p in enumerate(measured)]
    return (*marked, *(p for p in points if p.proof.error is not None))
