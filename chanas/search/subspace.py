"""Division of the search space (paper, section 3.6): sub-spaces compared by the latency CDF of random members.

The paper's rule, to the letter, takes the sub-space whose qualified networks have the lowest average latency; that is
always about the smallest one. The rule `accuracy` looks for what a budget is for: the best predicted accuracy in it,
as a short evolution in each sub-space finds it.

Notation: δ random members per sub-space, L genome length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import Genomes, sample
from chanas.errors import ConfigError, unknown_name
from chanas.search.accuracy.predictor import cut
from chanas.search.evolution.constraints import Constraint, check_reachable, feasible, least, none_found, reachable
from chanas.search.evolution.evolution import EvolutionConfig, evolve
from chanas.search.evolution.population import feasible_set, unique

# Quantile levels of the stored CDFs: fine enough to draw, small enough to read.
LEVELS = tuple(i / 20 for i in range(21))
# Of one sub-space: enough that sub-spaces keep the order that a long search gives them.
_SHORT = EvolutionConfig(population=50, generations=40)
# With fewer feasible members than this among δ random ones, more are made from the cheapest architecture.
_MIN_FEASIBLE = 20


@dataclass(frozen=True)
class SubSpaceStatistics:
    """One sub-space, by its δ random members.

    feasible_fraction            share of the random members that meet every constraint
    num_feasible                 feasible members that the figures below are taken from
    smallest_latency_s           least latency of the whole sub-space, exact
    latency_quantiles_s          CDF of all random members, at LEVELS
    feasible_latency_quantiles_s CDF of the feasible members, at LEVELS; empty when there are none
    top1_quantiles               CDF of the feasible members' predicted top-1, at LEVELS; empty when there are none
    mean_latency_s               mean over the feasible members (what the paper's rule minimises), or None
    score                        best predicted top-1 that a short evolution finds (what `accuracy` maximises), or None
    """

    sub_space: SubSpace
    feasible_fraction: float
    num_feasible: int
    smallest_latency_s: float
    latency_quantiles_s: tuple[float, ...]
    feasible_latency_quantiles_s: tuple[float, ...]
    top1_quantiles: tuple[float, ...]
    mean_latency_s: float | None
    score: float | None

    def to_json(self) -> dict[str, Any]:
        lists = ("latency_quantiles_s", "feasible_latency_quantiles_s")
        plain = ("feasible_fraction", "num_feasible", "smallest_latency_s", "mean_latency_s")
        return {
            "key": self.sub_space.key,
            "resolution": self.sub_space.resolution,
            "width_multiplier": self.sub_space.width_multiplier,
            **{name: list(getattr(self, name)) for name in lists},
            **{name: _number(getattr(self, name)) for name in plain},
            "top1_quantiles": cut(np.array(self.top1_quantiles)).tolist(),
            "score": None if self.score is None else float(cut(np.array(self.score))),
        }


def _number(value: float | None) -> float | None:
    """Return None for a number that JSON lacks: a latency that the table does not know."""
    return None if value is None or math.isinf(value) else value


def _paper(statistics: Sequence[SubSpaceStatistics]) -> SubSpace | None:
    found = [s for s in statistics if s.mean_latency_s is not None]
    return min(found, key=lambda s: s.mean_latency_s or 0.0).sub_space


def _accuracy(statistics: Sequence[SubSpaceStatistics]) -> SubSpace | None:
    found = [s for s in statistics if s.score is not None]
    return max(found, key=lambda s: s.score or 0.0).sub_space


def _all(statistics: Sequence[SubSpaceStatistics]) -> SubSpace | None:
    return None


RULES: dict[str, Callable[[Sequence[SubSpaceStatistics]], SubSpace | None]] = {
    "paper": _paper,
    "accuracy": _accuracy,
    "all": _all,
}


@dataclass(frozen=True)
class SubSpaceDivision:
    """Statistics of every sub-space, what each rule would take, and what `rule` did take (None: all of them)."""

    statistics: tuple[SubSpaceStatistics, ...]
    choices: dict[str, SubSpace | None]
    rule: str

    @property
    def chosen(self) -> SubSpace | None:
        return self.choices[self.rule]

    def to_json(self) -> dict[str, Any]:
        return {
            "levels": list(LEVELS),
            "rule": self.rule,
            "choices": {name: None if s is None else s.key for name, s in self.choices.items()},
            "sub_spaces": [s.to_json() for s in self.statistics],
        }


@dataclass(frozen=True)
class RuleRegret:
    """The best predicted top-1 in [0, 1] of what a rule takes, and how much below the best of all that is."""

    rule: str
    sub_space: SubSpace | None
    top1: float
    regret: float

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "sub_space": None if self.sub_space is None else self.sub_space.key,
            "top1": self.top1,
            "regret_points": 100.0 * self.regret,
        }


def rule_regrets(
    choices: Mapping[str, SubSpace | None], best: Callable[[SubSpace | None], float]
) -> tuple[RuleRegret, ...]:
    """The regret of each rule against searching all sub-spaces at once.

    `choices` is the sub-space of each rule (None: all), and `best` searches one. The best of all is the best that any
    of these searches found.
    """
    found = {sub_space: best(sub_space) for sub_space in dict.fromkeys([None, *choices.values()])}
    top = max(found.values())
    return tuple(RuleRegret(rule, home, found[home], top - found[home]) for rule, home in choices.items())


def _quantiles(values: FloatArray) -> tuple[float, ...]:
    known = values[np.isfinite(values)]
    return tuple(np.quantile(known, LEVELS).tolist()) if len(known) else ()


def divide(
    space: SearchSpace,
    predict: Callable[[Genomes], FloatArray],
    latency: Constraint,
    constraints: Sequence[Constraint],
    rng: np.random.Generator,
    rule: str = "accuracy",
    num_samples: int = 500,
    known: Genomes | None = None,
) -> SubSpaceDivision:
    """Statistics from `num_samples` (the paper's δ) random members per sub-space, and each rule's choice.

    `predict` gives top-1 float64[N] of genomes; `latency` is the cost whose CDF is taken; `constraints` (with `latency`
    among them, or not) say who qualifies; `known` are architectures that do, for sub-spaces where few others are found.
    Deterministic for the state of `rng`.

    Raises:
        ConfigError: the rule is unknown.
        InfeasibleError: a constraint cannot be met by itself, or no qualified member was found anywhere.
    """
    if rule not in RULES:
        raise ConfigError(unknown_name("sub-space rule", rule, RULES))
    check_reachable(constraints)
    statistics = []
    can_be_met = reachable(constraints, space)
    for i, sub_space in enumerate(space.sub_spaces):
        rows = sample(space, num_samples, rng, sub_space)
        meets = feasible(constraints, rows)
        qualified = rows[meets]
        if len(qualified) < _MIN_FEASIBLE and can_be_met.ravel()[i]:
            near = feasible_set(space, constraints, _MIN_FEASIBLE, rng, sub_space, known)
            qualified = unique(np.concatenate([qualified, near]))
        latency_s = latency.cost(qualified)
        top1 = predict(qualified) if len(qualified) else np.zeros(0)
        score = None
        if len(qualified):  # the best of random members says little of what a search finds among them
            start = qualified[np.argsort(-top1, kind="stable")[: _SHORT.population]]
            score = float(evolve(space, predict, constraints, _SHORT, rng, sub_space, start).fitness[0])
        statistics.append(
            SubSpaceStatistics(
                sub_space=sub_space,
                feasible_fraction=float(meets.mean()),
                num_feasible=len(qualified),
                smallest_latency_s=least(latency.table, sub_space)[0],
                latency_quantiles_s=_quantiles(latency.cost(rows)),
                feasible_latency_quantiles_s=_quantiles(latency_s),
                top1_quantiles=_quantiles(top1),
                mean_latency_s=float(latency_s.mean()) if len(qualified) else None,
                score=score,
            )
        )
    if not any(s.num_feasible for s in statistics):
        raise none_found(constraints)
    return SubSpaceDivision(tuple(statistics), {name: choose(statistics) for name, choose in RULES.items()}, rule)
