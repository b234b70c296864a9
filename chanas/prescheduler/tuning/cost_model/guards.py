"""Trust in what was learned elsewhere: whether its forecasts of points were right once these were measured.

Three opinions are guarded so: what records of similar operators say of a new one (`gaussian_process`), what a model
says that was trained beforehand (`pretrained`), and what another device's records say (`tuner`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from chanas.core.arrays import FloatArray
from chanas.core.statistics import tau_beyond_noise

# Seconds this close to each other, as a share, say nothing of their order: a timing repeats to 1–3 %.
_NOISE = 0.03
_USEFUL_TAU = 0.2
"""Mean τ below which records are not worth their asking: uses of one processor forecast each other with medians of 0.33
to 0.6 (`benchmarks/results/warm_start-amd-zen4.json`), records without any relation with 0."""
_TAU_DEVIATION = 0.5
"""Deviation of τ over four points in random order: `chance_deviation(4)`, rounded."""
_MIN_OPERATORS = 3


def rank_correlation(forecasts: FloatArray, seconds: FloatArray) -> float | None:
    """Kendall's τ over the pairs whose seconds differ by more than noise; None if it says nothing."""
    return tau_beyond_noise(forecasts, seconds, _NOISE)


def chance_deviation(num: int) -> float:
    """Standard deviation of τ over `num` points in random order (Kendall, 1938)."""
    return math.sqrt(2.0 * (2 * num + 5) / (9.0 * num * (num - 1)))


@dataclass
class Guard:
    """Trust in an opinion about one operator: it is lost once its forecasts have had the wrong order.

    at_least     forecasts from which on it is judged
    limit        correlation below which it is lost, for so many forecasts
    correlation  of forecasts and measurements, float64[N] each; None where these have no order
    value        the last correlation; None before there is one
    """

    at_least: int
    limit: Callable[[int], float]
    correlation: Callable[[FloatArray, FloatArray], float | None] = rank_correlation
    value: float | None = None
    is_lost: bool = False

    @property
    def has_judged(self) -> bool:
        return self.value is not None

    def judge(self, forecasts: FloatArray, measured: FloatArray) -> None:
        """Compare forecasts with measurements of the same points, float64[N] each."""
        if len(forecasts) < self.at_least:
            return
        value = self.correlation(forecasts, measured)
        if value is not None:
            self.value = value
            self.is_lost |= value < self.limit(len(forecasts))


@dataclass
class SourceTrust:
    """Rank correlations of another device's forecasts by operator, shared by all that is known of it.

    τ of four points or so is a noisy figure: records that say nothing about this device are only seen in the mean over
    operators. Once that is lower than useful records have it, the operators that were not tried yet do not ask them.
    """

    taus: dict[str, float] = field(default_factory=dict)

    def note(self, operator: str, tau: float) -> None:
        """Remember how right the source was about an operator."""
        self.taus[operator] = tau

    @property
    def is_established(self) -> bool:
        """True if enough operators have told: from then on the cost model, which knows these records too, chooses."""
        return len(self.taus) >= _MIN_OPERATORS and not self.is_lost

    @property
    def is_lost(self) -> bool:
        """True if the mean τ lies below a useful one by more than its standard error."""
        num = len(self.taus)
        if num < _MIN_OPERATORS:
            return False
        return math.fsum(self.taus.values()) / num < _USEFUL_TAU - _TAU_DEVIATION / math.sqrt(num)
