"""Jobs of whole seconds for the scheduler, and what is asked of every trace."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hypothesis import strategies as st

from chanas.scheduler.jobs import DEVICE, HOST, RESOURCES
from chanas.scheduler.mock import MockJob, MockStage, Segment
from chanas.scheduler.resources import Resource
from chanas.scheduler.trace import Span, Trace

Plans = list[list[Segment]]
Units = dict[str, int]

ONE_OF_EACH = {HOST: 1, DEVICE: 1}

seconds = st.integers(1, 9).map(float)
stages = st.builds(lambda kind, s: MockStage(kind, s, s), st.sampled_from([*RESOURCES]), seconds)
chains = st.lists(stages, min_size=1, max_size=3).map(tuple)
segments = st.lists(chains, min_size=1, max_size=3).map(tuple)
plans = st.lists(st.lists(segments, max_size=3), min_size=1, max_size=4)
"""Jobs as lists of segments: a `MockJob` can run only once."""
machines = st.fixed_dictionaries({HOST: st.integers(1, 3), DEVICE: st.integers(1, 2)})


def jobs_of(plans: Iterable[Sequence[Segment]]) -> list[MockJob]:
    return [MockJob(plan) for plan in plans]


def chain_job(*kinds_and_seconds: tuple[str, float]) -> MockJob:
    """One stage after the other."""
    return MockJob([((MockStage(kind, seconds, seconds),),) for kind, seconds in kinds_and_seconds])


def resources_of(num_units: Mapping[str, int]) -> list[Resource]:
    return [Resource(name, num) for name, num in num_units.items()]


def of_job(trace: Trace, name: str) -> list[Span]:
    return sorted((s for s in trace.spans if s.job == name), key=lambda s: s.start_s)


def bars(spans: Iterable[Span]) -> list[tuple[str, str, float, float]]:
    """Job, kind, start and end, by start and job."""
    return sorted(((s.job, s.kind, s.start_s, s.end_s) for s in spans), key=lambda bar: (bar[2], bar[0]))


def overlaps(spans: Iterable[Span]) -> list[tuple[Span, Span]]:
    """Stages that a unit served at the same time."""
    return [
        (one, other) for unit in _by_unit(spans) for one, other in itertools.pairwise(unit) if other.start_s < one.end_s
    ]


def _by_unit(spans: Iterable[Span]) -> Iterator[list[Span]]:
    units: dict[tuple[str, int], list[Span]] = {}
    for span in sorted(spans, key=lambda s: (s.start_s, s.end_s)):
        units.setdefault((span.resource, span.unit), []).append(span)
    yield from units.values()


def num_stages(job: MockJob) -> int:
    return sum(1 for _ in job.stages())
