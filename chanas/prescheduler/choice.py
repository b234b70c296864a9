"""The exact choice of a form for each operator of a graph: least seconds of operators and of the changes between them.

A node is an operator, with its seconds in each form that it can be in; a map is what one node writes and others read. A
map that is read in another form than it was written in is changed, once for all readers of that form. Choosing so is
NP-hard in general (Anderson and Gregg, CGO 2018); graphs of networks take a mixed-integer solver (HiGHS, by SciPy)
milliseconds, and it proves what it finds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from chanas.compiler.program import Form

# Seconds as the solver sees them: its own limit of the gap is absolute, 1e-6.
_NANOSECONDS = 1e9


@dataclass(frozen=True)
class Map:
    """A value between operators.

    producer  node that writes it
    readers   nodes that read it
    changes   seconds of a change of form; there is no other change
    """

    producer: int
    readers: tuple[int, ...]
    changes: Mapping[tuple[Form, Form], float]


@dataclass(frozen=True)
class ExactChoice:
    """A choice and its proof.

    forms    of each node
    seconds  of all operators and changes
    bound    seconds that no choice is below
    num_nodes  operators in forms
    num_edges  ways from the form of a map to that of one that reads it
    solve_s  seconds that proving it took
    """

    forms: tuple[Form, ...]
    seconds: float
    bound: float
    num_nodes: int
    num_edges: int
    solve_s: float

    @property
    def gap(self) -> float:
        """Part of the seconds that a better choice could save at most, as far as numbers of the solver tell."""
        return max(0.0, self.seconds - self.bound) / self.seconds if self.seconds else 0.0


def seconds_of(forms: Sequence[Form], nodes: Sequence[Mapping[Form, float]], maps: Sequence[Map]) -> float:
    """Seconds of a choice; infinite where a node or a change that it needs does not exist."""
    own = [node.get(form, math.inf) for node, form in zip(nodes, forms, strict=True)]
    changes = [m.changes.get(pair, math.inf) for m in maps for pair in changes_of(forms, m)]
    return math.fsum((*own, *changes))


def changes_of(forms: Sequence[Form], value: Map) -> set[tuple[Form, Form]]:
    """The changes of a map that a choice needs."""
    written = forms[value.producer]
    return {(written, forms[reader]) for reader in value.readers if forms[reader] != written}


def choose_forms(
    nodes: Sequence[Mapping[Form, float]],
    maps: Sequence[Map],
    losses: Sequence[Mapping[Form, float]] = (),
    most: float = math.inf,
) -> ExactChoice:
    """The choice of least seconds.

    Args:
        losses: of accuracy, of each node in the forms in which there is one; they add up.
        most: the largest sum of losses.

    Raises:
        ValueError: no choice has all the changes that it needs, or loses as little as that.
    """
    start_s = time.monotonic()
    if most < math.inf:
        # What alone loses more is in no choice; kept, its share of `most` can exceed what the solver takes (1e15).
        pairs = zip(nodes, losses, strict=True)
        nodes = [{form: s for form, s in node.items() if own.get(form, 0.0) <= most} for node, own in pairs]
    problem = _Problem(nodes, maps)
    if 0.0 < most < math.inf:
        problem.limit(losses, most)
    forms, bound = problem.solved()
    seconds = seconds_of(forms, nodes, maps)
    return ExactChoice(
        forms, seconds, min(bound, seconds), problem.num_nodes, problem.num_edges, time.monotonic() - start_s
    )


@dataclass
class _Problem:
    """0/1 variables of nodes in forms, and of maps from the form that they were written in to that of each reader. The
    latter need not be whole: once nodes are, they are. Of a chain the relaxation is whole, too: it is a flow.
    """

    nodes: Sequence[Mapping[Form, float]]
    maps: Sequence[Map]
    costs: list[float] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)  # coefficients, least, most

    def __post_init__(self) -> None:
        self.places = [{form: self._variable(s) for form, s in node.items()} for node in self.nodes]
        self.num_nodes, self.num_edges = len(self.costs), 0
        for place in self.places:
            self.rows.append((dict.fromkeys(place.values(), 1.0), 1.0, 1.0))
        for value in self.maps:
            self._add(value)

    def limit(self, losses: Sequence[Mapping[Form, float]], most: float) -> None:
        """Let the losses of a choice be `most` together."""
        pairs = zip(self.places, losses, strict=True)
        row = {place[form]: loss / most for place, own in pairs for form, loss in own.items() if form in place}
        self.rows.append((row, 0.0, 1.0))

    def _variable(self, seconds: float) -> int:
        self.costs.append(_NANOSECONDS * seconds)
        return len(self.costs) - 1

    def _add(self, value: Map) -> None:
        """Each reader has the map from one form in one form; a change that some reader needs is made, once."""
        written, made = self.places[value.producer], dict[tuple[Form, Form], int]()
        for reader in value.readers:
            read = self.places[reader]
            ways = {(a, b): self._variable(0.0) for a in written for b in read if a == b or (a, b) in value.changes}
            for end, place in ((0, written), (1, read)):
                for form, node in place.items():
                    through = {way: 1.0 for pair, way in ways.items() if pair[end] == form}
                    self.rows.append(({**through, node: -1.0}, 0.0, 0.0))
            for pair, way in ways.items():
                if pair[0] != pair[1]:
                    if pair not in made:
                        made[pair] = self._variable(value.changes[pair])
                    self.rows.append(({made[pair]: 1.0, way: -1.0}, 0.0, math.inf))
            self.num_edges += len(ways)

    def solved(self) -> tuple[tuple[Form, ...], float]:
        """Forms of the nodes, and the bound in seconds."""
        if not self.costs:
            return (), 0.0
        entries = [(i, j, c) for i, (row, _, _) in enumerate(self.rows) for j, c in row.items()]
        i, j, values = zip(*entries, strict=True)
        matrix = coo_array((values, (i, j)), shape=(len(self.rows), len(self.costs))).tocsr()
        least, most = ([row[k] for row in self.rows] for k in (1, 2))
        whole = [int(number < self.num_nodes) for number in range(len(self.costs))]
        found: Any = milp(
            self.costs,
            integrality=whole,
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(matrix, least, most),
            options={"mip_rel_gap": 0.0},
        )
        if found.x is None:
            raise ValueError(f"no choice of forms is possible ({found.message})")
        forms = tuple(max((found.x[i], form) for form, i in place.items())[1] for place in self.places)
        bound = found.fun if found.mip_dual_bound is None else found.mip_dual_bound
        return forms, float(bound) / _NANOSECONDS
