"""Expected results of an operator, a block or a network, by PyTorch: inputs and outputs that every candidate is checked
against before its time counts, in the layout of its kernels."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.emulation import (
    activated,
    convolved,
    emulated_logits,
    exact_sums,
    float_values,
    has_int8,
    quantised_values,
)
from chanas.compiler.program import FormChange
from chanas.core.arrays import Array, Float32Array
from chanas.core.blocks import BlockConfig, computing
from chanas.core.target import HardwareTarget
from chanas.network.folding import (
    GRIDS,
    block_operators,
    fold_operators,
    pack_block,
    packed_parameters,
    quantise_operators,
    split_tensors,
)
from chanas.operators.layout import PLAIN, Blocks, Layout, input_layout, layout_of
from chanas.operators.precision import FLOAT32, INT8, Precision, precision_of
from chanas.operators.quantised import IDENTITY, Grid, computed, finished, quantised
from chanas.operators.steps import block_target, block_workloads, device_workloads, network_tolerance
from chanas.operators.workload import Workload, scales_weights

_NEXT_NUMBER = 1.01 / 255
"""Tolerance of outputs in int8 that may be the next number."""


@dataclass(frozen=True)
class ReferenceCase:
    """One call of a compiled function: arguments in call order without the output, and the output that it must give.

    `weights` tells which arguments are weights: those are cold in a network and are rotated among copies when timed.
    A result is right when it is within `tolerance` of the largest expected magnitude. All numbers are as they are in
    memory, bfloat16 as bits.
    """

    arguments: tuple[Array, ...]
    weights: tuple[int, ...]
    expected: Array
    tolerance: float = FLOAT32.operator_tolerance

    @property
    def weight_bytes(self) -> int:
        return sum(self.arguments[i].nbytes for i in self.weights)

    def save(self, path: Path) -> None:
        """An uncompressed .npz."""
        named: dict[str, Array] = {f"argument{i}": a for i, a in enumerate(self.arguments)}
        named |= {"expected": self.expected, "tolerance": np.array(self.tolerance)}
        np.savez(path, weights=np.array(self.weights, dtype=np.int64), **named)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> ReferenceCase:
        """Inverse of `save`."""
        with np.load(path, allow_pickle=False) as data:
            num = sum(name.startswith("argument") for name in data.files)
            arguments = tuple(data[f"argument{i}"] for i in range(num))
            return cls(arguments, tuple(map(int, data["weights"])), data["expected"], float(data["tolerance"]))


def case_seed(key: str) -> int:
    """A seed that is the same for a workload or block in every process."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")


@dataclass(frozen=True)
class OperatorTensors:
    """Random tensors of an operator, float32 as PyTorch has them, and what it makes of them: x [B, C, S, S], weight
    [N, C / groups, k, k] and bias [N] (None of pooling), gate and shift [B, C] and residual [B, N, S', S'] (None
    where there are none), out [B, N, S', S'].

    What is stored as float16 or bfloat16 has such values, and so has what kernels may round to such (an image and its
    weights); `out` is not rounded.
    """

    x: Float32Array
    weight: Float32Array | None
    bias: Float32Array | None
    gate: Float32Array | None
    shift: Float32Array | None
    residual: Float32Array | None
    out: Float32Array


