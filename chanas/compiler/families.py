"""The contract of operator families: what a kind of device has kernels for, from points to programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from chanas.compiler.space import Decoded, Point, ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.layout import Layout, layout_of
from chanas.operators.workload import Generality, Workload, check_generality

Compute = Callable[[Workload, int, str, Any, Any, Any], Any]


@dataclass(frozen=True)
class Stages(Generic[Decoded]):
    """An operator as stages that can stand in one function with those of others, each by its prefix.

    expression     load TVM and give the family's expression
    schedule       schedule the stages of an operator (by their prefix, in parallel or not) as a point says
    in_rectangles  the output is written by tiles of rows and columns, in an axis each
    complete       a scheduled function of an operator in a network, with what follows its stages
    """

    expression: Callable[[], Compute]
    schedule: Callable[[Any, Workload, Decoded, str, bool], None]
    in_rectangles: bool = False
    complete: Callable[[Any, Workload, int], Any] | None = None


@dataclass(frozen=True)
class Family(Generic[Decoded]):
    """A family of operators on a kind of device in one dtype.

    space    the schedule space of an operator on a target
    program  a `tirx.PrimFunc` `main` of an operator alone as a point says: inputs (`operator_inputs`), then the output
    layout   of what it reads and writes
    takes    ways in which an operator may be more than a square one
    stages   where several operators may stand in one function
    """

    space: Callable[[Workload, HardwareTarget], ScheduleSpace[Decoded]]
    program: Callable[[Workload, Decoded, HardwareTarget], Any]
    layout: Callable[[HardwareTarget], Layout] = layout_of
    takes: frozenset[Generality] = frozenset()
    stages: Stages[Decoded] | None = None


class Families(dict[tuple[str, str], Family[Any]]):
    """The families of a kind of device, by operator and dtype. A further operator or dtype is a further entry."""

    def __init__(self, devices: str, families: dict[tuple[str, str], Family[Any]]) -> None:
        super().__init__(families)
        self.devices = devices

    def of(self, workload: Workload) -> Family[Any]:
        """The family of an operator in its dtype.

        Raises:
            ScheduleError: there is none for such devices, or not for such windows.
        """
        family = self.get((workload.op, workload.dtype))
        if family is None:
            is_there = any(op == workload.op for op, _ in self)
            where = f"in {workload.dtype}" if is_there else f"on {self.devices}"
            raise ScheduleError(f"operator {workload.op} is not there {where} (workload {workload.key})")
        check_generality(workload, family.takes)
        return family

    def space(self, workload: Workload, target: HardwareTarget) -> ScheduleSpace[Any]:
        """The schedule space of an operator on a target.

        Raises:
            ScheduleError: as `of`.
        """
        return self.of(workload).space(workload, target)

    def program(self, workload: Workload, point: Point, target: HardwareTarget) -> Any:
        """A `tirx.PrimFunc` of one operator alone, scheduled by `point`; its symbol is `main`.

        Raises:
            ScheduleError: the point is not in the workload's space, or as `of`.
        """
        family = self.of(workload)
        return family.program(workload, family.space(workload, target).decode(point), target)
