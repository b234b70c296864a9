"""A finished network as it was opened: a Relax module with its weights inside, and the framework's own answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from chanas.errors import ModelError
from chanas.network.inputs import random_inputs

Array = npt.NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]
IMAGE = "image"
"""The name that the input of every network of torchvision has for `Shapes`."""


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
    module     a Relax module `main(inputs…) -> outputs`, weights inside as constants
    inputs     what it takes, in order
    answer     the outputs of the framework that it comes from, for given inputs
    origin     where it comes from: its kind, file or name, SHA-256, the framework's version, and the `source` that was
               opened
    program    of `torch.export`; None for a network from an ONNX file
    shapes     of inputs by their names, as they were given to open it
    """

    name: str
    module: Any
    inputs: tuple[TensorFacts, ...]
    answer: Callable[[Sequence[Array]], list[Array]]
    origin: Mapping[str, str]
    program: Any = None
    shapes: Shapes = field(default_factory=dict)

    def random_inputs(self, seed: int = 0) -> list[Array]:
        """Normal numbers for floats, zeros for whole numbers (`chanas.network.inputs`)."""
        return random_inputs(((i.shape, i.dtype) for i in self.inputs), seed)


def file_name(text: str) -> str:
    """A name for files: letters, digits, `.`, `_` and `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "model"


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked_facts(inputs: Sequence[TensorFacts], where: str) -> tuple[TensorFacts, ...]:
    """The inputs, if every shape is there.

    Raises:
        ModelError: there are none, or a type is none of ours.
    """
    if not inputs:
        raise ModelError(f"{where} takes no input; there is nothing to tune it for")
    for facts in inputs:
        if facts.dtype not in ("float32", "int32", "int64", "bool"):
            raise ModelError(
                f"input {facts.name} of {where} is {facts.dtype}; expected float32, int32, int64 or bool: export the "
                "network in float32 (chanas itself rounds with --dtype)"
            )
    return tuple(inputs)
