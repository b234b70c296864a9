"""Trust in another device's records: whether they have been right about the operators that were tried so far.

Each operator with such records compares their forecast of its first points with what these take here (`OperatorTuner`):
Kendall's τ of four points or so, which is a noisy figure. Records that say nothing about this device are only seen in
the mean over operators. Once that is lower than useful records have it, the operators that were not tried yet do not
ask them any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_USEFUL_TAU = 0.2
"""Mean τ below which records are not worth their asking: uses of one processor forecast each other with medians of 0.33
to 0.6 (`benchmarks/results/warm_start-amd-zen4.json`), records without any relation with 0."""
_TAU_DEVIATION = 0.5
"""Deviation of τ over four points in random order: √(2 (2n + 5) / (9 n (n − 1))) at n = 4 (Kendall, 1938)."""
_MIN_JUDGED = 3


@dataclass
class SourceTrust:
    """Rank correlations of one source's forecasts, by operator; shared by all priors that come from it."""

    taus: dict[str, float] = field(default_factory=dict)

    def note(self, operator: str, tau: float) -> None:
        """Remember how right the source was about an operator."""
        self.taus[operator] = tau

    @property
    def is_established(self) -> bool:
        """True if enough operators have told: from then on the cost model, which knows these records too, chooses."""
        return len(self.taus) >= _MIN_JUDGED and not self.is_lost

    @property
    def is_lost(self) -> bool:
        """True if the mean τ lies below a useful one by more than its standard error."""
        num = len(self.taus)
        if num < _MIN_JUDGED:
            return False
        return math.fsum(self.taus.values()) / num < _USEFUL_TAU - _TAU_DEVIATION / math.sqrt(num)
