"""Give up a family of operators whose candidates all failed, and in one way.

A compiler that aborts, or a device that hangs, does so at every candidate; trying all of them takes half an hour.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from chanas.core.target import HardwareTarget
from chanas.measuring.messages import WorkerError
from chanas.prescheduler.records.store import TuningRecord

NUM_ALIKE = 12
"""Candidates that fail in one way before a family is given up. As many are under way at a time on one device, so that
one that works is seldom still being timed; if half of all points were bad by chance, so many would be so one time in
4000; and so many crashes take seconds, so many timeouts minutes."""

_PATH = re.compile(r"\S*/\S+")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d[\d.,]*(e[+-]?\d+)?|\binf\b|\bnan\b", re.IGNORECASE)


@dataclass
class FamilyWatch:
    """Counts how the candidates of families fail that no candidate has ever worked of; `worked` are the others."""

    worked: set[str] = field(default_factory=set)
    num_alike: int = NUM_ALIKE
    given_up: dict[str, str] = field(default_factory=dict)
    """The reason, by family."""
    _ways: dict[str, Counter[str]] = field(default_factory=dict)

    def note(self, family: str, record: TuningRecord) -> bool:
        """Take in what became of a candidate; true when its family is given up over it.

        What was compiled to the code of an earlier candidate says nothing new.
        """
        if record.is_valid:
            self.worked.add(family)
        if record.error is None or record.same_as is not None or family in self.worked or family in self.given_up:
            return False
        ways = self._ways.setdefault(family, Counter())
        way = way_of(record.error)
        ways[way] += 1
        if ways[way] < self.num_alike:
            return False
        self.given_up[family] = record.error
        return True


def way_of(error: str) -> str:
    """An error without what differs from candidate to candidate: numbers, paths, the worker's last words."""
    without_words = dataclasses.replace(WorkerError.read(error), last_words="")
    return _NUMBER.sub("#", _PATH.sub("PATH", str(without_words)))


def describe_errors(errors: Mapping[str, str]) -> str:
    """Families and what their operators fail with, each error once: `conv, pool (timeout: ...); pointwise (...)`."""
    families: dict[str, list[str]] = {}
    for family, error in errors.items():
        families.setdefault(error, []).append(family)
    return "; ".join(f"{', '.join(names)} ({error})" for error, names in families.items())


def remedy(target: HardwareTarget) -> str:
    """Return the remedy if operators of the target's dtype do not work."""
    return "run `chanas doctor` and report what it says" if target.dtype == "float32" else "use --dtype f32"
