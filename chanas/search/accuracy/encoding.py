"""Features for accuracy predictors: each choice of an architecture as one-hot columns.

Notation: N architectures, F features, S stages, D blocks of a stage at most, P = S·D block slots, K kernel sizes,
E expand ratios, V values of a choice, G groups.
    columns  resolution one-hot, width one-hot, depth of each stage one-hot (S·|depths|), kernel size of each slot
             (P·K), expand ratio of each slot (P·E); all columns of an absent block are zero
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chanas.core.arch import SearchSpace
from chanas.core.arrays import Float32Array, FloatArray, IntArray
from chanas.core.genome import GenomeLayout, Genomes

Features = Float32Array


@dataclass(frozen=True)
class FeatureMap:
    """Feature f of a genome is one when the genome's entry `column[f]` equals `value[f]`.

    column  int64[F]  which genome entry a feature looks at
    value   int16[F]  the choice it stands for
    """

    column: IntArray
    value: npt.NDArray[np.int16]

    @property
    def num_features(self) -> int:
        return len(self.column)

    def __call__(self, genomes: Genomes) -> Features:
        """float32[N, F] of zeros and ones from canonical genomes int16[N, L]."""
        out: Features = (genomes[:, self.column] == self.value).astype(np.float32)
        return out


@functools.lru_cache(maxsize=8)
def feature_map(space: SearchSpace) -> FeatureMap:
    """The features of a space, in the order of the genome's columns; dtypes are none (`losses` has what they cost)."""
    num_choices = _num_choices(space)
    column = np.repeat(np.arange(len(num_choices)), num_choices)
    value = np.concatenate([np.arange(n) for n in num_choices]).astype(np.int16)
    return FeatureMap(column, value)


def _num_choices(space: SearchSpace) -> IntArray:
    layout = GenomeLayout(space)
    return layout.num_choices[: layout.plain_length]


def features(space: SearchSpace, genomes: Genomes) -> Features:
    """float32[N, F] from canonical genomes int16[N, L] of `space`."""
    return feature_map(space)(genomes)


def feature_groups(space: SearchSpace) -> FloatArray:
    """float64[G, F, F]: by group, the matrix of which x·matrix·x' is how alike two architectures' sums are.

    Of every choice the values one by one, and their size from -1/2 to 1/2 (a block that is not there has none); of
    depths the sum of sizes, too; of kernel sizes and expand ratios the number of each value in a stage, and the sum of
    sizes in a stage, at a position of all stages, and in the network.
    """
    layout = GenomeLayout(space)
    start = np.concatenate([[0], np.cumsum(_num_choices(space))])
    eye = np.eye(start[-1])

    def choices(column: int, num: int, values: Sequence[float]) -> tuple[FloatArray, FloatArray]:
        """One-hot columns float64[F, num, V] and sizes float64[F, num] of `num` choices with the same values."""
        one_hot = eye[:, start[column] : start[column + num]].reshape(len(eye), num, len(values))
        size = np.array(values, dtype=np.float64) - np.mean(values)
        return one_hot, one_hot @ (size / (np.ptp(size) or 1.0))

    sums: list[FloatArray] = [*choices(0, 1, space.resolutions), *choices(1, 1, space.width_multipliers)]
    depth, depth_size = choices(layout.depths.start, space.num_stages, space.depths)
    sums += [depth, depth_size, depth_size.sum(axis=1)]
    by_stage = (len(eye), space.num_stages, space.max_depth)
    for column, values in ((layout.kernels.start, space.kernel_sizes), (layout.expands.start, space.expand_ratios)):
        one_hot, size = choices(column, layout.num_slots, values)
        in_stage, sizes = one_hot.reshape(*by_stage, len(values)).sum(axis=2), size.reshape(by_stage)
        sums += [one_hot, size, in_stage, sizes.sum(axis=2), sizes.sum(axis=1), sizes.sum(axis=(1, 2))]
    flat = [part.reshape(len(eye), -1) for part in sums]
    out: FloatArray = np.stack([part @ part.T for part in flat])
    return out
