"""Named architectures are judged one after the other, each with how far its accuracy can be trusted."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas import workflows
from chanas.core.arch import SearchSpace
from chanas.errors import ArchitectureError, ConfigError
from chanas.files.run import RunDirectory
from chanas.supernet.judge import Judged, Spread, judge, parse_request
from chanas.supernet.training.evaluate import SupernetEvaluator
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.train import train_supernet


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, tiny_space: SearchSpace, make_config: Callable[..., TrainConfig]
) -> RunDirectory:
    run = RunDirectory(tmp_path_factory.mktemp("judged"))
    train_supernet(run, tiny_space, make_config(), progress=False)
    return run


# ---- what is asked for ----------------------------------------------------------------------------------------------
def test_names_and_keys_are_one_architecture(tiny_space: SearchSpace) -> None:
    for text, expected in (
        ("largest", tiny_space.largest),
        ("smallest", tiny_space.smallest),
        (tiny_space.largest.key, tiny_space.largest),
    ):
        request = parse_request(text, tiny_space)
        assert (request.text, request.architectures, request.is_random) == (text, (expected,), False)


@given(num=st.integers(1, 60), seed=st.integers(0, 9))
def test_random_ones_are_distinct_and_of_the_space(tiny_space: SearchSpace, num: int, seed: int) -> None:
    drawn = parse_request(f"random:{num}", tiny_space, seed).architectures
    assert len(set(drawn)) == num
    assert all(tiny_space.contains(a) for a in drawn)
    assert parse_request("random:60", tiny_space, seed).architectures[:num] == drawn


def test_all_of_a_small_space_can_be_drawn(tiny_space: SearchSpace) -> None:
    drawn = parse_request(f"random:{tiny_space.num_architectures}", tiny_space).architectures
    assert len(set(drawn)) == tiny_space.num_architectures


def test_another_seed_draws_others(tiny_space: SearchSpace) -> None:
    first, second = (parse_request("random:5", tiny_space, seed).architectures for seed in (0, 1))
    assert first != second


@pytest.mark.parametrize("text", ["biggest", "", "r12", "Largest", "rändom:3"])
def test_a_name_that_is_none_says_what_there_is(tiny_space: SearchSpace, text: str) -> None:
    with pytest.raises(ConfigError, match=f"'{text}'"):
        parse_request(text, tiny_space)


@pytest.mark.parametrize(
    "text", ["random", "random:", "random:0", "random:-1", "random:x", "random:1601", "random:9e9"]
)
def test_numbers_that_cannot_be_drawn_are_refused(tiny_space: SearchSpace, text: str) -> None:
    with pytest.raises(ConfigError, match=f"1600 .*'{text}'"):
        parse_request(text, tiny_space)


def test_a_key_of_another_space_says_what_does_not_fit(tiny_space: SearchSpace) -> None:
    with pytest.raises(ArchitectureError, match="resolution 32"):
        parse_request(SearchSpace.load("mbv3-32").largest.key, tiny_space)


# ---- results --------------------------------------------------------------------------------------------------------
def test_results_are_those_of_the_evaluator(trained: RunDirectory) -> None:
    supernet = SupernetEvaluator.load(trained)
    named = ("largest", supernet.space.smallest.key)
    large, small = judge(supernet, [parse_request(text, supernet.space) for text in named], progress=False)
    assert isinstance(large, Judged)
    assert isinstance(small, Judged)
    assert (large.request, small.request) == named
    assert large.num_images == len(supernet.data.indices("holdout"))
    assert large.top1 == pytest.approx(supernet.top1(supernet.space.largest))
    assert small.architecture == supernet.space.smallest
    assert small.num_macs == supernet.space.smallest.num_macs(supernet.space, 10)
    assert small.num_params == supernet.space.smallest.num_params(supernet.space, 10)
    assert large.interval[0] <= large.top1 <= large.interval[1]
    assert large.step == 6


def test_random_ones_are_followed_by_their_spread(trained: RunDirectory) -> None:
    *judged, spread, last = workflows.evaluate(trained, ["random:3", "smallest"], seed=4, progress=False)
    top1 = [one.top1 for one in judged if isinstance(one, Judged)]
    assert len(top1) == 3
    assert isinstance(spread, Spread)
    assert (spread.request, spread.split, spread.num_architectures) == ("random:3", "holdout", 3)
    assert spread.mean == pytest.approx(np.mean(top1))
    assert spread.deviation == pytest.approx(np.std(top1, ddof=1))
    assert (spread.lowest, spread.highest) == (min(top1), max(top1))
    assert isinstance(last, Judged)


def test_a_single_random_one_has_no_deviation(trained: RunDirectory) -> None:
    _, spread = workflows.evaluate(trained, ["random:1"], progress=False)
    assert isinstance(spread, Spread)
    assert spread.deviation is None


def test_each_result_is_there_before_the_next_is_computed(
    trained: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = workflows.evaluate(trained, ["smallest", "largest"], progress=False)
    next(results)

    def fail(*_: object) -> None:
        raise AssertionError("the second one is evaluated already")

    monkeypatch.setattr(SupernetEvaluator, "top1", fail)
    with pytest.raises(AssertionError, match="second one"):
        next(results)


def test_any_split_can_be_asked_for(trained: RunDirectory) -> None:
    sizes = {}
    for split in ("train", "gap", "holdout", "test"):
        (judged,) = workflows.evaluate(trained, ["smallest"], split=split, progress=False)
        assert isinstance(judged, Judged)
        assert judged.split == split
        sizes[split] = judged.num_images
    assert sum(sizes.values()) == 1797


def test_results_are_json(trained: RunDirectory) -> None:
    judged, spread = workflows.evaluate(trained, ["random:1"], progress=False)
    found = json.loads(json.dumps([judged.to_json(), spread.to_json()], allow_nan=False))
    assert found[0]["top1"] == found[0]["num_correct"] / found[0]["num_images"]
    assert found[0]["interval_95"][0] <= found[0]["top1"] <= found[0]["interval_95"][1]
    assert found[1]["top1_mean"] == found[0]["top1"]
