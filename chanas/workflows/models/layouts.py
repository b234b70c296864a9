"""`chanas tune --layouts`: the operators of a network tuned in several layouts, and one chosen for each over the
whole."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chanas.core.effort import NetworkEffort
from chanas.core.target import HardwareTarget, in_blocks
from chanas.core.units import format_latency
from chanas.errors import MeasureError

if TYPE_CHECKING:
    from chanas.compiler.program import Key, Program
    from chanas.prescheduler.choice import ExactChoice
    from chanas.prescheduler.layouts import LayoutGraph, Seconds
    from chanas.prescheduler.program import Choices, ChosenOperator, TunedOperators
    from chanas.prescheduler.session import Session
    from chanas.prescheduler.tuning.warm_start import WarmStart

Offer = Callable[["Choices", "Program"], object]
"""Takes schedules of a program that is to be built and kept if it is the fastest so far."""


@dataclass(frozen=True)
class LaidOut:
    """A network whose operators have layouts and schedules.

    seconds      of its tuned operators alone and of changes of layout; infinite where a change of them fails
    num_changes  changes of layout
    """

    program: Program
    choices: Choices
    seconds: float
    num_changes: int


@dataclass(frozen=True)
class LayoutSearch:
    """The choice of layouts.

    own       lanes of the device's own layout
    singles   the network with all operators that can be in one layout, by lanes
    joint     the network with the best layout of each
    operators measured seconds of tuned operators in each layout, by the numbers of their values in the own layout
    left_out  layouts that have no part in the choice, and why
    """

    own: int
    singles: Mapping[int, LaidOut]
    joint: LaidOut
    proof: ExactChoice
    operators: Seconds
    left_out: Mapping[int, str]

    @property
    def best_single(self) -> int:
        return min(self.singles, key=lambda lanes: self.singles[lanes].seconds)

    def is_joint(self, program: Program) -> bool:
        """True of a network whose operators are in the layouts of the joint choice."""
        return [o.key for o in program.tuned] == [o.key for o in self.joint.program.tuned]

    def lines(self, program: Program) -> Iterator[str]:
        """The choice for people, the proof that none is better, and whether the network that is kept, `program`, has
        it."""
        singles = ", ".join(f"{lanes}: {format_latency(s.seconds)}" for lanes, s in sorted(self.singles.items()))
        yield (
            f"{format_latency(self.joint.seconds)} of operators and {self.joint.num_changes} changes of layout, by the "
            f"best of each; in one layout, by its channels of a block, {singles}"
        )
        proof = self.proof
        yield (
            f"optimal: no choice takes less than {format_latency(proof.bound)} (gap {proof.gap:.1e}; {proof.num_nodes} "
            f"nodes, {proof.num_edges} edges, {proof.solve_s:.2f} s)"
        )
        if not self.is_joint(program):
            yield "the network in one layout is kept: as a whole it is the faster one"
        for lanes, why in self.left_out.items():
            yield f"blocks of {lanes} are left out: {why}"

    def to_json(self, program: Program) -> dict[str, Any]:
        """The same as JSON; seconds in s."""
        finite = {lanes: s.seconds for lanes, s in self.singles.items() if math.isfinite(s.seconds)}
        return {
            "single_s": {str(lanes): seconds for lanes, seconds in sorted(finite.items())},
            "joint_s": self.joint.seconds,
            "joint_is_kept": self.is_joint(program),
            "changes": self.joint.num_changes,
            "bound_s": self.proof.bound,
            "nodes": self.proof.num_nodes,
            "edges": self.proof.num_edges,
            "solve_s": round(self.proof.solve_s, 3),
        }


def tune_network(
    program: Program,
    session: Session,
    effort: NetworkEffort,
    *,
    prior: Callable[[HardwareTarget], WarmStart | None],
    deadline_s: float,
    offer: Offer,
) -> tuple[Program, TunedOperators, LayoutSearch | None]:
    """Tune a network in the device's own layout, and in those that the effort names; gives the program in which each
    operator has the best one for the whole, with its schedules.

    Args:
        program: in the device's own layout.
        prior: gives the opened records that the effort names, for a target.
        deadline_s: reading of `time.monotonic` at which tuning ends; each layout gets as long.
        offer: gets the best in the own layout about once a minute, and the best in a single one in the end.

    Raises:
        MeasureError: families of operators do not work on the device in its own layout.
    """
    from chanas.prescheduler.program import tune_program

    others = [lanes for lanes in effort.all_layouts if lanes != program.lanes]
    tuned = tune_program(
        program,
        session,
        effort,
        warm_start=prior(session.target),
        deadline_s=_part_of_time(deadline_s, 1 + len(others)),
        keep_best=lambda choices: offer(choices, program),
    )
    if not others:
        return program, tuned, None
    return _Search(program, session, effort, prior, tuned).result(others, deadline_s, offer)


def _part_of_time(deadline_s: float, num: int) -> float:
    now_s = time.monotonic()
    return now_s + (deadline_s - now_s) / num


class _Search:
    """Schedules so far: `keys` has what each operator is in each layout, by the number of its value in the own one."""

    def __init__(
        self,
        program: Program,
        session: Session,
        effort: NetworkEffort,
        prior: Callable[[HardwareTarget], WarmStart | None],
        tuned: TunedOperators,
    ) -> None:
        self.program, self.session, self.effort, self.prior, self.tuned = program, session, effort, prior, tuned
        self.chosen: dict[Key, ChosenOperator] = dict(tuned.choices)
        self.keys = {n: {program.lanes: o.key} for n, o in program.tuned_numbers().items()}
        self.left_out: dict[int, str] = {}

    def result(
        self, others: Sequence[int], deadline_s: float, offer: Offer
    ) -> tuple[Program, TunedOperators, LayoutSearch]:
        from chanas.prescheduler.layouts import LayoutGraph, measure_changes, possible_changes

        for left, lanes in zip(range(len(others), 0, -1), others, strict=True):
            try:
                self._tune(lanes, _part_of_time(deadline_s, left))
            except MeasureError as error:
                self.left_out[lanes] = str(error)
        seconds = self._seconds()
        changes = measure_changes(possible_changes(self.program, seconds), self.session)
        graph = LayoutGraph.of(self.program, seconds, changes)
        best, proof = graph.chosen()
        own, used = self.program.lanes, {n for found in seconds.values() for n in found}
        singles = {n: self._laid_out(graph, graph.single(n)) for n in (own, *others) if n in used | {own}}
        found = LayoutSearch(own, singles, self._laid_out(graph, best), proof, seconds, self.left_out)
        for single in dict.fromkeys((own, found.best_single)):
            offer(singles[single].choices, singles[single].program)
        return found.joint.program, dataclasses.replace(self.tuned, choices=found.joint.choices), found

    def _tune(self, lanes: int, deadline_s: float) -> None:
        """Tune all operators that have schedules in a layout."""
        from chanas.models.layouts import choices_in, in_layouts
        from chanas.prescheduler.program import tune_program

        device = self.session.target
        target = in_blocks(device, lanes)
        choices = {n: choices_in(self.program, o, target) for n, o in self.program.tuned_numbers().items()}
        able = dict.fromkeys((n for n, found in choices.items() if found), lanes)
        if not able:
            self.left_out[lanes] = "no operator has schedules in them"
            return
        with self.session.in_layout(lanes) as session:
            program = in_layouts(self.program, able, device)
            tuned = tune_program(program, session, self.effort, warm_start=self.prior(target), deadline_s=deadline_s)
        self.chosen |= tuned.choices
        for number in able:
            self.keys[number][lanes] = choices[number], lanes
        self.tuned = dataclasses.replace(
            self.tuned,
            num_new_trials=self.tuned.num_new_trials + tuned.num_new_trials,
            num_failed_trials=self.tuned.num_failed_trials + tuned.num_failed_trials,
            num_stopped=self.tuned.num_stopped + tuned.num_stopped,
            drift=tuned.drift,
            tried={**self.tuned.tried, **tuned.tried},
        )

    def _seconds(self) -> Seconds:
        """Measured seconds of each operator in each layout. One whose seconds in the own layout are a guess stays
        there: nothing is known to be faster."""
        own, found = self.program.lanes, {}
        for number, keys in self.keys.items():
            chosen = {lanes: self.chosen[key] for lanes, key in keys.items()}
            measured = {lanes: c.seconds for lanes, c in chosen.items() if not c.taken_from}
            found[number] = measured if own in measured else {own: chosen[own].seconds}
        return found

    def _laid_out(self, graph: LayoutGraph, lanes: Mapping[int, int]) -> LaidOut:
        from chanas.models.layouts import in_layouts

        program = in_layouts(self.program, lanes, self.session.target)
        choices = {operation.key: self.chosen[operation.key] for operation in program.tuned}
        return LaidOut(program, choices, graph.seconds(lanes), graph.num_changes(lanes))
