"""Classes of pictures by a compiled network: what its outputs are called, and how likely each is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chanas.core.arrays import Float32Array
from chanas.errors import ConfigError
from chanas.files.writing import read_text
from chanas.network.pictures import Pictured, open_picture
from chanas.network.preprocess import Preprocess


@dataclass(frozen=True)
class Prediction:
    """One image's class, with its softmax probability."""

    class_index: int
    class_name: str
    probability: float


@dataclass(frozen=True)
class Classifier:
    """A network with what turns pictures into its input and its output into classes.

    run                outputs [N, classes] of prepared pictures [N, …]
    are_probabilities  the outputs are probabilities already; else logits
    batch              pictures that are run at once
    """

    run: Callable[[Float32Array], Float32Array]
    preprocess: Preprocess
    class_names: tuple[str, ...]
    are_probabilities: bool = False
    batch: int = 1

    def rank(self, images: Iterable[Pictured], top: int = 1) -> list[list[Prediction]]:
        """The `top` most likely classes of each image, the likeliest first: of paths, images of Pillow's, or arrays.

        Raises:
            DataError: a file is missing or damaged, or an image is not one that `open_picture` takes.
        """
        given, found = list(images), list[list[Prediction]]()
        for start in range(0, len(given), self.batch):
            part = enumerate(given[start : start + self.batch], start)
            inputs = [self.preprocess(open_picture(one, f"image {number}").image) for number, one in part]
            shares = self.run(np.stack(inputs)).astype(np.float64)
            if not self.are_probabilities:
                shares = np.exp(shares - shares.max(axis=1, keepdims=True))
                shares /= shares.sum(axis=1, keepdims=True)
            for row in shares:
                order = np.argsort(-row, kind="stable")[:top].tolist()
                found.append([Prediction(index, self.class_names[index], float(row[index])) for index in order])
        return found


def num_classes(name: str, inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]) -> int:
    """The number of classes of a network by its inputs and outputs (`shape`, `dtype`).

    Raises:
        ConfigError: it does not take one picture and give a number for each class.
    """
    shapes = [entry["shape"] for entry in outputs]
    is_one = len(inputs) == len(outputs) == 1 and inputs[0]["dtype"] == outputs[0]["dtype"] == "float32"
    if not is_one or len(shapes[0]) < 2 or shapes[0][0] != 1 or not 1 < shapes[0][1] == np.prod(shapes[0]):
        raise ConfigError(
            f"{name} is no classifier of pictures, which has one float32 input [1, C, H, W] or [1, H, W, C] and one "
            f"output [1, classes]; it has inputs {[list(entry['shape']) for entry in inputs]} and outputs "
            f"{[list(shape) for shape in shapes]}"
        )
    return int(shapes[0][1])


def read_labels(path: Path, num: int, name: str) -> list[str]:
    """Names of `num` classes of a network, one a line.

    Raises:
        CheckpointError: the file cannot be read.
        ConfigError: it has more or fewer lines, or an empty one.
    """
    lines = [line.strip() for line in read_text(path, "labels").splitlines()]
    if len(lines) != num:
        raise ConfigError(f"expected a line for each of the {num} outputs of {name}, {path} has {len(lines)}")
    if "" in lines:
        raise ConfigError(f"expected the name of a class in line {lines.index('') + 1} of {path}, it is empty")
    return lines
