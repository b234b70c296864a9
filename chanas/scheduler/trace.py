"""The record of a run: which stage ran where and when, what happened to jobs, and how busy resources were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from chanas.errors import SchedulerError, describe

SCHEMA = 1


@dataclass(frozen=True)
class Span:
    """A stage on a unit of a resource.

    ended  "done", "failed", "died" (run again elsewhere, or given up) or "dropped" (its job was killed)
    """

    job: str
    user: str
    kind: str
    resource: str
    unit: int
    start_s: float
    end_s: float
    ended: str = "done"


@dataclass(frozen=True)
class Event:
    """A change of a job (joined, paused, resumed, complete, cancelled, killed, failed), or of a resource's unit (lost,
    restored)."""

    at_s: float
    what: str
    name: str
    detail: str = ""


@dataclass
class Trace:
    """Spans in the order of their ends, and events.

    num_units  units of each resource at the beginning
    """

    num_units: dict[str, int]
    spans: list[Span] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def start_s(self) -> float:
        """The first thing that happened."""
        return min([*(s.start_s for s in self.spans), *(e.at_s for e in self.events)], default=0.0)

    @property
    def end_s(self) -> float:
        """The last thing that happened."""
        return max([*(s.end_s for s in self.spans), *(e.at_s for e in self.events)], default=0.0)

    @property
    def makespan_s(self) -> float:
        """Seconds from the first to the last."""
        return self.end_s - self.start_s

    def busy_s(self, resource: str) -> float:
        """Seconds that units of a resource served stages, one with several at once counted once."""
        units = {s.unit for s in self.spans if s.resource == resource}
        return sum(self._busy_s(resource, unit) for unit in units)

    def _busy_s(self, resource: str, unit: int) -> float:
        total, until_s = 0.0, float("-inf")
        for span in sorted(self._on(resource, unit), key=lambda s: s.start_s):
            total += max(0.0, span.end_s - max(until_s, span.start_s))
            until_s = max(until_s, span.end_s)
        return total

    def _on(self, resource: str, unit: int) -> Iterator[Span]:
        return (s for s in self.spans if s.resource == resource and s.unit == unit)

    def utilisation(self) -> dict[str, float]:
        """The share of the makespan that each resource's units were busy."""
        whole_s = self.makespan_s
        return {name: self.busy_s(name) / (whole_s * num) if whole_s else 0.0 for name, num in self.num_units.items()}

    def idle_share(self) -> dict[str, float]:
        """The share of the makespan that each resource's units were idle."""
        return {name: 1.0 - share for name, share in self.utilisation().items()}

    @property
    def critical_resource(self) -> str:
        """The busiest: another unit of it would help most."""
        shares = self.utilisation()
        return max(shares, key=shares.__getitem__)

    @property
    def least_s(self) -> float:
        """Seconds that the busiest resource's work takes, shared out evenly: no policy can be faster."""
        return max((self.busy_s(name) / num for name, num in self.num_units.items()), default=0.0)

    def completion_s(self) -> dict[str, float]:
        """Seconds from joining to the end, by job."""
        joined = {e.name: e.at_s for e in self.events if e.what == "joined"}
        ends = {e.name: e.at_s for e in self.events if e.what in ("complete", "cancelled", "killed", "failed")}
        return {name: at_s - joined[name] for name, at_s in ends.items()}

    def to_json(self) -> dict[str, Any]:
        """Everything, with times from the first thing that happened on."""
        start_s = self.start_s
        spans = [asdict(s) | {"start_s": s.start_s - start_s, "end_s": s.end_s - start_s} for s in self.spans]
        events = [asdict(e) | {"at_s": e.at_s - start_s} for e in self.events]
        return {"schema": SCHEMA, "num_units": list(self.num_units.items()), "spans": spans, "events": events}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Trace:
        """Inverse of `to_json`.

        Raises:
            SchedulerError: it is no trace, or one of another version.
        """
        try:
            if data["schema"] != SCHEMA:
                raise SchedulerError(f"expected a trace of schema {SCHEMA}, got {data['schema']}; run the jobs again")
            num_units = {str(name): int(num) for name, num in data["num_units"]}
            return cls(
                num_units, [Span(**span) for span in data["spans"]], [Event(**event) for event in data["events"]]
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SchedulerError(f"this is no trace of jobs ({describe(error, 100)}); run the jobs again") from error
