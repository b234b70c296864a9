"""Quantities at the edge of the program: "20ms" to seconds, "300M" to a count, "8MB" to bytes, and back. Inside,
everything is in base units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from chanas.errors import UnitError

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_NUMBER = r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)"
_QUANTITY = re.compile(rf"^\s*{_NUMBER}\s*([a-zA-Zµ]+)\s*$")
_COUNT = re.compile(rf"^\s*{_NUMBER}\s*([a-zA-Z]*)\s*$")


MAX_SECONDS = 1e6
"""Longest plausible timing, eleven days: a larger figure was not measured."""


def is_seconds(value: object) -> bool:
    """True of what something can have taken: a finite number of seconds above zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value <= MAX_SECONDS


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


def parse_count(text: str, what: str = "count") -> float:
    """A number from a text with or without a metric suffix, such as "300M", "2.5k" or "4000000"; `what` names it.

    Raises:
        UnitError: it is not a positive finite number, or the suffix is unknown.
    """
    return _scaled(text, what, _COUNTS, _COUNT, "with a suffix or none, such as 300M")


def parse_accuracy(text: str) -> float:
    """An accuracy above 0 and up to 1 from a share or a percentage, such as "0.753", "1.0" or "75.3%".

    Raises:
        UnitError: it is neither; a number above 1 or a percentage below 1 % is taken for a mistake in the unit.
    """
    share = text.strip().removesuffix("%").rstrip()
    is_percent = share != text.strip()
    value = float(share) if re.fullmatch(_NUMBER, share) else math.nan
    low, high = (1.0, 100.0) if is_percent else (0.0, 1.0)
    if low <= value <= high and value > 0.0:
        return round(value / high, 12)  # 75.27 % is the number that 0.7527 is, to the last bit
    told = "expected an accuracy up to 1, such as 0.753, or in percent, such as 75.3%"
    if 1.0 < value <= 100.0 or 0.0 < value < 1.0:
        meant = f"{value:g}%" if not is_percent else f"{100 * value:g}% or {value:g}"
        raise UnitError(f"{told}, got '{text}'; write {meant} if that is meant")
    raise UnitError(f"{told}, got '{text}'")


def parse_bytes(text: str, what: str = "memory") -> float:
    """Bytes from a text with a unit, such as "8MB" (8·10⁶) or "8MiB" (8·2²⁰), and KB for kB; `what` names it.

    Raises:
        UnitError: there is no unit, the unit is unknown, or the value is not a positive finite number.
    """
    return _scaled(text.replace("KB", "kB"), what, _BYTES, _QUANTITY, "with a unit, such as 8MB")


def format_duration(seconds: float) -> str:
    """Minutes and seconds as 2:05, with hours as 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_estimate(seconds: float) -> str:
    """An estimated duration in words: under a minute, about 28 minutes, about 3.5 hours."""
    if seconds < 60:
        return "under a minute"
    if seconds < 90:
        return "about a minute"
    minutes = seconds / 60
    return f"about {minutes:.0f} minutes" if minutes < 90 else f"about {minutes / 60:.2g} hours"


def _scaled(text: str, what: str, scales: Mapping[str, float], pattern: re.Pattern[str], example: str) -> float:
    match = pattern.match(text)
    known = ", ".join(filter(None, scales))
    if match is None:
        raise UnitError(f"expected a positive {what} {example}, got '{text}'; write one of {known} after the number")
    value, unit = float(match.group(1)), match.group(2)
    if unit not in scales:
        raise UnitError(f"unknown unit '{unit}' in {what} '{text}'; known: {known}")
    if not 0 < value * scales[unit] < math.inf:
        raise UnitError(f"expected a {what} above zero and finite, got '{text}'")
    return value * scales[unit]


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


def format_bytes(num: float) -> str:
    """Bytes as people read them, in powers of ten: 8_250_000 -> '8.25 MB'."""
    scale, unit = next(((s, u) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if num >= 0.9995 * s), (1.0, "B"))
    value = num / scale
    return f"{value:.0f} {unit}" if value >= 999.5 or unit == "B" else f"{value:.3g} {unit}"
