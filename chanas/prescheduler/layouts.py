"""The form of each tuned operator of a program chosen over the whole graph, from measured seconds of operators in each
form and of the copies between forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from chanas.compiler.cases import change_case
from chanas.compiler.program import Form, FormChange, Program, TunedOperation
from chanas.core.progress import progress_bar
from chanas.core.target import HardwareTarget
from chanas.devices.timing import TRIAL
from chanas.measuring.candidates import Candidate, CandidatePipeline
from chanas.prescheduler.choice import ExactChoice, Map, changes_of, choose_forms, seconds_of
from chanas.prescheduler.records.store import BlockRecord
from chanas.prescheduler.session import Session

Seconds = Mapping[int, Mapping[Form, float]]
"""Seconds of operators by the numbers of their values, and by forms: of tuned ones, and of what keeps any form."""


def measure_changes(
    changes: Collection[FormChange], session: Session, device: HardwareTarget
) -> dict[FormChange, BlockRecord]:
    """Records of copies between forms, each compared with the same numbers packed by numpy; those that were measured
    before are not measured again."""
    store, line = session.store, CandidatePipeline[FormChange](session.pool, session.canary)
    known = {change: store.load_block(change.key, ()) for change in changes}
    found = {change: record for change, record in known.items() if record is not None}
    missing = [change for change in known if change not in found]
    settings = TRIAL.cold(0, session.around.num_blocks)  # code as cold as that of operators
    session.pool.expect(len(missing))
    for change in missing:
        case = session.scratch / f"{change.key}.npz"
        change_case(change).save(case)
        library = case.with_suffix(".so")
        line.submit(Candidate(token=change, what=change, target=device, library=library, case=case, settings=settings))
    with progress_bar(len(missing), "timing changes of form", "change", session.progress and bool(missing)) as bar:
        while line.num_in_flight:
            for candidate, outcome in line.finished():
                record = BlockRecord((), outcome.seconds, outcome.spread_s, outcome.error, drift=outcome.drift)
                store.add_block(candidate.token.key, record)
                found[candidate.token] = record
                candidate.case.unlink(missing_ok=True)
                bar.update()
    return found


def possible_changes(program: Program, seconds: Seconds) -> list[FormChange]:
    """The distinct copies that a choice among these layouts may need."""
    found: dict[FormChange, None] = {}
    stays, firsts = {program.form: 0.0}, program.keeping_form()

    def forms(number: int) -> set[Form]:
        return set(seconds.get(firsts.get(number, number), stays))

    for number, readers in _readers(program).items():
        for pair in itertools.product(sorted(forms(number)), sorted(set().union(*map(forms, readers)))):
            found |= dict.fromkeys(_changes(program, number, readers, *pair))
    return [change for change in found if change.is_possible]


def _changes(program: Program, number: int, readers: Collection[int], a: Form, b: Form) -> set[FormChange]:
    """The copies of a value that its readers need where it is written by an operator of form `a`, and they have `b`."""
    value, written, needed = program.value(number), program.written_in(number, a), set[Form]()
    for reader in readers if a != b else ():
        operation = program.operation(reader)
        if isinstance(operation, TunedOperation):
            needed |= {operation.read_in(i, b) for i, read in enumerate(operation.reads) if read == number}
        else:
            needed.add(b)
    return {value.change(written, form) for form in needed if form != written}


def _readers(program: Program) -> dict[int, set[int]]:
    """The operations that read each value in channel blocks, by the numbers of their own values."""
    found: dict[int, set[int]] = {}
    for number, operation in enumerate(program.operations, len(program.inputs)):
        for read in operation.reads:
            if isinstance(read, int) and program.value(read).blocked:
                found.setdefault(read, set()).add(number)
    return found


@dataclass(frozen=True)
class LayoutGraph:
    """The graph of the choice: operators that may have several forms, by the numbers of their values, and what stays in
    the device's own form as one more node, the last."""

    program: Program
    numbers: tuple[int, ...]
    nodes: tuple[Mapping[Form, float], ...]
    maps: tuple[Map, ...]
    changes: Mapping[FormChange, float]

    @classmethod
    def of(cls, program: Program, seconds: Seconds, changes: Mapping[FormChange, float]) -> LayoutGraph:
        """The graph of a program in its device's own form.

        Values that operators in int8 write or read in float32 all the same need no change beside such operators; where
        both ends are in int8 what it takes is left out: these values are of one pixel.

        Views of one memory are one node. A map that is a part of another one lies there in one form: what is written
        in another one is copied to its place as well, and what is read in another one from there.

        Args:
            seconds: of each of these operators in each form that it may have, the device's own among them; of those
                that keep one form together the first's.
        """
        own = program.form
        place = {number: i for i, number in enumerate(seconds)}
        place |= {n: place[first] for n, first in program.keeping_form().items() if first in place}
        nodes = [dict(found) for found in seconds.values()]
        maps = []
        for number, readers in _readers(program).items():
            value, at = program.value(number), program.parts.get(number)
            is_copied = at is not None and (at.place.first, at.place.blocks) != (0, value.blocks)
            producer = place.get(number, len(nodes))
            reading = {place.get(reader, len(nodes)) for reader in readers}
            forms = {form for i in (producer, *reading) for form in (nodes[i] if i < len(nodes) else [own])}
            known = {}
            for a, b in itertools.permutations(forms, 2):
                needed = _changes(program, number, readers, a, b)
                if needed <= changes.keys():
                    times = 2 if is_copied and own.lanes in (a.lanes, b.lanes) else 1
                    known[a, b] = times * math.fsum(changes[change] for change in needed)
            maps.append(Map(producer, tuple(sorted(reading - {producer})), known))
        maps = [m for m in maps if m.readers]  # of the others there is nothing to choose
        return cls(program, tuple(seconds), (*nodes, {own: 0.0}), tuple(maps), changes)

    def chosen(
        self, losses: Mapping[int, Mapping[Form, float]] = MappingProxyType({}), most: float = math.inf
    ) -> tuple[dict[int, Form], ExactChoice]:
        """The form of each operator in the best choice, by the number of its value, and the proof.

        Args:
            losses: of accuracy of tuned operators in some forms.
            most: the largest sum of losses.
        """
        by_node = [losses.get(number, {}) for number in self.numbers]
        found = choose_forms(self.nodes, self.maps, [*by_node, {}], most)
        return dict(zip(self.numbers, found.forms, strict=False)), found

    def single(self, form: Form) -> dict[int, Form]:
        """The form of each operator where all that can have one form do."""
        nodes = zip(self.numbers, self.nodes, strict=False)
        return {n: form if form in node else self.program.form for n, node in nodes}

    def seconds(self, forms: Mapping[int, Form]) -> float:
        """Seconds of operators and of the changes between them."""
        return seconds_of(self._forms(forms), self.nodes, self.maps)

    def copies(self, forms: Mapping[int, Form]) -> list[tuple[FormChange, float]]:
        """The changes of form that a choice needs, with their seconds, in the order of the values."""
        found: list[tuple[FormChange, float]] = []
        own, firsts = self.program.form, self.program.keeping_form()

        def form(number: int) -> Form:
            return forms.get(firsts.get(number, number), own)

        for number, readers in _readers(self.program).items():
            needed = {
                c: None for r in sorted(readers) for c in _changes(self.program, number, [r], form(number), form(r))
            }
            found += [(change, self.changes[change]) for change in needed]
        return found

    def num_changes(self, forms: Mapping[int, Form]) -> int:
        """Changes of form that a choice needs."""
        every = self._forms(forms)
        return sum(len(changes_of(every, value)) for value in self.maps)

    def _forms(self, forms: Mapping[int, Form]) -> list[Form]:
        return [*(forms[n] for n in self.numbers), self.program.form]
