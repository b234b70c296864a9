"""chanas/core/effort.py: numbers in their ranges, and the trials that they come to."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from chanas.core.effort import AdaptEffort, Effort, NetworkEffort, TableEffort, check_num_networks
from chanas.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        *((kind, {"trials": 0}, "at least 1 trial per operator, got 0") for kind in (Effort, TableEffort)),
        (NetworkEffort, {"trials": -3, "minutes": 1.0}, "0 or more trials per operator, got -3"),
        (AdaptEffort, {"trials": -1}, "0 or more trials per operator, got -1"),
        *((Effort, {"tune_share": share}, f"--tune-share .*, got {share:g}") for share in (0.0, -0.5, 1.01, math.nan)),
        (NetworkEffort, {"tune_share": 2.0}, "--tune-share above 0 and at most 1, got 2"),
        *(
            (kind, {"calibrate": 5}, "at least 6 networks to calibrate with, got 5")
            for kind in (TableEffort, AdaptEffort)
        ),
        (TableEffort, {"calibrate": -1}, "at least 6 networks to calibrate with, got -1"),
        (AdaptEffort, {"measure": 4}, "at least 5 blocks to measure, got 4"),
        *((NetworkEffort, {"minutes": m}, f"minutes above 0, got {m:g}") for m in (0.0, -1.0, math.inf, math.nan)),
    ],
)
def test_a_number_out_of_its_range_is_refused(kind: type[Effort], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**fields)
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(kind(), **fields)


def test_the_ends_of_ranges_are_in_them() -> None:
    assert (Effort(trials=1, tune_share=1.0).num_trials, AdaptEffort(trials=0, measure=5).num_trials) == (1, 0)
    assert [TableEffort(calibrate=n).calibrate for n in (0, 6)] == [0, 6]
    check_num_networks(6)
    with pytest.raises(ConfigError, match="got 0"):
        check_num_networks(0)


@pytest.mark.parametrize(
    ("effort", "num_trials", "first_trials"),
    [
        (Effort(), 16, 8),
        (TableEffort(trials=5), 5, 2),
        (AdaptEffort(), 6, 3),
        (AdaptEffort(trials=12), 12, 3),
        (NetworkEffort(), 32, 8),
        (NetworkEffort(trials=200), 200, 8),
        (NetworkEffort(minutes=5.0), 4096, 8),  # the time is the limit
        (NetworkEffort(minutes=5.0, trials=20), 20, 8),
    ],
)
def test_trials_are_those_that_are_asked_for_or_those_of_what_is_tuned(
    effort: Effort, num_trials: int, first_trials: int
) -> None:
    assert (effort.num_trials, effort.first_trials) == (num_trials, first_trials)


@pytest.mark.parametrize(("layouts", "expected"), [(None, ()), (8, (8,)), ("32, 8,16,8", (8, 16, 32))])
def test_layouts_are_numbers_of_channels_in_order(layouts: int | str | None, expected: tuple[int, ...]) -> None:
    assert NetworkEffort(layouts=layouts).all_layouts == expected


@pytest.mark.parametrize("layouts", ["NHWC", "8,", "8,5", 0, ""])
def test_an_unknown_layout_is_refused_by_name(layouts: int | str) -> None:
    wrong = str(layouts).split(",")[-1]
    with pytest.raises(ConfigError, match=f"^unknown layout '{wrong}'; known: 16, 32, 4, 8$"):
        NetworkEffort(layouts=layouts)
