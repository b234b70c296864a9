"""chanas/prescheduler/choice.py: the exact choice is never above what all choices are, on random graphs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.prescheduler.choice import Form, Map, changes_of, choose_forms, seconds_of

FORMS = [Form(lanes) for lanes in (4, 8, 16, 32)]
OWN = Form(16)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[dict[Form, float]], list[Map]]:
    """Up to seven operators with residual joins and branches; some are in one form alone, some changes do not exist."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    num = draw(st.integers(1, 7))
    nodes = []
    for _ in range(num):
        others = [form for form in FORMS if form != OWN and rng.random() < 0.6]
        nodes.append({form: float(rng.uniform(1e-6, 5e-4)) for form in (OWN, *others)})
    maps = []
    for producer in range(num - 1):
        later = [reader for reader in range(producer + 1, num) if reader == producer + 1 or rng.random() < 0.3]
        changes = {
            (a, b): float(rng.uniform(1e-7, 2e-4)) for a in FORMS for b in FORMS if a != b and rng.random() < 0.8
        }
        maps.append(Map(producer, tuple(later), changes))
    return nodes, maps


@given(graphs())
def test_no_choice_is_better(graph: tuple[list[dict[Form, float]], list[Map]]) -> None:
    nodes, maps = graph
    least = min(seconds_of(forms, nodes, maps) for forms in itertools.product(*nodes))
    found = choose_forms(nodes, maps)
    assert found.seconds == pytest.approx(least, rel=1e-9)
    assert found.seconds == seconds_of(found.forms, nodes, maps)
    assert found.bound <= found.seconds
    assert found.gap < 1e-6


@given(graphs(), st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
def test_no_choice_that_loses_as_little_is_better(
    graph: tuple[list[dict[Form, float]], list[Map]], seed: int, share: float
) -> None:
    nodes, maps = graph
    rng = np.random.default_rng(seed)
    losses = [{form: float(rng.random()) for form in node if form != OWN} for node in nodes]
    most = share * sum(max(own.values(), default=0.0) for own in losses) + 1e-3

    def lost(forms: Sequence[Form]) -> float:
        return sum(own.get(form, 0.0) for own, form in zip(losses, forms, strict=True))

    found = choose_forms(nodes, maps, losses, most)
    within = [forms for forms in itertools.product(*nodes) if lost(forms) <= most]
    assert lost(found.forms) <= most * (1 + 1e-6)
    assert found.seconds <= min(seconds_of(forms, nodes, maps) for forms in within) * (1 + 1e-9)


@pytest.mark.parametrize("most", [0.0, 1e-300, 1e-12])
def test_what_loses_far_more_than_is_allowed_is_not_chosen(most: float) -> None:
    nodes = [{OWN: 1e-5, FORMS[1]: 1e-8}, {OWN: 1e-5, FORMS[1]: 1e-8}, {OWN: 1e-5, FORMS[1]: 1e-8}]
    losses = [{FORMS[1]: 7.0e3}, {FORMS[1]: math.nan}, {FORMS[1]: 0.0}]
    assert choose_forms(nodes, [], losses, most).forms == (OWN, OWN, FORMS[1])


def test_a_map_is_changed_once_for_all_that_read_it_in_a_form() -> None:
    """Four readers that are faster in another form share the change that one of them alone would not pay for."""
    changes = {(OWN, FORMS[1]): 3.0e-6}
    reader = {OWN: 2.0e-6, FORMS[1]: 1.0e-6}
    one = choose_forms([{OWN: 1e-6}, reader], [Map(0, (1,), changes)])
    four = choose_forms([{OWN: 1e-6}, *4 * [reader]], [Map(0, (1, 2, 3, 4), changes)])
    assert one.forms == (OWN, OWN)
    assert four.forms == (OWN, *4 * [FORMS[1]])
    assert four.seconds == pytest.approx(8e-6)
    assert changes_of(four.forms, Map(0, (1, 2, 3, 4), changes)) == {(OWN, FORMS[1])}


def test_a_form_of_another_type_is_another_form() -> None:
    halves = Form(16, "bfloat16")
    found = choose_forms([{OWN: 3e-6, halves: 1e-6}, {OWN: 1e-6}], [Map(0, (1,), {(halves, OWN): 1e-6})])
    assert found.forms == (halves, OWN)


def test_a_change_that_does_not_exist_is_not_needed() -> None:
    found = choose_forms([{FORMS[1]: 1e-6, OWN: 9e-6}, {OWN: 1e-6}], [Map(0, (1,), {})])
    assert found.forms == (OWN, OWN)
    assert math.isinf(seconds_of((FORMS[1], OWN), [{FORMS[1]: 1e-6}, {OWN: 1e-6}], [Map(0, (1,), {})]))
    with pytest.raises(ValueError, match="no choice of forms is possible"):
        choose_forms([{FORMS[1]: 1e-6}, {OWN: 1e-6}], [Map(0, (1,), {})])


def test_nothing_to_choose_takes_no_time() -> None:
    assert choose_forms([], []).seconds == 0.0
    assert choose_forms([], []).gap == 0.0


def test_a_network_of_two_hundred_operators_is_proven_in_a_second() -> None:
    """A graph with more residual joins than any network of ours has."""
    rng = np.random.default_rng(0)
    nodes = [{form: float(rng.uniform(1e-5, 2e-5)) for form in FORMS} for _ in range(200)]
    changes = {(a, b): 2e-6 for a in FORMS for b in FORMS if a != b}
    maps = [Map(i, tuple(r for r in (i + 1, i + 4) if r < 200), changes) for i in range(199)]
    found = choose_forms(nodes, maps)
    assert found.gap < 1e-6
    assert found.num_nodes == 800
