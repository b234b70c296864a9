"""Quantities at the edge of the program: "20ms" to seconds and back. Inside, everything is in base units."""

from __future__ import annotations

import math
import re

from chanas.errors import UnitError

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_QUANTITY = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Zµ]+)\s*$")


def parse_latency_s(text: str) -> float:
    """Seconds from a text with a unit, such as "20ms", "1.5 s" or "300us".

    Raises:
        UnitError: there is no unit, the unit is unknown, or the value is not a positive finite number.
    """
    match = _QUANTITY.match(text.replace("\u03bc", "µ"))  # two signs for micro: the Greek letter, and its own
    if match is None:
        raise UnitError(
            f"expected a positive latency with a unit, such as 20ms, got '{text}'; write one of "
            f"{', '.join(_SECONDS)} after the number"
        )
    value, unit = float(match.group(1)), match.group(2)
    if unit not in _SECONDS:
        raise UnitError(f"unknown unit '{unit}' in latency '{text}'; known: {', '.join(_SECONDS)}")
    seconds = value * _SECONDS[unit]
    if not (seconds > 0 and math.isfinite(seconds)):
        raise UnitError(f"expected a latency above zero and finite, got '{text}'")
    return seconds


def format_latency(seconds: float) -> str:
    """A latency as people read it: 0.0123 -> '12.3 ms', 4.56e-5 -> '45.6 us'."""
    if seconds < 0:
        return "-" + format_latency(-seconds)
    if seconds >= 1.0:
        return f"{seconds:.0f} s" if seconds >= 999.5 else f"{seconds:.3g} s"
    if seconds >= 0.9995e-3:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else "1 s"
    return f"{seconds * 1e6:.3g} us"


def format_count(count: float) -> str:
    """A count with a metric suffix: 219_000_000 -> '219M'."""
    for scale, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * scale:  # 999_600 is 1M to three digits, not 1e+03k
            value = count / scale
            return f"{value:.0f}{suffix}" if value >= 999.5 else f"{value:.3g}{suffix}"
    return f"{count:.3g}"
