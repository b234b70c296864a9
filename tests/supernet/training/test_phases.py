"""The schedule: which sub-networks, resolution and learning rate a step has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from chanas.core.arch import SearchSpace
from chanas.errors import ConfigError
from chanas.supernet.training.phases import PhaseConfig, Schedule, TrainConfig

MakeConfig = Callable[..., TrainConfig]


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("digits", "mbv3-32"),
        ("imagenet-mbv3", "mbv3"),
        ("photos", "mbv3"),
        ("small-images", "mbv3-32"),
        ("transfer", "ofa-mbv3-w1.0"),
    ],
)
def test_a_preset_fits_its_space(name: str, space: str) -> None:
    config = TrainConfig.load(name)
    assert config.space == space
    schedule = Schedule(config, SearchSpace.load(space), num_train=1000)
    last = schedule.spaces[-1]
    assert dataclasses.replace(last, name=space) == SearchSpace.load(space)


def test_the_presets_have_the_papers_optimiser_and_lambda() -> None:
    config = TrainConfig.load("imagenet-mbv3")
    assert (config.optimizer.momentum, config.optimizer.weight_decay) == (0.9, 3e-5)
    assert config.objective.gap_weight == 0.45
    assert config.phases[0].base_lr * 2048 / config.optimizer.lr_batch_size == 2.5


def test_the_imagenet_preset_shrinks_step_by_step() -> None:
    schedule = Schedule(TrainConfig.load("imagenet-mbv3"), SearchSpace.load("mbv3"), num_train=640)
    sizes = [(len(s.kernel_sizes), s.depths, s.expand_ratios, len(s.width_multipliers)) for s in schedule.spaces]
    assert sizes == [
        (1, (4,), (6,), 1),
        (3, (4,), (6,), 1),
        (3, (3, 4), (6,), 1),
        (3, (2, 3, 4), (6,), 1),
        (3, (2, 3, 4), (4, 6), 1),
        (3, (2, 3, 4), (3, 4, 6), 1),
        (3, (2, 3, 4), (3, 4, 6), 4),
    ]
    sorting = [schedule.plan(start).sorts_channels for start in schedule.starts[:-1]]
    assert sorting == [False, False, False, False, True, True, False]


def test_a_config_survives_json(make_config: MakeConfig) -> None:
    config = make_config(seed=4)
    assert TrainConfig.from_json(config.to_json()) == config


def test_a_config_that_says_how_colours_are_read_still_opens(make_config: MakeConfig) -> None:
    config = make_config()
    older = config.to_json()
    older["data"]["convert_rgb"] = False
    assert TrainConfig.from_json(older) == config


def test_changes_of_a_config_are_checked(make_config: MakeConfig) -> None:
    config = make_config().changed(seed=5, data={"num_workers": 2})
    assert (config.seed, config.data.num_workers, config.data.augment) == (5, 2, make_config().data.augment)
    with pytest.raises(ConfigError, match=r"seed: .*greater than or equal to 0, got -1"):
        config.changed(seed=-1)


def test_choices_left_out_are_the_largest(tiny_space: SearchSpace) -> None:
    space = PhaseConfig(name="p", steps=1, base_lr=0.1, depths="all").restrict(tiny_space)
    assert space.depths == (1, 2)
    assert (space.kernel_sizes, space.expand_ratios, space.resolutions) == ((5,), (3,), (16,))


def test_a_sandwich_step_has_the_largest_first_then_the_smallest(
    tiny_space: SearchSpace, make_config: MakeConfig
) -> None:
    schedule = Schedule(make_config(), tiny_space, 100)
    for plan in schedule.plans(0):
        at = dataclasses.replace(tiny_space, resolutions=(plan.resolution,))
        assert [name for name, _ in plan.subnets] == ["largest", "smallest", "random"]
        assert [a for _, a in plan.subnets[:2]] == [at.largest, at.smallest]
        assert at.contains(plan.subnets[2][1])


def test_a_step_is_the_same_whoever_asks(tiny_space: SearchSpace, make_config: MakeConfig) -> None:
    phases = [{"name": "all", "steps": 40, "base_lr": 0.1, "num_subnets": 3, "resolutions": "all", "depths": "all"}]
    first, second = (Schedule(make_config(phases=phases), tiny_space, 100) for _ in range(2))
    assert list(first.plans(20)) == list(second.plans(0))[20:]
    assert {plan.resolution for plan in first.plans(0)} == {12, 16}
    other = Schedule(make_config(phases=phases, seed=1), tiny_space, 100)
    assert [p.subnets for p in other.plans(0)] != [p.subnets for p in first.plans(0)]


def test_a_phase_with_nothing_elastic_trains_the_largest_alone(
    tiny_space: SearchSpace, progressive: TrainConfig
) -> None:
    schedule = Schedule(progressive, tiny_space, 100)
    assert schedule.plan(0).subnets == (("largest", tiny_space.largest),)
    assert [len(plan.subnets) for plan in schedule.plans(0)] == [1, 1, 1, 1, 2, 2]
    assert [plan.sorts_channels for plan in schedule.plans(0)] == [False, False, False, False, True, False]


def test_the_learning_rate_warms_up_then_falls_along_a_cosine(tiny_space: SearchSpace, make_config: MakeConfig) -> None:
    phase = {"name": "a", "steps": 12, "base_lr": 0.4, "warmup_steps": 4}
    config = make_config(phases=[phase, {**phase, "name": "b"}], batch_size=8, optimizer={"lr_batch_size": 16})
    rates = [plan.lr for plan in Schedule(config, tiny_space, 100).plans(0)]
    assert rates[:5] == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2])
    assert rates[8] == pytest.approx(0.1)
    assert rates[4:12] == sorted(rates[4:12], reverse=True)
    assert rates[12:] == rates[:12]


def test_epochs_become_steps_by_the_number_of_train_images(tiny_space: SearchSpace, make_config: MakeConfig) -> None:
    phases = [{"name": "a", "epochs": 2.5, "base_lr": 0.1, "warmup_epochs": 0.5}]
    schedule = Schedule(make_config(phases=phases, batch_size=8), tiny_space, num_train=100)
    assert schedule.num_steps == 32
    assert schedule.plan(6).lr == schedule.plan(7).lr == max(plan.lr for plan in schedule.plans(0))


def test_a_phase_of_few_images_has_its_least_number_of_steps(make_config: MakeConfig, tiny_space: SearchSpace) -> None:
    phase = {"name": "all", "epochs": 2, "min_steps": 30, "base_lr": 0.1}
    config = make_config(batch_size=10, phases=[phase])
    assert [Schedule(config, tiny_space, num_train=n).num_steps for n in (50, 150, 500)] == [30, 30, 100]
    with pytest.raises(ConfigError, match="min_steps"):
        make_config(phases=[{"name": "all", "steps": 3, "min_steps": 2, "base_lr": 0.1}])


def test_an_unknown_key_is_told_with_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"'phase'.*phases"):
        TrainConfig.from_json({"phase": []})
