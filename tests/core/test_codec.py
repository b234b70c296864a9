"""chanas/core/codec.py: dataclasses arrive as they were, whatever their fields hold."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from chanas.core.codec import fields_from_json, fields_to_json, from_json, to_json


class Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Square:
    size: int


@dataclass(frozen=True)
class Circle:
    size: int
    at: tuple[int, ...] = ()


@dataclass(frozen=True)
class Text:
    """Says itself what its JSON is."""

    text: str

    def to_json(self) -> str:
        return self.text

    @classmethod
    def from_json(cls, data: str) -> Text:
        return cls(data)


@dataclass(frozen=True)
class Everything:
    shape: Square | Circle
    maybe: Circle | None
    nothing: Square | None
    number: int | float
    path: Path
    paths: Sequence[Path | None]
    nested: tuple[tuple[Square, ...], ...]
    pair: tuple[Path, Square]
    shapes: Sequence[Square | Circle]
    colour: Colour
    text: Text
    facts: Mapping[str, Any] = field(default_factory=dict)
    size: int = 1
    name: str = ""


EVERYTHING = Everything(
    shape=Circle(1, (2, 3)),
    maybe=Circle(2),
    nothing=None,
    number=0.5,
    path=Path("a/b"),
    paths=(Path("c"), None),
    nested=((Square(1), Square(2)), ()),
    pair=(Path("d"), Square(3)),
    shapes=(Circle(4), Square(4)),
    colour=Colour.RED,
    text=Text("said"),
    facts={"list": [1, 2], "none": None},
)


def test_a_dataclass_arrives_as_it_was() -> None:
    assert from_json(Everything, json.loads(json.dumps(to_json(EVERYTHING)))) == EVERYTHING


def test_one_of_several_says_which_one_it_is() -> None:
    written = to_json(EVERYTHING)
    assert written["shape"] == {"Circle": {"size": 1, "at": [2, 3]}}
    assert written["shapes"] == [{"Circle": {"size": 4, "at": []}}, {"Square": {"size": 4}}]
    assert written["maybe"] == {"size": 2, "at": []}
    with pytest.raises(KeyError, match="Triangle"):
        from_json(Everything, {**written, "shape": {"Triangle": {"size": 1}}})


def test_fields_with_their_default_may_be_left_out() -> None:
    written = fields_to_json(EVERYTHING, omitted=("size", "colour"))
    assert {*to_json(EVERYTHING)} - {*written} == {"size"}
    assert fields_from_json(Everything, written) == EVERYTHING


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3)), np.array([[0.1, np.nan], [-0.0, np.inf]]), np.arange(3), np.ones(2) > 0]
)
def test_an_array_arrives_bit_by_bit(array: npt.NDArray[Any]) -> None:
    read = from_json(npt.NDArray[np.float64], json.loads(json.dumps(to_json(array))))
    assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Square, {}),
        (Square, {"size": 1, "colour": "red"}),
        (Circle, {"size": 1, "at": 2}),
        (Circle, {"size": 1, "at": "2"}),
    ],
)
def test_other_data_than_that_of_the_type_is_an_error(kind: type, data: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        from_json(kind, data)
