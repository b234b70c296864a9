"""The contract of operator families: what a kind of device has kernels for, from points to programs.

Installed packages add families by entry points of the group `chanas.families`: the name is that of the operator, and
what it names a mapping from (kind of device, dtype) to `Family`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from chanas.compiler.space import Decoded, Point, ScheduleSpace
from chanas.core.extensions import installed, load
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, ScheduleError
from chanas.operators.layout import Layout, layout_of
from chanas.operators.workload import Generality, Workload, check_generality

Compute = Callable[[Workload, int, str, Any, Any, Any], Any]
Complete = Callable[[Any, Workload, int], Any]
ENTRY_POINTS = "chanas.families"
_NAME = re.compile(r"[a-z]+\d?")
# Operators that others may compute, too: what a workload says of all others goes by their names.
_SHARED = ("blockconv", "pointwise")


@dataclass(frozen=True)
class Stages(Generic[Decoded]):
    """An operator as stages that can stand in one function with those of others, each by its prefix.

    expression     load TVM and give the family's expression, as a point needs it
    schedule       schedule the stages of an operator (by their prefix, in parallel or not) as a point says
    in_rectangles  the output is written by tiles of rows and columns, in an axis each
    complete       a scheduled function of an operator in a network, with what follows its stages
    """

    expression: Callable[[Decoded], Compute]
    schedule: Callable[[Any, Workload, Decoded, str, bool], None]
    in_rectangles: bool = False
    complete: Complete | None = None


@dataclass(frozen=True)
class Family(Generic[Decoded]):
    """A family of operators on a kind of device in one dtype.

    space    the schedule space of an operator on a target
    program  a `tirx.PrimFunc` `main` of an operator alone as a point says: inputs (`operator_inputs`), then the output
    layout   of what it reads and writes
    takes    ways in which an operator may be more than a square one
    stages   where several operators may stand in one function
    computes the operator whose result this one has, by another algorithm: finished networks are tuned with both
    """

    space: Callable[[Workload, HardwareTarget], ScheduleSpace[Decoded]]
    program: Callable[[Workload, Point, HardwareTarget], Any]
    layout: Callable[[HardwareTarget], Layout] = layout_of
    takes: frozenset[Generality] = frozenset()
    stages: Stages[Decoded] | None = None
    computes: str | None = None


class Families(dict[tuple[str, str], Family[Any]]):
    """The families of a kind of device, by operator and dtype. A further operator or dtype is a further entry."""

    def __init__(self, kind: str, devices: str, families: dict[tuple[str, str], Family[Any]]) -> None:
        super().__init__(families)
        self.kind, self.devices = kind, devices

    def of(self, workload: Workload) -> Family[Any]:
        """The family of an operator in its dtype.

        Raises:
            ScheduleError: there is none for such devices, or not for such windows.
            ConfigError: a package that adds families does not load.
        """
        family = self.get((workload.op, workload.dtype)) or self.added.get((workload.op, workload.dtype))
        if family is None:
            is_there = any(op == workload.op for op, _ in (*self, *self.added))
            where = f"in {workload.dtype}" if is_there else f"on {self.devices}"
            raise ScheduleError(f"operator {workload.op} is not there {where} (workload {workload.key})")
        check_generality(workload, family.takes)
        return family

    def others(self, op: str, dtype: str) -> list[str]:
        """The operators that compute the same as another one by other algorithms."""
        families = {**self, **self.added}
        return [name for (name, its), family in families.items() if (family.computes, its) == (op, dtype)]

    @functools.cached_property
    def added(self) -> dict[tuple[str, str], Family[Any]]:
        """The families of installed packages."""
        found = {}
        for name, entry_point in installed(ENTRY_POINTS).items():
            if not _NAME.fullmatch(name) or any(op == name for op, _ in self):
                raise ConfigError(f"expected a new name of small letters and a digit at most for family '{name}'")
            for (kind, dtype), family in load(entry_point).items():
                if family.computes not in (None, *_SHARED):
                    raise ConfigError(f"expected family '{name}' to compute {' or '.join(_SHARED)}, or nothing else's")
                if kind == self.kind:
                    found[name, dtype] = family
        return found

    def space(self, workload: Workload, target: HardwareTarget) -> ScheduleSpace[Any]:
        """The schedule space of an operator on a target. The last ones are kept, since their points take long to list.

        Raises:
            ScheduleError: as `of`.
        """
        return _space(self.of(workload), workload, target)

    def program(self, workload: Workload, point: Point, target: HardwareTarget) -> Any:
        """A `tirx.PrimFunc` of one operator alone, scheduled by `point`; its symbol is `main`.

        Raises:
            ScheduleError: the point is no schedule of the workload, or as `of`.
        """
        return self.of(workload).program(workload, point, target)


@functools.lru_cache(maxsize=512)
def _space(family: Family[Any], workload: Workload, target: HardwareTarget) -> ScheduleSpace[Any]:
    return family.space(workload, target)
