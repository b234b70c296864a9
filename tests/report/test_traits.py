"""chanas/report/traits.py: what sets networks apart, and when it is told."""

from __future__ import annotations

import pytest

from chanas.core.arch import Architecture, SearchSpace
from chanas.report.traits import Trait, chance_above, sentences, traits

SPACE = SearchSpace.load("mbv3")
SIZE = Trait("size", lambda a: 0.0, lambda v: f"{v:.1f}", "are larger")


def architecture(kernel_size: int, expand_ratio: int, depth: int = 2, resolution: int = 224) -> Architecture:
    return Architecture(resolution, 1.0, (((kernel_size, expand_ratio),) * depth,) * 5)


def test_traits_are_those_of_the_blocks() -> None:
    mixed = Architecture(192, 1.2, (((3, 6), (7, 3)), ((7, 3), (5, 4)), *(((7, 4), (7, 4)),) * 3))
    found = {t.name: t.text(t.of(mixed)) for t in traits(SPACE)}
    assert found == {
        "resolution": "192",
        "width multiplier": "1.2",
        "blocks": "10",
        "mean kernel size": "6.4",
        "share of 7×7": "80 %",
        "share of 5×5": "10 %",
        "share of 3×3": "10 %",
        "mean expand ratio": "4",
    }


@pytest.mark.parametrize(
    ("a", "b", "chance"), [([2.0], [1.0], 1.0), ([1.0], [1.0], 0.5), ([1.0, 3.0], [2.0], 0.5), ([1.0], [2.0, 3.0], 0.0)]
)
def test_the_chance_to_be_above(a: list[float], b: list[float], chance: float) -> None:
    assert chance_above(a, b) == chance


def test_a_clear_difference_is_one_sentence_and_others_are_none() -> None:
    clear = {"gpu": [5.0, 5.2, 4.8], "cpu": [3.6, 3.8, 4.0], "phone": [3.7, 5.1, 3.9]}
    assert sentences(SIZE, clear) == [
        "The networks for gpu are larger than those for cpu: 5.0 against 3.8 on average, and so in 100 of 100 pairs."
    ]
    assert sentences(SIZE, {"a": [1.0, 2.0, 3.0], "b": [1.5, 2.5, 2.0]}) == []


def test_of_three_that_stand_apart_each_is_told_once() -> None:
    first, second = sentences(SIZE, {"low": [1.0], "high": [3.0], "middle": [2.0]})
    assert first.startswith("The networks for high are larger than those for low and middle: 3.0 against 1.0 and 2.0")
    assert second.startswith("The networks for middle are larger than those for low: 2.0 against 1.0")


def test_what_reads_the_same_is_not_told() -> None:
    assert sentences(SIZE, {"a": [1.001, 1.002], "b": [1.0, 0.999]}) == []


def test_the_papers_question_is_answered() -> None:
    kernels = next(t for t in traits(SPACE) if t.name == "share of 7×7")
    values = {"gpu": [kernels.of(architecture(7, e)) for e in (3, 4, 6)], "cpu": [kernels.of(architecture(3, 6))]}
    assert sentences(kernels, values) == [
        "The networks for gpu have more 7×7 kernels than those for cpu: 100 % against 0 % on average, and so in 100 of "
        "100 pairs."
    ]
