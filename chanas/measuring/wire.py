"""Dataclasses as JSON and back, by the types of their fields; those that have `to_json` and `from_json` use them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from pathlib import Path
from typing import Any


def fields_to_json(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, as JSON."""
    return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}


def to_json(value: Any) -> Any:
    """A field's value, or another one, as JSON."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        return fields_to_json(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    return value


def fields_from_json(kind: type, data: dict[str, Any]) -> Any:
    """Make a dataclass from its fields' JSON. Raises TypeError: fields are missing, or there are others."""
    types_ = _types_of_fields(kind)
    return kind(**{name: _from_json(types_.get(name), value) for name, value in data.items()})


@functools.cache
def _types_of_fields(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _from_json(kind: Any, data: Any) -> Any:
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if data is None:
        return None
    if origin is types.UnionType:
        return _from_json(next(m for m in members if m is not types.NoneType), data)
    if origin is not None and isinstance(data, list):
        return tuple(_from_json(members[0], v) for v in data)
    if hasattr(kind, "from_json"):
        return kind.from_json(data)
    if dataclasses.is_dataclass(kind):
        return fields_from_json(typing.cast(type, kind), data)
    is_value = isinstance(kind, type) and issubclass(kind, Path | enum.Enum)
    return kind(data) if is_value else data
