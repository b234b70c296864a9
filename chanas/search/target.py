"""A target of a search, from the command line to the bundle; a search has a tuple of them, in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget

# Relative standard error of a table that was never calibrated.
UNKNOWN_ERROR = 0.05


@dataclass(frozen=True)
class SearchTarget:
    """A device with its latency table, its budget, and how finalists are timed on it.

    budget_s   most seconds of a call there, measured
    elsewhere  why nothing can be measured on it from here; empty where it can
    open_pool  opens what times on it, where it is not this machine
    """

    hardware: HardwareTarget
    budget_s: float
    lut: LatencyLUT
    elsewhere: str = ""
    open_pool: Callable[[HardwareTarget], AbstractContextManager[Any]] | None = None

    @property
    def name(self) -> str:
        return self.hardware.name

    @property
    def error(self) -> float:
        """Relative standard error of the table's predictions."""
        known = self.lut.standard_error
        return UNKNOWN_ERROR if known is None else known
