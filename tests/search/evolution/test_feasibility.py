from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from chanas.core.arch import SearchSpace
from chanas.core.genome import BlockTable, Genomes
from chanas.core.latency import LatencyLUT
from chanas.errors import InfeasibleError
from chanas.search.evolution.constraints import (
    Constraint,
    feasible,
    latency_constraint,
    macs_constraint,
    params_constraint,
)
from chanas.search.evolution.feasibility import check_together


@pytest.fixture
def opposed(tiny_space: SearchSpace) -> tuple[Constraint, Constraint]:
    """Two costs, of which a block that has little of one has much of the other."""
    macs = BlockTable(tiny_space, 10, lambda b: b.num_macs)
    most = max(b.num_macs for b in tiny_space.all_blocks(10))
    left = BlockTable(tiny_space, 10, lambda b: 2.0 * most - b.num_macs)
    return Constraint("work", 1.0, macs, "MACs"), Constraint("idleness", 1.0, left, "MACs")


def test_limits_that_can_be_met_together_give_architectures_that_meet_them(
    tiny_space: SearchSpace, tiny_genomes: Genomes, make_lut: Callable[..., LatencyLUT]
) -> None:
    lut = make_lut(tiny_space)
    limits = [
        latency_constraint(lut, tiny_space, 10, float(np.median(lut.latency_s(tiny_space, 10, tiny_genomes)))),
        macs_constraint(tiny_space, 10, float(np.median(macs_constraint(tiny_space, 10, 1).cost(tiny_genomes)))),
        params_constraint(tiny_space, 10, 1e9),
    ]
    rows = check_together(tiny_space, limits)
    assert len(rows)
    assert feasible(limits, rows).all()


def test_limits_that_exclude_each_other_name_the_smallest_of_each(
    opposed: tuple[Constraint, Constraint], tiny_space: SearchSpace, tiny_genomes: Genomes
) -> None:
    work, idleness = opposed
    work = replace(work, limit=float(np.quantile(work.cost(tiny_genomes), 0.02)))
    idleness = replace(idleness, limit=float(np.quantile(idleness.cost(tiny_genomes), 0.02)))
    assert not feasible([work, idleness], tiny_genomes).any()
    with pytest.raises(InfeasibleError) as caught:
        check_together(tiny_space, [work, idleness])
    text = str(caught.value)
    assert "together; each alone can be met. The smallest found beside the others: " in text
    # what is named is the least there is, of the one cost where the other holds
    beside = work.cost(tiny_genomes)[feasible([idleness], tiny_genomes)].min()
    assert f"work {work.enough(float(beside))} (r" in text
    other = idleness.cost(tiny_genomes)[feasible([work], tiny_genomes)].min()
    assert f"idleness {idleness.enough(float(other))} (r" in text
    assert "\n" not in text


def test_a_limit_that_cannot_be_met_by_itself_is_told_first(
    opposed: tuple[Constraint, Constraint], tiny_space: SearchSpace
) -> None:
    with pytest.raises(InfeasibleError, match="work of at most 1 MACs: the smallest reachable is"):
        check_together(tiny_space, opposed)


def test_the_one_architecture_inside_is_found(
    opposed: tuple[Constraint, Constraint], tiny_space: SearchSpace, tiny_genomes: Genomes
) -> None:
    work, idleness = opposed
    rng = np.random.default_rng(0)
    for row in tiny_genomes[rng.permutation(len(tiny_genomes))[:5]]:
        limits = [replace(c, limit=float(c.cost(row[None])[0])) for c in (work, idleness)]
        assert feasible(limits, check_together(tiny_space, limits)).all()
