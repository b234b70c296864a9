from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import seeds, spaces

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import BlockTable, Genomes, canonical, decode, sample
from chanas.core.latency import LatencyLUT
from chanas.core.task import Limits
from chanas.devices.host import load_target
from chanas.errors import ConfigError, InfeasibleError, LUTError
from chanas.search.evolution.constraints import (
    Constraint,
    check_reachable,
    feasible,
    further_constraints,
    latency_constraint,
    least,
    macs_constraint,
    memory_constraint,
    params_constraint,
    reachable,
    violation,
)

NUM_CLASSES = 10
HOST = load_target("cpu")


def test_the_least_latency_is_the_least_of_all_architectures(
    tiny_space: SearchSpace, tiny_genomes: Genomes, make_lut: Callable[..., LatencyLUT]
) -> None:
    for seed in range(5):
        table = make_lut(tiny_space, seed).table(tiny_space, NUM_CLASSES)
        every = table.of(tiny_genomes)
        value, genome = least(table)
        assert value == every.min()
        assert (genome[0] == tiny_genomes[every.argmin()]).all()
        by_sub_space, _ = table.smallest()
        for (r, w), found in np.ndenumerate(by_sub_space):
            here = every[(tiny_genomes[:, 0] == r) & (tiny_genomes[:, 1] == w)]
            assert found == pytest.approx(here.min(), rel=1e-12)


