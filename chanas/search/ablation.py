"""The gain from tuned schedules in a search (CHaNAS-W against CHaNAS-W/O; paper, section 4.2 and figure 4): the same
search with a latency table of default schedules and with the tuned one, everything that either finds measured with
tuned ones.

As in the search, how an architecture is proven is a callable, and tables are given; only the latencies that the search
looks at differ: predictor, seed and settings are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import CostTable, Genomes, decode, encode, sample, sample_known
from chanas.core.statistics import kendall_tau
from chanas.errors import ConfigError, InfeasibleError
from chanas.search.accuracy.evaluations import Evaluations
from chanas.search.accuracy.predictor import AccuracyPredictor
from chanas.search.config import SearchConfig
from chanas.search.evolution.constraints import Constraint, check_reachable, feasible, least, none_found
from chanas.search.evolution.evolution import evolve
from chanas.search.evolution.pareto import latency_and_error, nsga2
from chanas.search.front import FrontPoint, mark_dominated, spread_over
from chanas.search.job import best_candidates, propose_rows
from chanas.search.proof import Finalist, Proof, Proposal, Prove, prove_all, prove_rounds
from chanas.search.subspace import divide

TUNED = "tuned"
# Kendall's tau takes the square of this in memory; the share inside the budget is read from more.
NUM_RANKED, NUM_FOR_SHARE = 1000, 5000
# Limits of finalists, as shares of the budget: a table's error lets some that are just inside measure outside.
_SHARES = (1.0, 0.95)
_GRID = 200
# Streams of random numbers; no two steps of chanas share one.
_RANK, _SHARE, _DIVIDE, _EVOLVE, _FRONT = 1_000_061, 1_000_067, 1_000_121, 1_000_099, 1_000_117


@dataclass(frozen=True)
class RankingChange:
    """The order in which a table puts random architectures, compared with the tuned one.

    kendall_tau  over the whole space, -1 to 1; None when a table tells nothing apart
    sub_spaces   the same inside each sub-space, by its key
    slowdown     geometric mean of this table's latencies over the tuned ones
    """

    kendall_tau: float | None
    sub_spaces: dict[str, float | None]
    slowdown: float
    num_architectures: int

    def known_taus(self) -> list[float]:
        """The sub-spaces' values that there are."""
        return [tau for tau in self.sub_spaces.values() if tau is not None]


def ranking_change(
    space: SearchSpace, tuned: CostTable, other: CostTable, seed: int, num: int = NUM_RANKED
) -> RankingChange:
    """Compare two tables over `num` random architectures of the space, and as many of each sub-space."""
    rng = np.random.default_rng([seed, _RANK])

    def both(genomes: Genomes) -> tuple[FloatArray, FloatArray]:
        """Seconds by both tables of what both have every block of."""
        seconds = tuned.of(genomes), other.of(genomes)
        known = np.isfinite(seconds[0]) & np.isfinite(seconds[1])
        return seconds[0][known], seconds[1][known]

    tuned_s, other_s = both(sample_known(tuned, num, rng))
    inside = {}
    for sub_space, is_known in zip(space.sub_spaces, np.isfinite(tuned.smallest()[0]).flat, strict=True):
        if not is_known:
            continue
        inside[sub_space.key] = kendall_tau(*both(sample(space, num, rng, sub_space)))
    slowdown = float(np.exp(np.mean(np.log(other_s / tuned_s))))
    return RankingChange(kendall_tau(tuned_s, other_s), inside, slowdown, num)


@dataclass(frozen=True)
class TableSearch:
    """The result of the search with one table.

    limit_s    the budget in this table's seconds: as many architectures are inside as with the tuned table
    winner     the most accurate finalist that measured inside the budget with tuned schedules; None: there was none
    front      measured points of its front, those that could not be measured last
    ranking    None for the tuned table itself
    note       why there is no winner
    """

    name: str
    limit_s: float
    winner: Finalist | None
    finalists: tuple[Finalist, ...]
    front: tuple[FrontPoint, ...]
    ranking: RankingChange | None
    note: str | None = None

    def measured_points(self) -> list[FrontPoint]:
        """Points of the front that could be measured."""
        return [p for p in self.front if p.proof.error is None]


