"""The layout of each tuned operator of a program chosen over the whole graph, from measured seconds of operators in
each layout and of the copies between layouts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from chanas.compiler.cases import change_case
from chanas.compiler.program import LayoutChange, Program
from chanas.core.progress import progress_bar
from chanas.devices.timing import TRIAL
from chanas.measuring.candidates import Candidate, CandidatePipeline
from chanas.prescheduler.choice import ExactChoice, Form, Map, changes_of, choose_forms, seconds_of
from chanas.prescheduler.records.store import BlockRecord
from chanas.prescheduler.session import Session

Seconds = Mapping[int, Mapping[int, float]]
"""Seconds of tuned operators by the numbers of their values, and by lanes."""


def measure_changes(changes: Collection[LayoutChange], session: Session) -> dict[LayoutChange, float]:
    """Seconds of copies between layouts, each compared with the same numbers packed by numpy. Records have those that
    were measured before; one that fails is left out."""
    store, line = session.store, CandidatePipeline[LayoutChange](session.pool, session.canary)
    found = {change: store.load_block(change.key, ()) for change in changes}
    missing = [change for change, record in found.items() if record is None]
    settings = TRIAL.cold(0, session.around.num_blocks)  # code as cold as that of operators
    session.pool.expect(len(missing))
    for change in missing:
        case = session.scratch / f"{change.key}.npz"
        change_case(change).save(case)
        library, target = case.with_suffix(".so"), session.target
        line.submit(Candidate(token=change, what=change, target=target, library=library, case=case, settings=settings))
    with progress_bar(len(missing), "timing changes of layout", "change", session.progress and bool(missing)) as bar:
        while line.num_in_flight:
            for candidate, outcome in line.finished():
                record = BlockRecord((), outcome.seconds, outcome.spread_s, outcome.error, drift=outcome.drift)
                store.add_block(candidate.token.key, record)
                found[candidate.token] = record
                candidate.case.unlink(missing_ok=True)
                bar.update()
    return {c: r.seconds for c, r in found.items() if r is not None and r.seconds is not None}


def possible_changes(program: Program, seconds: Seconds) -> list[LayoutChange]:
    """The distinct copies that a choice among these layouts may need."""
    found: dict[LayoutChange, None] = {}
    for number, readers in _readers(program).items():
        value, stays = program.value(number), {program.lanes: 0.0}
        written = seconds.get(number, stays)
        read = {lanes for reader in readers for lanes in seconds.get(reader, stays)}
        found |= {value.change(a, b): None for a in sorted(written) for b in sorted(read) if a != b}
    return list(found)


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
    """The graph of the choice: tuned operators, by the numbers of their values, and what stays in the device's own
    layout as one more node, the last."""

    program: Program
    numbers: tuple[int, ...]
    nodes: tuple[Mapping[Form, float], ...]
    maps: tuple[Map, ...]

    @classmethod
    def of(cls, program: Program, seconds: Seconds, changes: Mapping[LayoutChange, float]) -> LayoutGraph:
        """The graph of a program in its device's own layout.

        A map that is a part of another one lies there in the device's own layout: what is written in another one is
        copied to its place as well, and what is read in another one from there.

        Args:
            seconds: of each tuned operator in each layout that it may be in, its own among them.
        """
        own = Form(program.lanes)
        place = {number: i for i, number in enumerate(seconds)}
        nodes = [{Form(lanes): s for lanes, s in found.items()} for found in seconds.values()]
        maps = []
        for number, readers in _readers(program).items():
            value, at = program.value(number), program.parts.get(number)
            is_copied = at is not None and (at.place.first, at.place.blocks) != (0, value.blocks)
            forms = {lanes for node in (number, *readers) for lanes in seconds.get(node, {program.lanes: 0.0})}
            known = {
                (Form(a), Form(b)): changes[change] * (2 if is_copied and program.lanes in (a, b) else 1)
                for a in forms
                for b in forms
                if a != b and (change := value.change(a, b)) in changes
            }
            reading = tuple(sorted({place.get(reader, len(nodes)) for reader in readers}))
            maps.append(Map(place.get(number, len(nodes)), reading, known))
        maps = [m for m in maps if {m.producer, *m.readers} != {len(nodes)}]  # nothing to choose
        return cls(program, tuple(place), (*nodes, {own: 0.0}), tuple(maps))

    def chosen(self) -> tuple[dict[int, int], ExactChoice]:
        """The lanes of each tuned operator in the best choice, by the number of its value, and the proof."""
        found = choose_forms(self.nodes, self.maps)
        return {n: form.lanes for n, form in zip(self.numbers, found.forms, strict=False)}, found

    def single(self, lanes: int) -> dict[int, int]:
        """The lanes of each tuned operator where all that can be are in one layout."""
        forms = zip(self.numbers, self.nodes, strict=False)
        return {n: lanes if Form(lanes) in node else self.program.lanes for n, node in forms}

    def seconds(self, lanes: Mapping[int, int]) -> float:
        """Seconds of tuned operators and of the changes between them."""
        return seconds_of(self._forms(lanes), self.nodes, self.maps)

    def num_changes(self, lanes: Mapping[int, int]) -> int:
        """Changes of layout that a choice needs."""
        forms = self._forms(lanes)
        return sum(len(changes_of(forms, value)) for value in self.maps)

    def _forms(self, lanes: Mapping[int, int]) -> list[Form]:
        return [*(Form(lanes[n]) for n in self.numbers), Form(self.program.lanes)]
