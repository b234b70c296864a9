"""Peak memory of activations, as the static plan of a compiled network has it.

Counted, of a whole batch: the two buffers between blocks that take turns (each as large as the largest output that
falls on it), the network's logits, and what is inside blocks: on a processor the operators' outputs of the block that
has most of them, on a GPU, where all operators are kernels of one program, an array for the largest output of each
block, one for the second largest of each, and so on. On a processor channels are padded to whole vectors, as they are
in memory. Not counted: weights, code, the input images (the caller's), and what a schedule keeps of a tile for itself
(accumulators, padded rows, scaled weights).

Notation: N architectures, R resolutions, W widths, S stages, P slots, K kernel sizes, E expand ratios.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from chanas.core.arch import BlockConfig, SearchSpace, SubSpace
from chanas.core.genome import BlockTable, FloatArray, GenomeLayout, Genomes, filled_genomes
from chanas.core.layouts import num_blocks, num_rows
from chanas.core.target import HardwareTarget

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "tf32": 4}


def _bytes(channels: int, size: int, lanes: int, dtype: str) -> int:
    """Bytes of one activation of `size`·`size` pixels."""
    return num_blocks(channels, lanes) * lanes * size * size * _ITEM_BYTES[dtype]


def output_bytes(block: BlockConfig, lanes: int, dtype: str = "float32") -> int:
    """Bytes of the block's output; logits are float32 in any dtype."""
    return _bytes(block.out_channels, block.output_size, lanes, "float32" if block.kind == "classifier" else dtype)


def inner_bytes(block: BlockConfig, lanes: int, dtype: str = "float32") -> int:
    """Outputs of the block's operators except the last one's, which is the block's own."""
    if block.kind == "stem":
        return 0
    if block.kind == "head":
        return _bytes(block.out_channels, block.input_size, lanes, dtype)
    if block.kind == "classifier":
        return _bytes(block.mid_channels, 1, lanes, dtype)
    mid = block.mid_channels
    total = _bytes(mid, block.input_size, lanes, dtype) if block.has_expand else 0
    total += _bytes(mid, block.output_size, lanes, dtype)
    if block.use_se:  # pooled, reduced, gate
        total += 2 * _bytes(mid, 1, lanes, dtype) + _bytes(block.se_channels, 1, lanes, dtype)
    return total


def activation_memory(space: SearchSpace, num_classes: int, target: HardwareTarget) -> ActivationMemory:
    """Peak bytes of activations on a target."""
    if target.gpu is not None:
        return GPUActivationMemory(space, num_classes, target.dtype, target.batch)
    return ActivationMemory(space, num_classes, target.vector_lanes, target.dtype)


class ActivationMemory:
    """Peak bytes of activations of whole populations; a `CostTable`."""

    num_inner = 1
    """Arrays for what is inside blocks."""

    def __init__(self, space: SearchSpace, num_classes: int, lanes: int, dtype: str = "float32") -> None:
        self.space, self.layout = space, GenomeLayout(space)
        self.lanes, self.dtype = lanes, dtype
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
                table[r, w] = self.output(block)
            for stage in range(space.num_stages):
                block = space.block(sub_space, stage, 0, space.kernel_sizes[0], space.expand_ratios[0])
                self._outputs[r, w, stage] = self.output(block)

    def output(self, block: BlockConfig) -> int:
        """Bytes of what the block hands on."""
        return output_bytes(block, self.lanes, self.dtype)

    def inner(self, block: BlockConfig) -> tuple[int, ...]:
        """Bytes of each of the arrays for what is inside the block."""
        return (inner_bytes(block, self.lanes, self.dtype),)

    def of(self, genomes: Genomes) -> FloatArray:
        """float64[N] bytes."""
        depths = np.asarray(self.space.depths)[genomes[:, self.layout.depths]]
        r, w = genomes[:, 0], genomes[:, 1]
        total: FloatArray = self._between(r, w, depths) + self._logits[r, w]
        for table, fixed in zip(self._inner, self._fixed_inner, strict=True):
            total += np.maximum(table.gather(genomes).max(axis=1), fixed[r, w])
        return total

    def _between(self, r: Genomes, w: Genomes, depths: npt.NDArray[np.int64]) -> FloatArray:
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


class GPUActivationMemory(ActivationMemory):
    """The same of the programs of GPUs: maps of a batch in rows of pixels."""

    def __init__(self, space: SearchSpace, num_classes: int, dtype: str = "float32", batch: int = 1) -> None:
        self.batch = batch
        self.num_inner = 4 if batch == 1 else 5  # squeeze-excite is two kernels, or three
        super().__init__(space, num_classes, 1, dtype)

    def output(self, block: BlockConfig) -> int:
        dtype = "float32" if block.kind == "classifier" else self.dtype
        return num_rows(block.output_size, self.batch) * block.out_channels * _ITEM_BYTES[dtype]

    def inner(self, block: BlockConfig) -> tuple[int, ...]:
        """Outputs of the block's kernels except the last one's, the largest first."""
        maps = [num_rows(size, self.batch) * channels for size, channels in self._inner_maps(block)]
        values = [num * _ITEM_BYTES[self.dtype] for num in maps]
        return tuple(sorted([*values, *[0] * (self.num_inner - len(values))], reverse=True))

    def _inner_maps(self, block: BlockConfig) -> list[tuple[int, int]]:
        """Sizes and channels of what kernels leave inside a block."""
        mid = block.mid_channels
        if block.kind == "stem":
            return []
        if block.kind == "head":
            return [(block.input_size, block.out_channels)]
        if block.kind == "classifier":
            return [(1, mid)]
        expanded = [(block.input_size, mid)] if block.has_expand else []
        pooled = [(1, mid)] if self.batch > 1 else []
        squeezed = [*pooled, (1, block.se_channels), (1, mid)] if block.use_se else []
        return [*expanded, (block.output_size, mid), *squeezed]
