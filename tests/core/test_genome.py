"""chanas/core/genome.py: populations as arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import seeds, spaces, spaces_and_genomes

from chanas.core.arch import Architecture, BlockConfig, SearchSpace, SubSpace
from chanas.core.genome import BlockTable, GenomeLayout, Genomes, canonical, crossover, decode, encode, mutate, sample
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
    np.testing.assert_allclose(BlockTable(space, 10, made_up_cost).sum(genomes), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["mbv3", "mbv3-32"])
def test_a_block_table_of_macs_gives_the_macs_of_preset_members(name: str, rng: np.random.Generator) -> None:
    space = SearchSpace.load(name)
    genomes = sample(space, 50, rng)
    sums = BlockTable(space, 10, lambda block: float(block.num_macs)).sum(genomes)
    assert sums.tolist() == [a.num_macs(space, 10) for a in decode(space, genomes)]


def test_a_block_table_of_no_genomes_is_empty(tiny_space: SearchSpace) -> None:
    assert BlockTable(tiny_space, 10, made_up_cost).sum(encode(tiny_space, [])).shape == (0,)
