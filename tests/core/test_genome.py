"""chanas/core/genome.py: populations as arrays."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import choices_of_dtypes, mixed_spaces, mixed_spaces_and_genomes, seeds, spaces, spaces_and_genomes

from chanas.core.arch import NUM_FIXED, Architecture, SearchSpace, StageSpec, SubSpace
from chanas.core.blocks import BlockConfig
from chanas.core.genome import (
    BlockTable,
    GenomeLayout,
    Genomes,
    canonical,
    crossover,
    decode,
    dtypes_in_order,
    encode,
    mutate,
    plain,
    sample,
    with_random_dtypes,
)
from chanas.errors import ArchitectureError

Population = tuple[SearchSpace, Genomes]


# ---- encoding -------------------------------------------------------------------------------------------------------
@given(spaces_and_genomes())
def test_decoding_and_encoding_give_the_same_genomes_back(population: Population) -> None:
    space, genomes = population
    np.testing.assert_array_equal(encode(space, decode(space, genomes)), genomes)


@given(spaces_and_genomes())
def test_equal_architectures_have_equal_rows(population: Population) -> None:
    space, genomes = population
    assert len(set(decode(space, genomes))) == len(np.unique(genomes, axis=0))


@given(spaces)
def test_no_architectures_are_an_array_without_rows(space: SearchSpace) -> None:
    genomes = encode(space, [])
    assert genomes.shape == (0, GenomeLayout(space).length)
    assert decode(space, genomes) == []


def test_a_genome_has_the_written_layout(tiny_space: SearchSpace) -> None:
    genome = encode(tiny_space, [Architecture.from_key("r16-w1-k5e2-k3e3.k5e2")])
    assert genome.tolist() == [[1, 0, 0, 1, 1, -1, 0, 1, 0, -1, 1, 0]]


def test_entries_of_unused_slots_do_not_matter(tiny_space: SearchSpace) -> None:
    genome = encode(tiny_space, [Architecture.from_key("r16-w1-k5e2-k3e3.k5e2")])
    other = genome.copy()
    other[0, [5, 9]] = 1
    assert decode(tiny_space, other) == decode(tiny_space, genome)
    np.testing.assert_array_equal(canonical(tiny_space, other), genome)


def test_an_architecture_of_another_space_is_refused(tiny_space: SearchSpace) -> None:
    with pytest.raises(ArchitectureError, match="kernel size 7"):
        encode(tiny_space, [Architecture.from_key("r16-w1-k7e2-k3e3")])


@pytest.mark.parametrize("column", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("index", [-1, 2, 100])
def test_an_index_that_the_space_lacks_is_refused(tiny_space: SearchSpace, column: int, index: int) -> None:
    genome = encode(tiny_space, [tiny_space.largest])
    genome[0, column] = index
    with pytest.raises(ArchitectureError, match="has an index that space 'tiny' lacks"):
        decode(tiny_space, genome)


@pytest.mark.parametrize("genomes", [np.zeros((1, 3), np.int16), np.zeros(12, np.int16), np.zeros((1, 12))])
def test_an_array_of_another_form_is_refused(tiny_space: SearchSpace, genomes: Genomes) -> None:
    with pytest.raises(ArchitectureError, match="expected genomes of 12 integers"):
        decode(tiny_space, genomes)


# ---- sampling, mutation, crossover ----------------------------------------------------------------------------------
@given(spaces, seeds)
def test_samples_are_canonical_members(space: SearchSpace, seed: int) -> None:
    genomes = sample(space, 10, np.random.default_rng(seed))
    np.testing.assert_array_equal(canonical(space, genomes), genomes)
    assert all(space.contains(a) for a in decode(space, genomes))


@given(spaces, seeds, st.data())
def test_samples_stay_in_the_sub_space_that_is_asked_for(space: SearchSpace, seed: int, data: st.DataObject) -> None:
    sub_space = data.draw(st.sampled_from(space.sub_spaces))
    genomes = sample(space, 10, np.random.default_rng(seed), sub_space)
    assert {a.sub_space for a in decode(space, genomes)} == {sub_space}


def test_a_sub_space_of_another_space_is_refused(tiny_space: SearchSpace, rng: np.random.Generator) -> None:
    with pytest.raises(ArchitectureError, match="sub-space r99-w1 is not in space 'tiny'"):
        sample(tiny_space, 1, rng, SubSpace(99, 1.0))


def test_every_choice_is_sampled_about_equally_often(tiny_space: SearchSpace, rng: np.random.Generator) -> None:
    genomes = sample(tiny_space, 4000, rng)
    for column in genomes.T:
        used = column[column >= 0]
        assert np.mean(used == 1) == pytest.approx(0.5, abs=0.05)


@given(spaces_and_genomes(), seeds, st.floats(0, 1), st.booleans())
def test_mutants_are_canonical_members(population: Population, seed: int, probability: float, fixed: bool) -> None:
    space, genomes = population
    before = genomes.copy()
    mutants = mutate(space, genomes, probability, np.random.default_rng(seed), fix_sub_space=fixed)
    np.testing.assert_array_equal(genomes, before)
    np.testing.assert_array_equal(canonical(space, mutants), mutants)
    assert mutants.dtype == genomes.dtype
    assert all(space.contains(a) for a in decode(space, mutants))
    if fixed:
        np.testing.assert_array_equal(mutants[:, :2], genomes[:, :2])


@given(spaces_and_genomes(), seeds)
def test_mutation_with_probability_zero_changes_nothing(population: Population, seed: int) -> None:
    space, genomes = population
    np.testing.assert_array_equal(mutate(space, genomes, 0.0, np.random.default_rng(seed)), genomes)


def test_mutation_reaches_every_choice(tiny_space: SearchSpace, rng: np.random.Generator) -> None:
    start = encode(tiny_space, [tiny_space.smallest] * 2000)
    mutants = mutate(tiny_space, start, 0.5, rng, fix_sub_space=False)
    num_choices = GenomeLayout(tiny_space).num_choices
    for column, num in zip(mutants.T, num_choices, strict=True):
        assert set(column[column >= 0].tolist()) == set(range(num))


@given(spaces, seeds)
def test_a_child_takes_every_stage_whole_from_a_parent(space: SearchSpace, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mothers, fathers = sample(space, 10, rng), sample(space, 10, rng)
    children = crossover(space, mothers, fathers, rng)
    np.testing.assert_array_equal(canonical(space, children), children)
    families = zip(*(decode(space, g) for g in (children, mothers, fathers)), strict=True)
    for child, mother, father in families:
        assert child.sub_space == mother.sub_space
        for stage, *parents in zip(child.stages, mother.stages, father.stages, strict=True):
            assert stage in parents


def test_a_child_takes_about_half_of_its_stages_from_each_parent(
    tiny_space: SearchSpace, rng: np.random.Generator
) -> None:
    mothers, fathers = (encode(tiny_space, [a] * 4000) for a in (tiny_space.smallest, tiny_space.largest))
    depths = crossover(tiny_space, mothers, fathers, rng)[:, GenomeLayout(tiny_space).depths]
    assert depths.mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.05)


# ---- sums over blocks -----------------------------------------------------------------------------------------------
def made_up_cost(block: BlockConfig) -> float:
    """A cost that differs between any two blocks and is no smooth function of their shape."""
    return 1e-3 * (hash(block.key) % 100_003)


@given(spaces_and_genomes())
def test_a_block_table_sums_what_the_blocks_sum_to(population: Population) -> None:
    space, genomes = population
    expected = [sum(made_up_cost(b) for b in a.blocks(space, 10)) for a in decode(space, genomes)]
    np.testing.assert_allclose(BlockTable(space, 10, made_up_cost).of(genomes), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["mbv3", "mbv3-32"])
def test_a_block_table_of_macs_gives_the_macs_of_preset_members(name: str, rng: np.random.Generator) -> None:
    space = SearchSpace.load(name)
    genomes = sample(space, 50, rng)
    sums = BlockTable(space, 10, lambda block: float(block.num_macs)).of(genomes)
    assert sums.tolist() == [a.num_macs(space, 10) for a in decode(space, genomes)]


def test_a_block_table_of_no_genomes_is_empty(tiny_space: SearchSpace) -> None:
    assert BlockTable(tiny_space, 10, made_up_cost).of(encode(tiny_space, [])).shape == (0,)


@settings(max_examples=20)
@given(spaces, seeds)
def test_nothing_random_costs_less_than_the_least(space: SearchSpace, seed: int) -> None:
    assert_is_least(BlockTable(space, 10, made_up_cost, offset=3.0), np.random.default_rng(seed))


def test_left_out_sub_spaces_cost_infinitely_much(tiny_space: SearchSpace, rng: np.random.Generator) -> None:
    for space in (tiny_space, tiny_space.with_dtypes(("float32", "int8"))):
        table = BlockTable(space, 10, made_up_cost)
        before = table.smallest()[0].copy()
        table.leave_out([tiny_space.sub_spaces[0]])
        rows = sample(space, 200, rng)
        is_first = (rows[:, :2] == 0).all(axis=1)
        np.testing.assert_array_equal(np.isinf(table.of(rows)), is_first)
        expected = before.copy()
        expected[0, 0] = np.inf
        np.testing.assert_array_equal(table.smallest()[0], expected)


# ---- several dtypes -------------------------------------------------------------------------------------------------
@given(mixed_spaces_and_genomes())
def test_dtypes_survive_decoding_and_encoding(population: Population) -> None:
    space, genomes = population
    layout, architectures = GenomeLayout(space), decode(space, genomes)
    np.testing.assert_array_equal(encode(space, architectures), genomes)
    assert all(space.contains(a) for a in architectures)
    for architecture, row, order in zip(architectures, genomes, dtypes_in_order(space, genomes), strict=True):
        used = row[layout.kernels] >= 0
        in_order = [*order[:2], *order[2:-2][used], *order[-2:]]
        all_first = not any(in_order)
        assert architecture.dtypes == (() if all_first else tuple(space.dtypes[i] for i in in_order))


@given(mixed_spaces_and_genomes())
def test_an_unused_slot_has_the_dtype_of_the_block_before(population: Population) -> None:
    space, genomes = population
    order, used = dtypes_in_order(space, genomes)[:, 1:-2], GenomeLayout(space).active(genomes)
    np.testing.assert_array_equal(order[:, 1:][~used], order[:, :-1][~used])


@given(mixed_spaces_and_genomes())
def test_plain_rows_are_those_of_the_same_architectures_in_float32(population: Population) -> None:
    space, genomes = population
    rows = plain(space, genomes)
    assert decode(space, rows) == [a.plain for a in decode(space, genomes)]
    np.testing.assert_array_equal(rows, encode(space, [a.plain for a in decode(space, genomes)]))
    np.testing.assert_array_equal(plain(space, rows), rows)


@given(spaces_and_genomes(), choices_of_dtypes)
def test_dtypes_are_columns_behind_all_others(population: Population, dtypes: tuple[str, ...]) -> None:
    space, genomes = population
    mixed = space.with_dtypes(dtypes)
    layout, before = GenomeLayout(mixed), GenomeLayout(space)
    assert (before.num_dtypes, before.plain_length) == (1, before.length)
    assert layout.length == layout.plain_length + layout.num_slots + NUM_FIXED == len(layout.num_choices)
    assert layout.plain_length == before.length
    np.testing.assert_array_equal(plain(space, genomes), genomes)
    of_mixed = encode(mixed, decode(space, genomes))
    np.testing.assert_array_equal(of_mixed[:, : before.length], genomes)
    assert decode(mixed, of_mixed) == decode(space, genomes)


@given(mixed_spaces_and_genomes(), seeds)
def test_only_dtypes_are_drawn_at_random(population: Population, seed: int) -> None:
    space, genomes = population
    drawn = with_random_dtypes(space, genomes, np.random.default_rng(seed))
    np.testing.assert_array_equal(canonical(space, drawn), drawn)
    np.testing.assert_array_equal(plain(space, drawn), plain(space, genomes))
    assert all(space.contains(a) for a in decode(space, drawn))


def test_random_dtypes_are_of_every_share(tiny_space: SearchSpace, rng: np.random.Generator) -> None:
    space = tiny_space.with_dtypes(("float32", "bfloat16", "int8"))
    drawn = with_random_dtypes(space, sample(space, 2000, rng), rng)[:, GenomeLayout(space).plain_length :]
    shares = np.array([(row[row >= 0] > 0).mean() for row in drawn])
    assert shares.mean() == pytest.approx(0.5, abs=0.05)
    assert (shares < 0.2).mean() > 0.1
    assert (shares > 0.8).mean() > 0.1
    assert (drawn == 1).sum() == pytest.approx((drawn == 2).sum(), rel=0.1)


def test_a_genome_with_dtypes_has_the_written_layout(tiny_space: SearchSpace) -> None:
    space = tiny_space.with_dtypes(("float32", "int8"))
    genome = encode(space, [Architecture.from_key("r16-w1-k5e2-k3e3.k5e2_fiifiif")])
    assert genome.tolist() == [[1, 0, 0, 1, 1, -1, 0, 1, 0, -1, 1, 0, 1, -1, 0, 1, 0, 1, 1, 0]]


def test_dtypes_are_refused_where_a_space_has_none(tiny_space: SearchSpace) -> None:
    with pytest.raises(ArchitectureError, match="has dtypes of blocks, and space 'tiny' has none"):
        encode(tiny_space, [Architecture.from_key("r16-w1-k5e2-k3e3_ffffif")])


@pytest.mark.parametrize("column", [12, 14, 16, 19])
@pytest.mark.parametrize("index", [-1, 2, 100])
def test_a_dtype_that_the_space_lacks_is_refused(tiny_space: SearchSpace, column: int, index: int) -> None:
    space = tiny_space.with_dtypes(("float32", "int8"))
    genome = encode(space, [space.largest])
    genome[0, column] = index
    with pytest.raises(ArchitectureError, match="has an index that space 'tiny' lacks"):
        decode(space, genome)


@given(mixed_spaces_and_genomes(), seeds, st.floats(0, 1), st.booleans())
def test_mutants_with_dtypes_are_canonical_members(
    population: Population, seed: int, probability: float, fixed: bool
) -> None:
    space, genomes = population
    mutants = mutate(space, genomes, probability, np.random.default_rng(seed), fix_sub_space=fixed)
    np.testing.assert_array_equal(canonical(space, mutants), mutants)
    assert all(space.contains(a) for a in decode(space, mutants))
    np.testing.assert_array_equal(mutate(space, genomes, 0.0, np.random.default_rng(seed)), genomes)


def test_mutation_reaches_every_dtype(tiny_space: SearchSpace, rng: np.random.Generator) -> None:
    space = tiny_space.with_dtypes(("float32", "bfloat16", "int8"))
    mutants = mutate(space, encode(space, [space.smallest] * 2000), 0.5, rng)
    for column in mutants[:, GenomeLayout(space).plain_length :].T:
        assert set(column[column >= 0].tolist()) == {0, 1, 2}


@given(mixed_spaces, seeds)
def test_a_child_takes_the_dtypes_of_a_stage_with_its_blocks(space: SearchSpace, seed: int) -> None:
    rng, layout = np.random.default_rng(seed), GenomeLayout(space)
    mothers, fathers = sample(space, 10, rng), sample(space, 10, rng)
    children = crossover(space, mothers, fathers, rng)
    np.testing.assert_array_equal(canonical(space, children), children)
    assert all(space.contains(a) for a in decode(space, children))
    np.testing.assert_array_equal(children[:, layout.fixed_dtypes], mothers[:, layout.fixed_dtypes])

    def parts(row: Genomes, stage: int) -> list[int]:
        slots = np.arange(stage * space.max_depth, (stage + 1) * space.max_depth)
        starts = (layout.kernels.start, layout.expands.start, layout.dtypes.start)
        found: list[int] = row[[2 + stage, *np.concatenate([start + slots for start in starts])]].tolist()
        return found

    for child, mother, father in zip(children, mothers, fathers, strict=True):
        for stage in range(space.num_stages):
            assert parts(child, stage) in (parts(mother, stage), parts(father, stage))


def cost_by_dtype(block: BlockConfig) -> float:
    """A cost that differs between any two blocks, in each dtype; a block that converts costs about as much as any."""
    return 1e-3 * (hash((block.key, block.dtype)) % 100_003)


@given(mixed_spaces_and_genomes())
def test_a_table_of_several_dtypes_sums_blocks_and_what_converts_between_them(population: Population) -> None:
    space, genomes = population
    architectures = decode(space, genomes)
    named = [a if a.dtypes else with_first_dtype(space, a) for a in architectures]
    expected = [3.0 + sum(cost_by_dtype(b) for b in a.blocks(space, 10)) for a in named]
    np.testing.assert_allclose(BlockTable(space, 10, cost_by_dtype, offset=3.0).of(genomes), expected, rtol=1e-12)


def with_first_dtype(space: SearchSpace, architecture: Architecture) -> Architecture:
    """The same whose blocks say that they are in float32."""
    num = sum(architecture.depths) + NUM_FIXED
    return dataclasses.replace(architecture, dtypes=space.dtypes[:1] * num)


@settings(max_examples=20)
@given(mixed_spaces, seeds, st.sampled_from([0.0, 0.1, 1.0, 10.0]))
def test_nothing_random_of_several_dtypes_costs_less_than_the_least(
    space: SearchSpace, seed: int, share: float
) -> None:
    """Whether conversions are dear or for nothing."""

    def cost(block: BlockConfig) -> float:
        return cost_by_dtype(block) * (share if block.converts else 1.0)

    assert_is_least(BlockTable(space, 10, cost), np.random.default_rng(seed))


def test_the_least_of_all_architectures_is_found(rng: np.random.Generator) -> None:
    """Against every architecture of a space that is small enough to list them."""
    space = SearchSpace(
        name="least",
        resolutions=(16,),
        width_multipliers=(1.0,),
        kernel_sizes=(3,),
        expand_ratios=(2,),
        depths=(1, 2),
        in_channels=3,
        stem_width=8,
        stem_stride=2,
        first_width=8,
        stages=(StageSpec(width=16, stride=1, activation="relu", use_se=False),) * 2,
        head_width=32,
        feature_width=32,
        dtypes=("float32", "bfloat16", "int8"),
    )
    layout = GenomeLayout(space)
    entries = [range(num) for num in layout.num_choices]
    rows = np.unique(canonical(space, np.array(list(itertools.product(*entries)), np.int16)), axis=0)
    costs: dict[tuple[str, str], float] = {}

    def cost(block: BlockConfig) -> float:
        return costs.setdefault((block.key, block.dtype), float(rng.random()))

    for _ in range(5):
        costs.clear()
        table = BlockTable(space, 10, cost)
        value, genomes = table.smallest()
        assert value[0, 0] == pytest.approx(table.of(rows).min(), rel=1e-12)
        assert table.of(genomes[0]) == pytest.approx(value[0], rel=1e-12)


def assert_is_least(table: BlockTable, rng: np.random.Generator) -> None:
    """No random row, and none like the cheapest, costs less; and the cheapest costs that."""
    space, (value, genomes) = table.space, table.smallest()
    cheapest = genomes.reshape(-1, genomes.shape[-1])
    np.testing.assert_array_equal(canonical(space, cheapest), cheapest)
    assert all(space.contains(a) for a in decode(space, cheapest))
    np.testing.assert_allclose(table.of(cheapest), value.ravel(), rtol=1e-12)
    alike = mutate(space, np.repeat(cheapest, 1000 // len(cheapest) + 1, axis=0), 0.1, rng)
    rows = np.concatenate([sample(space, 2000, rng), alike])
    assert (table.of(rows) >= value[rows[:, 0], rows[:, 1]] * (1 - 1e-12)).all()
