"""The least time that jobs can take on their resources, whatever the policy."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A stage as bounds see it: its job needs at least `head_s` before it and `tail_s` after it."""

    resource: str
    seconds: float
    head_s: float
    tail_s: float


def load_bound_s(tasks: Sequence[Task], num_units: Mapping[str, int]) -> float:
    """The busiest resource's work over its units, or the longest job, whichever is longer."""
    work_s = dict.fromkeys(num_units, 0.0)
    for task in tasks:
        work_s[task.resource] += task.seconds
    longest_s = max((t.head_s + t.seconds + t.tail_s for t in tasks), default=0.0)
    return max([longest_s, *(work_s[name] / num for name, num in num_units.items())])


def head_tail_bound_s(tasks: Sequence[Task], num_units: Mapping[str, int]) -> float:
    """`load_bound_s`, and that a resource idles until a first stage can reach it and after its last one, and that
    stages cannot be cut in halves.

    Three relaxations for each resource, of which the largest counts:

    - each of its m units waits at least for one of the m least heads, and is followed by one of the m least tails
    - of k·m + 1 stages, one unit serves k + 1
    - all stages on one unit that is m times as fast and may be interrupted, of which Jackson's rule (always the ready
      stage with the longest tail) gives the exact optimum (Carlier, 1982)
    """
    bound_s = load_bound_s(tasks, num_units)
    for name, num in num_units.items():
        own = [t for t in tasks if t.resource == name]
        if not own:
            continue
        heads, tails = sorted(t.head_s for t in own), sorted(t.tail_s for t in own)
        if len(own) >= num:
            whole_s = sum(heads[:num]) + sum(t.seconds for t in own) + sum(tails[:num])
            bound_s = max(bound_s, whole_s / num)
        bound_s = max(bound_s, heads[0] + _indivisible_s([t.seconds for t in own], num) + tails[0])
        bound_s = max(bound_s, _preemptive_s(own, num))
    return bound_s


def _indivisible_s(seconds: Sequence[float], num_units: int) -> float:
    """The k + 1 shortest of the k·m + 1 longest stages, for the k at which they are the most."""
    longest = sorted(seconds, reverse=True)
    return max(sum(longest[i - i // num_units : i + 1]) for i in range(0, len(longest), num_units))


def _preemptive_s(tasks: Sequence[Task], speed: int) -> float:
    """The end of all tails, where one unit of this speed serves the ready stage with the longest tail."""
    coming = sorted(tasks, key=lambda t: t.head_s)
    ready: list[tuple[float, float]] = []  # tail, negative; seconds left
    now_s = end_s = 0.0
    i = 0
    while i < len(coming) or ready:
        if not ready:
            now_s = max(now_s, coming[i].head_s)
        while i < len(coming) and coming[i].head_s <= now_s:
            heapq.heappush(ready, (-coming[i].tail_s, coming[i].seconds / speed))
            i += 1
        tail, left_s = heapq.heappop(ready)
        next_s = coming[i].head_s if i < len(coming) else float("inf")
        if now_s + left_s > next_s:
            heapq.heappush(ready, (tail, left_s - (next_s - now_s)))
            now_s = next_s
        else:
            now_s += left_s
            end_s = max(end_s, now_s - tail)
    return end_s


Chain = Sequence[tuple[str, float]]
"""Resources and seconds of stages one after the other."""


def two_chains_s(one: Chain, other: Chain, num_units: Mapping[str, int]) -> float:
    """The least time in which two chains of stages can end, exactly: no schedule of more jobs is shorter.

    Akers' geometry (1956): a point of the plane is how far both are, a schedule a path to the far corner that moves
    along both axes at once or waits along one, and no path enters the rectangle of two stages on the same single unit.
    A shortest path goes diagonally until it meets such a rectangle, and then around either side of it.
    """
    xs, ys = _ends([s for _, s in one]), _ends([s for _, s in other])
    least_s: dict[tuple[int, int], float] = {(0, 0): 0.0}
    queue = [(0.0, 0, 0)]
    best_s = xs[-1] + ys[-1]
    while queue:
        now_s, i, j = heapq.heappop(queue)
        rest_s = max(xs[-1] - xs[i], ys[-1] - ys[j])
        if now_s > least_s[i, j] or now_s + rest_s >= best_s:
            continue
        met = _first_conflict(one, other, num_units, (xs, ys), (i, j))
        if met is None:
            best_s = now_s + rest_s
            continue
        for to in ((met[0], met[1] + 1), (met[0] + 1, met[1])):
            at_s = now_s + max(xs[to[0]] - xs[i], ys[to[1]] - ys[j])
            if at_s < least_s.get(to, float("inf")):
                least_s[to] = at_s
                heapq.heappush(queue, (at_s, *to))
    return best_s


def pairs_bound_s(chains: Sequence[Chain], num_units: Mapping[str, int], num_longest: int = 6) -> float:
    """The most that any two of the longest jobs, each a chain, take without all others."""
    longest = sorted(chains, key=lambda chain: sum(seconds for _, seconds in chain))[-num_longest:]
    pairs = itertools.combinations(longest, 2)
    return max((two_chains_s(one, other, num_units) for one, other in pairs), default=0.0)


def _ends(seconds: Sequence[float]) -> list[float]:
    return [0.0, *itertools.accumulate(seconds)]


def _first_conflict(
    one: Chain,
    other: Chain,
    num_units: Mapping[str, int],
    ends: tuple[Sequence[float], Sequence[float]],
    at: tuple[int, int],
) -> tuple[int, int] | None:
    """The first two stages on one unit that would be at work at once if nobody waited from a point on."""
    (xs, ys), (i, j) = ends, at
    x0, y0 = xs[i], ys[j]
    while i < len(one) and j < len(other):
        if one[i][0] == other[j][0] and num_units[one[i][0]] == 1:
            return i, j
        left, below = xs[i + 1] - x0, ys[j + 1] - y0
        i, j = i + (left <= below), j + (below <= left)
    return None
