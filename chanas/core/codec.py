"""Dataclasses as JSON and back, by the types of their fields; those that have `to_json` and `from_json` use them.

Where a field may be one of several dataclasses, its JSON says which one it is: `{"BlockAt": {"block": …}}`. An array is
its type, its shape, and its bytes in base64.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

_AS_THEY_ARE = (int, float, str, bool, Any)


def to_json(value: Any, kind: Any = None) -> Any:
    """A value as JSON; `kind` is the type of the field that it is in."""
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "to_json"):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        fields = fields_to_json(value)
        return {type(value).__name__: fields} if len(_alternatives(kind)) > 1 else fields
    if isinstance(value, Path):
        return str(value)
    if _is_array(type(value)):
        return _pack(value)
    if isinstance(value, list | tuple):
        return [to_json(v, k) for v, k in zip(value, _members(kind, len(value)), strict=True)]
    if isinstance(value, Mapping):
        return {name: to_json(v) for name, v in value.items()}
    return value


def fields_to_json(value: Any, omitted: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass by name, as JSON, without the `omitted` ones that have their default."""
    kinds = _types_of_fields(value.__class__)
    found = {f.name: (getattr(value, f.name), f.default) for f in dataclasses.fields(value)}
    return {n: to_json(v, kinds[n]) for n, (v, default) in found.items() if n not in omitted or v != default}


def from_json(kind: Any, data: Any) -> Any:
    """Make a value of a type from its JSON.

    Raises:
        TypeError: fields of a dataclass are missing, or there are others; something else is where a list should be.
        KeyError: none of several dataclasses has that name.
    """
    if data is None or kind in _AS_THEY_ARE:
        return data
    if isinstance(kind, types.UnionType):
        named = _alternatives(kind)
        if len(named) > 1:
            [(name, data)] = data.items()
            return from_json(named[name], data)
        return from_json(next(m for m in typing.get_args(kind) if m is not types.NoneType), data)
    if _is_array(typing.get_origin(kind)):
        return _unpack(data)
    if typing.get_origin(kind) in (tuple, Sequence):
        if not isinstance(data, list | tuple):
            raise TypeError(f"expected a list, got {data!r:.40}")
        return tuple(from_json(k, v) for k, v in zip(_members(kind, len(data)), data, strict=True))
    if hasattr(kind, "from_json"):
        return kind.from_json(data)
    if dataclasses.is_dataclass(kind):
        return fields_from_json(typing.cast(type, kind), data)
    is_value = isinstance(kind, type) and issubclass(kind, Path | enum.Enum)
    return kind(data) if is_value else data


def fields_from_json(kind: type, data: dict[str, Any]) -> Any:
    """Make a dataclass from its fields' JSON. Raises TypeError: fields are missing, or there are others."""
    kinds = _types_of_fields(kind)
    return kind(**{name: from_json(kinds.get(name), value) for name, value in data.items()})


def _is_array(kind: Any) -> bool:
    """By its name: commands that have no arrays start without numpy."""
    return getattr(kind, "__module__", "") == "numpy" and kind.__name__ == "ndarray"


def _pack(values: Any) -> dict[str, Any]:
    little = values.astype(values.dtype.newbyteorder("<"))
    content = base64.b64encode(little.tobytes()).decode("ascii")
    return {"dtype": little.dtype.str, "shape": list(values.shape), "bytes": content}


def _unpack(data: dict[str, Any]) -> Any:
    import numpy as np

    return np.frombuffer(base64.b64decode(data["bytes"]), data["dtype"]).reshape(data["shape"])


@functools.cache
def _types_of_fields(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _alternatives(kind: Any) -> dict[str, type]:
    """The dataclasses that a union has, by their names."""
    members = typing.get_args(kind) if isinstance(kind, types.UnionType) else ()
    return {m.__name__: m for m in members if isinstance(m, type) and dataclasses.is_dataclass(m)}


def _members(kind: Any, num: int) -> list[Any]:
    """The type of each of `num` members of a sequence: `tuple[A, B]`, `tuple[A, ...]` or `Sequence[A]`."""
    members = typing.get_args(kind)
    if typing.get_origin(kind) is tuple and ... not in members:
        return list(members)
    return [members[0] if members else None] * num
