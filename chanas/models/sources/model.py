"""A finished network as it was opened: an ONNX model with its weights inside, and the framework's own answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from chanas.core.arrays import Array
from chanas.core.units import format_bytes
from chanas.errors import ModelError
from chanas.measuring.worker.serve import memory_limit
from chanas.network.inputs import random_inputs

Answer = Callable[[Sequence[Array]], list[Array]]
Shapes = Mapping[str, tuple[int, ...]]
TYPES = ("float32", "int32", "int64", "bool", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
"""Types of a graph's values; floats of other widths are computed in float32."""
OWN_TYPES = {"float16": "float32", "float64": "float32", "bfloat16": "float32"}
"""Floats of other widths, and what they become."""
IMAGE = "image"
"""The name that the input of every network that a library makes by name has for `Shapes`."""


def own_type(dtype: str) -> str:
    """The type in which a graph has values of another."""
    return OWN_TYPES.get(dtype, dtype)


@dataclass(frozen=True)
class TensorFacts:
    """Name, shape and type of an input or an output of a network."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def describe(self) -> str:
        """`image float32[1, 3, 224, 224]`"""
        return f"{self.name} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class OpenedModel:
    """A network that was opened.

    name       for people and for file names
    proto      an `onnx.ModelProto` with its weights inside, of shapes that follow from the inputs'
    inputs     what it takes, in order
    answer     the outputs of the framework that it comes from, for given inputs
    origin     where it comes from: its kind, file or name, SHA-256, the framework's version, and the `source` that was
               opened
    program    of `torch.export`; None for a network from an ONNX file
    shapes     of inputs by their names, as they were given to open it
    outputs    names of the outputs, in order; empty: numbered
    pictures   how its weights want pictures prepared, as far as that is known: changes for `preprocess_of`
    class_names  of its classes, where they are known
    """

    name: str
    proto: Any
    inputs: tuple[TensorFacts, ...]
    answer: Answer
    origin: Mapping[str, str]
    program: Any = None
    shapes: Shapes = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    pictures: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()

    def output_name(self, index: int) -> str:
        """The network's name of an output, or `output0`."""
        return self.outputs[index] if self.outputs else f"output{index}"

    def random_inputs(self, seed: int = 0) -> list[Array]:
        """Normal numbers for floats, zeros for whole numbers (`chanas.network.inputs`)."""
        return random_inputs(((i.shape, i.dtype) for i in self.inputs), seed)


def file_name(text: str) -> str:
    """A name for files: letters, digits, `.`, `_` and `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "model"


def checked_facts(inputs: Sequence[TensorFacts], where: str) -> tuple[TensorFacts, ...]:
    """The inputs, if every shape is there.

    Raises:
        ModelError: there are none, one is empty, or a type is none of ours.
    """
    if not inputs:
        raise ModelError(f"{where} takes no input; there is nothing to tune it for")
    for facts in inputs:
        if 0 in facts.shape:
            raise ModelError(
                f"input {facts.name} of {where} has no elements {list(facts.shape)}; export it with others"
            )
        if facts.dtype not in TYPES:
            raise ModelError(
                f"input {facts.name} of {where} is {facts.dtype}; expected one of {', '.join(TYPES)}: export the "
                "network in float32"
            )
    return tuple(inputs)


_MEMORY_PER_BYTE = 4.0  # of a file: as read, as constants of a module, folded, packed


def check_fits(path: Path, num_bytes: int) -> None:
    """Refuse a network that memory will not hold.

    Raises:
        ModelError: its files, of `num_bytes`, are too large for a worker, or for this machine's free memory.
    """
    if 2 * num_bytes > memory_limit():  # a worker holds weights twice
        raise ModelError(
            f"{path} has {format_bytes(num_bytes)} of weights, and a worker has to hold them twice in "
            f"{format_bytes(memory_limit())} of memory; tune a smaller network"
        )
    needed, free = num_bytes * _MEMORY_PER_BYTE, psutil.virtual_memory().available
    if needed > free:
        gib = 1 << 30
        raise ModelError(
            f"{path} has {num_bytes / gib:.1f} GiB and takes about {needed / gib:.0f} GiB to tune; "
            f"{free / gib:.0f} GiB of memory are free"
        )
