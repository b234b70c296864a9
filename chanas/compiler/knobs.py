"""Changes of schedule spaces that a person writes down: other candidates for knobs, further knobs, and no rules.

blockconv:                        # a family, or `all`
  split_w: [1, 2, 4, 7]           # of a loop: its innermost factor, which the others follow from
  order: [1]                      # of a choice: its values
  auto_unroll: [0, 16, 64, 512]   # a further knob (`space.EXTRA_KNOBS`)
  rules: false                    # also what chanas' rules leave out: tiles that don't fit in registers, say
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.backends import BACKENDS, schedule_space
from chanas.compiler.cpu import points
from chanas.compiler.space import EXTRA_KNOBS, Coordinate, Point, ScheduleSpace, factorisations, with_smaller_last
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, unknown_name
from chanas.files.yaml_files import read_mapping
from chanas.operators.workload import Workload

_ALL, _RULES = "all", "rules"


@dataclass(frozen=True)
class FamilyChange:
    """The change of a family's spaces: candidates by knob, and whether chanas' rules hold."""

    candidates: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rules: bool = True

    def apply(self, space: ScheduleSpace[Any]) -> ScheduleSpace[Any]:
        """A space with these candidates; knobs that it does not have are left aside.

        Raises:
            ConfigError: no candidate of a knob is one of this workload, or no combination of candidates is legal.
        """
        coordinates = [self._changed(c, space.workload.key) for c in space.coordinates]
        extra = [Coordinate.choice(name, *self._values(name)) for name in EXTRA_KNOBS if name in self.candidates]
        if extra and EXTRA_KNOBS[0] not in self.candidates:  # they follow each other in a point
            extra.insert(0, Coordinate.choice(EXTRA_KNOBS[0], 0))
        changed = dataclasses.replace(space, coordinates=(*coordinates, *extra))
        if not self.rules:
            return dataclasses.replace(changed, is_legal=lambda _: True)
        if not changed.sample(1, np.random.default_rng(0)):
            raise ConfigError(
                f"expected candidates of which some combination is legal for {space.workload.key}, got none (its tiles "
                "are too small or too large, say); add candidates, or say `rules: false`"
            )
        return changed

    def _values(self, name: str) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.candidates[name]))

    def _changed(self, coordinate: Coordinate, key: str) -> Coordinate:
        extent, options = coordinate.extent, coordinate.options
        if extent is not None and (coordinate.name in self.candidates or not self.rules):
            options = factorisations(extent, coordinate.width, extent)
            if coordinate.cuts_last:
                sizes = {inner for _, inner in coordinate.options} | {*self.candidates.get(coordinate.name, ())}
                options += with_smaller_last(extent, sorted(sizes))
        if coordinate.name in self.candidates:
            wanted = self._values(coordinate.name)
            known = {option[-1] for option in options}
            options = tuple(option for option in options if option[-1] in wanted)
            if not options:
                raise ConfigError(
                    f"none of the candidates {list(wanted)} for {coordinate.name} is one of {key}; its own: "
                    f"{sorted(known)}"
                )
        return dataclasses.replace(coordinate, options=options)


@dataclass(frozen=True)
class SpaceChange:
    """Changes by family."""

    families: Mapping[str, FamilyChange]

    def apply(self, space: ScheduleSpace[Any]) -> ScheduleSpace[Any]:
        """The space of an operator with the change of its family, or with that of `all`.

        Raises:
            ConfigError: no candidate of a knob is one of this workload, or no combination of candidates is legal.
        """
        change = self.families.get(space.workload.op) or self.families.get(_ALL)
        return space if change is None else change.apply(space)


def extended(point: Point, space: ScheduleSpace[Any]) -> Point:
    """A point of a space without further knobs in one that has some: they are at 0."""
    missing = space.length - len(point)
    return point + (0,) * missing if 0 < missing <= len(EXTRA_KNOBS) else point


@functools.cache
def _known_knobs() -> frozenset[str]:
    """Knobs that any family of processors has."""
    kinds = [kind for kind in vars(points).values() if dataclasses.is_dataclass(kind)]
    own = {f.metadata["coordinate"] for kind in kinds for f in dataclasses.fields(kind)}
    return frozenset(own | {*EXTRA_KNOBS})


def read_knobs(path: Path) -> SpaceChange:
    """Read a file of changes.

    Raises:
        ConfigError: it cannot be read, or names a family or a knob that there is not, or has no list of candidates.
    """
    data = read_mapping(path, path, "file of knobs", "families to knobs and their candidates", ConfigError)
    table = BACKENDS["llvm"].families()
    families = {_ALL, *(op for op, _ in (*table, *table.added))}
    found = {}
    for family, knobs in data.items():
        if family not in families:
            raise ConfigError(f"{path}: {unknown_name('family', str(family), families)}")
        if not isinstance(knobs, Mapping):
            raise ConfigError(f"{path}: expected knobs with their candidates for {family}, got {knobs!r}"[:200])
        found[str(family)] = _family_change(knobs, f"{path}: {family}")
    return SpaceChange(found)


def check_changeable(target: HardwareTarget) -> None:
    """Raises ConfigError: spaces of a target do not change."""
    if target.gpu is not None:
        raise ConfigError("--knobs changes spaces of processors; those of GPUs stay as they are")


def changed_spaces(
    workloads: Iterable[Workload], target: HardwareTarget, file: Path | None
) -> list[ScheduleSpace[Any]]:
    """The schedule spaces of operators with the changes of a file, if there is one.

    Raises:
        ConfigError: as `read_knobs` and `check_changeable`, or no candidate of a knob is one of an operator, or no
            combination is legal.
    """
    spaces = [schedule_space(w, target) for w in workloads]
    if file is None:
        return spaces
    change = read_knobs(file)
    check_changeable(target)
    return [change.apply(space) for space in spaces]


def _family_change(knobs: Mapping[Any, Any], place: str) -> FamilyChange:
    candidates: dict[str, tuple[int, ...]] = {}
    rules = True
    for name, values in knobs.items():
        if name == _RULES:
            if not isinstance(values, bool):
                raise ConfigError(f"{place}: expected rules true or false, got {values!r}"[:200])
            rules = values
            continue
        if name not in _known_knobs():
            raise ConfigError(f"{place}: {unknown_name('knob', str(name), {*_known_knobs(), _RULES})}")
        is_list = isinstance(values, list) and values and all(type(v) is int and v >= 0 for v in values)
        if not is_list:
            raise ConfigError(f"{place}: expected candidates of {name} as whole numbers, got {values!r}"[:200])
        candidates[str(name)] = tuple(values)
    return FamilyChange(candidates, rules)
