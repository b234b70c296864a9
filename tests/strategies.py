"""Hypothesis strategies that several tests share: random search spaces and their members."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from chanas.core.arch import Architecture, SearchSpace, StageSpec
from chanas.core.genome import Genomes, decode, sample


def _choices(values: list[int], max_size: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=max_size, unique=True).map(lambda v: tuple(sorted(v)))


stage_specs = st.builds(
    StageSpec,
    width=st.integers(8, 64),
    stride=st.sampled_from([1, 2]),
    activation=st.sampled_from(["relu", "hswish"]),
    use_se=st.booleans(),
)

spaces = st.builds(
    SearchSpace,
    name=st.just("random"),
    resolutions=_choices(list(range(16, 72)), 3),
    width_multipliers=st.lists(st.floats(0.1, 3.0, allow_nan=False), min_size=1, max_size=3, unique=True).map(
        lambda v: tuple(sorted(v))
    ),
    kernel_sizes=_choices([1, 3, 5, 7], 3),
    expand_ratios=_choices([1, 2, 3, 4, 6], 3),
    depths=_choices([1, 2, 3, 4], 3),
    in_channels=st.sampled_from([1, 3]),
    stem_width=st.integers(8, 32),
    stem_stride=st.sampled_from([1, 2]),
    first_width=st.integers(8, 32),
    stages=st.lists(stage_specs, min_size=1, max_size=4).map(tuple),
    head_width=st.integers(16, 128),
    feature_width=st.integers(16, 128),
)

seeds = st.integers(0, 2**32 - 1)


@st.composite
def spaces_and_genomes(draw: st.DrawFn, max_num: int = 20) -> tuple[SearchSpace, Genomes]:
    """A random space and some of its genomes, int16[N, length]."""
    space = draw(spaces)
    return space, sample(space, draw(st.integers(1, max_num)), np.random.default_rng(draw(seeds)))


choices_of_dtypes = st.sampled_from(
    [("float32", "int8"), ("float32", "bfloat16"), ("float32", "bfloat16", "int8"), ("float32", "int8", "bfloat16")]
)
mixed_spaces = st.builds(SearchSpace.with_dtypes, spaces, choices_of_dtypes)
"""Spaces whose blocks may be in several dtypes."""


@st.composite
def mixed_spaces_and_genomes(draw: st.DrawFn, max_num: int = 20) -> tuple[SearchSpace, Genomes]:
    """A random space of several dtypes and some of its genomes, int16[N, length]."""
    space = draw(mixed_spaces)
    return space, sample(space, draw(st.integers(1, max_num)), np.random.default_rng(draw(seeds)))


@st.composite
def mixed_spaces_and_architectures(draw: st.DrawFn) -> tuple[SearchSpace, Architecture]:
    space, genomes = draw(mixed_spaces_and_genomes(max_num=1))
    return space, decode(space, genomes)[0]


@st.composite
def spaces_and_architectures(draw: st.DrawFn) -> tuple[SearchSpace, Architecture]:
    space = draw(spaces)
    return space, decode(space, sample(space, 1, np.random.default_rng(draw(seeds))))[0]
