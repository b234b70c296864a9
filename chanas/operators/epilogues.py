"""Functions that operators apply to their sums before they store them, by name.

`leaky0.1` is a ReLU with that slope below zero; slopes are written as short as numbers can be.
"""

from __future__ import annotations

from chanas.errors import ScheduleError

Epilogue = str
"""A name of `check_epilogue`."""

USUAL: tuple[Epilogue, ...] = ("none", "relu", "hswish", "hsigmoid")
"""Epilogues that every family of kernels has."""
LONG: tuple[Epilogue, ...] = ("sigmoid", "swish", "tanh", "gelu")
"""Epilogues that take polynomials of many terms."""
PLAIN: tuple[Epilogue, ...] = (*USUAL, "relu6", *LONG)
"""All epilogues without a number; gelu is the exact one."""
_LEAKY = "leaky"


def leaky_slope(epilogue: Epilogue) -> float | None:
    """The slope of a leaky ReLU below zero, None of any other epilogue.

    Raises:
        ScheduleError: what follows `leaky` is no slope between 0 and 1, or not as it is written.
    """
    if not epilogue.startswith(_LEAKY):
        return None
    text = epilogue.removeprefix(_LEAKY)
    try:
        slope = float(text)
    except ValueError:
        slope = 0.0
    if not 0.0 < slope < 1.0 or f"{slope:g}" != text:
        raise ScheduleError(f"expected a slope between 0 and 1 such as {_LEAKY}0.1, got epilogue {epilogue}")
    return slope


def check_epilogue(epilogue: Epilogue) -> None:
    """
    Raises:
        ScheduleError: there is no epilogue of this name.
    """
    if epilogue not in PLAIN and leaky_slope(epilogue) is None:
        raise ScheduleError(f"unknown epilogue {epilogue}; there are {', '.join(PLAIN)} and {_LEAKY}0.1")


def value_at_zero(epilogue: Epilogue) -> float:
    """The epilogue of 0: what channels hold that only fill up a vector."""
    return 0.5 if epilogue in ("sigmoid", "hsigmoid") else 0.0