def operator_tensors(
    workload: Workload, odd: Sequence[float] = (), *, gate_rounds_weights: bool = False
) -> OperatorTensors:
    """Random input and weights of an operator alone, and PyTorch's answer.

    Args:
        odd: numbers such as NaN that the input has.
        gate_rounds_weights: a gate is multiplied with the weights and these are rounded, not the input.
    """
    import torch

    rng = np.random.default_rng(case_seed(workload.key))
    inp, out, (rows, columns) = workload.in_channels, workload.out_channels, workload.axes
    rounded = precision_of(workload.dtype).rounded

    def drawn(shape: tuple[int, ...], *, uniform: bool = False) -> Float32Array:
        values: Float32Array = (rng.random if uniform else rng.standard_normal)(shape, dtype=np.float32)
        return rounded(values)

    x = drawn((workload.batch, inp, rows.size, columns.size))
    if odd:
        x.flat[rng.choice(x.size, len(odd), replace=False)] = odd
    value = torch.from_numpy(x)
    weight = bias = gate = shift = residual = None
    if workload.takes_mean:
        value = value.mean((2, 3), keepdim=True)
    if workload.has_weights:
        shape = (out, workload.channels_per_group, rows.kernel, columns.kernel)
        weight = rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
        weight = rounded(weight)
        bias = rng.standard_normal(out, dtype=np.float32)
        multiplied = weight
        if workload.scaled:
            gate = drawn((workload.batch, inp), uniform=True)
            if gate_rounds_weights:  # which one image alone can
                multiplied = rounded(weight * gate[:, :, None, None])
            else:
                value = value * torch.from_numpy(gate)[:, :, None, None]
                value = torch.from_numpy(rounded(value.numpy()))
        if workload.prologue is not None:
            shift = drawn((workload.batch, inp))
            value = activated(value + torch.from_numpy(shift)[:, :, None, None], workload.prologue)
        value = convolved(value, torch.from_numpy(multiplied), torch.from_numpy(bias), workload)
        if workload.residual:
            residual = precision_of(workload.dtype).rounded(drawn(tuple(value.shape)))
        if residual is not None and workload.residual_first:
            value = activated(value + torch.from_numpy(residual), workload.epilogue)
        else:
            value = activated(value, workload.epilogue)
            value = value if residual is None else value + torch.from_numpy(residual)
    return OperatorTensors(x, weight, bias, gate, shift, residual, value.numpy())


def operator_case(
    workload: Workload, target: HardwareTarget, odd: Sequence[float] = (), layout: Layout | None = None
) -> ReferenceCase:
    """The case of an operator alone, by default in the layout of our own networks; its input has numbers such as NaN if
    `odd` has some."""
    layout, precision = layout or layout_of(target), precision_of(workload.dtype)
    if workload.is_quantised:
        return _quantised_case(workload, Blocks(target.vector_lanes))
    on_weights = scales_weights(workload) and target.gpu is None and precision.per_word > 1
    tensors = operator_tensors(workload, odd, gate_rounds_weights=on_weights)
    arguments = [input_layout(workload, layout).pack(tensors.x, workload.input_precision)]
    if tensors.weight is not None and tensors.bias is not None:
        arguments += layout.pack_parameters(workload, tensors.weight, tensors.bias)
    weights = tuple(range(1, len(arguments)))
    extras = (tensors.gate, tensors.shift, tensors.residual)
    arguments += [layout.pack(extra, precision) for extra in extras if extra is not None]
    expected = layout.expected(workload, tensors.out)
    return ReferenceCase(tuple(arguments), weights, expected, precision.operator_tolerance)


def _quantised_case(workload: Workload, layout: Blocks) -> ReferenceCase:
    """The case of an operator in int8: random numbers on random grids, and its output to the bit. Sums of an image are
    of float32, so that a number may be the next one."""
    rng = np.random.default_rng(case_seed(workload.key))
    plain = operator_tensors(replace(workload, dtype=FLOAT32.dtype, scaled=False, residual=False))
    output = Grid.of_range(0.8 * float(plain.out.min()), 0.8 * float(plain.out.max()))  # some are beyond its ends
    grids = (IDENTITY if workload.reads_image else _random_grid(rng), output, _random_grid(rng))
    by = quantised(workload, plain.weight, plain.bias, *grids)
    x = plain.x if workload.reads_image else _random_numbers(rng, plain.x.shape)
    gate = rng.random(x.shape[:2], dtype=np.float32) if workload.scaled else None
    residual = _random_numbers(rng, plain.out.shape) if workload.residual else None
    out = computed(workload, by, x, exact_sums(workload), gate, residual)
    packed = PLAIN.pack(plain.x) if workload.reads_image else _packed_numbers(layout, x, by.input.zero)
    parameters = layout.pack_quantised(workload, by)
    extras = [] if gate is None else [layout.pack(gate[:, :, None])]
    extras += [] if residual is None else [layout.pack(residual, INT8)]
    beyond = finished(workload, by, np.zeros(1, np.float32), None if residual is None else np.zeros(1, np.uint8))
    return ReferenceCase(
        (packed, *parameters, *extras),
        tuple(range(1, 1 + len(parameters))),
        _packed_numbers(layout, out, beyond[0]),
        _NEXT_NUMBER if workload.reads_image else INT8.operator_tolerance,
    )


def _random_grid(rng: np.random.Generator) -> Grid:
    return Grid(float(np.float32(rng.uniform(0.005, 0.05))), int(rng.integers(0, 256)))


