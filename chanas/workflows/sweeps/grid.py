"""The file of a sweep: a command, the values of its parameters, and how these are combined to rows."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator
from pydantic import ValidationError as PydanticError

from chanas.errors import ConfigError
from chanas.files.yaml_files import read_mapping

MAX_ROWS = 10_000

Single = StrictBool | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] | StrictStr | None
Value = Single | list[Single]
"""The value of an option; a list where the option may be given several times."""

_NAME = re.compile(r"[\w-][\w.-]*")


class Sample(BaseModel):
    """A random choice of rows, each at most once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: int = Field(ge=1)
    seed: int = 0


class Grid(BaseModel):
    """A sweep.

    command     a command of chanas, such as `tune` or `lut check`
    parameters  by option, the values that it takes; option names as on the command line, `tune_share` or `tune-share`
    fixed       options that all rows have in common
    combine     `product` of all values, or `zip`: the first of each parameter, the second of each, and so on
    sample      so many of these rows alone, by chance
    at_once     runs side by side, where the command does not time on the device
    start_from  a run directory that each run begins with a copy of: supernet, latency tables and records
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str
    parameters: dict[str, list[Value]] = Field(min_length=1)
    name: str = Field(default="", max_length=60)
    fixed: dict[str, Value] = {}
    combine: Literal["product", "zip"] = "product"
    sample: Sample | None = None
    at_once: int = Field(default=1, ge=1)
    start_from: Path | None = None

    @model_validator(mode="after")
    def _can_be_combined(self) -> Grid:
        if self.name and not _NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r} must be of letters, digits, '.', '_' and '-': a folder is called so")
        twice = {_plain(name) for name in self.parameters} & {_plain(name) for name in self.fixed}
        if twice:
            raise ValueError(f"{', '.join(sorted(twice))} can't be both in 'parameters' and in 'fixed'")
        for name, values in self.parameters.items():
            if not values:
                raise ValueError(f"parameters.{name}: expected at least one value")
            if self.combine == "product" and len({json.dumps(v) for v in values}) < len(values):
                raise ValueError(f"parameters.{name}: expected different values, got one twice")
        if self.combine == "zip" and len({len(values) for values in self.parameters.values()}) > 1:
            lengths = ", ".join(f"{name} {len(values)}" for name, values in self.parameters.items())
            raise ValueError(f"lists that are zipped need the same length, got {lengths}")
        if self.sample is not None and self.sample.rows > self.num_combinations:
            raise ValueError(f"sample.rows: expected at most the {self.num_combinations} rows that there are")
        if self.num_rows > MAX_ROWS:
            raise ValueError(f"expected at most {MAX_ROWS} rows, got {self.num_rows}; 'sample' takes some of them")
        if self.combine == "zip" and len({json.dumps(row) for row in self.rows()}) < self.num_rows:
            raise ValueError("expected different rows, got one twice")
        return self

    @property
    def num_combinations(self) -> int:
        """Rows before a sample is taken."""
        lengths = [len(values) for values in self.parameters.values()]
        return math.prod(lengths) if self.combine == "product" else lengths[0]

    @property
    def num_rows(self) -> int:
        """Rows of the sweep."""
        return self.num_combinations if self.sample is None else self.sample.rows

    def rows(self) -> list[dict[str, Value]]:
        """The varied parameters of each row, the last one varying fastest; the same for the same grid."""
        numbers: Sequence[int] = range(self.num_combinations)
        if self.sample is not None:
            numbers = sorted(random.Random(self.sample.seed).sample(numbers, self.sample.rows))
        return [self._row(number) for number in numbers]

    def _row(self, number: int) -> dict[str, Value]:
        if self.combine == "zip":
            return {_plain(name): values[number] for name, values in self.parameters.items()}
        row: dict[str, Value] = {}
        for name, values in reversed(self.parameters.items()):
            number, index = divmod(number, len(values))
            row[_plain(name)] = values[index]
        return dict(reversed(row.items()))

    @property
    def common(self) -> dict[str, Value]:
        """The options that all rows have in common."""
        return {_plain(name): value for name, value in self.fixed.items()}


def _plain(name: str) -> str:
    return name.replace("-", "_")


def read_grid(path: Path) -> Grid:
    """Read the file of a sweep; without a name it is called as the file is.

    Raises:
        ConfigError: it cannot be read, or does not say what it should.
    """
    data = read_mapping(path, path, "file of a sweep", "command, parameters and others", ConfigError)
    return parse_grid({"name": path.stem, **data}, str(path))


def parse_grid(data: dict[str, Any], name: str) -> Grid:
    """A sweep from a mapping that errors call `name`.

    Raises:
        ConfigError: a key is unknown, missing or out of range, or the values cannot be combined.
    """
    try:
        return Grid.model_validate(data)
    except PydanticError as error:
        fault = error.errors()[0]
        # of a value, what each type of the union has against it; the place of the value says enough
        place = [str(part) for part in fault["loc"]][: 3 if fault["loc"][:1] == ("parameters",) else 2]
        message = fault["msg"].removeprefix("Value error, ").replace("Input should be", "expected", 1)
        if len(fault["loc"]) > len(place):
            message = f"expected a number, a text, true, false, null or a list of these, got {fault['input']!r}"
        elif fault["type"] == "extra_forbidden":
            known = Grid.model_fields if len(place) == 1 else Sample.model_fields
            message = f"unknown key; known: {', '.join(sorted(known))}"
        raise ConfigError(": ".join(filter(None, [name, ".".join(place), message]))[:400]) from None
