"""`chanas tune --layouts`, `--dtype bf16` and `--dtype int8`: operators of a network tuned in several forms, and one of
these chosen for each over the whole."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from chanas.core.effort import NetworkEffort
from chanas.core.target import HardwareTarget
from chanas.core.units import format_latency
from chanas.errors import MeasureError
from chanas.operators.precision import BFLOAT16, INT8

if TYPE_CHECKING:
    from chanas.compiler.program import Form, Key, Program
    from chanas.models.calibration.calibrate import Calibration
    from chanas.models.calibration.given import Given
    from chanas.models.calibration.mixed import Agreement, Shifts
    from chanas.prescheduler.choice import ExactChoice
    from chanas.prescheduler.layouts import LayoutGraph, Seconds
    from chanas.prescheduler.program import Choices, ChosenOperator, TunedOperators
    from chanas.prescheduler.session import Session
    from chanas.prescheduler.tuning.warm_start import WarmStart

Losses = Mapping[int, Mapping["Form", float]]
"""Accuracy that operators lose in some forms, by the numbers of their values."""
_MOST_CHOICES, _LEAST_FACTOR = 6, 1.1
"""Choices of which the error is measured, and what losses are multiplied by at least where it is too large."""
_LEAST_S = 0.5
"""Seconds of tuning that each operator has at least in another form than the own one, whatever time is left: without a
trial it stays in that."""


class Offer(Protocol):
    """Takes schedules of a program that is to be built and kept if it is the fastest so far."""

    def __call__(self, choices: Choices, program: Program, agreement: Agreement | None = None) -> object:
        """`agreement`: what a program partly in int8 is worth."""


@dataclass(frozen=True)
class LaidOut:
    """A network whose operators have forms and schedules.

    seconds      of its tuned operators alone and of changes of form; infinite where a change of them fails
    num_changes  changes of form
    agreement    with float32, of one partly in int8 that was measured
    """

    program: Program
    choices: Choices
    seconds: float
    num_changes: int
    agreement: Agreement | None = None


@dataclass(frozen=True)
class OperatorChoice:
    """An operator in the forms that it may have, as JSON has them.

    seconds  alone, by the form
    chosen   form of the joint choice
    loss     of accuracy in int8, as a part of the outputs' squares; None where it cannot be
    for_accuracy  it would be in int8 if no error were too large
    """

    key: str
    seconds: Mapping[str, float]
    chosen: str
    loss: float | None = None
    for_accuracy: bool = False

    def to_json(self) -> dict[str, Any]:
        """The fields that say something."""
        found = dataclasses.asdict(self).items()
        return {name: value for name, value in found if value is not None and value is not False}  # no loss is 0.0


@dataclass(frozen=True)
class LayoutSearch:
    """The choice of forms.

    own       the device's own form, in float32
    singles   the network with all operators that can have one form
    joint     the network with the best form of each
    operators measured seconds of tuned operators in each form, by the numbers of their values in the own one
    choices   the same for people, with what was chosen
    copies    changes of form of the joint choice, by their keys, with their seconds
    left_out  forms and changes of form that have no part in the choice, and why
    sensitive keys of operators that would be in int8 if no error were too large
    """

    own: Form
    singles: Mapping[Form, LaidOut]
    joint: LaidOut
    proof: ExactChoice
    operators: Seconds
    choices: Sequence[OperatorChoice]
    copies: Sequence[tuple[str, float]]
    left_out: Mapping[str, str]
    sensitive: tuple[str, ...] = ()

    @property
    def best_single(self) -> Form:
        return min(self.singles, key=lambda form: self.singles[form].seconds)

    def is_joint(self, program: Program) -> bool:
        """True of a network whose operators have the forms of the joint choice."""
        return [o.key for o in program.tuned] == [o.key for o in self.joint.program.tuned]

    def lines(self, program: Program) -> Iterator[str]:
        """The choice for people, the proof that none is better, and whether the network that is kept, `program`, has
        it."""
        singles = ", ".join(f"{form}: {format_latency(s.seconds)}" for form, s in sorted(self.singles.items()))
        yield (
            f"{format_latency(self.joint.seconds)} of operators and {self.joint.num_changes} changes of form, by the "
            f"best of each; in one form, by its channels of a block and its type, {singles}"
        )
        proof = self.proof
        yield (
            f"optimal: no choice takes less than {format_latency(proof.bound)} (gap {proof.gap:.1e}; {proof.num_nodes} "
            f"nodes, {proof.num_edges} edges, {proof.solve_s:.2f} s)"
        )
        if not self.is_joint(program):
            yield "the network in one form is kept: as a whole it is the faster one"
        if self.sensitive:
            yield f"not in int8 for accuracy: {', '.join(self.sensitive)}"
        for what, why in self.left_out.items():
            yield f"{what} are left out: {why}"

    def to_json(self, program: Program) -> dict[str, Any]:
        """The same as JSON; seconds in s."""
        finite = {form: s.seconds for form, s in self.singles.items() if math.isfinite(s.seconds)}
        return {
            "single_s": {str(form): seconds for form, seconds in sorted(finite.items())},
            "joint_s": self.joint.seconds,
            "joint_is_kept": self.is_joint(program),
            "changes": self.joint.num_changes,
            "bound_s": self.proof.bound,
            "nodes": self.proof.num_nodes,
            "edges": self.proof.num_edges,
            "solve_s": round(self.proof.solve_s, 3),
            **({"sensitive": list(self.sensitive)} if self.sensitive else {}),
            "operators": [choice.to_json() for choice in self.choices],
            "copies": [{"key": key, "seconds": seconds} for key, seconds in self.copies],
        }


def forms_of(target: HardwareTarget, effort: NetworkEffort) -> list[Form]:
    """The forms that operators of a network may have, the device's own in float32 first. A network that may be in int8
    may be in bfloat16 as well, which keeps more of its numbers.

    Raises:
        TargetError: the device has no such blocks.
    """
    from chanas.compiler.program import Form

    found = [Form(lanes) for lanes in (target.vector_lanes, *effort.all_layouts)]
    if target.dtype == INT8.dtype and target.takes_bfloat16():
        found.append(Form(target.vector_lanes, BFLOAT16.dtype))
    forms = list(dict.fromkeys([*found, Form.of(target)]))
    for form in forms:
        form.on(target)
    return forms


def tune_network(
    program: Program,
    session: Session,
    effort: NetworkEffort,
    *,
    device: HardwareTarget,
    prior: Callable[[HardwareTarget], WarmStart | None],
    deadline_s: float,
    offer: Offer,
    calibration: Calibration | Given | None = None,
) -> tuple[Program, TunedOperators, LayoutSearch | None]:
    """Tune a network in the device's own form, and in those that the effort and its dtype name; gives the program in
    which each operator has the best one for the whole, with its schedules.

    Args:
        program: in the device's own form.
        device: as it is used, in bfloat16 say.
        prior: gives the opened records that the effort names, for a target.
        deadline_s: reading of `time.monotonic` at which tuning ends; each form gets as long, others than the own one
            at least a trial or more of each operator.
        offer: gets the best in the own form about once a minute, and the best in a single one in the end.
        calibration: of a program that may be in int8, whose error is at most the effort's `max_error`.

    Raises:
        MeasureError: families of operators do not work on the device in its own form, or an operator in int8 computes
            other numbers than its emulation.
    """
    from chanas.prescheduler.program import tune_program

    others = [form for form in forms_of(device, effort) if form != program.form]
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
    search = _Search(program, session, device, effort, prior, tuned, calibration)
    return search.result(others, deadline_s, offer)


def _part_of_time(deadline_s: float, num: int) -> float:
    now_s = time.monotonic()
    return now_s + (deadline_s - now_s) / num


def _loss(losses: Losses, forms: Mapping[int, Form]) -> float:
    """The accuracy that operators in these forms lose together."""
    return sum(losses.get(number, {}).get(form, 0.0) for number, form in forms.items())


class _Search:
    """Schedules so far: `keys` has what each operator is in each form, by the number of its value in the own one."""

    def __init__(
        self,
        program: Program,
        session: Session,
        device: HardwareTarget,
        effort: NetworkEffort,
        prior: Callable[[HardwareTarget], WarmStart | None],
        tuned: TunedOperators,
        calibration: Calibration | Given | None,
    ) -> None:
        self.program, self.session, self.device = program, session, device
        self.effort, self.prior, self.tuned, self.calibration = effort, prior, tuned, calibration
        self.chosen: dict[Key, ChosenOperator] = dict(tuned.choices)
        self.keys = {n: {program.form: o.key} for n, o in program.tuned_numbers().items()}
        self.left_out: dict[str, str] = {}
        self._agreements: dict[tuple[tuple[int, Form], ...], tuple[Shifts, Agreement]] = {}

    def result(
        self, others: Sequence[Form], deadline_s: float, offer: Offer
    ) -> tuple[Program, TunedOperators, LayoutSearch]:
        from chanas.compiler.program import Form
        from chanas.prescheduler.layouts import LayoutGraph, measure_changes, possible_changes

        for left, form in zip(range(len(others), 0, -1), others, strict=True):
            try:
                self._tune(form, _part_of_time(deadline_s, left))
            except MeasureError as error:
                self.left_out[f"blocks of {form}"] = str(error)
        seconds = self._seconds()
        measured = measure_changes(possible_changes(self.program, seconds), self.session, self.device)
        self.left_out |= {f"copies {change.key}": r.error for change, r in measured.items() if r.error is not None}
        changes = {change: r.seconds for change, r in measured.items() if r.seconds is not None}
        graph = LayoutGraph.of(self.program, seconds, changes)
        best, proof, losses = self._best(graph)
        free = graph.chosen()[0] if losses else best
        tuned = self.program.tuned_numbers()
        kept = [n for n, form in free.items() if form != best[n] and form in losses.get(n, {})]
        own, used = self.program.form, {form for found in seconds.values() for form in found}
        single_forms = {form: graph.single(form) for form in (own, *others) if form in used | {own}}
        operators = {number: seconds[number] for number in tuned}
        choices = [
            OperatorChoice(
                tuned[number].choices[0].key,
                {str(form): s for form, s in sorted(own_s.items())},
                str(best[number]),
                losses.get(number, {}).get(Form.of(self.device)),
                number in kept,
            )
            for number, own_s in operators.items()
        ]
        found = LayoutSearch(
            own=own,
            singles={form: self._laid_out(graph, forms) for form, forms in single_forms.items()},
            joint=self._measured(graph, best),
            proof=proof,
            operators=operators,
            choices=choices,
            copies=[(change.key, change_s) for change, change_s in graph.copies(best)],
            left_out=self.left_out,
            sensitive=tuple(dict.fromkeys(tuned[n].choices[0].key for n in kept)),
        )
        for forms in (single_forms[form] for form in dict.fromkeys((own, found.best_single))):
            if _loss(losses, forms) > self.effort.max_error:
                continue
            single = self._measured(graph, forms)
            if single.agreement is None or single.agreement.is_allowed:
                offer(single.choices, single.program, single.agreement)
        return found.joint.program, dataclasses.replace(self.tuned, choices=found.joint.choices), found

    def _best(self, graph: LayoutGraph) -> tuple[dict[int, Form], ExactChoice, Losses]:
        """The choice of least seconds, with the losses that it goes by. Where more is lost than is allowed, as it is
        measured, losses are taken for as much larger, and it is chosen again."""
        from chanas.compiler.program import Form

        if self.calibration is None:
            return (*graph.chosen(), {})
        most, form = self.effort.max_error, Form.of(self.device)
        losses = {number: {form: loss} for number, loss in self.calibration.losses.items()}
        for _ in range(_MOST_CHOICES):
            best, proof = graph.chosen(losses, most)
            agreement, expected = self._measured(graph, best).agreement, _loss(losses, best)
            if agreement is None or agreement.error <= most or not expected:
                break
            factor = max(_LEAST_FACTOR, agreement.error / expected)
            losses = {number: {form: factor * loss for form, loss in own.items()} for number, own in losses.items()}
        return best, proof, losses

    def _measured(self, graph: LayoutGraph, forms: Mapping[int, Form]) -> LaidOut:
        """The network in these forms; partly in int8 with its biases corrected, and what it is worth."""
        from chanas.models.layouts import in_forms

        found, calibration = self._laid_out(graph, forms), self.calibration
        if calibration is None or not any(operation.numbers is not None for operation in found.program.tuned):
            return found
        key = tuple(sorted(forms.items()))
        if key not in self._agreements:
            chosen = {key: (choice.workload, choice.point) for key, choice in found.choices.items()}
            self._agreements[key] = calibration.measured(forms, chosen, self.effort.max_error)
        shifts, agreement = self._agreements[key]
        program = in_forms(dataclasses.replace(self.program, shifts=dict(shifts)), forms, self.device)
        return dataclasses.replace(found, program=program, agreement=agreement)

    def _tune(self, form: Form, deadline_s: float) -> None:
        """Tune all operators that have schedules in a form."""
        from chanas.models.layouts import choices_in, in_forms
        from chanas.prescheduler.program import tune_program

        target = form.on(self.device)
        choices = {n: choices_in(self.program, n, target) for n in self.program.tuned_numbers()}
        able = dict.fromkeys((n for n, found in choices.items() if found), form)
        if not able:
            self.left_out[f"blocks of {form}"] = "no operator has schedules in them"
            return
        distinct = {workload for found in choices.values() for workload in found}
        deadline_s = max(deadline_s, time.monotonic() + _LEAST_S * len(distinct))
        with self.session.on(target) as session:
            program = in_forms(self.program, able, self.device)
            tuned = tune_program(program, session, self.effort, warm_start=self.prior(target), deadline_s=deadline_s)
        self.chosen |= tuned.choices
        for number in able:
            self.keys[number][form] = choices[number], form.lanes
        self.tuned = dataclasses.replace(
            self.tuned,
            num_new_trials=self.tuned.num_new_trials + tuned.num_new_trials,
            num_failed_trials=self.tuned.num_failed_trials + tuned.num_failed_trials,
            num_stopped=self.tuned.num_stopped + tuned.num_stopped,
            drift=tuned.drift,
            tried={**self.tuned.tried, **tuned.tried},
        )

    def _seconds(self) -> Seconds:
        """Measured seconds of each operator in each form, and a guess in the own one where there was no time to measure
        it: the network that is chosen so is timed as a whole. What keeps any form that it reads takes as long in each.
        """
        own = self.program.form
        found: dict[int, dict[Form, float]] = {}
        for number, keys in self.keys.items():
            chosen = {form: self.chosen[key] for form, key in keys.items()}
            measured = {form: c.seconds for form, c in chosen.items() if not c.taken_from}
            found[number] = {own: chosen[own].seconds, **measured}
        forms = sorted({form for its in found.values() for form in its})
        firsts = sorted({*self.program.keeping_form().values()})
        kept = {n: [form for form in forms if self.program.kept_in(n, form)] for n in firsts}
        return found | {n: dict.fromkeys(own_forms, 0.0) for n, own_forms in kept.items()}

    def _laid_out(self, graph: LayoutGraph, forms: Mapping[int, Form]) -> LaidOut:
        from chanas.models.layouts import in_forms

        program = in_forms(self.program, forms, self.device)
        choices = {operation.key: self.chosen[operation.key] for operation in program.tuned}
        return LaidOut(program, choices, graph.seconds(forms), graph.num_changes(forms))