def _random_numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 256, shape, dtype=np.uint8)


def _packed_numbers(layout: Blocks, numbers: Array, beyond: float) -> Array:
    """Numbers [B, C, …] in channel blocks, and one and the same in the lanes beyond the channels."""
    short = -numbers.shape[1] % layout.lanes
    whole = np.concatenate([numbers, np.full_like(numbers[:, :1], beyond).repeat(short, axis=1)], axis=1)
    return layout.pack(whole.astype(np.float32)).astype(numbers.dtype)


def change_case(change: FormChange) -> ReferenceCase:
    """The case of a map copied in another form: each number is the nearest one of its type."""
    rng = np.random.default_rng(case_seed(change.key))
    values = rng.standard_normal((change.images, change.channels, change.pixels), dtype=np.float32)
    before, after = (precision_of(form.dtype) for form in (change.before, change.after))
    if change.reads_grid:
        grid, layout = _random_grid(rng), Blocks(change.before.lanes)
        if after == INT8:
            values = before.rounded(values)
            x, expected = layout.pack(values, before), grid.encode(layout.pack(values))
        else:
            x = grid.encode(layout.pack(values))
            expected = after.encode(grid.decode(x))
        return ReferenceCase((x, change.grid_numbers(grid)), (), expected, tolerance=0.0)
    values = before.rounded(values)
    packed = Blocks(change.before.lanes).pack(values, before)
    return ReferenceCase((packed,), (), Blocks(change.after.lanes).pack(values, after), tolerance=0.0)


def block_case(block: BlockConfig, target: HardwareTarget) -> ReferenceCase:
    """Random input and weights of a whole block, and PyTorch's answer (batch normalisation folded in ours).

    PyTorch computes in float32 whatever the dtype, on processors from an input that is rounded where ours is; in int8
    the answer is that of an emulation.
    """
    if block.converts:
        return change_case(FormChange.of_block(block, target))
    target = block_target(block, target)
    if target.dtype == INT8.dtype:
        return _quantised_block_case(block, Blocks(target.vector_lanes))
    operators, layout = device_workloads(block, target), layout_of(target)
    first, precision = operators[0], precision_of(target.dtype)
    x, out, tensors = random_block(block, first.input_precision if target.gpu is None else FLOAT32, target.batch)
    packed = input_layout(first, layout).pack(x, first.input_precision)
    parameters = pack_block(block, tensors, layout, target.dtype)
    weights = tuple(range(1, 1 + len(parameters)))
    expected = layout.expected(operators[-1], out)
    return ReferenceCase((packed, *parameters), weights, expected, precision.block_tolerance)


def _quantised_block_case(block: BlockConfig, layout: Blocks) -> ReferenceCase:
    """The case of a block in int8: on grids that its values fit on, and what an emulation makes of its input."""
    x, _, tensors = random_block(block)
    tensors = {**tensors, GRIDS: network_grids([block], [tensors], x)[0]}
    operators = quantise_operators(block, tensors)
    first, last = operators[0], operators[-1]
    given = x
    if first.step.workload.input_storage == INT8.storage:
        assert first.numbers is not None
        given = first.numbers.input.encode(x)
    out = quantised_values(operators, given)[-1]
    begin = 0 if first.numbers is None else first.numbers.input.zero
    packed = PLAIN.pack(x) if first.step.workload.reads_image else _packed_numbers(layout, given, begin)
    arguments = (packed, *pack_block(block, tensors, layout, INT8.dtype))
    zero = last.numbers.output.zero if last.numbers is not None else 0
    tolerance = _NEXT_NUMBER if first.step.workload.reads_image else FLOAT32.block_tolerance
    return ReferenceCase(arguments, tuple(range(1, len(arguments))), _packed_numbers(layout, out, zero), tolerance)


def network_grids(
    blocks: Sequence[BlockConfig], parameters: Sequence[Mapping[str, Float32Array]], images: Float32Array
) -> list[Float32Array]:
    """`GRIDS` of each block that computes: the ranges that its values have for some images float32[B, C, R, R], batch
    normalisation folded. A block's input has the grid of what writes it."""
    found, x, before = [], images, (float(images.min()), float(images.max()))
    for block, tensors in zip(computing(blocks), parameters, strict=True):
        values = float_values(block_operators(block, tensors), x)
        ends = [before, *((float(value.min()), float(value.max())) for value in values)]
        grids = [Grid.of_range(*end) for end in ends]
        found.append(np.array([(grid.step, grid.zero) for grid in grids], np.float32))
        x, before = values[-1], ends[-1]
    return found


