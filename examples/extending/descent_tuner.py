"""A tuner from outside the package: coordinate descent.

`pyproject.toml` beside it gives the tuner a name: after `pip install examples/extending`, `chanas tune --tuner descent`
tunes with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from chanas.compiler.space import Point
from chanas.prescheduler.tuning.plain_tuners import Tried


class DescentTuner(Tried):
    """Asks for the neighbours of the best point, which differ from it in one coordinate; points at random before there
    is one, and where all were tried."""

    def ask(self, num: int) -> list[Point]:
        """The next points: neighbours in random order, then others at random."""
        neighbours = list(self._neighbours())
        self.rng.shuffle(neighbours)
        found = self.new(num, iter(neighbours))
        return found + self.new(num - len(found), self.drawn())

    def _neighbours(self) -> Iterator[Point]:
        valid = [record for record in self.records.values() if record.seconds is not None]
        if not valid:
            return
        best = self.space.groups(min(valid, key=lambda record: record.seconds or 0.0).point)
        for coordinate in self.space.coordinates:
            for option in coordinate.options:
                neighbour = {**best, coordinate.name: option}
                if self.space.legal(neighbour):
                    yield self.space.encode(neighbour)
