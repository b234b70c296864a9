"""The buffers of a GPU kernel that is carried out in numpy: who reads and writes what between two barriers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chanas.core.arrays import Array
from chanas.errors import MeasureError

_NOBODY, _MANY = -1, -2


class KernelError(MeasureError):
    """A kernel that would do on a GPU what its result cannot be trusted after."""


@dataclass(frozen=True)
class Moment:
    """A time and the threads that act: `mask` bool[T], `thread` the number of each in its block, `now` barriers so
    far."""

    mask: Array
    thread: Array
    now: int


class Memory:
    """One buffer: `values` [owners, size]; `owner` is each thread's row: its own, its block's, or the only one."""

    def __init__(self, name: str, values: Array, owner: Array, is_shared: bool) -> None:
        self.name, self.values, self.owner, self.is_shared = name, values, owner, is_shared
        shape = values.shape if is_shared else (0, 0)
        # of each value: when it was last written and read, and by which thread of the block
        self._written_at, self._writer, self._read_at, self._reader = (
            np.full(shape, _NOBODY, dtype=np.int64) for _ in range(4)
        )

    def read(self, index: Array, at: Moment) -> Array:
        """[T, l]; zero for threads that do not act.

        Raises:
            KernelError: outside the buffer, or written by another thread since the last barrier.
        """
        rows, places = self._places(index, at)
        if self.is_shared:
            self._note_read(rows, places, at)
        values = self.values[rows, places]
        if at.mask.all():
            return values
        result = np.zeros((len(at.mask), values.shape[1]), dtype=self.values.dtype)
        result[at.mask] = values
        return result

    def write(self, index: Array, value: Array, at: Moment) -> None:
        """
        Raises:
            KernelError: outside the buffer, or used by another thread since the last barrier.
        """
        rows, places = self._places(index, at)
        written = np.broadcast_to(value, (len(at.mask), places.shape[1]))[at.mask]
        if self.is_shared:
            self._note_write(rows, places, at)
        self.values[rows, places] = written

    def _places(self, index: Array, at: Moment) -> tuple[Array, Array]:
        """Rows and places [threads that act, l]."""
        places = np.broadcast_to(index, (len(at.mask), index.shape[1]))[at.mask]
        size = self.values.shape[1]
        if places.size and not (places.min() >= 0 and places.max() < size):
            wrong = places[(places < 0) | (places >= size)][0]
            raise KernelError(f"place {wrong} of buffer '{self.name}', which has {size}")
        return self.owner[at.mask][:, None], places

    def _note_read(self, rows: Array, places: Array, at: Moment) -> None:
        me = at.thread[at.mask][:, None]
        race = (self._written_at[rows, places] == at.now) & (self._writer[rows, places] != me)
        if race.any():
            raise KernelError(f"a thread reads what another one wrote in '{self.name}', with no barrier in between")
        alone = (self._read_at[rows, places] != at.now) | (self._reader[rows, places] == me)
        wanted = np.where(alone, me, _MANY)
        self._reader[rows, places] = wanted
        self._read_at[rows, places] = at.now
        several = self._reader[rows, places] != wanted
        self._reader[np.broadcast_to(rows, places.shape)[several], places[several]] = _MANY

    def _note_write(self, rows: Array, places: Array, at: Moment) -> None:
        me = at.thread[at.mask][:, None]
        race = (self._read_at[rows, places] == at.now) & (self._reader[rows, places] != me)
        race |= (self._written_at[rows, places] == at.now) & (self._writer[rows, places] != me)
        self._writer[rows, places] = me
        self._written_at[rows, places] = at.now
        if race.any() or (self._writer[rows, places] != me).any():
            raise KernelError(f"a thread writes over what another one uses in '{self.name}', with no barrier between")
