"""Features for accuracy predictors: each choice of an architecture as one-hot columns.

Notation: N architectures, F features, S stages, P block slots, K kernel sizes, E expand ratios.
    columns  resolution one-hot, width one-hot, depth of each stage one-hot (S·|depths|), kernel size of each slot
             (P·K), expand ratio of each slot (P·E); all columns of an absent block are zero
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chanas.core.arch import SearchSpace
from chanas.core.genome import GenomeLayout, Genomes

Features = npt.NDArray[np.float32]


@dataclass(frozen=True)
class FeatureMap:
    """Feature f of a genome is one when the genome's entry `column[f]` equals `value[f]`.

    column  int64[F]  which genome entry a feature looks at
    value   int16[F]  the choice it stands for
    """

    column: npt.NDArray[np.int64]
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
    """The features of a space, in the order of the genome's columns."""
    num_choices = GenomeLayout(space).num_choices
    column = np.repeat(np.arange(len(num_choices)), num_choices)
    value = np.concatenate([np.arange(n) for n in num_choices]).astype(np.int16)
    return FeatureMap(column, value)


def features(space: SearchSpace, genomes: Genomes) -> Features:
    """float32[N, F] from canonical genomes int16[N, L] of `space`."""
    return feature_map(space)(genomes)
