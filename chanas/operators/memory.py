"""Peak memory of activations, as the static plan of a compiled network has it.

Counted, of a whole batch: the two buffers between blocks that take turns (each as large as the largest output that
falls on it; where blocks are in several dtypes, up to two of each), the network's logits, and what is inside blocks: on
a processor the operators' outputs of the block that has most of them, on a GPU, where all operators are kernels of one
program, an array for the largest output of each block, one for the second largest of each, and so on. On a processor
channels are padded to whole vectors, as they are in memory. Not counted: weights, code, the input images (the
caller's), and what a schedule keeps of a tile for itself (accumulators, padded rows, scaled weights).

Notation: N architectures, R resolutions, W widths, S stages, P slots, K kernel sizes, E expand ratios.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.arrays import FloatArray, IntArray
from chanas.core.blocks import BlockConfig
from chanas.core.genome import BlockTable, GenomeLayout, Genomes, filled_genomes
from chanas.core.target import HardwareTarget
from chanas.operators.layout import Blocks, layout_of, output_shape
from chanas.operators.precision import precision_of
from chanas.operators.steps import device_steps
from chanas.operators.workload import Workload


def output_bytes(workload: Workload, target: HardwareTarget) -> int:
    """Bytes of an operator's output in memory: whole vectors of channels, or on a GPU whole groups of rows."""
    return math.prod(output_shape(workload, layout_of(target))) * workload.output_precision.item_bytes


def inner_bytes(block: BlockConfig, target: HardwareTarget) -> list[int]:
    """Outputs of a block's steps except the last one's, which is the block's own."""
    return [output_bytes(step.workload, target) for step in device_steps(block, target)[:-1]]


def network_bytes(blocks: Sequence[BlockConfig], target: HardwareTarget) -> int:
    """Peak bytes of activations of one network, whose blocks may be in several dtypes."""
    inner = [sorted(inner_bytes(block, target), reverse=True) for block in blocks]
    arrays = [list(map(sum, inner))] if target.gpu is None else itertools.zip_longest(*inner, fillvalue=0)
    return _between_bytes(blocks, target) + _written_bytes(blocks[-1], target) + sum(map(max, arrays))


def _between_bytes(blocks: Sequence[BlockConfig], target: HardwareTarget) -> int:
    """Bytes of the buffers between blocks. Each has one dtype; a block writes the smallest idle one of its dtype that
    is large enough, or the largest is made so."""
    sizes, idle, read = list[int](), dict[str, list[int]](), None
    for block in blocks[:-1]:
        size, own = _written_bytes(block, target), idle.setdefault(block.output_dtype, [])
        if own:
            written = min(own, key=lambda n: (sizes[n] < size, abs(sizes[n] - size)))
            own.remove(written)
            sizes[written] = max(sizes[written], size)
        else:
            written = len(sizes)
            sizes.append(size)
        if read is not None:
            idle[read[0]].append(read[1])
        read = block.output_dtype, written
    return sum(sizes)


def _written_bytes(block: BlockConfig, target: HardwareTarget) -> int:
    """Bytes of what a block hands on."""
    if block.converts:
        shape = Blocks(target.vector_lanes).shape(block.out_channels, block.output_size**2)
        return math.prod(shape) * precision_of(block.output_dtype).item_bytes
    return output_bytes(device_steps(block, target)[-1].workload, target)