@dataclass(frozen=True)
class Ablation:
    """The tuned table's search and the others', under one budget in seconds as measured with tuned schedules."""

    budget_s: float
    share_inside: float
    tuned: TableSearch
    others: tuple[TableSearch, ...]
    num_evaluations: int
    error_points: float

    def changed(self, other: TableSearch) -> bool:
        """True if another network wins than with the tuned table."""
        mine, theirs = self.tuned.winner, other.winner
        return mine is None or theirs is None or mine.architecture != theirs.architecture

    def points_lost(self, other: TableSearch) -> float | None:
        """Mean accuracy in points by which the front of `other` lies below the tuned one's, over the logarithm of the
        measured latencies from where both have an architecture; None when one has none."""
        return points_below(
            [(p.measured_latency_s, p.top1) for p in self.tuned.measured_points()],
            [(p.measured_latency_s, p.top1) for p in other.measured_points()],
        )

    def to_json(self) -> dict[str, Any]:
        """The contents of `result.json` besides its provenance."""
        return {
            "budget_s": self.budget_s,
            "share_inside": self.share_inside,
            "num_evaluations": self.num_evaluations,
            "error_points": self.error_points,
            "searched": {s.name: self._side_json(s) for s in (self.tuned, *self.others)},
        }

    def _side_json(self, side: TableSearch) -> dict[str, Any]:
        ranking, is_tuned = side.ranking, side.name == TUNED
        return {
            "limit_s": side.limit_s,
            "winner": None if side.winner is None else side.winner.architecture.key,
            "note": side.note,
            "winner_changed": None if is_tuned else self.changed(side),
            "finalists": [f.to_json() for f in side.finalists],
            "front": [p.to_json() for p in side.front],
            "points_lost": None if is_tuned else self.points_lost(side),
            "ranking": None
            if ranking is None
            else {
                "kendall_tau": ranking.kendall_tau,
                "sub_spaces": ranking.sub_spaces,
                "slowdown": ranking.slowdown,
                "num_architectures": ranking.num_architectures,
            },
        }


def points_below(upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]]) -> float | None:
    """Mean of (best top-1 of `upper` - best top-1 of `lower`) within a latency, in points, over even steps of the
    logarithm of latency from where both have an architecture to the slowest of all. Pairs are (seconds, top-1)."""
    if not upper or not lower:
        return None
    start = max(min(latency_s for latency_s, _ in side) for side in (upper, lower))
    end = max(latency_s for latency_s, _ in (*upper, *lower))
    grid = np.geomspace(start, end, _GRID)

    def best_within(side: Sequence[tuple[float, float]]) -> FloatArray:
        at, top1 = np.array(sorted(side)).T
        out: FloatArray = np.maximum.accumulate(top1)[np.searchsorted(at, grid * (1.0 + 1e-9), side="right") - 1]
        return out

    return 100.0 * float(np.mean(best_within(upper) - best_within(lower)))


def ablate(
    tables: Mapping[str, CostTable],
    predictor: AccuracyPredictor,
    evaluations: Evaluations,
    prove: Prove,
    *,
    budget_s: float,
    num_points: int,
    config: SearchConfig,
    others: Sequence[Constraint] = (),
    seed: int = 0,
) -> Ablation:
    """Search with each table, measure what was found with tuned schedules, and compare.

    Args:
        tables: seconds of every block by the name of its schedules; `TUNED` is one of them. What a table leaves out
            takes for ever in it.
        evaluations: what the predictor has learnt from; the fronts start from these architectures.
        prove: compiles with tuned schedules, checks, measures and evaluates. No architecture is given to it twice.
        budget_s: measured seconds with tuned schedules. Searching with another table, the limit is the latency under
            which that table has as large a share of random architectures; where none of the finalists measures inside
            the budget, or a more accurate one outside, it is tightened as in any search, and never widened.
        others: limits besides latency, for every table.

    Raises:
        ConfigError: fewer than two points are asked for.
        InfeasibleError: by the tuned table nothing is inside the budget, or nothing measured inside.
        MeasureError: no finalist could be compiled and measured.
    """
    if num_points < 2:
        raise ConfigError(f"expected at least 2 points of each front, got {num_points}")
    space = predictor.space
    check_reachable([Constraint("latency", budget_s, tables[TUNED], "s")])
    drawn = sample_known(tables[TUNED], NUM_FOR_SHARE, np.random.default_rng([seed, _SHARE]))
    drawn = drawn[np.isfinite(tables[TUNED].of(drawn)) & feasible(others, drawn)]
    if not len(drawn):
        raise none_found([Constraint("latency", budget_s, tables[TUNED], "s"), *others])
    share = float(np.mean(tables[TUNED].of(drawn) <= budget_s))
    search = _Search(space, predictor, evaluations, _Remembered(prove), budget_s, num_points, config, others, seed)
    plans = []
    for name, table in tables.items():
        limit_s = budget_s if name == TUNED else max(float(np.quantile(table.of(drawn), share)), least(table)[0])
        ranking = None if name == TUNED else ranking_change(space, tables[TUNED], table, seed)
        plans.append(search.plan(name, Constraint("latency", limit_s, table, "s", partial=True), ranking))
    search.prove(list({a.key: a for plan in plans for a in plan.architectures()}.values()))  # all that is known at once
    found = {plan.name: search.finish(plan) for plan in plans}
    tuned = found.pop(TUNED)
    num = len(evaluations.found)
    return Ablation(budget_s, share, tuned, tuple(found.values()), num, 100.0 * predictor.error)


