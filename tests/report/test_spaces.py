"""report/spaces.py: figures of a schedule space from the points that were tried."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest

from chanas.report.spaces import TriedSpace, draw_best, draw_effects, space_sections

KNOBS = (("tile <w>", ("1", "2", "4")), ("order", ("0", "1")), ("fixed", ("a", "b")))


def speed_of(tile: int, order: int) -> float:
    """The tile decides most, the order a little."""
    return 10.0 * (1 + tile) * (1.1 if order else 1.0)


PAIRS = tuple(itertools.product(range(3), range(2)))
FULL = TriedSpace("conv <8>", KNOBS, tuple(((t, o, 0), speed_of(t, o)) for t, o in PAIRS))
ONE_KNOB = TriedSpace("conv", KNOBS, (((0, 1, 0), 10.0), ((2, 1, 0), 30.0), ((2, 1, 0), 20.0)))


def texts(drawing: str) -> list[str]:
    return [text for text in ElementTree.fromstring(drawing).itertext() if text]


def test_the_knob_that_decides_more_comes_first_and_one_that_was_not_varied_not_at_all() -> None:
    assert FULL.by_effect() == [0, 1]
    assert FULL.effect(0) > 0.9
    assert FULL.effect(0) > FULL.effect(1) >= 0.0
    assert FULL.effect(2) == 0.0


def test_candidates_with_one_point_each_decide_nothing() -> None:
    space = TriedSpace("conv", KNOBS, (((0, 0, 0), 1.0), ((1, 0, 0), 2.0), ((2, 0, 0), 3.0)))
    assert space.effect(0) == 0.0


def test_equal_speeds_are_decided_by_no_knob() -> None:
    space = TriedSpace("conv", KNOBS, tuple(((t, o, 0), 5.0) for t in range(3) for o in range(2)))
    assert [space.effect(knob) for knob in range(3)] == [0.0, 0.0, 0.0]


def test_the_map_has_the_best_of_each_pair_of_candidates() -> None:
    twice = TriedSpace(FULL.operator, KNOBS, (*FULL.points, ((2, 1, 0), 50.0)))
    figure = draw_best(twice, "map")
    assert figure is not None
    assert len(figure.rows) == 6
    assert ("4", "1", "2", "50") in figure.rows
    assert ("1", "0", "1", "10") in figure.rows
    shown = texts(figure.drawing)
    assert "Best GFLOP/s of conv <8>" in shown
    assert "tile <w> (down), order (across)" in shown
    assert figure.drawing.count('stroke-width="2"') == 1


def test_a_map_of_many_candidates_has_no_numbers_in_it() -> None:
    wide = (("split_w", tuple(f"{n}·{n}" for n in range(40))), ("split_h", tuple(map(str, range(20)))))
    points = tuple(((w, h), 1.0 + w + h + (w * h) % 7) for w in range(40) for h in range(20))
    figure = draw_best(TriedSpace("conv", wide, points), "map")
    assert figure is not None
    assert 'class="halo"' not in figure.drawing
    assert len(figure.rows) == 800


def test_a_map_needs_two_knobs_that_were_varied() -> None:
    assert draw_best(ONE_KNOB, "map") is None
    assert draw_effects(ONE_KNOB, "effects") is not None
    assert draw_effects(TriedSpace("conv", KNOBS, ()), "effects") is None


def test_effects_have_median_and_best_of_each_candidate_that_was_tried() -> None:
    figure = draw_effects(ONE_KNOB, "effects")
    assert figure is not None
    assert figure.rows == (("tile <w>", "1", "1", "10", "10"), ("tile <w>", "4", "2", "25", "30"))
    assert [text for text in texts(figure.drawing) if text.startswith("tile <w>: decides")] != []


def test_knobs_that_decide_least_are_left_out_of_a_long_figure() -> None:
    knobs = tuple((f"knob{k}", tuple(map(str, range(40)))) for k in range(3))
    points = tuple(((i, (3 * i) % 40, (7 * i) % 40), 1.0 + i + repeat) for i in range(40) for repeat in range(3))
    figure = draw_effects(TriedSpace("conv", knobs, points), "effects")
    assert figure is not None
    assert len(figure.rows) == 40
    assert any("2 knobs with less effect are left out" in text for text in texts(figure.drawing))


@pytest.mark.parametrize("space", [FULL, ONE_KNOB])
def test_sections_have_both_figures_or_a_line(space: TriedSpace) -> None:
    html = "".join(space_sections([space, space]))
    for i in range(2):
        assert f'id="figure-effects-{i}"' in html
        assert (f'id="figure-space-{i}"' in html) == (space is FULL)
    assert ("Fewer than two knobs were varied" in html) == (space is ONE_KNOB)
    assert "<w>" not in html