class ActivationMemory:
    """Peak bytes of activations of whole populations; a `CostTable`."""

    def __init__(self, space: SearchSpace, num_classes: int, target: HardwareTarget) -> None:
        self.space, self.layout, self.target = space, GenomeLayout(space), target
        blocks = space.all_blocks(num_classes)
        # arrays for what is inside blocks: one for all of it, or one each for the largest, the second largest, ...
        self.num_inner = 1 if target.gpu is None else max(len(inner_bytes(b, target)) for b in blocks)
        self._inner = [
            BlockTable(space, num_classes, lambda b, i=i: self.inner(b)[i])  # type: ignore[misc]
            for i in range(self.num_inner)
        ]
        shape = (len(space.resolutions), len(space.width_multipliers))
        # what does not depend on the genome's further columns: [R, W] each, and [R, W, S] of the stages' outputs
        self._fixed_inner, self._logits = np.zeros((self.num_inner, *shape)), np.zeros(shape)
        self._stem, self._first, self._head = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._outputs = np.zeros((*shape, space.num_stages))
        for (r, w), _ in np.ndenumerate(self._stem):
            sub_space = SubSpace(space.resolutions[r], space.width_multipliers[w])
            fixed = space.fixed_blocks(sub_space, num_classes)
            self._fixed_inner[:, r, w] = np.max([self.inner(b) for b in fixed], axis=0)
            own = (self._stem, self._first, self._head, self._logits)
            for table, block in zip(own, fixed, strict=True):
                table[r, w] = _written_bytes(block, target)
            for stage in range(space.num_stages):
                block = space.block(sub_space, stage, 0, space.kernel_sizes[0], space.expand_ratios[0])
                self._outputs[r, w, stage] = _written_bytes(block, target)

    def inner(self, block: BlockConfig) -> tuple[int, ...]:
        """Bytes of each of the arrays for what is inside the block, the largest first."""
        sizes = inner_bytes(block, self.target)
        if self.target.gpu is None:
            return (sum(sizes),)
        return tuple(sorted([*sizes, *[0] * (self.num_inner - len(sizes))], reverse=True))

    def of(self, genomes: Genomes) -> FloatArray:
        """float64[N] bytes."""
        depths = np.asarray(self.space.depths)[genomes[:, self.layout.depths]]
        r, w = genomes[:, 0], genomes[:, 1]
        total: FloatArray = self._between(r, w, depths) + self._logits[r, w]
        for table, fixed in zip(self._inner, self._fixed_inner, strict=True):
            total += np.maximum(table.gather(genomes).max(axis=1), fixed[r, w])
        return total

    def _between(self, r: Genomes, w: Genomes, depths: IntArray) -> FloatArray:
        """float64[N]: the two buffers that blocks write in turns, each as large as its largest output."""
        turns = np.stack([self._stem[r, w], self._first[r, w]])
        rows = np.arange(len(r))
        turn = np.zeros(len(r), dtype=np.int64)  # the stem writes 0, the first block 1, the first of a stage 0 again
        for stage in range(self.space.num_stages):
            output = self._outputs[r, w, stage]
            turns[turn, rows] = np.maximum(turns[turn, rows], output)
            other = np.where(depths[:, stage] > 1, output, 0.0)
            turns[1 - turn, rows] = np.maximum(turns[1 - turn, rows], other)
            turn = (turn + depths[:, stage]) % 2
        turns[turn, rows] = np.maximum(turns[turn, rows], self._head[r, w])
        total: FloatArray = turns.sum(axis=0)
        return total

    def smallest(self) -> tuple[FloatArray, Genomes]:
        """The least peak of each sub-space, float64[R, W], and an architecture that has it, int16[R, W, L]; exact.

        More blocks only add; so of each stage only its least depth, and the least of the other parity (which changes
        whose turn it is), can be best. The block with the least of all arrays together has the least of each: the one
        with the fewest channels.
        """
        space, inner = self.space, np.sum([table.cost for table in self._inner], axis=0)
        per_choice = inner.reshape(*inner.shape[:3], -1)  # [R, W, P, K·E]
        choice = per_choice.argmin(axis=-1)
        first = {depth % 2: i for i, depth in reversed(list(enumerate(space.depths)))}
        combinations = np.array(list(itertools.product(sorted(first.values()), repeat=space.num_stages)))
        shape = inner.shape[:2]
        best, genomes = np.full(shape, np.inf), np.empty((*shape, self.layout.length), dtype=np.int16)
        for depths in combinations:
            rows = filled_genomes(space, np.broadcast_to(depths, (*shape, space.num_stages)), choice)
            value = self.of(rows.reshape(-1, self.layout.length)).reshape(shape)
            better = value < best
            best[better], genomes[better] = value[better], rows[better]
        return best, genomes