@settings(max_examples=40)
@given(spaces, seeds)
def test_nothing_random_is_below_the_least(space: SearchSpace, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = BlockTable(space, NUM_CLASSES, lambda block: float(rng.random()))
    rows = sample(space, 100, rng)
    value, genome = least(table)
    assert (canonical(space, genome) == genome).all()
    assert table.of(genome)[0] == value
    assert value <= table.of(rows).min() + 1e-9
    for sub_space in space.sub_spaces:
        inside = least(table, sub_space)
        assert decode(space, inside[1])[0].sub_space == sub_space
        assert inside[0] >= value - 1e-9


def test_counts_equal_those_of_the_architecture(tiny_space: SearchSpace, tiny_genomes: Genomes) -> None:
    rows = tiny_genomes[::97]
    macs, params = macs_constraint(tiny_space, NUM_CLASSES, 1e6), params_constraint(tiny_space, NUM_CLASSES, 1e4)
    expected: list[Architecture] = decode(tiny_space, rows)
    assert macs.cost(rows).tolist() == [a.num_macs(tiny_space, NUM_CLASSES) for a in expected]
    assert params.cost(rows).tolist() == [a.num_params(tiny_space, NUM_CLASSES) for a in expected]


def test_all_limits_hold_together(
    tiny_space: SearchSpace, tiny_genomes: Genomes, make_lut: Callable[..., LatencyLUT]
) -> None:
    table = make_lut(tiny_space).table(tiny_space, NUM_CLASSES)
    latency = Constraint("latency", float(np.median(table.of(tiny_genomes))), table, "s")
    macs = macs_constraint(tiny_space, NUM_CLASSES, float(np.median(latency.cost(tiny_genomes))) * 1e11)
    meets = feasible([latency, macs], tiny_genomes)
    assert (meets == (latency.cost(tiny_genomes) <= latency.limit) & (macs.cost(tiny_genomes) <= macs.limit)).all()
    assert (meets == (violation([latency, macs], tiny_genomes) == 0)).all()
    assert reachable([latency], tiny_space).any()


def test_an_infeasible_limit_names_the_smallest_reachable(
    tiny_space: SearchSpace, make_lut: Callable[..., LatencyLUT]
) -> None:
    lut = make_lut(tiny_space)
    value, genome = least(lut.table(tiny_space, NUM_CLASSES))
    key = decode(tiny_space, genome)[0].key
    with pytest.raises(InfeasibleError, match=rf"latency of at most .* smallest reachable is .* us \({key}\)"):
        check_reachable([latency_constraint(lut, tiny_space, NUM_CLASSES, 0.99 * value)])
    with pytest.raises(InfeasibleError, match=r"multiply-accumulates of at most 10 MACs"):
        check_reachable([macs_constraint(tiny_space, NUM_CLASSES, 10)])
    with pytest.raises(InfeasibleError, match=r"sub-space r16-w1\.5"):
        check_reachable([latency_constraint(lut, tiny_space, NUM_CLASSES, value)], tiny_space.sub_spaces[-1])
    check_reachable([latency_constraint(lut, tiny_space, NUM_CLASSES, value)])


def test_the_least_peak_memory_is_the_least_of_all_architectures(
    tiny_space: SearchSpace, tiny_genomes: Genomes
) -> None:
    every = memory_constraint(tiny_space, NUM_CLASSES, 1e6, HOST).cost(tiny_genomes)
    value, genome = least(memory_constraint(tiny_space, NUM_CLASSES, 1e6, HOST).table)
    assert value == every.min()
    assert decode(tiny_space, genome)[0].key in [a.key for a in decode(tiny_space, tiny_genomes[every == value])]
    with pytest.raises(InfeasibleError, match=r"peak memory of at most 1 kB: the smallest reachable is .* kB"):
        check_reachable([memory_constraint(tiny_space, NUM_CLASSES, 1e3, HOST)])


def test_memory_is_limited_once_for_each_kind_of_activations(tiny_space: SearchSpace) -> None:
    two_threads = dataclasses.replace(HOST, name="cpu-2t", num_threads=2)
    halves = dataclasses.replace(HOST, name="cpu-bf16", dtype="bfloat16")
    alike = further_constraints(tiny_space, NUM_CLASSES, Limits(peak_memory=1e6), targets=[HOST, two_threads])
    assert [c.name for c in alike] == ["peak memory"]
    different = further_constraints(tiny_space, NUM_CLASSES, Limits(1e6, 1e5, 1e6), [HOST, two_threads, halves])
    assert [c.name for c in different[2:]] == ["peak memory on cpu", "peak memory on cpu-bf16"]
    many = dataclasses.replace(HOST, name="cuda-b8", batch=8)
    batches = further_constraints(tiny_space, NUM_CLASSES, Limits(peak_memory=1e6), targets=[HOST, many])
    assert [c.name for c in batches] == ["peak memory on cpu", "peak memory on cuda-b8"]


def test_what_the_table_does_not_know_takes_for_ever(
    tiny_space: SearchSpace, tiny_genomes: Genomes, make_lut: Callable[..., LatencyLUT]
) -> None:
    lut = make_lut(tiny_space)
    whole = latency_constraint(lut, tiny_space, NUM_CLASSES, 1.0).cost(tiny_genomes)
    key = next(k for k in lut.rows if k.startswith("mbconv") and "k5" in k)
    del lut.rows[key]
    with pytest.raises(LUTError, match=r"lacks 1 blocks .* `chanas lut fill` .*`chanas search --covered-only`"):
        latency_constraint(lut, tiny_space, NUM_CLASSES, 1.0)
    limit = latency_constraint(lut, tiny_space, NUM_CLASSES, 1.0, covered_only=True)
    uses_it = [key in {b.key for b in a.blocks(tiny_space, NUM_CLASSES)} for a in decode(tiny_space, tiny_genomes)]
    assert np.isinf(limit.cost(tiny_genomes)).tolist() == uses_it
    assert limit.cost(tiny_genomes)[~np.array(uses_it)] == pytest.approx(whole[~np.array(uses_it)])
    assert np.isfinite(least(limit.table)[0])
    lut.rows.clear()
    with pytest.raises(InfeasibleError, match=r"has no architecture whose latency is known: .*; run `chanas lut fill`"):
        check_reachable([latency_constraint(lut, tiny_space, NUM_CLASSES, 1.0, covered_only=True)])


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_is_positive(limit: float, tiny_space: SearchSpace) -> None:
    with pytest.raises(ConfigError, match="expected a limit above zero for parameters"):
        params_constraint(tiny_space, NUM_CLASSES, limit)
