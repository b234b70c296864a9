"""Settings of searches that end in a second."""

from __future__ import annotations

from chanas.search.config import SearchConfig
from chanas.search.evolution.evolution import EvolutionConfig

FAST = SearchConfig(
    num_evaluations=40,
    initial_evaluations=20,
    evaluation_batch=10,
    refine_evaluations=8,
    refine_batch=4,
    predictor="ridge",
    cross_validate=False,
    num_samples=100,
    num_cloud=50,
    pareto_generations=10,
    evolution=EvolutionConfig(population=40, generations=30),
)
