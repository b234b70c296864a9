"""Features of architectures that latencies are regressed on.

Notation: N architectures, S stages, P block slots, K kernel sizes, E expand ratios, F features.
    blocks  one-hot [N, P·K·E]: which block is in each slot; all columns of an absent one are zero
    depths  one-hot [N, S·|depths|]
    r       resolution, standardised over the choices of the space
"""

from __future__ import annotations

import numpy as np

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray, IntArray
from chanas.core.blocks import BlockConfig
from chanas.core.genome import BlockTable, GenomeLayout, Genomes

_NUM_CLASSES = 1000  # the classifier is the same in all networks: it moves a constant


def block_columns(space: SearchSpace, genomes: Genomes) -> FloatArray:
    """float64[N, P·K·E] of zeros and ones from canonical genomes int16[N, L]: kernel size and expand ratio by slot."""
    layout, num_e = GenomeLayout(space), len(space.expand_ratios)
    kernels, expands = genomes[:, layout.kernels].astype(np.int64), genomes[:, layout.expands]
    choice = np.where(kernels < 0, -1, kernels * num_e + expands)
    return _one_hot(choice, len(space.kernel_sizes) * num_e)


def resolutions(space: SearchSpace, genomes: Genomes) -> FloatArray:
    """float64[N]: pixels along an edge of the input."""
    out: FloatArray = np.asarray(space.resolutions, dtype=np.float64)[genomes[:, 0]]
    return out


def log_costs(space: SearchSpace, genomes: Genomes) -> FloatArray:
    """float64[N, 2 + 6]: logarithms of the resolution, of the width multiplier and of sums over blocks (`_COSTS`)."""
    widths = np.asarray(space.width_multipliers)[genomes[:, 1]]
    sums = [BlockTable(space, _NUM_CLASSES, cost).of(genomes) for cost in _COSTS]
    return np.column_stack([np.log(resolutions(space, genomes)), np.log(widths), *(np.log1p(s) for s in sums)])


def latency_features(space: SearchSpace, genomes: Genomes) -> FloatArray:
    """float64[N, F] from canonical genomes int16[N, L] of `space`.

    Columns: blocks and depths, these times r, and times r², so that each block has a cost that is a parabola in the
    resolution; r, r², r³; `log_costs`, since what is regressed on them is the logarithm of a sum.
    """
    depths = _one_hot(genomes[:, GenomeLayout(space).depths].astype(np.int64), len(space.depths))
    choices = np.hstack([block_columns(space, genomes), depths])
    r = ((resolutions(space, genomes) - np.mean(space.resolutions)) / (np.std(space.resolutions) or 1.0))[:, None]
    return np.hstack([choices, choices * r, choices * r**2, r, r**2, r**3, log_costs(space, genomes)])


def _one_hot(choice: IntArray, num: int) -> FloatArray:
    """float64[N, C·num] from indices [N, C]; -1 is all zeros."""
    out: FloatArray = (choice[:, :, None] == np.arange(num)).astype(np.float64).reshape(len(choice), -1)
    return out


def _num_macs(block: BlockConfig) -> float:
    return float(block.num_macs)


def _depthwise_macs(block: BlockConfig) -> float:
    return float(block.output_size**2 * block.mid_channels * block.kernel_size**2 if block.kind == "mbconv" else 0)


def _traffic(block: BlockConfig) -> float:
    """Numbers that the convolutions of a block read and write, each map once."""
    area_in, area_out = block.input_size**2, block.output_size**2
    return float(
        area_in * (block.in_channels + 2 * block.mid_channels)
        + area_out * (2 * block.mid_channels + block.out_channels)
    )


def _num_params(block: BlockConfig) -> float:
    return float(block.num_params)


def _num_kernels(block: BlockConfig) -> float:
    """Launches of a GPU: a convolution or dense layer each, and one for squeeze-excite."""
    return 2.0 + block.has_expand + block.use_se if block.kind == "mbconv" else 1.0


def _squeezed_channels(block: BlockConfig) -> float:
    return float(block.mid_channels if block.use_se else 0)


_COSTS = (_num_macs, _depthwise_macs, _traffic, _num_params, _num_kernels, _squeezed_channels)