def network_case(
    blocks: Sequence[BlockConfig],
    parameters: Sequence[Mapping[str, Float32Array]],
    images: Float32Array,
    logits: Float32Array,
    target: HardwareTarget,
) -> ReferenceCase:
    """A whole network for as many images as the target takes at once.

    Args:
        parameters: PyTorch's by name of each block that computes; grids of these images where one in int8 has none.
        images: float32[B, 3, R, R].
        logits: float32[B, classes], PyTorch's answer.
    """
    last = device_workloads(blocks[-1], target)[-1]
    if has_int8(blocks, target.dtype):
        if not all(GRIDS in tensors for tensors in parameters):  # of blocks in other dtypes they are not read
            grids = network_grids(blocks, parameters, images)
            parameters = [{GRIDS: own, **tensors} for tensors, own in zip(parameters, grids, strict=True)]
        logits = emulated_logits(blocks, parameters, images, target.dtype, exact=True)
    arguments = (PLAIN.pack(images), *packed_parameters(blocks, parameters, target))
    expected = layout_of(target).expected(last, logits)
    tolerance = network_tolerance(blocks, target.dtype)
    return ReferenceCase(arguments, tuple(range(1, len(arguments))), expected, tolerance)


def plain_block_case(block: BlockConfig) -> ReferenceCase:
    """The same block as PyTorch lays it out: input float32[1, C, S, S], then weight float32[C_out, C_in / groups, k, k]
    and bias float32[1, C_out, 1, 1] of each operator, batch normalisation folded."""
    x, out, tensors = random_block(block)
    arguments = [x]
    for operator in fold_operators(block, tensors):
        arguments += PLAIN.pack_parameters(*operator)
    return ReferenceCase(tuple(arguments), tuple(range(1, len(arguments))), out)


def random_block(
    block: BlockConfig, precision: Precision = FLOAT32, batch: int = 1
) -> tuple[Float32Array, Float32Array, dict[str, Float32Array]]:
    """Input float32[B, C, S, S] of numbers that a precision has, PyTorch's output, and the parameters by name of a
    block with random ones."""
    import torch

    from chanas.network.static import block_module, randomise_statistics

    seed = case_seed(block.key)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        module = block_module(block).eval()
        randomise_statistics(module, seed)
        x = torch.randn(batch, block.in_channels, block.input_size, block.input_size)
        x = torch.from_numpy(precision.rounded(x.numpy()))
        out = module(x.flatten(1) if block.kind == "classifier" else x)
        tensors = {name: value.numpy() for name, value in module.state_dict().items()}
    return x.numpy(), np.ascontiguousarray(out.numpy()), tensors


def mean_network_weight_bytes(networks: Sequence[Sequence[BlockConfig]], dtype: str = "float32") -> int:
    """Mean bytes of weights of whole networks: how much else passes through the caches before a block runs again."""
    totals = [sum(w.weight_bytes for block in network for w in block_workloads(block, dtype)) for network in networks]
    return int(np.mean(totals))


def random_network(
    blocks: Sequence[BlockConfig], seed: int, batch: int = 1
) -> tuple[tuple[dict[str, Float32Array], ...], Float32Array, Float32Array]:
    """A network with random weights: parameters of each block by name, images float32[B, 3, R, R], and PyTorch's
    logits [B, classes]."""
    import torch

    from chanas.network.static import parameters_by_name, random_static_network

    network = random_static_network(blocks, seed)
    shape = (batch, blocks[0].in_channels, blocks[0].input_size, blocks[0].input_size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        logits = network(images).numpy()
    return tuple(split_tensors(parameters_by_name(network), blocks)), images.numpy(), logits


def relative_error(got: Any, expected: Any) -> float:
    """Largest error relative to the largest expected magnitude; infinite where NaN or infinity is found and not
    expected, or the other way round."""
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
        return math.inf
    error = float(np.abs(got[finite] - expected[finite]).max(initial=0.0))
    return error / max(1.0, float(np.abs(expected[finite]).max(initial=0.0))) if math.isfinite(error) else math.inf
