"""Resources: machines or slots of one kind, each of which serves one stage at a time."""

from __future__ import annotations

from collections.abc import Collection

from chanas.errors import ConfigError


class Resource:
    """`num_units` alike: the slots of a host, or devices of a kind."""

    def __init__(self, name: str, num_units: int = 1) -> None:
        if num_units < 1:
            raise ConfigError(f"expected at least one unit of resource '{name}', got {num_units}")
        self.name = name
        self._loads = [0] * num_units
        self._lost: set[int] = set()

    @property
    def num_units(self) -> int:
        """Units in service."""
        return len(self._loads) - len(self._lost)

    @property
    def num_free(self) -> int:
        """Units in service that serve nothing."""
        return sum(not load and unit not in self._lost for unit, load in enumerate(self._loads))

    def unit_for(self, avoid: Collection[int] = (), shared: bool = False, wanted: int | None = None) -> int | None:
        """The unit in service with the fewest stages; of those to `avoid` only where there is no other in service, and
        none but the `wanted` one where that is in service and not to be avoided. None where all are taken, or lost;
        with `shared`, one that serves a stage already may be given.
        """
        alive = [unit for unit in range(len(self._loads)) if unit not in self._lost]
        if wanted in alive and wanted not in avoid:
            alive = [wanted]
        best = min([unit for unit in alive if unit not in avoid] or alive, key=self._loads.__getitem__, default=None)
        if best is None or (self._loads[best] and not shared):
            return None
        return best

    def occupy(self, unit: int) -> None:
        """Begin to serve a stage."""
        self._loads[unit] += 1

    def release(self, unit: int) -> None:
        """Serve one stage less."""
        self._loads[unit] -= 1

    def lose(self, unit: int) -> None:
        """Take a unit out of service."""
        self._lost.add(unit)

    def restore(self, unit: int) -> None:
        """Take a unit into service again."""
        self._lost.discard(unit)
