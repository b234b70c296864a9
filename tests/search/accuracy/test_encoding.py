from __future__ import annotations

import numpy as np
from hypothesis import given
from strategies import spaces_and_genomes

from chanas.core.arch import SearchSpace
from chanas.core.genome import GenomeLayout, Genomes
from chanas.search.accuracy.encoding import feature_groups, feature_map, features


@given(spaces_and_genomes())
def test_each_choice_is_one_column(drawn: tuple[SearchSpace, Genomes]) -> None:
    space, genomes = drawn
    layout = GenomeLayout(space)
    x = features(space, genomes)
    assert x.dtype == np.float32
    assert x.shape == (len(genomes), layout.num_choices.sum())
    assert set(np.unique(x)) <= {0.0, 1.0}
    num_blocks = layout.active(genomes).sum(axis=1)
    assert (x.sum(axis=1) == 2 + space.num_stages + 2 * num_blocks).all()


@given(spaces_and_genomes())
def test_features_tell_genomes_apart(drawn: tuple[SearchSpace, Genomes]) -> None:
    space, genomes = drawn
    x = features(space, genomes)
    same_features = (x[:, None] == x[None]).all(axis=-1)
    assert (same_features == (genomes[:, None] == genomes[None]).all(axis=-1)).all()


def test_absent_blocks_are_all_zero(tiny_space: SearchSpace, tiny_genomes: Genomes) -> None:
    layout = GenomeLayout(tiny_space)
    column = feature_map(tiny_space).column
    absent = ~layout.active(tiny_genomes)
    x = features(tiny_space, tiny_genomes)
    for slot in range(layout.num_slots):
        of_slot = np.isin(column, [layout.kernels.start + slot, layout.expands.start + slot])
        assert not x[absent[:, slot]][:, of_slot].any()
        assert (x[~absent[:, slot]][:, of_slot].sum(axis=1) == 2).all()


@given(spaces_and_genomes())
def test_groups_are_alike_in_what_they_sum(drawn: tuple[SearchSpace, Genomes]) -> None:
    """The first tells equal resolutions, the last compares the sums of expand ratios over all blocks."""
    space, genomes = drawn
    x, groups = features(space, genomes), feature_groups(space)
    assert groups.shape[1:] == (x.shape[1], x.shape[1])
    np.testing.assert_array_equal(x @ groups[0] @ x.T, genomes[:, :1] == genomes[:, 0])
    ratios = np.array(space.expand_ratios, dtype=np.float64)
    sizes = np.append((ratios - ratios.mean()) / (np.ptp(ratios) or 1.0), 0.0)  # the last is an absent block's
    sums = sizes[genomes[:, GenomeLayout(space).expands]].sum(axis=1)
    np.testing.assert_allclose(x @ groups[-1] @ x.T, np.outer(sums, sums), atol=1e-9)