class _Remembered:
    """A prover that measures each architecture once: equal networks have equal figures."""

    def __init__(self, prove: Prove) -> None:
        self._prove, self._known = prove, dict[str, Proof]()

    def __call__(self, architectures: Sequence[Architecture]) -> list[Proof]:
        new = [a for a in architectures if a.key not in self._known]
        if new:
            self._known |= {p.architecture.key: p for p in prove_all(self._prove, new)}
        return [self._known[a.key] for a in architectures]


@dataclass(frozen=True)
class _Plan:
    """Architectures that one table's search wants measured first: finalists, and points of its front."""

    name: str
    latency: Constraint
    ranking: RankingChange | None
    finalists: list[Proposal]
    front: list[Proposal]

    def architectures(self) -> list[Architecture]:
        return [p.architecture for p in (*self.finalists, *self.front)]


@dataclass(frozen=True)
class _Search:
    """The inputs that the searches share."""

    space: SearchSpace
    predictor: AccuracyPredictor
    evaluations: Evaluations
    prove: Prove
    budget_s: float
    num_points: int
    config: SearchConfig
    others: Sequence[Constraint]
    seed: int

    def rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, stream])

    def plan(self, name: str, latency: Constraint, ranking: RankingChange | None) -> _Plan:
        return _Plan(name, latency, ranking, self._finalists(latency, set()), self._front(latency))

    def finish(self, plan: _Plan) -> TableSearch:
        """The winner among measured finalists, of further rounds where the best of the first is outside; the front."""
        name, latency = plan.name, plan.latency
        finalists: list[Finalist] = []
        winner: Finalist | None = None
        note = None

        def propose(limits_s: tuple[float, ...], tried: set[str]) -> list[Proposal]:
            return self._finalists(replace(latency, limit=limits_s[0]), tried) if tried else plan.finalists

        try:
            winner, finalists = prove_rounds(
                propose, self.prove, {name: self.budget_s}, (latency.limit,), self.config.max_rounds, widen=False
            )
        except InfeasibleError as error:
            if name == TUNED:
                raise
            note = str(error)
        proofs = self.prove([p.architecture for p in plan.front])
        points = [
            FrontPoint(p.architecture, p.predicted_s[0], p.predicted_top1, proof)
            for p, proof in zip(plan.front, proofs, strict=True)
        ]
        return TableSearch(name, latency.limit, winner, tuple(finalists), mark_dominated(points), plan.ranking, note)

    def _finalists(self, latency: Constraint, tried: set[str]) -> list[Proposal]:
        """The best inside the limit and a little below it, by their accuracy where it is known, else as predicted; the
        fastest of all where nothing is inside."""
        config, space, predict = self.config, self.space, self.predictor.mean
        chosen: dict[str, Architecture] = {}
        num_below = config.num_finalists // 2
        for share, num in zip(_SHARES, (config.num_finalists - num_below, num_below), strict=True):
            if not num:
                continue
            inside = [replace(latency, limit=share * latency.limit), *self.others]
            seen = tried | chosen.keys()
            try:
                rng = self.rng(_DIVIDE)
                home = divide(space, predict, latency, inside, rng, config.rule, config.num_samples).chosen
                result = evolve(space, predict, inside, config.evolution, self.rng(_EVOLVE), home)
                genomes = best_candidates(
                    space, result, self.evaluations.training_set(), inside, home, seen, num, config.min_distance
                )
            except InfeasibleError:
                genomes = least(latency.table)[1]
            chosen |= {a.key: a for a in decode(space, genomes) if a.key not in seen}
        genomes = encode(space, list(chosen.values()))
        return propose_rows(space, genomes, self.predictor, [latency]) if chosen else []

    def _front(self, latency: Constraint) -> list[Proposal]:
        """Points of the front of this table's latency and accuracy, spread over it."""

        settings = self.config.evolution.model_copy(update={"generations": max(1, self.config.pareto_generations)})
        known, _ = self.evaluations.training_set()
        objectives = latency_and_error(latency, self.predictor.mean)
        front = nsga2(
            self.space, objectives, [*latency.left_out, *self.others], settings, self.rng(_FRONT), start=known
        )
        genomes = front.genomes[spread_over(front.objectives[:, 0], self.num_points)]
        return propose_rows(self.space, genomes, self.predictor, [latency])
