from __future__ import annotations

from typing import Any

import pytest

from chanas.errors import ConfigError
from chanas.search.config import SearchConfig


def test_the_defaults_and_a_round_trip() -> None:
    config = SearchConfig()
    assert SearchConfig.parse(config.model_dump(mode="json")) == config
    assert SearchConfig.parse({"evolution": {"population": 10}}).evolution.population == 10


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"num_evaluation": 3},
            "unknown key 'num_evaluation' in the search settings; known: compare_rules, confidence, covered_only",
        ),
        ({"evolution": {"size": 3}}, "unknown key 'evolution.size' .* known: generations, keep"),
        (
            {"num_evaluations": 3},
            r"num_evaluations: expected at least 16 \(sub-networks evaluated .* predictor\); got 3",
        ),
        ({"rule": "best"}, r"rule: expected 'accuracy', 'paper' or 'all' \(.*\); got 'best'"),
        ({"predictor": "gp"}, r"predictor: expected 'pairs', 'mlp' or 'ridge' \(.*\); got 'gp'"),
        ({"confidence": 1.0}, r"confidence: expected less than 1.* \(chance wanted .*\); got 1\.0"),
        ({"evolution": {"parents_fraction": 0}}, r"evolution\.parents_fraction: expected more than 0.*; got 0"),
        ({"evolution": {"population": 1}}, r"evolution\.population: expected at least 4 \(.*\); got 1"),
        ({"num_members": 9}, r"num_members: expected at most 8 \(.*\); got 9"),
        ({"num_evaluations": "many"}, r"num_evaluations: expected a valid integer.*; got 'many'"),
        ({"dtypes": ["int8"]}, "expected dtypes of blocks among f32, bf16, int8, f32 first and another.*; got int8"),
        ({"dtypes": ["f32", "int8", "int8"]}, "without repeats, such as f32,int8; got f32,int8,int8"),
        ({"dtypes": ["f32", "f16"]}, "among f32, bf16, int8, .*; got f32,f16"),
        ({"num_evaluations": 20, "initial_evaluations": 30}, r"initial_evaluations \(30\) must not exceed"),
    ],
)
def test_faults_are_one_line(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        SearchConfig.parse(data)
    assert "\n" not in str(error.value)
