"""`codesign.json`: what a bundle is, what was predicted and measured, and what it came from. `targets` has an entry for
each target that it was searched for, in order. Bundles of schema 2 are read as if they had been written today.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from chanas.core.target import HardwareTarget
from chanas.core.units import format_latency
from chanas.files.documents import Document

SCHEMA = 3
DOCUMENT, WEIGHTS, MODULE = "codesign.json", "weights.safetensors", "module.so"

# Where a network takes less of its budget than this, there was none that the rest was of use to.
_BINDING = 0.8

Made = TypeVar("Made")
Figures = dict[str, float | None]


@dataclass(frozen=True)
class _Target:
    """Entry of a target."""

    target: HardwareTarget
    module: str
    constraints: Figures = field(default_factory=dict)
    predicted: Figures = field(default_factory=dict)
    measured: Figures = field(default_factory=dict)


@dataclass(frozen=True)
class _OfAllSchemas:
    """Part of a document that every schema has."""

    schema: int
    space: dict[str, Any]
    architecture: dict[str, Any]
    class_names: list[str]
    preprocess: dict[str, Any] | None
    hashes: dict[str, str]
    constraints: Figures = field(default_factory=dict)
    predicted: Figures = field(default_factory=dict)
    measured: Figures = field(default_factory=dict)
    num_macs: int = 0
    num_params: int = 0


@dataclass(frozen=True, kw_only=True)
class _Bundle(_OfAllSchemas):
    """Content of `codesign.json`."""

    targets: list[_Target]


@dataclass(frozen=True, kw_only=True)
class _BundleOfSchema2(_OfAllSchemas):
    """Content of an older one: the document was the entry of the first target, too."""

    target: HardwareTarget
    peak_memory_bytes: int = 0
    further_targets: list[_Target] = field(default_factory=list)


@dataclass(frozen=True)
class _Numbered:
    """Any document."""

    schema: int


_WHAT, _REMEDY = "bundle document", "make the bundle again with `chanas search`"
_ANY = Document(_WHAT, _Numbered, _REMEDY)
_BUNDLE = Document(_WHAT, _Bundle, _REMEDY, SCHEMA)
_SCHEMA_2 = Document(_WHAT, _BundleOfSchema2, _REMEDY, 2)


def read_document(path: Path, make: Callable[[dict[str, Any]], Made]) -> Made:
    """Make something of the content of a bundle's `codesign.json`, which has schema 3 by then.

    Raises:
        CheckpointError: it is missing, damaged, of an unknown schema, or `make` finds a value that it can't use.
    """
    if _ANY.read(path)["schema"] == 2:
        return _SCHEMA_2.read_with(path, lambda document: make(from_schema_2(document)))
    return _BUNDLE.read_with(path, make)


def from_schema_2(document: Mapping[str, Any]) -> dict[str, Any]:
    """An older document as it would be written today; what is not written as expected is left out."""
    of_first = ("target", "schedules", "blocks", "peak_memory_bytes")
    first = {"module": MODULE, **{k: document[k] for k in of_first if k in document}}
    whole = {k: v for k, v in document.items() if k not in (*of_first, "further_targets")}
    for group, names in (
        ("constraints", {"latency_s"}),
        ("predicted", {"latency_s"}),
        ("measured", _dict(document, "measured").keys() - {"top1_holdout", "top1_table"}),
        ("seeds", {"prescheduler"}),
        ("hashes", {"lut"}),
    ):
        values = _dict(document, group)
        first[group] = {k: v for k, v in values.items() if k in names}
        whole[group] = {k: v for k, v in values.items() if k not in names}
    further = document.get("further_targets")
    others = further if isinstance(further, list) else []
    return {**whole, "schema": SCHEMA, "targets": [first, *(dict(p) for p in others if isinstance(p, Mapping))]}


def describe_slack(budget_s: float | None, measured_s: float | None) -> str:
    """A sentence where a network's measured seconds are far below its budget; else nothing."""
    if not budget_s or not measured_s or measured_s > _BINDING * budget_s:
        return ""
    return (
        f"the budget does not bind: the network takes {measured_s / budget_s:.0%} of it, and a search with any budget "
        f"from {format_latency(measured_s)} on may find it"
    )


def _dict(document: Mapping[str, Any], group: str) -> dict[str, Any]:
    values = document.get(group)
    return dict(values) if isinstance(values, Mapping) else {}
