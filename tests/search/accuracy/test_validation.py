from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chanas.core.arch import SearchSpace
from chanas.core.genome import sample
from chanas.errors import ConfigError
from chanas.search.accuracy.predictor import KINDS
from chanas.search.accuracy.validation import cross_validate, top_decile_recall


def test_top_decile_recall() -> None:
    truth = np.arange(100.0)
    assert top_decile_recall(truth, truth) == 1.0
    assert top_decile_recall(truth, -truth) == 0.0
    assert top_decile_recall(truth, np.where(truth >= 95, truth, -truth)) == 0.5


def test_all_kinds_are_judged_on_the_same_rows(
    demo_space: SearchSpace, make_accuracy: Callable[..., Any], rng: np.random.Generator
) -> None:
    genomes = sample(demo_space, 60, rng)
    for kind in KINDS:
        figures = cross_validate(demo_space, genomes, make_accuracy(demo_space).many(genomes), kind, num_folds=3)
        assert figures.num_architectures == 60
        assert 0.0 < figures.rmse_points < 5.0
        assert figures.kendall_tau is not None
        assert figures.kendall_tau > 0.4
        assert 0.0 <= figures.top_decile_recall <= 1.0


def test_too_few_rows_for_the_folds(demo_space: SearchSpace, rng: np.random.Generator) -> None:
    with pytest.raises(ConfigError, match="outside each of 5 folds, got 9"):
        cross_validate(demo_space, sample(demo_space, 9, rng), np.full(9, 0.5), "ridge")
