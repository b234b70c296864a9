"""A program run in this process with the values between its inputs and outputs given back."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chanas.bundle.runtimes import load_main
from chanas.compiler.cpu.module import Chosen, operation_parameters, program_module
from chanas.compiler.program import Operation, Program, TunedOperation
from chanas.core.arrays import Array
from chanas.core.target import HardwareTarget
from chanas.measuring.fleet import Pool
from chanas.models.proof.comparing import build
from chanas.operators.precision import INT8, precision_of


class Values(Mapping[int, Array]):
    """Values of a program by their numbers, in float32 and in the shapes of the framework. They lie as the program has
    left them until they are asked for."""

    def __init__(self, program: Program, stored: Mapping[int, Array]) -> None:
        self._program, self._stored = program, stored

    def __getitem__(self, number: int) -> Array:
        value = self._program.value(number)
        if not value.blocked:
            return self._stored[number].reshape(value.shape)
        maps = np.moveaxis(self._maps(number), -1, 2)
        by_channel = maps.reshape(value.images, -1, value.pixels)[:, : value.channels]
        in_order = by_channel if value.channel_axis == 1 else by_channel.transpose(0, 2, 1)
        return np.ascontiguousarray(in_order).reshape(value.shape)

    def __iter__(self) -> Iterator[int]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def numbers(self, number: int) -> Array:
        """All numbers of a value, in no order."""
        value = self._program.value(number)
        if not value.blocked:
            return self._stored[number].ravel()
        maps, beyond = self._maps(number), value.channels % value.lanes
        if not beyond:
            return maps.ravel()
        return np.concatenate([maps[:, :-1].ravel(), maps[:, -1, :, :beyond].ravel()])

    def means(self, number: int) -> Array:
        """float64[C]: the mean of each channel of a blocked value."""
        found: Array = self._maps(number).mean(axis=(0, 2), dtype=np.float64).ravel()
        return found[: self._program.value(number).channels]

    def _maps(self, number: int) -> Array:
        """float32[N, B, M, l] of a blocked value."""
        stored, value = self._stored[number], self._program.value(number)
        if value.form.dtype == INT8.dtype:
            decoded = self._program.grids[number].decode(stored)
        else:
            decoded = precision_of(value.form.dtype).decode(stored)
        return decoded.reshape(value.images, value.blocks, -1, value.lanes)[:, :, : value.pixels]


class Probe:
    """A compiled program that gives back some of its values.

    Args:
        numbers: of the values.
        folder: where its library is written, under `name`.

    Raises:
        MeasureError: it does not compile.
    """

    def __init__(
        self,
        program: Program,
        numbers: Sequence[int],
        chosen: Chosen,
        target: HardwareTarget,
        pool: Pool,
        folder: Path,
        name: str,
    ) -> None:
        self.numbers, self.chosen, self.target = tuple(dict.fromkeys(numbers)), chosen, target
        made = program_module(dataclasses.replace(program, outputs=self.numbers), chosen, target)
        library = folder / f"{name}.so"
        build(made, target, library, folder / f"{name}.json", pool)
        self._function = load_main(library, target.num_threads)
        self._held = list[tuple[Operation | None, list[Any]]]()
        self.renew(program)

    def renew(self, program: Program) -> None:
        """Take the parameters of a program, of the same operations with other grids or other biases; what has the same
        ones as before keeps them."""
        import tvm

        before = self._held or [(None, [])] * len(program.operations)
        self.program, self._held = program, []
        for operation, (known, tensors) in zip(program.operations, before, strict=True):
            if not _has_same_parameters(operation, known):
                tensors = [tvm.runtime.tensor(array) for array in operation_parameters(operation, self.chosen)]
            self._held.append((operation, tensors))

    def values(self, inputs: Sequence[Array]) -> Values:
        """The values for some inputs."""
        import tvm

        parameters = itertools.chain.from_iterable(tensors for _, tensors in self._held)
        found = self._function(*map(tvm.runtime.tensor, inputs), *parameters)
        outputs = [found] if hasattr(found, "numpy") else found
        return Values(self.program, dict(zip(self.numbers, map(np.from_dlpack, outputs), strict=True)))


def _has_same_parameters(operation: Operation, known: Operation | None) -> bool:
    """True of an operation in place of another one that has the same weights and numbers."""
    if not isinstance(operation, TunedOperation) or not isinstance(known, TunedOperation):
        return False
    if operation.key != known.key:
        return False
    if operation.numbers is not None:
        return operation.numbers.is_like(known.numbers)
    return known.numbers is None and operation.weight is known.weight and operation.bias is known.bias
