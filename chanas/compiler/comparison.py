"""Outputs of a whole network beside those of the framework that it comes from: each by itself, number by number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chanas.core.arrays import Array

_SHOWN = 1 << 16
"""Places of whole numbers that are told; more than so many are no ties."""


@dataclass(frozen=True, eq=False)
class Draw:
    """Inputs of a network, the framework's outputs for them, and how far another program's may be from each number.

    name     what the inputs are like, for people
    allowed  float32 of each output's shape; infinity: any number is right
    """

    name: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    allowed: tuple[Array, ...]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (*self.inputs, *self.outputs, *self.allowed))


@dataclass(frozen=True)
class Difference:
    """The difference of an output from the framework's, where it is largest for what is allowed.

    error      as a share of the output's largest magnitude; infinite where one of the two is a number and the other is
               NaN or infinite
    bound      what is allowed there, in the same share
    excess     the difference as a share of what is allowed: right up to 1
    num_wrong  numbers that are further away than is allowed
    places     of the first wrong ones, and the numbers that are there instead; of whole numbers alone
    """

    error: float
    bound: float
    excess: float
    num_wrong: int
    places: tuple[int, ...] = ()
    found: tuple[float, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The differences of each output in each draw, and the outputs that a second call changed."""

    draws: tuple[tuple[Difference, ...], ...]
    changed: tuple[int, ...] = ()


def difference(got: Array, expected: Array, allowed: Array) -> Difference:
    """Compare an output with the expected one; shapes may differ in axes of one."""
    if got.size != expected.size:
        return Difference(math.inf, 0.0, math.inf, expected.size)
    got, expected, allowed = got.ravel(), expected.ravel(), allowed.ravel()
    with np.errstate(all="ignore"):
        apart = np.abs(np.subtract(got, expected, dtype=np.float64))
        same = (got == expected) | ((got != got) & (expected != expected))
        apart = np.where(same, 0.0, np.where(np.isnan(apart), math.inf, apart))
        share = np.where(apart == 0.0, 0.0, apart / allowed)  # of nothing it is infinity
    share[np.isposinf(allowed)] = 0.0
    largest = largest_of(expected) or 1.0
    worst, wrong = int(share.argmax()), np.flatnonzero(share > 1.0)
    shown = wrong[:_SHOWN] if expected.dtype.kind in "iub" else wrong[:0]
    return Difference(
        float(apart[worst]) / largest,
        float(allowed[worst]) / largest,
        float(share[worst]),
        len(wrong),
        tuple(map(int, shown)),
        tuple(map(float, got[shown])),
    )


def largest_of(values: Array) -> float:
    """The largest finite magnitude; 0 where there is none."""
    numbers = np.abs(values[np.isfinite(values)].astype(np.float64))
    return float(numbers.max(initial=0.0))


@dataclass(frozen=True, eq=False)
class NetworkCase:
    """Draws of a whole network, whose compiled program takes their inputs and then its parameters."""

    parameters: tuple[Array, ...]
    draws: Sequence[Draw]

    def save(self, path: Path) -> None:
        """An uncompressed .npz that `StoredCase` reads."""
        first = self.draws[0]
        named = {f"parameter{i}": a for i, a in enumerate(self.parameters)}
        for d, draw in enumerate(self.draws):
            for kind, arrays in (("input", draw.inputs), ("output", draw.outputs), ("allowed", draw.allowed)):
                named |= {f"draw{d}_{kind}{i}": a for i, a in enumerate(arrays)}
        counts = [len(self.parameters), len(first.inputs), len(first.outputs), len(self.draws)]
        np.savez(path, counts=np.array(counts), **named)  # type: ignore[arg-type]


class StoredCase:
    """A case in a file, of which each part is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._data = np.load(path, allow_pickle=False)
        self._num_parameters, self._num_inputs, self.num_outputs, self.num_draws = map(int, self._data["counts"])

    def parameters(self) -> list[Array]:
        return [self._data[f"parameter{i}"] for i in range(self._num_parameters)]

    def inputs(self, draw: int) -> list[Array]:
        return [self._data[f"draw{draw}_input{i}"] for i in range(self._num_inputs)]

    def compare(self, draw: int, outputs: Sequence[Array]) -> tuple[Difference, ...]:
        """The differences of a program's outputs for the inputs of a draw."""
        if len(outputs) != self.num_outputs:
            raise ValueError(f"expected {self.num_outputs} outputs, got {len(outputs)}")
        return tuple(
            difference(got, self._data[f"draw{draw}_output{i}"], self._data[f"draw{draw}_allowed{i}"])
            for i, got in enumerate(outputs)
        )
